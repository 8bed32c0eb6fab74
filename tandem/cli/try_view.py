"""The progress of `tandem verify` and `tandem calibrate`: a bar on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._stage = ""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not self._tty)
        self._task = self._progress.add_task("", total=None)

    def show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage = stage
            self._progress.reset(self._task, description=stage)
            if not self._tty:
                print(stage, file=sys.stderr, flush=True)
        self._progress.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
