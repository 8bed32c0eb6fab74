"""A kernel that runs out of memory when a test says so."""

from __future__ import annotations

from tandem.memory.host_pages import Advice, Linux


class FailingKernel(Linux):
    """Fails the `fails_in`-th commit from now, after the kernel has backed half of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_in: int | None = None

    def advise(self, address: int, size: int, advice: Advice) -> None:
        if advice is Advice.COMMIT and size and self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                super().advise(address, size // 2, advice)
                raise OSError(12, "Cannot allocate memory")
        super().advise(address, size, advice)
