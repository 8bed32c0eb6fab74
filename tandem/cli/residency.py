"""`tandem residency measure`: what a role really takes, and the line of the residency document that says so."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.cli.documents import HERE, Json, Profile, Set
from tandem.errors import CannotStart
from tandem.units import GIB, format_bytes, format_duration

if TYPE_CHECKING:
    from tandem.cli.measuring import Sizes
    from tandem.config import Documents
    from tandem.contract.plan import Plan, RolePlan

KEYS: Final = {"decider": "decider", "narrator": "narrator", "shadow-reader": "shadow_reader"}  # of `claims`, by kind
STEP: Final = GIB / 100  # claims are said to the hundredth of a GiB


def register(app: typer.Typer) -> None:
    residency = typer.Typer(help="What small models take beside the engine.", no_args_is_help=True)
    residency.callback()(_residency)
    residency.command()(measure)
    app.add_typer(residency, name="residency")


def _residency() -> None:
    """What small models take beside the engine."""


def measure(
    role: Annotated[str, typer.Argument(help="decider-0, narrator, shadow-reader: a role of the appliance.")],
    appliance: Annotated[Path, typer.Option("--appliance", help="The appliance document.")] = HERE,
    overrides: Set = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Load a role alone, ask it the longest it can be asked, and propose what was seen as its claim.

    Prints a diff of the residency document; nothing is written.
    """
    from tandem.cli.measuring import measure as run

    flags = [*(overrides or ()), *([] if profile is None else [f"profile={profile}"])]
    documents, plan = _plan(appliance, flags)
    wanted = next((each for each in plan.roles if each.name == role), None)
    if wanted is None:
        declared = ", ".join(each.name for each in plan.roles) or "none"
        raise CannotStart(f"the appliance declares no role `{role}`", f"it declares {declared}")
    sizes = run(plan, wanted)
    diff = _diff(documents, wanted, sizes)
    if as_json:
        record = {"role": role, "claim": _claim(wanted, sizes), **asdict(sizes), "diff": diff}
        typer.echo(json.dumps(record, indent=1))
        return
    typer.echo(_sentence(wanted, sizes))
    typer.echo(diff or "the residency document says so already", nl=not diff)


def _plan(appliance: Path, flags: list[str]) -> tuple[Documents, Plan]:
    """The plan as it would be were every role known to take nothing, and the box free: neither counts here."""
    import msgspec

    from tandem.config import load
    from tandem.config.source import read_tree
    from tandem.memory.reading import read_box
    from tandem.planner.compile import compile_plan

    tree, _ = read_tree(appliance.read_text("utf-8-sig"), str(appliance)) if appliance.is_file() else (None, ())
    roles = tree.plain().get("roles") if tree is not None else None
    unknown = [f"roles.{key}.claim=0 B" for key in (roles if isinstance(roles, dict) else ())]
    documents = load(appliance, [*flags, *unknown])
    box = read_box()
    return documents, compile_plan(documents, msgspec.structs.replace(box, memory_available=box.memory_total))


def _claim(role: RolePlan, sizes: Sizes) -> int:
    return round(math.ceil(sizes.claim(role.device) / STEP) * STEP)


def _diff(documents: Documents, role: RolePlan, sizes: Sizes) -> str:
    from tandem.config.claims import claim_diff

    path = documents.files[-1]  # the residency document is read last
    why = f"{Path(role.weights).name} on {role.device}, the longest question"
    figure = f'{{size: {_claim(role, sizes) / GIB:.2f} GiB, basis: measured, why: "{why}"}}'
    return claim_diff(path.read_text("utf-8"), KEYS[role.kind], figure, f"residency/{path.name}")


def _sentence(role: RolePlan, sizes: Sizes) -> str:
    return (
        f"{role.name}: ready after {format_duration(round(sizes.seconds, 1))}; at its most "
        f"{format_bytes(sizes.resident, 2)} resident, {format_bytes(sizes.proportional, 2)} without what others share, "
        f"{format_bytes(sizes.own, 2)} its alone; MemAvailable fell by {format_bytes(sizes.drop, 2)}"
    )
