"""What makes a request impossible here, whoever else is served. Pure; asked once, before it queues."""

from __future__ import annotations

from tandem.contract.messages import Generate, RefusalCode, Refused
from tandem.engine.admit import RowCost
from tandem.engine.sample import find_fault
from tandem.units import KIB, format_gib


def find_refusal(ask: Generate, vocab: int, window: int, cost: RowCost, ceiling: int) -> Refused | None:
    """None when the request may queue.

    `window` is the widest slot's, in rows. `ceiling` is the most bytes that all reservations together can ever
    have: the machine's memory less the engine's own and the floor.
    """
    if fault := _find_fault(ask, vocab):
        return Refused(ask.id, RefusalCode.BAD_REQUEST, fault)
    prompt = len(ask.tokens)
    if prompt >= window:
        sentence = f"the prompt has {prompt:,} tokens; the window is {window:,} and must leave room for an answer"
        return Refused(ask.id, RefusalCode.TOO_LONG, sentence)
    if arithmetic := explain_never(cost, prompt, min(ask.max_tokens, window - prompt), ceiling):
        return Refused(ask.id, RefusalCode.TOO_BIG, arithmetic)
    return None


def explain_never(cost: RowCost, prompt: int, max_tokens: int, ceiling: int) -> str | None:
    """The arithmetic when a request could not run even alone, None when it could."""
    rows = prompt + max_tokens
    if cost.reservation(rows, committed=0) <= ceiling:
        return None
    return (
        f"{prompt:,} prompt and {max_tokens:,} new tokens at {cost.a_token / KIB:,.2f} KiB need "
        f"{format_gib(cost.pages(rows))} GiB and reading them {format_gib(cost.workspace)}; "
        f"this box never has more than {format_gib(max(0, ceiling))} for requests"
    )


def _find_fault(ask: Generate, vocab: int) -> str | None:
    if not ask.tokens:
        return "tokens: the prompt is empty"
    if not (min(ask.tokens) >= 0 and max(ask.tokens) < vocab):
        return f"tokens: this model's tokens are 0 to {vocab - 1}"
    if ask.max_tokens < 1:
        return f"max_tokens is {ask.max_tokens}; it must be at least 1"
    return find_fault(ask.sampling, vocab)
