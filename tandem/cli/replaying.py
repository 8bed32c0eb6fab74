"""`tandem replay`: recorded or made-up requests through the rules that choose slots, on a clock of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.cli.documents import HERE, Profile, Set
from tandem.cli.usage import show_table
from tandem.errors import CannotStart

if TYPE_CHECKING:
    from rich.table import Table

    from tandem.engine.replay import Arrival, ClientReport, Replay, Setting

_LINE: Final = '{"id": "a", "at": 0.0, "prompt": [["hash", 900]], "max_tokens": 100, "head_end": 700}'


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A file with one request a line; default: made-up traffic of two clients.")
    ] = None,
    appliance: Annotated[Path, typer.Option("--appliance", help="The appliance document.")] = HERE,
    profile: Profile = None,
    overrides: Set = None,
    read: Annotated[float, typer.Option("--read", min=0.1, help="Prompt tokens read a second.")] = 1_000.0,
    write: Annotated[float, typer.Option("--write", min=0.1, help="Tokens one slot alone writes a second.")] = 45.0,
    cache: Annotated[int, typer.Option("--cache", min=0, help="Rows that caches in memory hold.")] = 0,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Rows that memory has for all slots together; default: enough.")
    ] = None,
    make: Annotated[bool, typer.Option("--make", help="Print the made-up traffic, to be changed and played.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """Play requests through the rules that choose slots: waits, times to the first token, what is not read again."""
    import msgspec

    from tandem.engine.replay import Replay, reports
    from tandem.engine.traffic import two_clients

    arrivals = two_clients() if trace is None else read_trace(trace)
    if make:
        typer.echo("\n".join(msgspec.json.encode(arrival).decode() for arrival in arrivals))
        return
    setting = _setting(appliance, [*(overrides or ()), *([f"profile={profile}"] if profile else [])])
    setting = msgspec.structs.replace(setting, read_rate=read, write_rate=write, cache_rows=cache, memory_rows=rows)
    try:
        played = Replay(setting).play(arrivals)
    except ValueError as error:
        raise CannotStart(str(error), "choose a profile with a wider window, or more `--rows`") from None
    found = list(reports(played, arrivals))
    if as_json:
        answer = {"clients": found, "slots": _busy(played), "waits": played.waits, "yielded": len(played.yielded)}
        typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=1).decode())
        return
    _show(setting, played, found)


def read_trace(path: Path) -> list[Arrival]:
    """Raises `CannotStart` naming the line that is none."""
    import msgspec

    from tandem.engine.replay import Arrival

    arrivals = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            arrivals.append(msgspec.json.decode(line, type=Arrival))
        except msgspec.MsgspecError as error:
            raise CannotStart(f"{path}:{number}: {error}", f"one request a line, as in {_LINE}") from None
    if len({arrival.id for arrival in arrivals}) < len(arrivals):
        raise CannotStart(f"{path}: two requests have the same id")
    return arrivals


def _setting(appliance: Path, flags: list[str]) -> Setting:
    """Slots, chunk and rules as the document has them."""
    from tandem.config import load
    from tandem.engine.facts import Grid
    from tandem.engine.replay import Setting
    from tandem.memory.reading import read_box
    from tandem.planner.compile import plan_live
    from tandem.planner.serving import resolve

    documents = load(appliance, flags)
    serving = resolve(documents, read_box())
    windows = tuple(slot.window for slot in serving.slots)
    return Setting(windows, Grid(serving.chunk, serving.chunk), plan_live(documents).routing)


def _busy(played: Replay) -> list[float]:
    """The share of the time that each slot worked."""
    return [round(lane.busy / played.now, 4) if played.now else 0.0 for lane in played.lanes]


def _show(setting: Setting, played: Replay, found: list[ClientReport]) -> None:
    from rich.console import Console

    windows = ", ".join(f"{window:,}" for window in setting.windows)
    busy = ", ".join(f"{share:.0%}" for share in _busy(played))
    waits = ", ".join(f"{kind} {count:,}" for kind, count in sorted(played.waits.items())) or "none"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"slots of {windows} tokens; reading {setting.read_rate:,.0f}, writing {setting.write_rate:g} tok/s")
    show_table(_table(found))
    console.print(f"slots busy: {busy}\nrequests that waited: {waits}")
    if played.yielded:
        console.print(f"own work that gave way: {len(played.yielded):,}")


def _table(found: list[ClientReport]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("client", "requests", "waited", "longest", "first token", "95 %", "cached", "fit a side slot"):
        table.add_column(name, justify="left" if name == "client" else "right")
    table.add_column("on one", justify="right")
    table.add_column("cut", justify="right")
    for each in found:
        seconds = (f"{value:.1f} s" for value in (each.waited, each.waited_longest, each.ttft, each.ttft_95))
        shares = (f"{value:.1%}" for value in (each.cached, each.fit_a_side_slot, each.on_side_slots, each.cut))
        table.add_row(each.client or "-", f"{each.requests:,}", *seconds, *shares)
    return table
