"""Grammars that real processes try: what is kept, what is shared, and what a hostile one costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tandem.contract.messages import Grammar, GrammarKind
from tandem.engine.grammar import compiling
from tandem.engine.grammar.compiling import TOO_HEAVY, Compiler, GrammarRefused, TooManyGrammars
from tandem.engine.grammar.library import Words
from tandem.engine.grammar.mask import Compiled
from tandem.engine.grammar.trial import Verdict
from tandem.errors import CannotStart


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of single bytes instead of a model's."""
    words = Words([b"", *(bytes([byte]) for byte in range(1, 256))], [0], lambda text: list(text.encode()))
    monkeypatch.setattr(compiling, "read_words", lambda weights: words)


class Trials:
    """Counted, and held until the test lets them go."""

    def __init__(self) -> None:
        self.begun: list[Grammar] = []
        self.verdict = Verdict("start: /a+/")
        self.may_end = asyncio.Event()

    async def __call__(self, grammar: Grammar) -> Verdict | None:
        self.begun.append(grammar)
        await self.may_end.wait()
        return self.verdict


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text, "guided_regex")


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


LETTERS = [chr(97 + number) for number in range(20)]
HOSTILE = {
    "it fills memory": schema({"allOf": [{"pattern": f".*{each}.{{{n}}}"} for n, each in enumerate(LETTERS)]}),
    "it runs out of stack": Grammar(
        GrammarKind.LARK, "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(9000)) + '\nr9000: "a"'
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_costs_a_process_that_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 600.0)  # by itself, or the test does not

    async def play() -> None:
        compiler = Compiler(Path("/nowhere"))
        with pytest.raises(GrammarRefused, match=TOO_HEAVY):
            await compiler.compile(HOSTILE[name])
        assert isinstance(await compiler.compile(regex("a+")), Compiled), "and the next is read"

    asyncio.run(play())


@pytest.mark.usefixtures("small")
def test_what_a_trial_finds_is_told() -> None:
    async def play() -> None:
        compiler = Compiler(Path("/nowhere"))
        with pytest.raises(GrammarRefused, match="look-around") as caught:
            await compiler.compile(schema({"items": {"pattern": "(?=a)"}}))
        assert caught.value.path == "items.pattern"

    asyncio.run(play())


def with_trials(monkeypatch: pytest.MonkeyPatch, play: Callable[[Compiler, Trials], Any]) -> None:
    async def run() -> None:
        trials = Trials()
        monkeypatch.setattr(compiling, "try_out", trials)
        await play(Compiler(Path("/nowhere")), trials)

    asyncio.run(run())


def test_the_vocabulary_is_read_once_and_beside_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Queue[Path] = Queue()
    words = Words([b"", b"a", b"b"], [0], lambda text: list(text.encode()))

    def reading(weights: Path) -> Words:
        read.put(weights)
        return words

    monkeypatch.setattr(compiling, "read_words", reading)

    async def play(compiler: Compiler, trials: Trials) -> None:
        await asyncio.sleep(0)
        assert read.empty()
        asking = asyncio.create_task(compiler.compile(regex("a+")))
        assert await asyncio.to_thread(read.get, timeout=30) == Path("/nowhere")  # while the trial goes on
        trials.may_end.set()
        assert isinstance(await asking, Compiled)
        assert isinstance(await compiler.compile(regex("b+")), Compiled)
        assert read.empty()

    with_trials(monkeypatch, play)


@pytest.mark.usefixtures("small")
def test_the_same_grammar_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        both = [asyncio.create_task(compiler.compile(regex("a+"))) for _ in range(2)]
        await asyncio.sleep(0)
        both[0].cancel()  # whoever waits with him is not disturbed
        trials.may_end.set()
        first = await both[1]
        assert await compiler.compile(regex("a+")) is first
        assert len(trials.begun) == 1

    with_trials(monkeypatch, play)


@pytest.mark.usefixtures("small")
def test_a_bad_grammar_is_tried_once_too_and_one_that_was_too_slow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        trials.may_end.set()
        for verdict, text, times in ((Verdict(sentence="no"), "b", 1), (None, "c", 2)):
            trials.begun.clear()
            trials.verdict = verdict
            for _ in range(2):
                with pytest.raises(GrammarRefused):
                    await compiler.compile(regex(text))
            assert len(trials.begun) == times

    with_trials(monkeypatch, play)


@pytest.mark.usefixtures("small")
def test_only_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        trials.may_end.set()
        for number in range(compiling.KEPT):
            await compiler.compile(regex(f"a{{{number + 1}}}"))
        await compiler.compile(regex("a{1}"))  # used again: not the oldest any more
        await compiler.compile(regex("one more"))
        before = len(trials.begun)
        await compiler.compile(regex("a{1}"))
        assert len(trials.begun) == before
        await compiler.compile(regex("a{2}"))
        assert len(trials.begun) == before + 1

    with_trials(monkeypatch, play)


@pytest.mark.usefixtures("small")
def test_trials_are_few_at_once_and_who_waits_for_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        waiting = [
            asyncio.create_task(compiler.compile(regex(f"a{{{number + 1}}}")))
            for number in range(compiling.MOST_WAITING)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(trials.begun) == compiling.AT_ONCE
        with pytest.raises(TooManyGrammars):
            await compiler.compile(regex("one more"))
        trials.may_end.set()
        await asyncio.gather(*waiting)
        await compiler.compile(regex("one more"))

    with_trials(monkeypatch, play)


@pytest.mark.usefixtures("small")
def test_a_text_that_is_too_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        with pytest.raises(GrammarRefused, match="longer than 256 KiB"):
            await compiler.compile(regex("a" * (compiling.LONGEST + 1)))
        assert trials.begun == []

    with_trials(monkeypatch, play)


def test_a_vocabulary_that_cannot_be_read_is_told_to_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(compiler: Compiler, trials: Trials) -> None:
        trials.may_end.set()
        with pytest.raises(CannotStart, match="nowhere"):
            await compiler.compile(regex("a"))

    with_trials(monkeypatch, play)


def test_a_time_that_runs_out_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 0.0)
    assert asyncio.run(compiling.try_out(regex("a"))) is None
