"""From the text of a grammar to what requests follow, beside the rounds and never in their way.

Each new text is first tried in a process of its own; only what came out well is built here, on a thread that holds
no lock of the interpreter while it builds. What was built is kept, and so is what was found wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tandem.contract.messages import Grammar
from tandem.engine.grammar import library
from tandem.engine.grammar.library import Words
from tandem.engine.grammar.mask import Compiled
from tandem.engine.grammar.trial import Verdict
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary
from tandem.units import KIB

log = logging.getLogger("tandem.engine")

LONGEST: Final = 256 * KIB  # of a grammar's text
AT_ONCE: Final = 2  # trials
MOST_WAITING: Final = 32  # grammars that are being read
KEPT: Final = 64  # grammars
TRIAL_SECONDS: Final = 15.0  # a trial has fewer of the processor: see there
TOO_HEAVY: Final = "reading it takes too much time or memory"


class GrammarRefused(Exception):
    """A grammar that no answer will be held to."""

    def __init__(self, sentence: str, path: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path = path  # in the grammar, where it has places


class TooManyGrammars(Exception):
    """As many as may be read at once are being read."""


class Compiles(Protocol):
    async def compile(self, grammar: Grammar) -> Compiled:
        """Raises `GrammarRefused` and `TooManyGrammars`."""
        ...


class Compiler:
    """Of one engine; belongs to one asyncio loop. The vocabulary is read beside the first trial: an engine that is
    asked for no grammar starts without it, and does not hold it (42 MB of the default model's)."""

    def __init__(self, weights: Path) -> None:
        self._weights = weights
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._words: Future[Words] | None = None
        self._trials = asyncio.Semaphore(AT_ONCE)
        self._known: OrderedDict[bytes, Compiled | GrammarRefused] = OrderedDict()
        self._reading: dict[bytes, asyncio.Task[Compiled | GrammarRefused]] = {}

    async def compile(self, grammar: Grammar) -> Compiled:
        """Raises `GrammarRefused` and `TooManyGrammars`. Who asks for what another has asked for waits with him."""
        key = hashlib.sha256(f"{grammar.kind}\0{grammar.text}".encode()).digest()
        if (result := self._known.get(key)) is None:
            result = await asyncio.shield(self._task(key, grammar))
        else:
            self._known.move_to_end(key)
        if isinstance(result, GrammarRefused):
            raise GrammarRefused(result.sentence, result.path)
        return result

    def _task(self, key: bytes, grammar: Grammar) -> asyncio.Task[Compiled | GrammarRefused]:
        if (task := self._reading.get(key)) is None:
            if len(self._reading) >= MOST_WAITING:
                raise TooManyGrammars
            task = self._reading[key] = asyncio.create_task(self._read(key, grammar))
            task.add_done_callback(lambda _: self._reading.pop(key))
        return task

    async def _read(self, key: bytes, grammar: Grammar) -> Compiled | GrammarRefused:
        if len(grammar.text) > LONGEST:
            return GrammarRefused(f"it is longer than {LONGEST // KIB} KiB")
        if self._words is None:
            self._words = self._thread.submit(read_words, self._weights)
        async with self._trials:
            verdict = await try_out(grammar)
        if verdict is None:  # slow because of what else runs here, perhaps: not for ever
            return GrammarRefused(TOO_HEAVY)
        result = (
            GrammarRefused(verdict.sentence, verdict.path)
            if verdict.sentence
            else await self._build(verdict, self._words)
        )
        self._known[key] = result
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return result

    async def _build(self, verdict: Verdict, reading: Future[Words]) -> Compiled | GrammarRefused:
        words = await asyncio.wrap_future(reading)
        return await asyncio.get_running_loop().run_in_executor(self._thread, build, verdict.source, words)


def build(source: str, words: Words) -> Compiled | GrammarRefused:
    """Of what a trial passed. The first mask is made here too: it is the one that costs most."""
    beginning = library.start(source, words)
    if not beginning.fault:
        beginning.copy().allowed()
    return GrammarRefused("it is too complex") if beginning.fault else Compiled(beginning, words.ends)


async def try_out(grammar: Grammar) -> Verdict | None:
    """What a process of its own finds; None when time ran out."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tandem.engine.grammar.trial"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(grammar)), TRIAL_SECONDS)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        log.warning("a grammar ended its trial with status %d", process.returncode)
        return Verdict(sentence=TOO_HEAVY)
    return msgspec.json.decode(answer, type=Verdict)


def read_words(weights: Path) -> Words:
    """Raises `CannotStart`, as the gateway does for the same weights."""
    tokenizer = Tokenizer(read_vocabulary(weights))
    ends = tokenizer.vocabulary.stop_tokens
    return Words([b"" if id in ends else text for id, text in enumerate(tokenizer.bytes_of)], ends, tokenizer.encode)
