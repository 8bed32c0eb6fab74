"""What each answerer said to each of the conductor's questions, one line of JSON each: how deciders are judged.

Labels, probabilities and times; never a text of a user.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tandem.contract.messages import Answer, Question

FILE: Final = "verdicts.jsonl"
OLDER: Final = "verdicts.older.jsonl"
MOST: Final = 32 << 20  # bytes of one file; the one before it is kept beside it, and no other


class Verdict(Struct, frozen=True):
    """One answerer's answer to one question about one request."""

    at: float  # unix time
    request: str
    question: str
    kind: str  # choice | score | noul
    by: str  # decider | shadow-reader | big-model
    model: str
    answer: str  # the likeliest label
    confidence: float  # its probability
    probabilities: dict[str, float]  # by label
    seconds: float


def verdict_of(request: str, by: str, model: str, question: Question, answer: Answer, seconds: float) -> Verdict:
    probabilities = {label: round(probability, 6) for label, probability in answer.probabilities}
    confidence = round(answer.confidence, 6)
    return Verdict(
        round(time.time(), 3),
        request,
        question.id,
        str(question.kind),
        by,
        model,
        answer.label,
        confidence,
        probabilities,
        round(seconds, 4),
    )


class Verdicts:
    """The file `verdicts.jsonl` in a folder that is kept. Several processes may write: a line is one write."""

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._path = folder / FILE
        self._most = most

    def write(self, *verdicts: Verdict) -> None:
        """Raises `OSError` when it cannot be written."""
        lines = b"".join(msgspec.json.encode(verdict) + b"\n" for verdict in verdicts)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, lines)
            written = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if written.st_size > self._most and self._path.stat().st_ino == written.st_ino:  # else another put it aside
            self._path.replace(self._path.with_name(OLDER))


def read_verdicts(folder: Path) -> list[Verdict]:
    """In the order written; nothing where nobody has written. A line that a crash cut short is left out."""
    files = [path for path in (folder / OLDER, folder / FILE) if path.exists()]
    verdicts = []
    for line in (line for path in files for line in path.read_bytes().splitlines()):
        try:
            verdicts.append(msgspec.json.decode(line, type=Verdict))
        except msgspec.DecodeError:
            continue
    return verdicts
