"""`up`, `down`, `status`, `logs`: the life of an appliance, for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.errors import CannotStart, DocumentError, ExitStatus

if TYPE_CHECKING:
    from tandem.config import Documents
    from tandem.contract.messages import ApplianceState
    from tandem.contract.plan import Paths, Plan

NOT_RUNNING = 1
NOT_SERVING = 4
WRONG_FLAG = ("syntax", "unknown-key")
SILENT = "it runs, but its director does not answer: it may be starting or stopping just now"

Appliance = Annotated[Path, typer.Argument(help="The appliance document.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in `slots.count=4`. May be repeated."),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Serve this profile.")]
HERE = Path("appliance.yaml")


def register(app: typer.Typer) -> None:
    for command in (up, down, status, logs):
        app.command()(command)


def up(
    appliance: Appliance = HERE,
    overrides: Set = None,
    profile: Profile = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; it runs on until `tandem down`.")
    ] = False,
) -> None:
    """Start the appliance and stay with it. Ctrl-C lets requests finish and stops it; a second one does not wait."""
    from tandem.cli.appliance import Lock, make
    from tandem.cli.documents import ensure_weights
    from tandem.cli.raising import ending_signals, raise_appliance
    from tandem.config import load
    from tandem.config.settings import as_variables
    from tandem.director.weights import check_weights
    from tandem.memory.reading import read_box
    from tandem.planner.compile import compile_plan

    for number in ending_signals():  # as the first process of a container we would otherwise be deaf to them
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    flags = _flags(overrides, profile)
    documents = load(appliance, flags)
    paths = _paths(documents.state)
    if Lock(paths).is_held():
        raise typer.Exit(_already_up(documents))
    _refuse_elsewhere("down", appliance, paths, flags)
    plan = compile_plan(documents, read_box())  # what does not fit is refused before anything is fetched
    make(Path(plan.paths.state))
    ensure_weights(documents)
    documents = load(appliance, flags)
    check_weights(documents)
    plan = compile_plan(documents, read_box())
    for warning in (*plan.warnings, *plan.key_warnings):
        typer.echo(f"warning: {warning}", err=True)
    raise typer.Exit(asyncio.run(raise_appliance(plan, detach=detach, variables=as_variables(flags))))


def down(appliance: Appliance = HERE, overrides: Set = None, profile: Profile = None) -> None:
    """Let running requests finish, stop the appliance, and say what was done."""
    from tandem.cli.raising import bring_down

    flags = _flags(overrides, profile)
    paths = _where(appliance, flags)
    _refuse_elsewhere("down", appliance, paths, flags)
    raise typer.Exit(asyncio.run(bring_down(paths)))


def status(
    appliance: Appliance = HERE,
    overrides: Set = None,
    profile: Profile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON.")] = False,
) -> None:
    """What runs, and what became of the last edit. Exits with 0 when it serves, 1 when nothing runs, else 4."""
    from tandem.cli.appliance import Lock, leftovers, picture
    from tandem.cli.elsewhere import wrong_folder
    from tandem.config.report import render_error
    from tandem.contract.plan import read_plan

    flags = _flags(overrides, profile)
    paths = _where(appliance, flags)
    if (other := _elsewhere(appliance, paths, flags)) is not None:
        if as_json:
            typer.echo(json.dumps({"phase": "unknown", "state": other.paths.state}))
        typer.echo(render_error(wrong_folder("status", other, paths)), err=True, nl=False)
        raise typer.Exit(NOT_SERVING)
    if not Lock(paths).is_held():
        if strays := leftovers(paths):
            words = f"not running, but {len(strays)} of its processes are left: `tandem down` ends them"
            typer.echo(json.dumps({"phase": "unknown"}) if as_json else words)
            raise typer.Exit(NOT_SERVING)
        typer.echo(json.dumps({"phase": "down"}) if as_json else "not running: `tandem up` starts it")
        raise typer.Exit(NOT_RUNNING)
    seen = asyncio.run(picture(paths))
    if seen is None:
        typer.echo(json.dumps({"phase": "unknown"}) if as_json else SILENT)
        raise typer.Exit(NOT_SERVING)
    _print_status(seen, read_plan(Path(paths.run)), as_json)
    raise typer.Exit(ExitStatus.GOOD if seen.phase == "serving" else NOT_SERVING)


def logs(
    program: Annotated[str | None, typer.Argument(help="gateway, engine, director, ...; default: all.")] = None,
    appliance: Annotated[Path, typer.Option("--appliance", help="The appliance document.")] = HERE,
    overrides: Set = None,
    profile: Profile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each.")] = 20,
) -> None:
    """Print what the processes have logged. No user's text and no key is ever in it."""
    from tandem.cli.logs import print_logs

    flags = _flags(overrides, profile)
    paths = _where(appliance, flags)
    _refuse_elsewhere("logs", appliance, paths, flags)
    print_logs(Path(paths.logs), program, lines, follow)


