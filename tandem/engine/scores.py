"""Log-probabilities of one position, from the row that its token was chosen from.

The row is the model's own: before bias, penalties, masks and temperature. It is the same row whether the position was
guessed or not and whoever shared its pass, and so are the scores.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.contract.messages import TokenScore
from tandem.engine.sample import Row, kth_best


def score(row: Row, chosen: int, top: int) -> TokenScore:
    """Of `chosen`, and of the `top` best tokens, best first, of equals the lowest id first.

    The probabilities of all tokens add up to 1; a token the model rules out has -inf.
    """
    highest = row.max()
    log_mass = math.log(float(np.exp(row - highest).sum(dtype=np.float64)))

    def log_probability(id: int) -> float:
        return float(row[id]) - float(highest) - log_mass

    best = _best(row, top) if top else []
    return TokenScore(log_probability(chosen), tuple((id, log_probability(id)) for id in best))


def _best(row: Row, count: int) -> list[int]:
    """The ids of the `count` highest values: only those that reach the last of them are sorted."""
    ids = np.flatnonzero(row >= kth_best(row, count))
    order = np.argsort(-row[ids], kind="stable")  # ids ascend, so equals keep the lowest first
    return [int(id) for id in ids[order[:count]]]
