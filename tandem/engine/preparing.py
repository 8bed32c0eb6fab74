"""Requests whose grammar is being read: held back from the device thread until it is, past by nobody else's.

Belongs to the channels' thread. Whoever sends one may cancel it or go away at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tandem.contract.messages import Finished, FinishReason, Generate, Grammar, RefusalCode, Refused
from tandem.engine.grammar.compiling import Compiles, GrammarRefused, TooManyGrammars
from tandem.engine.letters import Prepared, Received

log = logging.getLogger("tandem.engine")

BUSY_RETRY = 5.0  # seconds


class Preparing:
    def __init__(self, compiler: Compiles, hand_on: Callable[[Received], None]) -> None:
        self._compiler = compiler
        self._hand_on = hand_on
        self._held: dict[tuple[int, str], tuple[Generate, asyncio.Task[None]]] = {}

    def take(self, peer: int, ask: Generate, grammar: Grammar) -> None:
        """Hand the request on once its grammar is read, or once it is known what is wrong with it. A second request
        of an id that is held is handed on as refused."""
        key = peer, ask.id
        if key in self._held:
            refusal = Refused(ask.id, RefusalCode.BAD_REQUEST, "id: a request of this id is still here")
            self._hand_on(Received(peer, Prepared(ask, refusal)))
            return
        self._held[key] = ask, asyncio.create_task(self._prepare(peer, ask, grammar))

    def cancel(self, peer: int, id: str) -> Finished | None:
        """The last word to a request that was held; None when none was."""
        held = self._held.pop((peer, id), None)
        if held is None:
            return None
        ask, task = held
        task.cancel()
        return Finished(id, FinishReason.CANCELLED, len(ask.tokens), 0, 0, 0.0, 0.0, 0.0)

    def forget(self, peer: int) -> None:
        for key in [key for key in self._held if key[0] == peer]:
            self.cancel(*key)

    def hand_over(self) -> None:
        """The engine leaves: it has a word for whoever is still waiting."""
        for (peer, id), (ask, _) in list(self._held.items()):
            self.cancel(peer, id)
            self._hand_on(Received(peer, ask))

    async def _prepare(self, peer: int, ask: Generate, grammar: Grammar) -> None:
        try:
            letter = Prepared(ask, await self._compiler.compile(grammar))
        except GrammarRefused as fault:
            letter = Prepared(ask, _refusal(ask.id, grammar.param, fault))
        except TooManyGrammars:
            sentence = "too many grammars are being read at once"
            letter = Prepared(ask, Refused(ask.id, RefusalCode.QUEUE_FULL, sentence, BUSY_RETRY))
        except Exception as error:
            log.exception("%s: its grammar could not be read", ask.id)
            sentence = f"the engine could not read the grammar ({type(error).__name__})"
            letter = Prepared(ask, Refused(ask.id, RefusalCode.FAILED, sentence))
        if self._held.pop((peer, ask.id), None):
            self._hand_on(Received(peer, letter))


def _refusal(id: str, param: str, fault: GrammarRefused) -> Refused:
    place = ".".join(filter(None, (param, fault.path)))
    sentence = f"`{place}`: {fault.sentence}" if place else f"the grammar: {fault.sentence}"
    return Refused(id, RefusalCode.BAD_REQUEST, sentence, param=place or None)
