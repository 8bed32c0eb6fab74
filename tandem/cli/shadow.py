"""`tandem shadow`: whether those who answer the conductor's questions can be trusted. Reads the journal of verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.documents import HERE, Json
from tandem.errors import CannotStart

if TYPE_CHECKING:
    from rich.table import Table

    from tandem.conductor.agreement import Agreement
    from tandem.conductor.verdicts import Verdict

AppliancePath = Annotated[Path, typer.Option("--appliance", help="The appliance document.")]


def register(app: typer.Typer) -> None:
    shadow = typer.Typer(help="Whether deciders can be trusted.", no_args_is_help=True)
    shadow.callback()(_shadow)
    shadow.command()(report)
    shadow.command()(export)
    app.add_typer(shadow, name="shadow")


def _shadow() -> None:
    """Whether deciders can be trusted."""


def report(appliance: AppliancePath = HERE, as_json: Json = False) -> None:
    """How far deciders, the shadow reader and the big model agree, by question, and how well deciders know it."""
    import msgspec

    from tandem.conductor.agreement import agreements

    found = agreements(_verdicts(appliance))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    if not found:
        raise CannotStart(
            "no two of them have answered about the same message yet",
            "`conductor: on` with deciders and a shadow reader fills the journal as messages come",
        )
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(found))
    for each in found:
        console.print(_calibration(each))


def export(
    file: Annotated[Path, typer.Argument(help="Where to write; one line of JSON a message and question.")],
    appliance: AppliancePath = HERE,
) -> None:
    """Write what everyone answered, one line a message and question, with an empty `label` to be filled in.

    No text is there to export: a line names its request, which the client's own log can tell.
    """
    from tandem.conductor.agreement import gather

    lines = [
        {"request": request, "question": question, "answers": {by: _told(each) for by, each in answered.items()}}
        for question, requests in sorted(gather(_verdicts(appliance)).items())
        for request, answered in requests.items()
    ]
    file.write_text("".join(json.dumps(line | {"label": ""}) + "\n" for line in lines))
    typer.echo(f"{len(lines):,} lines in {file}")


def _told(verdict: Verdict) -> dict[str, Any]:
    return {"answer": verdict.answer, "confidence": verdict.confidence, "probabilities": verdict.probabilities}


def _verdicts(appliance: Path) -> list[Verdict]:
    from tandem.conductor.verdicts import read_verdicts
    from tandem.config import load

    return read_verdicts(load(appliance, []).state)


def _table(found: list[Agreement]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("question", "who", "against", "messages", "agree", "by label"):
        table.add_column(column, justify="right" if column in ("messages", "agree") else "left")
    for each in found:
        labels = ", ".join(f"{label.label} {label.agreed}/{label.number}" for label in each.labels)
        table.add_row(each.question, each.by, each.other, f"{each.number:,}", f"{each.share:.0%}", labels)
    return table


def _calibration(each: Agreement) -> str:
    """One line: said 0.7 to 0.8, right 65 %."""
    bins = "; ".join(f"{b.low:.1f}: {b.agreed:.0%} of {b.number:,}" for b in each.calibration.bins)
    return f"{each.question}, {each.by} against {each.other}: off by {each.calibration.error:.2f}; sure of {bins}"
