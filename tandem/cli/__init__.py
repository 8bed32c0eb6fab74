"""The command line: `tandem up`, `tandem plan`, ... One module a group of commands; this one only gathers them.

Commands import what they run inside their functions: `tandem check` must not pay for torch, nor `tandem engine`
for the planner.
"""

from __future__ import annotations

import sys

import typer

from tandem.cli import documents, lifecycle, models, processes, usage
from tandem.errors import ExitStatus, TandemError

app = typer.Typer(
    name="tandem",
    help="One large language model, served to several people and agents at once from one box.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (lifecycle, documents, models, usage, processes):
    group.register(app)


def main() -> None:
    """Run a command; a user's error is told in words and an exit status, never as a traceback."""
    try:
        app()
    except TandemError as error:
        from tandem.config.report import render_error

        sys.stderr.write(render_error(error))
        raise SystemExit(error.exit_status) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(ExitStatus.GOOD) from None
