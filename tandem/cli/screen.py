"""What a person sees while an appliance starts, runs and stops: a small live table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tandem.contract.keys import warnings_now
from tandem.contract.messages import ApplianceState, ProgramStatus, ReloadReport
from tandem.contract.plan import Plan
from tandem.units import format_bytes, format_duration

COLOURS: Final = {
    "ready": "green",
    "failed": "red",
    "backoff": "yellow",
    "held": "yellow",
    "refused": "dim",
    "stopped": "dim",
}
MOVING: Final = frozenset({"starting", "loading", "draining", "stopping"})
_BAR: Final = 20  # columns of a progress bar


class Screen:
    """Shows pictures of one appliance. On a terminal the table is redrawn in place; otherwise each change is a line.

    `joins` means that somebody else started it: what is so already is no news.
    """

    def __init__(self, *, joins: bool = False) -> None:
        self._is_news = not joins
        self.console = Console(highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._told: dict[str, str] = {}  # program -> the state that was told last
        self._report: ReloadReport | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """No more drawing in place: from here on changes are lines."""
        if self._live is not None:
            live, self._live = self._live, None
            with contextlib.suppress(OSError):
                live.update(Text())
                live.stop()

    def show(self, picture: ApplianceState) -> None:
        for program in picture.programs:
            if self._live is None and self._is_news and self._told.get(program.name, "stopped") != program.state:
                self.say(f"{program.name}: {program.state}{_because(program)}")
            self._told[program.name] = program.state
        if picture.reload is not None and picture.reload != self._report and self._is_news:
            self.say(render_report(picture.reload))
        self._report, self._is_news = picture.reload, True
        if self._live is not None:
            self._live.update(_moving_table(picture))

    def say(self, line: str) -> None:
        stamp = "" if self.console.is_terminal else f"{datetime.now():%H:%M:%S} "
        with contextlib.suppress(OSError):  # the terminal may be gone; the appliance must still be ended in order
            self.console.print(Text(f"{stamp}{line}"))


def _because(program: ProgramStatus) -> str:
    return "" if program.sentence.casefold() in ("", program.state) else f" ({program.sentence})"


def _moving_table(picture: ApplianceState) -> Table:
    table = Table.grid(padding=(0, 2))
    for program in picture.programs:
        bar = _bar(program.progress) if program.state == "loading" else ""
        state = Text(program.state, style=COLOURS.get(program.state, "cyan"))
        table.add_row(Text(program.name, style="bold"), state, bar, Text(program.sentence, overflow="ellipsis"))
    return table


def _bar(progress: float) -> Text:
    done = round(max(0.0, min(1.0, progress)) * _BAR)
    return Text.assemble(("━" * done, "cyan"), ("━" * (_BAR - done), "dim"), f" {progress:4.0%}")


# --- status -----------------------------------------------------------------------------------------------------


def status_table(picture: ApplianceState, now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("program", "state", "pid", "for", "restarts", ""):
        table.add_column(column, justify="right" if column in ("pid", "for", "restarts") else "left")
    for program in picture.programs:
        table.add_row(
            Text(program.name),
            Text(program.state, style=COLOURS.get(program.state, "cyan")),
            str(program.pid or "-"),
            format_duration(round(max(0.0, now - program.since))) if program.since else "-",
            str(program.restarts),
            Text(_because(program).strip(" ()")),
        )
    return table


def status_lines(picture: ApplianceState, plan: Plan) -> Iterator[str]:
    yield f"{picture.phase} at {url(plan)}, plan {picture.plan_id}, from {plan.appliance}"
    available, total = format_bytes(picture.memory_available), format_bytes(picture.memory_total)
    yield f"memory: {available} available of {total}"
    if picture.memory is not None:
        if picture.memory.free_blocks is not None:
            yield f"  free in blocks of 2 MiB and more: {format_bytes(picture.memory.free_blocks)}"
        named = (f"{part.name} {format_bytes(part.bytes)}" for part in picture.memory.parts if part.bytes > 0)
        yield f"  in use: {', '.join(named)}"
    for warning in warnings_now(plan):
        yield f"warning: {warning}"


def render_report(report: ReloadReport) -> str:
    """The last edit in words, with the rendered problems when it was refused."""
    when = f"{datetime.fromtimestamp(report.at):%Y-%m-%d %H:%M:%S}"
    title = {"refused": "refused", "rolled_back": "rolled back", "in_progress": "being applied"}.get(
        report.outcome, report.outcome
    )
    kind = f" ({report.change})" if report.change not in ("refused", "none", "") else ""
    lines = [f"last edit, {when}: {title}{kind}: {report.sentence}"]
    lines += [f"  {line}".rstrip() for line in report.details.splitlines()]
    return "\n".join(lines)


# --- the end of `up` --------------------------------------------------------------------------------------------


def url(plan: Plan) -> str:
    """Where a client on this machine reaches the API."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(plan.gateway.host, plan.gateway.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{plan.gateway.port}/v1"


def curl(plan: Plan) -> str:
    """A line that works when it is pasted. A key is read where it lies, so that none is ever printed."""
    keys = plan.live.keys
    source = f"cat {shlex.quote(keys.file)}" if keys.file else f"printenv {keys.variable}" if keys.variable else None
    first = f"$({source} | grep -m1 '^[^#]*:' | cut -d: -f2- | xargs)"
    header = f' -H "Authorization: Bearer {first}"' if source else ""
    body = f'{{"model": "{plan.gateway.model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
    return f"curl {url(plan)}/chat/completions -H 'Content-Type: application/json'{header} -d '{body}'"


def complain(line: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
