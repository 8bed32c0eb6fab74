"""Stop strings, found in text that arrives in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes text on until the first stop string is complete, and cuts at that string's start.

    "First" is by where a stop ends, then by where it starts: what a reader of single characters would meet first,
    so that the answer does not depend on how the text was cut. Held back is exactly the longest tail that could
    still become a stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(stops)
        self._prefixes = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1) - 1
        self._held = ""
        self.found: str | None = None

    @property
    def num_held(self) -> int:
        """Characters that came and are not shown yet."""
        return len(self._held)

    def push(self, piece: str) -> str:
        """What may be shown now. Nothing more after a stop was found."""
        if not self._stops:
            return piece
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        sizes = range(min(self._longest, len(text)), 0, -1)
        held = next((size for size in sizes if text[-size:] in self._prefixes), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return held
