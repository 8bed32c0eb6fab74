"""Memory behind the rows of a slot: the KV pool's, or the kernel's when the pool is off."""

from __future__ import annotations

from typing import Protocol

from tandem.contract.messages import KvUsage
from tandem.engine.admit import RowCost


class RowMemory(Protocol):
    """What a slot asks of it. Rows are counted from the first."""

    @property
    def rows(self) -> int:
        """So many have memory."""
        ...

    @property
    def usage(self) -> tuple[KvUsage, ...]:
        """By kind of tensor."""
        ...

    def commit(self, rows: int) -> object:
        """See that `rows` rows have memory before a pass writes them. Raises `CommitRefused` and takes nothing."""
        ...

    def give_back(self, keep_rows: int) -> int:
        """No row past the first `keep_rows` is needed any more. Returns the bytes that freed."""
        ...

    def still_to_commit(self, rows: int) -> int:
        """Bytes that `rows` rows would take beyond what is there."""
        ...


class FirstWrite:
    """Without the pool the kernel gives a row its memory when it is first written, and the slot keeps it for good.

    An account, then: nothing here takes memory.
    """

    def __init__(self, index: int, window: int, cost: RowCost) -> None:
        self.rows = 0
        self._index = index
        self._window = window
        self._cost = cost

    @property
    def usage(self) -> tuple[KvUsage, ...]:
        reserved = self._cost.pages(self._window)
        return (KvUsage(self._index, "attention", reserved, self._cost.pages(self.rows)),)

    def commit(self, rows: int) -> None:
        self.rows = max(self.rows, rows)

    def give_back(self, keep_rows: int) -> int:
        return 0

    def still_to_commit(self, rows: int) -> int:
        return self._cost.reservation(rows, self.rows, reading=False)
