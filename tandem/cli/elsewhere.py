"""An appliance that runs from the document at hand, but with another state folder than the document says now.

A running appliance refuses an edit of `state`; until it is taken back, commands would look where nothing runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from tandem.cli.appliance import SUPERVISORD
from tandem.cli.screen import url
from tandem.contract.plan import Paths, Plan, read_plan
from tandem.errors import CannotStart


def running_elsewhere(document: Path, paths: Paths) -> Plan | None:
    """The plan of what runs from `document` with another run directory than that of `paths`; None when nothing does."""
    for run in _run_directories():
        try:
            plan = read_plan(run)
        except (OSError, msgspec.MsgspecError):
            continue  # it is just beginning or ending, or of another version
        if Path(plan.appliance).resolve() == document.resolve() and plan.paths.run != paths.run:
            return plan
    return None


def _run_directories() -> Iterator[Path]:
    """Of every appliance whose supervisord we may look at."""
    for process in psutil.process_iter(["cmdline"]):
        if SUPERVISORD not in (process.info["cmdline"] or []):
            continue
        try:
            run = process.environ().get("TANDEM_RUN")
        except (psutil.Error, OSError):
            continue  # another user's, or gone
        if run:
            yield Path(run)


def wrong_folder(command: str, plan: Plan, paths: Paths) -> CannotStart:
    """What `command`, which looked in `paths`, says when `plan` is what runs."""
    return CannotStart(
        f"the document says `state: {paths.state}`, but its appliance runs with {plan.paths.state}, at {url(plan)}",
        "take the edit of `state` back, or name the folder that it runs with: "
        f"`tandem {command} --set {shlex.quote(f'state={plan.paths.state}')}`",
    )
