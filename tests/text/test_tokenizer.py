"""Held against transformers on the same file, with the cut that the model's published tokenizer declares.

transformers drops the digit rule when it converts this GGUF (`pre: smollm`), so the reference gets it back; without
it the two differ on white space before digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tandem.errors import CannotStart
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import TokenKind, Vocabulary

CORPUS = [
    "Hello, world!",
    "I'm sure they've said it's 'quoted' — isn't it? HE'LL",
    "  leading\tand   inner \n\n\n spaces   ",
    "   \n  123 456.789e-10 0x1F ½ ² ٣ 一二三",
    "def f(x):\n    if x <= 10:\n        return {'a': [1, 2, 3]}\n\treturn None  # ok\r\n",
    "naïve façade Ångström e\u0301 ẞ ǆ",
    "你好，世界。これはテストです。안녕하세요 세계",
    "🙂🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥 \u200d \ufe0f",
    "العربية עברית हिन्दी ไทย",
    "\x00\x01\x7f \u00a0\u2003\u3000 \ufeff",
    "a" * 300 + " " * 70 + "=" * 50,
    "<not_a_token> <|im_sta",
    "",
]


@pytest.fixture(scope="module")
def reference(model_file: Path) -> Any:
    gguf = pytest.importorskip("transformers.integrations.gguf")
    architecture, description, _ = gguf.get_gguf_tokenizer(str(model_file))
    backend, _ = gguf.convert_gguf_tokenizer(architecture, description)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), backend.pre_tokenizer])
    return backend


def test_equals_transformers_on_a_varied_corpus(tokenizer: Tokenizer, reference: Any) -> None:
    for text in [*CORPUS, "\n".join(CORPUS), Path(pre_tokenizers.__file__).read_text()]:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids, text


def test_equals_transformers_on_a_rendered_conversation(tokenizer: Tokenizer, reference: Any) -> None:
    text = "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in CORPUS)
    assert tokenizer.encode_with_controls(text) == reference.encode(text, add_special_tokens=False).ids


def writable(tokenizer: Tokenizer, text: str) -> str:
    """`text` without what this vocabulary has no ids for: 21 bytes (some control characters, the last planes)."""
    known = {data[0] for data in tokenizer.bytes_of if len(data) == 1}
    return "".join(c for c in text if not "\ud800" <= c <= "\udfff" and known.issuperset(c.encode()))


@given(text=st.text())
def test_any_text_comes_back_whole(tokenizer: Tokenizer, text: str) -> None:
    text = writable(tokenizer, text)
    assert decode(tokenizer, tokenizer.encode(text)) == text


def test_a_control_token_in_plain_text_is_only_characters(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_end|>")
    assert 2 not in ids
    assert decode(tokenizer, ids) == "<|im_end|>"
    assert tokenizer.encode_with_controls("<|im_end|>") == [2]


@given(
    parts=st.lists(
        st.sampled_from(
            ["<|im_start|>", "<|im_end|>", "<|im_", "start|>", "<", "<|", "|>", "a", "é", "<repo", "_name>"]
        )
    )
)
def test_no_control_token_survives_a_guard_whatever_stands_around_it(tokenizer: Tokenizer, parts: list[str]) -> None:
    text, mark = "".join(parts), "\ufdd0"
    guarded = tokenizer.guard(text, mark)
    assert guarded.replace(mark, "") == text
    for before, after in [("", ""), ("x", "im_start|>"), ("", tokenizer.guard("im_end|>", mark))]:
        whole = before + guarded + after
        plain = tokenizer.encode((before + text + after).replace(mark, ""))
        assert tokenizer.encode_with_controls(whole, mark) == plain


@given(text=st.text(alphabet="<|im_startend>\n é", max_size=40), data=st.data())
def test_places_count_the_ids_that_lie_wholly_before_them(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    mark = "\ufdd0"
    whole = tokenizer.guard(text, mark) + "<|im_end|>\n<|im_start|>" + text
    place = data.draw(st.integers(0, len(whole)))
    ids, (count,) = tokenizer.encode_with_places(whole, [place], mark)
    assert ids == tokenizer.encode_with_controls(whole, mark)
    shown = [tokenizer.vocabulary.tokens[id] if id < 17 else decode(tokenizer, [id]) for id in ids]
    if "�" not in "".join(shown):  # every id is whole characters: the count can be checked by lengths
        before = len(whole[:place].replace(mark, ""))
        assert len("".join(shown[:count])) <= before < len("".join(shown[: count + 1])) or count == len(ids)


def test_the_lower_bound_never_exceeds_the_count(tokenizer: Tokenizer) -> None:
    for text in [*CORPUS, "\n" + " " * 500, "-" * 3000]:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.least_tokens("x" * 10_000_000) > 100_000


def test_bytes_of_all_tokens_are_those_the_reference_decodes(tokenizer: Tokenizer, reference: Any) -> None:
    for id in range(17, tokenizer.num_tokens, 7):
        expected = reference.decode([id], skip_special_tokens=False)
        assert tokenizer.bytes_of[id].decode("utf-8", "replace") == expected


def small(pre: str, kinds: tuple[int, ...] = (1,) * 6) -> Vocabulary:
    return Vocabulary(("a", "b", "ab", "Ġ", "<x>", "1"), kinds, (("a", "b"),), pre, None, None, False, (), "")


def test_an_unknown_cut_is_refused_by_name() -> None:
    with pytest.raises(CannotStart, match="`mystery`"):
        Tokenizer(small("mystery"))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_every_known_cut_merges(pre: str) -> None:
    assert Tokenizer(small(pre)).encode("ab a") == [2, 3, 0]


def test_a_token_of_the_models_maker_is_text_when_shown_and_a_token_when_rendered() -> None:
    tokenizer = Tokenizer(small("gpt-2", (1, 1, 1, 1, TokenKind.USER_DEFINED, 1)))
    assert tokenizer.encode_with_controls("a<x>b") == [0, 4, 1]
    assert decode(tokenizer, [0, 4, 1]) == "a<x>b"
