"""The rows of a round, shared out among the guesses of its slots.

A round writes one token a slot anyway and, with every guess that comes true, one more; a pass of more rows may cost
more. What is worth most is a number of guesses, not a threshold: prices are a staircase, and where the next row costs
a step, the rows up to the following step may still pay for it together.

Guesses of all slots stand in one line by the probability that they come true, and by nothing else. A slot whose text
is being copied gets its likely guesses in, and its unlikely tail stands behind the likely guesses of every other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.draft.tree import NO_GUESS, DraftTree, prune


def share(trees: Sequence[DraftTree], prices: Sequence[float], limit: int, spent: float) -> list[DraftTree]:
    """What is kept of each slot's tree: the guesses with which the round writes most tokens a millisecond.

    `prices[rows]`: milliseconds of a pass, at least up to the rows that are possible. `limit`: the most rows, one of
    each slot included. `spent`: milliseconds of the round beside the pass.
    """
    line = sorted(
        (-score, node, slot) for slot, tree in enumerate(trees) for node, score in enumerate(tree.scores)
    )  # a parent before its children, also where they are equally sure
    count = best_count([-negative for negative, _, _ in line], len(trees), prices, limit, spent)
    kept = [0] * len(trees)
    for _, _, slot in line[:count]:
        kept[slot] += 1
    return [prune(tree, nodes) if nodes else NO_GUESS for tree, nodes in zip(trees, kept, strict=True)]


def best_count(scores: Sequence[float], slots: int, prices: Sequence[float], limit: int, spent: float) -> int:
    """How many of the guesses, best first, are checked; of equally good numbers the smallest."""
    tokens = float(slots)
    best, best_rate = 0, tokens / (prices[slots] + spent)
    for count, score in enumerate(scores[: max(0, limit - slots)], start=1):
        tokens += score
        rate = tokens / (prices[slots + count] + spent)
        if rate > best_rate:
            best, best_rate = count, rate
    return best
