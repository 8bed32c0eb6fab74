"""The command line: `tandem up`, `tandem plan`, ... One module a group of commands; this one only gathers them.

Commands import what they run inside their functions: `tandem check` must not pay for torch, nor `tandem engine`
for the planner.
"""

from __future__ import annotations

import errno
import os
import sys

import typer

from tandem.cli import documents, lifecycle, models, processes, replaying, residency, shadow, trying, usage, why
from tandem.errors import ExitStatus, TandemError

app = typer.Typer(
    name="tandem",
    help="One large language model, served to several people and agents at once from one box.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (lifecycle, documents, models, residency, shadow, usage, why, replaying, trying, processes):
    group.register(app)


def main() -> None:
    """Run a command; a user's error is told in words and an exit status, never as a traceback."""
    status: int | str | None
    try:
        app()
        status = ExitStatus.GOOD
    except SystemExit as end:  # typer and rich make an exit of their own of a reader that has gone
        status = ExitStatus.GOOD if isinstance(end.__context__, BrokenPipeError) else end.code
    except TandemError as error:
        from tandem.config.report import render_error

        sys.stderr.write(render_error(error))
        status = error.exit_status
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = ExitStatus.GOOD
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        status = _tell_full(error)
    raise SystemExit(_flush(status))


def _flush(status: int | str | None) -> int | str | None:
    """What the interpreter would do at its end, where a failure could only be a traceback."""
    try:
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        pass  # `| head`: whoever read it has seen enough
    except OSError as error:
        status = status or _tell_full(error)
    _drop_output()
    return status


def _tell_full(error: OSError) -> int:
    _drop_output()
    sys.stderr.write(f"error: what was to be printed cannot be written: {error.strerror}\n")
    return ExitStatus.OUR_BUG


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that nobody fails on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
