"""What can go wrong, as words a person can act on.

A `Problem` is one finding in a document: a code, a sentence, the exact place and the likely fix.
Every error raised for a user derives from `TandemError`; anything else that reaches the top is our bug.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class ExitStatus(IntEnum):
    """What the shell sees. Documented in the README; scripts may rely on it."""

    GOOD = 0
    OUR_BUG = 1
    DOCUMENT_WRONG = 2
    DOES_NOT_FIT = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a document: 1-based line and column, the dotted path, and the user's own line for the caret."""

    file: str
    line: int
    column: int
    length: int  # characters under the caret, at least 1
    path: str  # `slots.side_window`; empty for the document itself
    source: str  # the line's text without its newline


@dataclass(frozen=True, slots=True)
class Problem:
    code: str  # kebab-case, stable: `unknown-key`, `does-not-fit`
    message: str
    place: Place | None = None
    notes: tuple[str, ...] = ()  # why, or what is allowed
    help: str | None = None  # the likely fix


class TandemError(Exception):
    """A failure the user can do something about; `str()` is the sentence, `help` the fix."""

    exit_status = ExitStatus.OUR_BUG

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help


class DocumentError(TandemError):
    """One or more documents are wrong. Carries every problem the failing phase could see.

    `files` are the absolute paths of every document that was read or looked for: what to watch for the next edit.
    """

    exit_status = ExitStatus.DOCUMENT_WRONG

    def __init__(self, problems: tuple[Problem, ...], files: tuple[str, ...] = ()) -> None:
        super().__init__(f"{len(problems)} problem{'s' if len(problems) != 1 else ''} in the documents")
        self.problems = problems
        self.files = files


class DoesNotFit(DocumentError):
    """The documents are well formed, but this machine cannot hold what they declare."""

    exit_status = ExitStatus.DOES_NOT_FIT


class CannotStart(TandemError):
    """Something outside the documents is in the way: a busy port, a missing file, a full disk."""

    exit_status = ExitStatus.DOES_NOT_FIT


@dataclass(slots=True)
class Findings:
    """Collects problems during a phase so that a phase reports everything it can see, not only the first."""

    problems: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)

    def raise_if_any(self, kind: type[DocumentError] = DocumentError) -> None:
        if self.problems:
            raise kind(tuple(self.problems))
