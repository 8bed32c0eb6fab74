"""Whether a drafter pays: what its guesses save against what asking it takes, in milliseconds."""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import Final

_TRIALS: Final = 8  # asks before it is judged
_FRESH: Final = 0.15  # weight of what the last ask saved
_SHARE: Final = 0.01  # of the time, at most, goes into asking a drafter that does not pay whether it does by now


class Worth:
    """One drafter's record."""

    def __init__(self) -> None:
        self._asks = 0
        self._saved = 0.0  # by an ask, on average of late; what the guesses' rows cost is taken off
        self._costs: deque[float] = deque([0.0], maxlen=_TRIALS)  # of the last asks
        self._rounds = 0  # since it was asked

    @property
    def cost(self) -> float:
        """Of an ask: the median, for the first one may load things."""
        return median_low(self._costs)

    @property
    def pays(self) -> bool:
        return self._asks < _TRIALS or self._saved > self.cost

    def is_due(self, round_ms: float) -> bool:
        """Whether it is asked in this round, which takes so long without it. To be called once a round."""
        self._rounds += 1
        if not self.pays and self._rounds < math.ceil(self.cost / (_SHARE * round_ms)):
            return False
        self._rounds = 0
        return True

    def learn(self, saved: float, cost: float) -> None:
        """What came of an ask. `saved` is negative where rows were paid for guesses that came to nothing."""
        self._asks += 1
        self._saved += max(_FRESH, 1 / self._asks) * (saved - self._saved)
        self._costs.append(cost)
