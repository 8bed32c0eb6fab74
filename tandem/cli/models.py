"""`tandem model inspect`: what a checkpoint is and costs, before anything of it is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class Room:
    """What is there to fit into."""

    available: int
    floor: int  # of it stays free
    where: str  # as `of this machine`


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint directory, a GGUF file, or a source as a profile has it, as in `package:NAME/FILE`.",
            show_default=False,
        ),
    ],
    window: Annotated[int | None, typer.Option("--window", min=1, help="Rows of a sequence; default: all.")] = None,
    slots: Annotated[int, typer.Option("--slots", min=1, max=16, help="Slots of that window.")] = 1,
    box: Annotated[
        str | None, typer.Option("--box", help="Fit into the box of this residency document, above its floor.")
    ] = None,
    available: Annotated[
        str | None, typer.Option("--available", help="Memory to fit into, as in `113 GiB`; default: this machine's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """Print family, formats, bytes by group, bytes a decode step, what a token and a window cost, and whether it fits.

    Reads headers alone.
    """
    from tandem.model.inspection import inspect as look

    room = _room(box, available)
    seen = look(_located(model))
    rows = seen.window if window is None else window
    if rows > seen.window:
        raise typer.BadParameter(f"the model was trained for {seen.window:,} rows", param_hint="--window")
    if as_json:
        needed = seen.resident_bytes + slots * seen.sequence_bytes(rows)
        costs = {"resident_bytes": seen.resident_bytes, "window_bytes": seen.sequence_bytes(rows), "slots": slots}
        fit = {"available": room.available, "floor": room.floor, "left": room.available - room.floor - needed}
        typer.echo(json.dumps(asdict(seen) | costs | fit, indent=1))
    else:
        typer.echo("\n".join(_lines(seen, rows, slots, room)))


def _located(model: str) -> Path:
    from tandem.config.documents import Appliance
    from tandem.config.weights import locate_model

    try:
        return locate_model(model, Path(), Path(Appliance.model_fields["state"].default))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None


def _room(box: str | None, available: str | None) -> Room:
    from tandem import config
    from tandem.memory.reading import read_box
    from tandem.units import parse_bytes

    if box is not None and available is not None:
        raise typer.BadParameter("a box says what is available", param_hint="--available")
    if box is not None:
        residency = config.read_box(box, Path())
        assert residency.box is not None
        return Room(residency.box.available, residency.floor, f"of {box}")
    if available is None:
        return Room(read_box().memory_available, 0, "of this machine")
    try:
        return Room(parse_bytes(available), 0, "as asked")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--available") from None


def _lines(seen: Inspection, rows: int, slots: int, room: Room) -> list[str]:
    from tandem.units import format_bytes

    def size(count: int) -> str:
        return format_bytes(count, 2)

    kinds = ", ".join(f"{count} x {kind.replace('_', ' ')}" for kind, count in seen.layers.items())
    formats = ", ".join(f"{name} {size(count)}" for name, count in seen.formats.items())
    width = max(map(len, seen.groups))
    layers = f"{sum(seen.layers.values())} layers ({kinds})"
    return [
        f"{seen.family}: {layers}, vocabulary {seen.vocab:,}, window {seen.window:,}",
        f"formats: {formats}",
        *(f"  {group:<{width}}  {size(count):>12}" for group, count in seen.groups.items()),
        f"a decode step reads {size(seen.step_bytes)} of weights",
        f"a token takes {seen.bytes_a_token:,} bytes, a sequence {size(seen.fixed_bytes)} beside its rows; "
        f"in a profile `{seen.kv}`",
        f"a window of {rows:,} takes {size(seen.sequence_bytes(rows))}",
        *_ahead(seen),
        _verdict(seen, rows, slots, room),
    ]


def _ahead(seen: Inspection) -> list[str]:
    from tandem.units import format_bytes

    if seen.ahead is None:
        return []
    weights, state = format_bytes(seen.ahead.resident_bytes, 2), format_bytes(seen.ahead.fixed_bytes, 2)
    token = f"{seen.ahead.bytes_a_token:,} bytes"
    return [f"its head that guesses ahead takes {weights} more, a token {token}, a sequence {state}"]


def _verdict(seen: Inspection, rows: int, slots: int, room: Room) -> str:
    from tandem.units import format_bytes

    windows = "one such window" if slots == 1 else f"{slots} such windows"
    needed = seen.resident_bytes + slots * seen.sequence_bytes(rows)
    left = room.available - room.floor - needed
    fits = (
        f"fits: {format_bytes(left, 2)} would be left" if left >= 0 else f"does not fit: {format_bytes(-left, 2)} over"
    )
    floor = f", {format_bytes(room.floor, 2)} of it floor" if room.floor else ""
    return (
        f"weights as stored {format_bytes(seen.resident_bytes, 2)} + {windows} = {format_bytes(needed, 2)}, "
        f"{format_bytes(room.available, 2)} available {room.where}{floor}: {fits}"
    )
