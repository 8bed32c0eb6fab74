"""Chains of guesses that grow together, a token a step, each while its path is likely.

For drafters that run a model of their own: every step is one joint pass over the sequences that still go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

from tandem.draft.tree import NO_GUESS, DraftTree, Origin, chain

LEAST: Final = 0.05
"""Of a path, to guess behind it: the step would cost more than it can bring."""

Step = Callable[[Sequence[int], Sequence[int], int], Tensor]
"""(which sequences, the last token of each, steps behind the first) -> float32 logits [sequences, vocab]"""


def grow(
    tokens: Sequence[int], limits: Sequence[int], step: Step, origin: Origin, least: float = LEAST
) -> list[DraftTree]:
    """The best token behind `tokens`, one a sequence, the best behind that, and so on: at most `limits` of them, and
    none behind a path less likely than `least`."""
    guessed: list[list[int]] = [[] for _ in limits]
    scores: list[list[float]] = [[] for _ in limits]
    going, last, ahead = [who for who, limit in enumerate(limits) if limit > 0], list(tokens), 0
    while going:
        logits = step(going, [last[who] for who in going], ahead)
        sure, best = logits.softmax(dim=-1).max(dim=-1)
        for who, token, probability in zip(going, best.tolist(), sure.tolist(), strict=True):
            last[who] = token
            guessed[who].append(token)
            scores[who].append(probability * (scores[who][-1] if scores[who] else 1.0))
        going = [who for who in going if len(guessed[who]) < limits[who] and scores[who][-1] >= least]
        ahead += 1
    return [chain(*each, origin) if each[0] else NO_GUESS for each in zip(guessed, scores, strict=True)]
