"""Grammars in the engine's process: its channels' thread, its device thread, real sockets, the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engine_toy import alone, ask
from test_engine_grammar import SUM, TEXTS, of_regex
from test_worker import SOON, ready, run, serving, story, text  # noqa: F401

from tandem.contract.channel import connect
from tandem.contract.messages import Cancel, Finished, FinishReason, Generate, Grammar, GrammarKind, Refused
from tandem.engine import worker
from tandem.engine.grammar.compiling import GrammarRefused
from tandem.engine.grammar.mask import Compiled


class Reader:
    """Refuses what is `bad`, and reads nothing before it may."""

    def __init__(self, weights: Path) -> None:
        self.begun, self.may_read = asyncio.Event(), asyncio.Event()
        Reader.last = self

    last: Reader

    async def compile(self, grammar: Grammar) -> Compiled:
        self.begun.set()
        await self.may_read.wait()
        if grammar.text == "bad":
            raise GrammarRefused("no")
        return of_regex(grammar.text)


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "Compiler", Reader)
    yield


def held(id: str, expression: str = SUM) -> Generate:
    grammar = Grammar(GrammarKind.REGEX, expression, "guided_regex")
    return msgspec.structs.replace(ask(id, max_tokens=50, stop=[0]), grammar=grammar)


def test_a_grammar_that_is_being_read_holds_up_its_request_alone(run: Path) -> None:  # noqa: F811
    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        channel.send(held("held"))
        await asyncio.wait_for(Reader.last.begun.wait(), SOON)
        channel.send(ask("free"))
        assert text(await story(channel, "free")) == alone(ask("free"))
        Reader.last.may_read.set()
        answer = "".join(TEXTS[token] for token in text(await story(channel, "held")))
        assert answer.endswith("xyz") and "=(" in answer

    assert serving(run, scene) == 0


def test_while_it_is_read_a_request_can_be_cancelled_and_its_peer_can_leave(run: Path) -> None:  # noqa: F811
    async def scene(socket: Path) -> None:
        await ready(socket)
        leaving, channel = await connect(socket), await connect(socket)
        leaving.send(held("left"))
        channel.send(held("cancelled"))
        await asyncio.wait_for(Reader.last.begun.wait(), SOON)
        leaving.close()
        channel.send(Cancel("cancelled"))
        (finished,) = await story(channel, "cancelled")
        assert isinstance(finished, Finished) and finished.reason is FinishReason.CANCELLED
        Reader.last.may_read.set()
        channel.send(held("next"))
        assert isinstance((await story(channel, "next"))[-1], Finished)
        assert (await ready(socket)).counters.requests == 1  # type: ignore[union-attr]

    assert serving(run, scene) == 0


def test_what_is_wrong_is_told_to_its_sender(run: Path) -> None:  # noqa: F811
    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        Reader.last.may_read.set()
        channel.send(held("a", "bad"))
        (refused,) = await story(channel, "a")
        assert isinstance(refused, Refused)
        assert (refused.sentence, refused.param) == ("`guided_regex`: no", "guided_regex")

    assert serving(run, scene) == 0
