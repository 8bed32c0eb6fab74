"""Says what is wrong, in the form a compiler would: code and sentence, place, the user's own line, why, the fix."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tandem.errors import DocumentError, Place, Problem, TandemError

_WIDTH: Final = 140  # columns of the user's line that are shown around the caret
UNCHANGED: Final = "nothing was changed"


def render(problems: Sequence[Problem], outcome: str = UNCHANGED) -> str:
    """Every problem, then one line: how many in which document, and what the appliance did about it (`outcome`)."""
    return "\n".join([*(_block(problem) for problem in problems), f"{_count(problems)}; {outcome}\n"])


def render_error(error: TandemError, outcome: str = UNCHANGED) -> str:
    """Any failure a user can do something about. Documents in full; everything else as its sentence and its fix."""
    if isinstance(error, DocumentError):
        return render(error.problems, outcome)
    return f"error: {error}\n" + (f"  = help: {error.help}\n" if error.help else "")


def records(error: TandemError) -> list[dict[str, Any]]:
    """The same findings for machines (`--json`): what `render` says, as data."""
    if not isinstance(error, DocumentError):
        return [{"code": "error", "message": str(error), "place": None, "notes": [], "help": error.help}]
    return [
        {
            "code": problem.code,
            "message": problem.message,
            "place": _place_record(problem.place),
            "notes": list(problem.notes),
            "help": problem.help,
        }
        for problem in error.problems
    ]


def _place_record(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    where = {"line": place.line, "column": place.column} if place.line else {}
    return {"file": place.file, **where, "path": place.path}


def _block(problem: Problem) -> str:
    lines = [f"error[{problem.code}]: {problem.message}"]
    place = problem.place
    number = str(place.line) if place is not None and place.line else ""
    gutter = " " * max(len(number), 1)
    if place is not None:
        position = f":{place.line}:{place.column}" if place.line else ""
        path = f"  ({place.path})" if place.path else ""
        shown, before, under = _line(place)
        lines.append(f"{gutter}--> {place.file}{position}{path}")
        if place.source.strip():
            lines.append(f"{gutter} |")
            lines.append(f"{number or ' '} | {shown}".rstrip())
            lines.append(f"{gutter} | {' ' * before}{'^' * under}")
    lines += [f"{gutter} = {note}" for note in problem.notes]
    if problem.help is not None:
        lines.append(f"{gutter} = help: {problem.help}")
    return "\n".join(lines) + "\n"


def _line(place: Place) -> tuple[str, int, int]:
    """The line as it is shown, and the caret's indent and width in columns: tabs are one, wide characters two."""
    source = place.source.replace("\t", " ")
    start = place.column - 1
    cut = max(0, start - _WIDTH // 2) if len(source) > _WIDTH else 0
    lead = "..." if cut else ""
    shown = lead + source[cut : cut + _WIDTH] + ("..." if cut + _WIDTH < len(source) else "")
    target = source[start : min(start + place.length, cut + _WIDTH)]
    return shown, len(lead) + _columns(source[cut:start]), max(_columns(target), 1)


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _count(problems: Sequence[Problem]) -> str:
    counts = Counter(problem.place.file if problem.place else "documents" for problem in problems)
    return ", ".join(f"{file}: {count} error{'s' if count > 1 else ''}" for file, count in counts.items())
