"""Public-domain texts beside this file, and the windows in which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
RIGHTS: Final = "public domain"


@dataclass(frozen=True, slots=True)
class Text:
    name: str
    title: str
    author: str
    year: int
    body: str


def read_texts(folder: Path = FOLDER) -> list[Text]:
    """In the order of their names."""
    return [parse(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))]


def parse(name: str, written: str) -> Text:
    """Lines `Key: value` up to the first empty one, then the text. Raises `ValueError` unless it may be kept here."""
    head, _, body = written.partition("\n\n")
    says = dict(line.split(": ", 1) for line in head.splitlines())
    if says.get("Rights") != RIGHTS:
        raise ValueError(f"{name}: a text here says `Rights: {RIGHTS}`")
    return Text(name, says["Title"], says["Author"], int(says["Year"]), body.strip())


def windows(tokens: Sequence[int], most: int) -> list[Sequence[int]]:
    """Pieces of nearly the same length, none longer than `most`: a short rest would be read without context."""
    count = -(-len(tokens) // most)
    ends = [len(tokens) * n // count for n in range(count + 1)]
    return [tokens[start:end] for start, end in pairwise(ends)]
