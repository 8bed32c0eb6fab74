"""`tandem usage`: what was asked of the appliance, by day, client and model. Reads the ledger while it is written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.lifecycle import HERE, Appliance

if TYPE_CHECKING:
    from rich.table import Table

    from tandem.ledger.totals import GroupBy, Total

_DAY = 86400.0


def register(app: typer.Typer) -> None:
    app.command()(usage)


def usage(
    appliance: Appliance = HERE,
    state: Annotated[
        Path | None, typer.Option("--state", help="The appliance's state directory; default: as the document says.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How far to look back.")] = 30,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="day, client, model or key; several as `key,day`. Default: day,client,model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """Print requests and tokens by day, client and model. Never a text: the ledger holds none."""
    from tandem.config import load
    from tandem.ledger.totals import read_totals
    from tandem.planner.compile import plan_paths

    groups = _groups(by or ["day", "client", "model"])
    folder = state if state is not None else load(appliance, []).state
    totals = read_totals(plan_paths(folder, os.getuid()).ledger, time.time() - days * _DAY, groups)
    if as_json:
        typer.echo(_json(totals, groups))
    else:
        show_table(_table(totals, groups, days))


def show_table(table: Table) -> None:
    """A terminal that is too narrow wraps the lines; no number is ever cut."""
    from rich.console import Console

    console = Console(highlight=False)
    needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(highlight=False, soft_wrap=True, width=max(console.width, needed)).print(table)


def _groups(words: list[str]) -> list[GroupBy]:
    from tandem.ledger.totals import GroupBy

    try:
        said = (word.strip() for each in words for word in each.split(","))
        return [GroupBy(word) for word in dict.fromkeys(said)]
    except ValueError as error:
        raise typer.BadParameter(f"{error}; known: {', '.join(GroupBy)}", param_hint="--by") from None


def _json(totals: list[Total], groups: list[GroupBy]) -> str:
    import msgspec

    records = []
    for total in totals:
        record = msgspec.to_builtins(total)
        values = record.pop("group")
        records.append(dict(zip(map(str, groups), values, strict=True)) | record)
    return msgspec.json.format(msgspec.json.encode(records), indent=1).decode()


def _table(totals: list[Total], groups: list[GroupBy], days: int) -> Table:
    """Sums last. Read and written are tokens; cached ones were read before and cost nothing."""
    from rich import box
    from rich.table import Table

    title = f"The last {days} days" if totals else f"Nothing was asked in the last {days} days"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_footer=len(totals) > 1)
    for number, group in enumerate(groups):
        table.add_column(str(group), footer="" if number else "all")
    sums = _sum(totals)
    for name, value in sums.items():
        table.add_column(name, justify="right", footer=f"{value:,}")
    table.add_column("tok/s", justify="right", footer=_rate(totals))
    table.add_column("first token", justify="right")
    for total in totals:
        numbers = (f"{value:,}" for value in _sum([total]).values())
        wait = "" if total.ttft_seconds is None else f"{total.ttft_seconds:.2f} s"
        table.add_row(*(value or "-" for value in total.group), *numbers, _rate([total]), wait)
    return table


def _sum(totals: list[Total]) -> dict[str, int]:
    return {
        "requests": sum(total.requests for total in totals),
        "failed": sum(total.failed for total in totals),
        "prompt": sum(total.prompt_tokens for total in totals),
        "cached": sum(total.cached_tokens for total in totals),
        "written": sum(total.completion_tokens for total in totals),
    }


def _rate(totals: list[Total]) -> str:
    seconds = sum(total.decode_seconds for total in totals)
    return f"{sum(total.completion_tokens for total in totals) / seconds:.1f}" if seconds > 0 else ""
