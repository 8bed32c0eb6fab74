"""The entry points that supervisord starts. Hidden: people use `tandem up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDirectory = Annotated[Path, typer.Option("--run", help="The run directory with plan.json.")]


def register(app: typer.Typer) -> None:
    for command in (director, gateway, engine, role):
        app.command(hidden=True)(command)


def director(run: RunDirectory) -> None:
    """Follow the plan: start, watch, reload, stop."""
    from tandem.director.loop import main

    main(run)


def gateway(run: RunDirectory) -> None:
    """Speak HTTP to clients."""
    from tandem.gateway.app import main

    main(run)


def engine(run: RunDirectory) -> None:
    """Own the big model: tokens in, tokens out."""
    from tandem.engine.worker import main

    main(run)


def role(name: Annotated[str, typer.Argument(help="The role's name in the plan.")], run: RunDirectory) -> None:
    """Help beside the big model: decide, narrate, or read in the shadow."""
    from tandem.roles.worker import main

    main(run, name)
