"""`tandem model inspect`: what a checkpoint is and costs, before anything of it is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tandem.model.inspection import Inspection


def register(app: typer.Typer) -> None:
    model = typer.Typer(help="Look at models.", no_args_is_help=True)
    model.callback()(_models)
    model.command()(inspect)
    app.add_typer(model, name="model")


def _models() -> None:
    """Look at models."""


def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint directory or a GGUF file.", show_default=False)],
    window: Annotated[int | None, typer.Option("--window", min=1, help="Rows of a sequence; default: all.")] = None,
    available: Annotated[
        str | None, typer.Option("--available", help="Memory to fit in, as in `113 GiB`; default: this machine's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """Print family, formats, bytes by group, bytes a decode step, what a token and a window cost, and whether it fits.

    Reads headers alone.
    """
    from tandem.memory.reading import read_box
    from tandem.model.inspection import inspect as look
    from tandem.units import parse_bytes

    try:
        room = read_box().memory_available if available is None else parse_bytes(available)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--available") from None
    seen = look(path)
    rows = seen.window if window is None else window
    if rows > seen.window:
        raise typer.BadParameter(f"the model was trained for {seen.window:,} rows", param_hint="--window")
    if as_json:
        costs = {"resident_bytes": seen.resident_bytes, "window_bytes": seen.sequence_bytes(rows), "available": room}
        typer.echo(json.dumps(asdict(seen) | costs, indent=1))
    else:
        typer.echo("\n".join(_lines(seen, rows, room)))


def _lines(seen: Inspection, rows: int, room: int) -> list[str]:
    from tandem.units import format_bytes

    def size(count: int) -> str:
        return format_bytes(count, 2)

    kinds = ", ".join(f"{count} x {kind.replace('_', ' ')}" for kind, count in seen.layers.items())
    formats = ", ".join(f"{name} {size(count)}" for name, count in seen.formats.items())
    width = max(map(len, seen.groups))
    needed = seen.resident_bytes + seen.sequence_bytes(rows)
    fits = (
        f"fits: {size(room - needed)} would be left" if needed <= room else f"does not fit: {size(needed - room)} over"
    )
    layers = f"{sum(seen.layers.values())} layers ({kinds})"
    weights = size(seen.resident_bytes)
    return [
        f"{seen.family}: {layers}, vocabulary {seen.vocab:,}, window {seen.window:,}",
        f"formats: {formats}",
        *(f"  {group:<{width}}  {size(count):>12}" for group, count in seen.groups.items()),
        f"a decode step reads {size(seen.step_bytes)} of weights",
        f"a token takes {seen.bytes_a_token:,} bytes, a sequence {size(seen.fixed_bytes)} beside its rows",
        f"a window of {rows:,} takes {size(seen.sequence_bytes(rows))}",
        f"weights as stored {weights} + one such window = {size(needed)}, {size(room)} available: {fits}",
    ]
