"""`check`, `plan`, `schema`, `import-env`, `pull`: everything about documents that needs nothing running."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.errors import ExitStatus, TandemError

if TYPE_CHECKING:
    from tandem.config import Documents
    from tandem.config.fetch import Pulled
    from tandem.contract.plan import Box

Appliance = Annotated[Path, typer.Argument(help="The appliance document.", show_default=True)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in `slots.count=4`. May be repeated."),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Plan with this profile.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with JSON.")]

HERE = Path("appliance.yaml")


def register(app: typer.Typer) -> None:
    for command in (check, plan, schema, pull):
        app.command()(command)
    app.command("import-env")(import_env)


def check(
    documents: Annotated[list[Path] | None, typer.Argument(help="Documents; default: appliance.yaml.")] = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with documents, and with weights that are here, or that nothing is."""
    status, findings, told = ExitStatus.GOOD, list[dict[str, object]](), list[str]()
    for path in documents or [HERE]:
        try:
            kind, warnings = _check(path)
        except TandemError as error:
            status = error.exit_status
            findings += _tell(error, as_json)
        else:
            told += warnings
            if not as_json:
                typer.echo(f"{path}: good ({kind})")
                for warning in warnings:
                    typer.echo(f"warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps({"errors": findings, "warnings": told}, indent=1, ensure_ascii=False))
    raise typer.Exit(status)


def _check(path: Path) -> tuple[str, tuple[str, ...]]:
    """The kind of a good document, and what an appliance of it would not do, or would do and is seldom meant."""
    from tandem import config
    from tandem.director.weights import check_weights
    from tandem.memory.reading import read_box
    from tandem.planner.compile import foresee

    kind = config.check(path)
    if kind != "appliance":
        return kind, ()
    documents = config.load(path)
    check_weights(documents)
    return kind, foresee(documents, read_box())


def plan(
    appliance: Appliance = HERE,
    box: Annotated[
        str | None, typer.Option("--box", help="Plan for the box of this residency document, not for this machine.")
    ] = None,
    profile: Profile = None,
    overrides: Set = None,
    diff: Annotated[
        Path | None, typer.Option("--diff", help="Say what saving this document as the appliance's would do.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what the appliance would be: every process, every limit, every byte. Takes nothing, starts nothing."""
    try:
        _plan(appliance, _flags(overrides, profile, box), box, diff, as_json)
    except TandemError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"errors": _tell(error, as_json)}, indent=1, ensure_ascii=False))
        raise typer.Exit(error.exit_status) from None


def _plan(appliance: Path, flags: list[str], box: str | None, other: Path | None, as_json: bool) -> None:
    from tandem.cli.plan_view import print_change, print_head, print_plan
    from tandem.config import load
    from tandem.contract.plan import encode_plan
    from tandem.director.weights import check_weights
    from tandem.planner.compile import compile_plan
    from tandem.planner.diff import diff
    from tandem.planner.serving import resolve

    documents = load(appliance, flags)
    machine = _box(documents, box)
    if not machine.declared:
        check_weights(documents)
    if other is not None:
        before = compile_plan(documents, machine)
        after = compile_plan(replace(load(other, flags), path=documents.path, state=documents.state), machine)
        print_change(diff(before, after), as_json)
    elif as_json:
        sys.stdout.buffer.write(encode_plan(compile_plan(documents, machine)))
    else:
        print_head(documents, resolve(documents, machine), machine)  # also when the rest does not fit
        print_plan(documents, compile_plan(documents, machine))


def _flags(overrides: list[str] | None, profile: str | None, box: str | None) -> list[str]:
    flags = list(overrides or ())
    flags += [] if profile is None else [f"profile={profile}"]
    return flags + ([] if box is None else [f"residency={box}"])


def _box(documents: Documents, name: str | None) -> Box:
    from tandem.contract.plan import Box
    from tandem.errors import CannotStart

    if name is None:
        from tandem.memory.reading import read_box

        return read_box()
    box = documents.residency.box
    if box is None:
        raise CannotStart(f"residency/{name}.yaml declares no `box`", "add `box: {total, available, cpus}` to it")
    return Box(documents.residency_name, box.total, box.available, box.cpus, declared=True)


def _tell(error: TandemError, as_json: bool) -> list[dict[str, object]]:
    from tandem.config.report import records, render_error

    if not as_json:
        sys.stderr.write(render_error(error))
    return records(error)


def schema(
    kind: Annotated[str, typer.Argument(help="appliance, profile or residency.")] = "appliance",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="docs/configuration.md: every kind, for people.")
    ] = False,
) -> None:
    """Print the JSON Schema of a document, for editors."""
    from tandem.config.documents import KINDS, json_schema
    from tandem.config.reference import configuration_markdown

    if markdown:
        typer.echo(configuration_markdown(), nl=False)
    elif kind in KINDS:
        typer.echo(json.dumps(json_schema(kind), indent=2, ensure_ascii=False))
    else:
        raise typer.BadParameter(f"`{kind}` is no kind of document: {', '.join(KINDS)}")


def import_env(
    file: Annotated[Path, typer.Argument(help="An environment file with QSE_* or QWEN38_* settings.")],
) -> None:
    """Turn an environment file into an appliance.yaml on stdout; what has no counterpart is said on stderr."""
    from tandem.config.import_env import import_env as convert
    from tandem.errors import DocumentError, Problem

    try:
        imported = convert(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DocumentError((Problem("not-found", f"{file} cannot be read: {reason}"),)) from None
    typer.echo(imported.document, nl=False)
    for words in imported.words:
        typer.echo(words, err=True)


def pull(appliance: Appliance = HERE, profile: Profile = None, overrides: Set = None) -> None:
    """Fetch the model's weights and prove them; goes on where it was interrupted."""
    from tandem.config import load

    pulled = ensure_weights(load(appliance, _flags(overrides, profile, None)), prove=True)
    what = "fetched" if pulled.fetched else "present"
    if pulled.path.is_dir():
        proof = (
            "every shard's sha256 was as the hub states it"
            if pulled.verified
            else "a directory that no sha256 pins: its headers are compared with its config.json"
        )
    else:
        proof = "sha256 as pinned" if pulled.verified else "not pinned by a sha256"
    typer.echo(f"{pulled.path}: {what}, {proof}")


def ensure_weights(documents: Documents, prove: bool = False) -> Pulled:
    """The weights lie on this machine as the profile pins them when this returns; work is shown as it is done.

    With `prove` they are read for it even when they have not changed since they were.
    """
    from tandem.cli.pull_view import Bar
    from tandem.config.fetch import pull

    with Bar(documents.weights.path.name) as bar:
        return pull(documents, bar.show, prove=prove)
