"""May a role load beside the engine? One rule, pure, the same before anything runs and while everything does."""

from __future__ import annotations

from tandem.contract.plan import Placement
from tandem.units import GIB


def may_load(
    role: str, *, available: int, engine_now: int, declared_peak: int, claim: int, floor: int, margin: int
) -> Placement:
    """Whether `claim` bytes may be taken, with the numbers and a sentence for people. All arguments in bytes.

    The engine may still grow to its declared peak, so what it has not taken yet is not free: the growth is counted
    once, however many requests run. A role loads when what would be left is at least floor and margin together.
    """
    growth = max(0, declared_peak - engine_now)
    after = available - growth - claim
    admitted = after >= floor + margin
    figures = (
        f"{gib(available)} available, {gib(growth)} still to grow, {gib(claim)} claimed, {gib(after)} would be left, "
        f"{gib(floor)} is the floor"
    )
    if admitted:
        sentence = f"may load: {figures} and {gib(margin)} its margin"
    elif after < floor:
        sentence = f"not loaded: kept free for requests: {figures}"
    else:
        sentence = f"not loaded: kept free for requests: {figures} and {gib(margin)} its margin"
    return Placement(role, admitted, available, growth, claim, after, floor, margin, sentence)


def gib(size: int) -> str:
    """GiB as a person says them in a sentence: `28.97`, `6.5`, `15`."""
    text = f"{size / GIB:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text