def _flags(overrides: list[str] | None, profile: str | None) -> list[str]:
    return list(overrides or ()) + ([] if profile is None else [f"profile={profile}"])


def _paths(state: Path) -> Paths:
    from tandem.planner.compile import plan_paths

    return plan_paths(state, os.getuid())


def _where(appliance: Path, flags: list[str]) -> Paths:
    """Where this appliance's directories are, also when its document is broken or gone just now."""
    from tandem.config import load
    from tandem.config.paths import under
    from tandem.config.report import render_error

    try:
        return _paths(load(appliance, flags).state)
    except DocumentError as error:
        if any(p.place and p.place.file.startswith("--set") and p.code in WRONG_FLAG for p in error.problems):
            raise  # whose state was meant cannot be known
        state = under(appliance.absolute().parent, _said_state(appliance, flags)).absolute()
        typer.echo(render_error(error, f"looking for what runs in {state} all the same"), err=True, nl=False)
        return _paths(state)


def _said_state(appliance: Path, flags: list[str]) -> str:
    """`state` as the strongest that says it has it: a flag, the variable, the document's own line, the default."""
    from tandem.config.documents import Appliance as Document
    from tandem.config.settings import read_overrides
    from tandem.config.source import read_tree

    try:
        text = appliance.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        text = ""
    lines = "\n".join(line for line in text.splitlines() if line.startswith("state:"))  # the rest may be no YAML
    variables = {name: value for name, value in os.environ.items() if name == "TANDEM_STATE"}
    trees = [*read_overrides(flags, variables)[0], read_tree(lines, str(appliance))[0]]
    said = (tree.plain().get("state") for tree in trees)
    return next((word for word in said if isinstance(word, str)), str(Document.model_fields["state"].default))


def _elsewhere(appliance: Path, paths: Paths, flags: list[str]) -> Plan | None:
    """What runs from this document with another state folder. Whoever names a folder means that one."""
    from tandem.cli.appliance import Lock
    from tandem.cli.elsewhere import running_elsewhere

    is_named = "TANDEM_STATE" in os.environ or any(flag.partition("=")[0].strip() == "state" for flag in flags)
    return None if is_named or Lock(paths).is_held() else running_elsewhere(appliance, paths)


def _refuse_elsewhere(command: str, appliance: Path, paths: Paths, flags: list[str]) -> None:
    """Raises `CannotStart`, with a call of `command` that works."""
    from tandem.cli.elsewhere import wrong_folder

    if (other := _elsewhere(appliance, paths, flags)) is not None:
        raise wrong_folder(command, other, paths)


def _already_up(documents: Documents) -> int:
    """A second `up`: wait until it is ready if need be, then say where it is and whether it is what was asked for."""
    from tandem.cli.raising import attend_existing
    from tandem.contract.plan import read_plan
    from tandem.planner.compile import compile_plan
    from tandem.planner.diff import ChangeClass, diff

    run = Path(_paths(documents.state).run)
    status = asyncio.run(attend_existing(_paths(documents.state)))
    if status != ExitStatus.GOOD:
        return status
    running = read_plan(run)
    change = diff(running, compile_plan(documents, running.box))
    if change.kind is not ChangeClass.NONE or change.moves:
        raise CannotStart(
            "what you asked for is not what runs: " + "; ".join(change.sentences),
            "an edit of the documents is taken by itself (`tandem status` says what became of it); "
            "flags and variables count at start: `tandem down`, then `tandem up`",
        )
    return ExitStatus.GOOD


def _print_status(seen: ApplianceState, plan: Plan, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    from tandem.cli.screen import render_report, status_lines, status_table, url
    from tandem.contract.keys import warnings_now

    if as_json:
        record = msgspec.to_builtins(seen)
        record["live"], record["placements"] = msgspec.json.decode(seen.live), msgspec.json.decode(seen.placements)
        typer.echo(
            json.dumps(
                {**record, "url": url(plan), "appliance": plan.appliance, "warnings": warnings_now(plan)},
                indent=1,
                ensure_ascii=False,
            )
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in status_lines(seen, plan):
        console.print(line, markup=False)
    console.print(status_table(seen, time.time()))
    if seen.reload is not None:
        console.print(render_report(seen.reload), markup=False)
