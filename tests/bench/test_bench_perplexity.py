"""Texts and their windows, and the arithmetic of perplexity and distance, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.model_distance import Distance
from bench.perplexity import Window, perplexity, ratio, record, surprise, table
from bench.readers import REFERENCE, RoundedKv
from bench.record import write_record
from bench.texts import parse, read_texts, windows


def test_the_texts_say_whose_they_are_and_may_be_kept() -> None:
    texts = read_texts()
    assert len(texts) >= 5
    for text in texts:
        assert text.title and text.author and text.year < 1900 and len(text.body) > 500
    with pytest.raises(ValueError, match="Rights"):
        parse("new", "Title: A\nAuthor: B\nYear: 2020\nRights: theirs\n\nWords.")


@given(st.integers(1, 3000), st.integers(2, 600))
def test_windows_hold_everything_once_and_none_is_short(count: int, most: int) -> None:
    pieces = windows(range(count), most)
    assert [token for piece in pieces for token in piece] == list(range(count))
    assert max(map(len, pieces)) <= most and max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_a_token_is_foretold_by_the_row_before_it() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.9, 0.05, 0.05]]))
    assert surprise(logits, torch.tensor([2, 1, 0])) == pytest.approx(-math.log(0.25) - math.log(0.1))


def distance(rows: int, value: float) -> Distance:
    return Distance(rows, value, 10 * value, 1 - value, value, 10 * value, value)


def window(text: str, foretold: int, reference: float, served: float) -> Window:
    """Two perplexities of one window."""
    said = {REFERENCE: foretold * math.log(reference), "served": foretold * math.log(served)}
    return Window(text, foretold, said, {"served": distance(foretold, 0.1)})


def test_windows_weigh_by_their_tokens() -> None:
    read = [window("a", 100, 4.0, 4.0), window("b", 300, 4.0, 4.04)]
    assert perplexity(read, REFERENCE) == pytest.approx(4.0)
    assert ratio(read, "served") == pytest.approx(1.01 ** (300 / 400))
    assert read[1].perplexity("served") == pytest.approx(4.04)
    lines = table(read, [REFERENCE, "served"], "served").splitlines()
    assert lines[3].split() == ["all", "400", "4.0000", "4.0300", "1.0075"]
    written = record(read, read_texts(), [REFERENCE, "served"])
    assert [each["ratio"]["served"] for each in written["windows"]] == pytest.approx([1.0, 1.01])
    assert written["all"]["served"]["rows"] == 400


def test_distance_over_parts_is_that_over_all_rows() -> None:
    torch.manual_seed(0)
    expected, logits = torch.randn(30, 50), torch.randn(30, 50)
    whole = Distance.between(expected, logits)
    parts = [Distance.between(expected[rows], logits[rows]) for rows in (slice(0, 7), slice(7, 30))]
    together = Distance.over(parts)
    assert together.rows == 30
    for name in ("mean", "worst", "agreement", "divergence", "worst_divergence", "gap"):
        assert getattr(together, name) == pytest.approx(getattr(whole, name), rel=1e-5)


def test_keys_and_values_are_rounded_for_attention_and_nothing_else() -> None:
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 5, 32) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    with RoundedKv():
        rounded, product = attend(queries, keys, values), queries @ keys.mT
    assert torch.equal(rounded, attend(queries, keys.bfloat16().float(), values.bfloat16().float()))
    assert not torch.equal(rounded, attend(queries, keys, values)) and torch.equal(product, queries @ keys.mT)


def test_a_record_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    named = write_record(tmp_path / "measured" / "this.json", "bench", {"met": True})
    assert named == tmp_path / "measured" / "this.json" and json.loads(named.read_text()) == {"met": True}
    timed = write_record(tmp_path / "results", "bench", {})
    assert timed.parent == tmp_path / "results" and timed.name.startswith("bench-")
