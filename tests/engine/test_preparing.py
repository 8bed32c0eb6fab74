from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from engine_toy import ask

from tandem.contract.messages import Finished, FinishReason, Generate, Grammar, GrammarKind, RefusalCode, Refused
from tandem.engine.grammar.compiling import GrammarRefused, TooManyGrammars
from tandem.engine.grammar.mask import Compiled
from tandem.engine.letters import Prepared, Received
from tandem.engine.preparing import Preparing

GRAMMAR = Grammar(GrammarKind.REGEX, "a+", "guided_regex")
READY: Any = Compiled.__new__(Compiled)


class ByHand:
    """Reads a grammar when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Compiled]] = []

    async def compile(self, grammar: Grammar) -> Compiled:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


class Desk:
    def __init__(self) -> None:
        self.compiler, self.handed = ByHand(), list[Received]()
        self.preparing = Preparing(self.compiler, self.handed.append)

    async def take(self, id: str, peer: int = 1, param: str = "guided_regex") -> Generate:
        grammar = msgspec.structs.replace(GRAMMAR, param=param)
        request = msgspec.structs.replace(ask(id), grammar=grammar)
        self.preparing.take(peer, request, grammar)
        await asyncio.sleep(0)
        return request

    async def read(self, index: int, result: Compiled | Exception) -> None:
        future = self.compiler.asked[index]
        future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
        for _ in range(3):
            await asyncio.sleep(0)


def scene(play: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        await play(Desk())

    def test() -> None:
        asyncio.run(run())

    test.__name__ = play.__name__
    return test


@scene
async def test_a_request_is_handed_on_when_its_grammar_is_read(desk: Desk) -> None:
    first, second = await desk.take("a"), await desk.take("b")
    assert desk.handed == []
    await desk.read(1, READY)
    assert desk.handed == [Received(1, Prepared(second, READY))], "one that is read does not wait for another"
    await desk.read(0, READY)
    assert desk.handed[1:] == [Received(1, Prepared(first, READY))]


@pytest.mark.parametrize(
    ("param", "path", "place", "sentence"),
    [
        ("guided_json", "items.not", "guided_json.items.not", "`guided_json.items.not`: no"),
        ("guided_regex", "", "guided_regex", "`guided_regex`: no"),
        ("", "", None, "the grammar: no"),
    ],
)
def test_what_is_wrong_is_named_from_the_clients_field(param: str, path: str, place: str | None, sentence: str) -> None:
    async def play() -> None:
        desk = Desk()
        request = await desk.take("a", param=param)
        await desk.read(0, GrammarRefused("no", path))
        refused = Refused("a", RefusalCode.BAD_REQUEST, sentence, param=place)
        assert desk.handed == [Received(1, Prepared(request, refused))]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "code"), [(TooManyGrammars(), RefusalCode.QUEUE_FULL), (OSError("no processes"), RefusalCode.FAILED)]
)
def test_what_is_not_the_clients_fault_is_not_said_to_be(error: Exception, code: RefusalCode) -> None:
    async def play() -> None:
        desk = Desk()
        await desk.take("a")
        await desk.read(0, error)
        (letter,) = desk.handed
        assert isinstance(letter.message, Prepared) and isinstance(letter.message.result, Refused)
        assert (letter.message.result.code, letter.message.result.param) == (code, None)

    asyncio.run(play())


@scene
async def test_a_cancel_is_answered_at_once_and_the_request_never_runs(desk: Desk) -> None:
    await desk.take("a")
    await desk.take("a", peer=2)
    finished = desk.preparing.cancel(1, "a")
    assert isinstance(finished, Finished) and finished.reason is FinishReason.CANCELLED
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 0)
    assert desk.preparing.cancel(1, "a") is None, "the engine's to answer, from now on"
    await asyncio.sleep(0)
    assert desk.compiler.asked[0].cancelled()
    await desk.read(1, READY)
    assert [letter.peer for letter in desk.handed] == [2]


@scene
async def test_what_a_peer_left_behind_is_dropped(desk: Desk) -> None:
    await desk.take("a")
    await desk.take("b")
    await desk.take("c", peer=2)
    desk.preparing.forget(1)
    await desk.read(2, READY)
    assert [letter.peer for letter in desk.handed] == [2]


@scene
async def test_a_second_request_of_an_id_is_refused_and_the_first_goes_on(desk: Desk) -> None:
    first = await desk.take("a")
    await desk.take("a")
    (refusal,) = desk.handed
    assert isinstance(refusal.message, Prepared) and isinstance(refusal.message.result, Refused)
    assert refusal.message.result.code is RefusalCode.BAD_REQUEST
    await desk.read(0, READY)
    assert desk.handed[1:] == [Received(1, Prepared(first, READY))]


@scene
async def test_an_engine_that_leaves_gets_them_all(desk: Desk) -> None:
    first, second = await desk.take("a"), await desk.take("b")
    desk.preparing.hand_over()
    assert desk.handed == [Received(1, first), Received(1, second)]
    assert desk.preparing.cancel(1, "a") is None
