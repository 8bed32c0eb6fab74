"""`tandem why`: what became of one request, and why it waited or was read again."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.cli.lifecycle import HERE

if TYPE_CHECKING:
    from tandem.ledger.schema import Row

PATIENCE: Final = 2.0  # seconds the gateway gets to answer


def register(app: typer.Typer) -> None:
    app.command()(why)


def why(
    request: Annotated[
        str | None, typer.Argument(help="The id that its answer carried, or the beginning of it. Default: the last.")
    ] = None,
    appliance: Annotated[Path, typer.Option("--appliance", help="The appliance document.")] = HERE,
    state: Annotated[
        Path | None, typer.Option("--state", help="The appliance's state directory; default: as the document says.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """Say what became of a request: its slot and why, what was read again and why, how long each part took.

    Where a conversation was read again, the text around the place where it parts is quoted while the appliance still
    has it in memory.
    """
    from tandem.config import load
    from tandem.ledger.reading import read_row
    from tandem.planner.compile import plan_paths

    paths = plan_paths(state if state is not None else load(appliance, []).state, os.getuid())
    row = read_row(paths.ledger, request)
    quoted = asyncio.run(_ask(Path(paths.run, "gateway.sock"), row.id)) if row.missed_at is not None else ()
    if as_json:
        import msgspec

        typer.echo(json.dumps({**msgspec.to_builtins(row), "quoted": quoted}, indent=1))
        return
    for line in tell(row):
        typer.echo(line)
    for line in quoted:
        typer.echo(f"    {line}")


def tell(row: Row) -> list[str]:
    """The row in words, a line each for what was done, where, what was read, and how long it took."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
    lines = [f"{row.id}: {when}, {row.route}, {row.status} {row.finish}"]
    if row.task:
        lines.append("  a task beside a conversation: it disturbs none")
    if row.kind:
        lines.append(f"  {_shaped(row)}")
    if row.slot is not None:
        lines.append(f"  slot {row.slot}: {row.reason}")
    if row.prompt_tokens:
        lines.append(f"  {_reading(row)}")
    if (missed := _missed(row)) is not None:
        lines.append(f"  {missed}")
    times = (
        ("shaped in", _asking(row)),
        ("waited", row.queue_seconds),
        ("read for", row.prefill_seconds),
        ("first word after", row.ttft_seconds),
        (f"wrote {row.completion_tokens:,} token{'' if row.completion_tokens == 1 else 's'} in", row.decode_seconds),
        ("in all", row.total_seconds),
    )
    lines.append("  " + ", ".join(f"{what} {seconds:.2f} s" for what, seconds in times if seconds is not None))
    if row.drafted:
        lines.append(f"  {row.accepted:,} of {row.drafted:,} guesses were right, in {row.rounds:,} rounds")
    return lines


def _shaped(row: Row) -> str:
    """What the conductor made of it, and who was asked."""
    effort = [f"effort {row.effort}"] if row.effort else []
    said = [
        f"{who} said {answer} after {seconds:.2f} s"
        for who, answer, seconds in (
            ("the decider", row.decider_answer, row.decider_seconds),
            ("the model", row.model_answer, row.model_seconds),
        )
        if answer and seconds is not None
    ]
    return ", ".join([row.kind, row.package, *effort, f"by stage {row.stage}", *said])


def _asking(row: Row) -> float | None:
    """Seconds that the conductor's questions took before anything else."""
    asked = [seconds for seconds in (row.decider_seconds, row.model_seconds) if seconds is not None]
    return sum(asked) if asked else None


def _reading(row: Row) -> str:
    read = max(0, row.prompt_tokens - row.cached_tokens)
    if not row.cached_tokens:
        return f"all {row.prompt_tokens:,} prompt tokens were read"
    source = {"resident": "lay in the slot", "side": "were copied from another slot"}
    where = source.get(row.cache_source, f"came from the {row.cache_source}")
    return f"{read:,} of {row.prompt_tokens:,} prompt tokens were read, {row.cached_tokens:,} {where}"


def _missed(row: Row) -> str | None:
    if row.missed_at is None:
        return None
    if not row.missed_of:
        return "its conversation was expected, and no slot held anything of it"
    return (
        f"its conversation was expected: of the {row.missed_of:,} tokens that a slot held, the first {row.missed_at:,} "
        "are the same, then they part"
    )


async def _ask(gateway: Path, id: str) -> tuple[str, ...]:
    """Nothing when the appliance does not run, or has forgotten."""
    from tandem.contract.channel import connect
    from tandem.contract.messages import AskWhy, Why

    try:
        channel = await connect(gateway)
    except OSError:
        return ()
    try:
        answer = await channel.ask(AskWhy(id), PATIENCE)
    except (OSError, TimeoutError):
        return ()
    finally:
        channel.close()
    return answer.lines if isinstance(answer, Why) else ()
