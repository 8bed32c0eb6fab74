"""What no queue can help: refused before it waits, with the field or the arithmetic."""

from __future__ import annotations

import msgspec
import pytest
from engine_toy import GIB, VOCAB, ask

from tandem.contract.messages import Generate, RefusalCode, Sampling
from tandem.engine.admit import RowCost
from tandem.engine.gate import find_refusal

COST = RowCost(a_token=106_752, workspace=GIB // 2)
WINDOW = 1_000


def refusal(request: Generate, ceiling: int = 100 * GIB):
    return find_refusal(request, VOCAB, WINDOW, COST, ceiling)


def changed(**fields: object) -> Generate:
    return msgspec.structs.replace(ask("a"), **fields)


@pytest.mark.parametrize(
    ("request_", "code", "sentence"),
    [
        (changed(tokens=()), RefusalCode.BAD_REQUEST, "tokens: the prompt is empty"),
        (changed(tokens=(1, VOCAB)), RefusalCode.BAD_REQUEST, "tokens: this model's tokens are 0 to 63"),
        (changed(tokens=(-1, 1)), RefusalCode.BAD_REQUEST, "tokens: this model's tokens are 0 to 63"),
        (changed(max_tokens=0), RefusalCode.BAD_REQUEST, "max_tokens is 0; it must be at least 1"),
        (
            changed(sampling=Sampling(top_p=2.0)),
            RefusalCode.BAD_REQUEST,
            "top_p is 2.0; it must be above 0 and at most 1",
        ),
        (
            changed(tokens=(1,) * WINDOW),
            RefusalCode.TOO_LONG,
            "the prompt has 1,000 tokens; the window is 1,000 and must leave room for an answer",
        ),
        (
            changed(tokens=(1,) * 1_500),
            RefusalCode.TOO_LONG,
            "the prompt has 1,500 tokens; the window is 1,000 and must leave room for an answer",
        ),
    ],
)
def test_refused_at_once(request_: Generate, code: RefusalCode, sentence: str) -> None:
    found = refusal(request_)
    assert found is not None and (found.id, found.code, found.sentence) == ("a", code, sentence)


def test_a_window_less_one_is_the_longest_prompt() -> None:
    assert refusal(changed(tokens=(1,) * (WINDOW - 1), max_tokens=1_000_000)) is None


def test_what_never_fits_is_refused_with_its_arithmetic() -> None:
    request = changed(tokens=(1,) * 600, max_tokens=5_000)  # 400 after the cut
    need = COST.reservation(1_000, committed=0)
    assert refusal(request, ceiling=need) is None
    found = refusal(request, ceiling=need - 1)
    assert found is not None and found.code is RefusalCode.TOO_BIG
    assert found.sentence == (
        "600 prompt and 400 new tokens at 104.25 KiB need 0.10 GiB and reading them 0.50; "
        "this box never has more than 0.60 for requests"
    )
    assert "0.00 for requests" in refusal(request, ceiling=-GIB).sentence  # type: ignore[union-attr]
