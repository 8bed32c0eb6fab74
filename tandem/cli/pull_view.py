"""The progress of `tandem pull`: a bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Bar:
    def __init__(self, name: str) -> None:
        self._name = name
        self._stage = ""
        self._tty = sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._tty,
        )
        self._task = self._progress.add_task(name, total=None, visible=False)

    def show(self, stage: str, done: int, total: int | None) -> None:
        """What `config.fetch` reports."""
        if stage != self._stage:
            self._progress.start()  # only now: until here the terminal may be pip's
            self._stage = stage
            self._progress.reset(self._task, description=f"{stage} {self._name}", visible=True)
            if not self._tty:
                print(f"{stage} {self._name}", file=sys.stderr, flush=True)
        self._progress.update(self._task, completed=done, total=total)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
