"""The engine over the toy model, held to grammars: beside others, under guesses, and at a dead end."""

from __future__ import annotations

import re

import msgspec
import pytest
from engine_toy import VOCAB, Hand, alone, ask, engine_plan, hand

from tandem.contract.messages import (
    FinishReason,
    Generate,
    Grammar,
    GrammarKind,
    Reasoning,
    RefusalCode,
    Refused,
    Sampling,
)
from tandem.draft.drafting import Drafting
from tandem.draft.price import Staircase
from tandem.engine.grammar import library
from tandem.engine.grammar.compiling import build
from tandem.engine.grammar.library import Words
from tandem.engine.grammar.mask import Compiled
from tandem.engine.invented import Inventing, half_right, wrong
from tandem.engine.letters import Prepared

END = 0
TEXTS = ["", *"abcdefghijklmnopqrstuvwxyz0123456789+-*/(){}[]\"':,. =<>_", "ab", "cd", "123", "xyz", "{a", "}}", "qq"]
WORDS = Words([text.encode() for text in TEXTS], [END], lambda text: [TEXTS.index(letter) for letter in text])
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=1.2, top_p=0.9, top_k=20, seed=4)]
SUM = r"[a-f]{2,9}=\([1-9][0-9]{0,4}(\+[1-9][0-9]{0,4}){1,5}\);END".replace(";END", "xyz")


def test_the_toy_has_as_many_words_as_tokens() -> None:
    assert len(TEXTS) == VOCAB == WORDS.size


def of_regex(expression: str) -> Compiled:
    grammar = build(library.from_regex(expression), WORDS)
    assert isinstance(grammar, Compiled)
    return grammar


def held(request: Generate, expression: str) -> Prepared:
    grammar = Grammar(GrammarKind.REGEX, expression)
    return Prepared(msgspec.structs.replace(request, grammar=grammar), of_regex(expression))


def sure_only(nodes: int) -> Drafting:
    """Nobody guesses; what is certain is written ahead, because rows cost next to nothing."""
    prices = Staircase()
    for rows in (1, 8, 16):
        prices.observe(rows, 16, ms=10 + rows / 100)
    return Drafting((), nodes, prices)


def request_of(number: int, sampling: Sampling) -> Generate:
    prompt = [(number * 13 + index * index) % VOCAB for index in range(3 + number)]
    return ask(f"r{number}", prompt, 60, sampling=sampling, stop=[END])


def text_of(driver: Hand, id: str) -> str:
    return "".join(TEXTS[token] for token in driver.tokens(id))


def run(letters: list[Prepared], drafting: Drafting | None = None, slots: int = 2) -> Hand:
    driver = hand(engine_plan([96] * slots), row_bucket=16, drafting=drafting)
    driver.turn(*letters)  # type: ignore[arg-type]
    driver.until_idle()
    return driver


LETTERS = [held(request_of(number, SAMPLINGS[number % 3]), SUM) for number in range(6)]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[int]]:
    """What each writes alone, without guesses."""
    return {letter.ask.id: run([letter], slots=1).tokens(letter.ask.id) for letter in LETTERS}


def test_every_answer_matches(plain: dict[str, list[int]]) -> None:
    texts = ["".join(TEXTS[token] for token in tokens) for tokens in plain.values()]
    assert all(re.fullmatch(SUM, text) for text in texts), texts
    assert len(set(texts)) > 3


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("invent", [wrong, half_right])
def test_guesses_and_company_change_nothing(plain: dict[str, list[int]], invent, slots: int) -> None:  # type: ignore[no-untyped-def]
    texts = {("", letter.ask.tokens): [*plain[letter.ask.id], END, 5, 5] for letter in LETTERS}
    driver = run(LETTERS, Inventing(texts, invent, nodes=7), slots)
    assert {id: driver.tokens(id) for id in plain} == plain
    assert all(driver.finished(id).reason is FinishReason.STOP for id in plain)
    assert driver.health is not None and driver.health.counters is not None
    accepted = sum(driver.health.counters.accepted.values())
    assert accepted > 20 if invent is half_right else accepted == 0


def test_what_must_come_is_written_in_one_round() -> None:
    expression = "(a|b)cdefghij(x|y)"
    letters = [held(request_of(number, SAMPLINGS[1]), expression) for number in range(3)]
    alone_texts = [run([letter], slots=1).tokens(letter.ask.id) for letter in letters]
    driver = run(letters, sure_only(nodes=12), slots=1)
    assert [driver.tokens(letter.ask.id) for letter in letters] == alone_texts
    for finished in (driver.finished(letter.ask.id) for letter in letters):
        assert finished.accepted == finished.drafted > 3 and finished.rounds < finished.completion_tokens - 3


def test_a_dead_end_ends_its_request_alone() -> None:
    beside = request_of(1, SAMPLINGS[1])
    driver = run([held(request_of(0, Sampling()), "ab~"), beside])  # type: ignore[list-item]
    refused = driver.refused("r0")
    assert refused.code is RefusalCode.BAD_REQUEST
    assert "allows nothing behind what was written" in refused.sentence
    assert driver.tokens("r1") == alone(beside)


def test_an_answer_may_be_cut_and_says_so() -> None:
    letter = held(msgspec.structs.replace(request_of(0, Sampling()), max_tokens=4), "[a-c]{9}")
    driver = run([letter])
    assert re.fullmatch("[a-c]{4,8}", text_of(driver, "r0"))
    assert driver.finished("r0").reason is FinishReason.LENGTH


@pytest.mark.parametrize("nodes", [0, 7])
def test_thinking_is_free_and_the_answer_behind_it_is_held(nodes: int) -> None:
    close = (TEXTS.index("<"), TEXTS.index("/"), TEXTS.index(">"))
    reasoning = Reasoning(open=(), close=close, max_tokens=9, begun=True)
    letter = held(msgspec.structs.replace(request_of(3, SAMPLINGS[1]), reasoning=reasoning), SUM)
    driver = run([letter], sure_only(nodes))
    text = text_of(driver, "r3")
    thinking, _, answer = text.partition("</>")
    assert re.fullmatch(SUM, answer)
    assert not re.fullmatch("[a-f]*", thinking)
    assert text == text_of(run([letter]), "r3")
    assert (driver.finished("r3").accepted > 0) == (nodes > 0)


def test_what_is_wrong_with_a_grammar_is_told_like_any_refusal() -> None:
    driver = hand()
    refusal = Refused("a", RefusalCode.BAD_REQUEST, "`guided_regex`: no", param="guided_regex")
    driver.turn(Prepared(ask("a"), refusal))  # type: ignore[arg-type]
    assert driver.refused("a") == refusal
    assert driver.health is not None and driver.health.counters is not None
    assert driver.health.counters.refused == 1
