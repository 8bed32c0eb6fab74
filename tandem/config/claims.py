"""A measured claim written into a residency document: its text before and after, comments and all else untouched."""

from __future__ import annotations

import difflib
import re
from typing import Final

_INDENT: Final = "  "
_SECTION: Final = re.compile(r"claims:\s*(#.*)?")


def with_claim(text: str, role: str, figure: str) -> str:
    """`text` with `figure` (as `{size: 1 GiB, basis: measured}`) as the claim of `role`.

    A section `claims` that is written in braces becomes one of lines, its other claims as they stood.
    """
    lines = _unfold(text.splitlines())
    head = next((at for at, line in enumerate(lines) if _SECTION.fullmatch(line)), None)
    if head is None:
        lines += ["", "claims:", f"{_INDENT}{role}: {figure}"]
        return "\n".join(lines) + "\n"
    end = _end_of_block(lines, head)
    for at in range(head + 1, end):
        match = re.match(rf"(\s+){role}:", lines[at])
        if match is not None:
            lines[at : _end_of_block(lines, at)] = [f"{match[1]}{role}: {figure}"]
            return "\n".join(lines) + "\n"
    first = next((line for line in lines[head + 1 : end] if line.strip() and not line.lstrip().startswith("#")), "")
    indent = first[: len(first) - len(first.lstrip())] or _INDENT
    lines.insert(end, f"{indent}{role}: {figure}")
    return "\n".join(lines) + "\n"


def claim_diff(text: str, role: str, figure: str, file: str) -> str:
    """The change as a unified diff; empty when the document says so already."""
    after = with_claim(text, role, figure)
    changed = difflib.unified_diff(
        text.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{file}", f"b/{file}", n=2
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in changed)


def _end_of_block(lines: list[str], head: int) -> int:
    """The line after the last that belongs to the key at `head`: deeper ones, without the empty ones at the end."""
    depth = _depth(lines[head])
    end = head + 1
    for at in range(head + 1, len(lines)):
        if not lines[at].strip():
            continue
        if _depth(lines[at]) <= depth:
            break
        end = at + 1
    return end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _unfold(lines: list[str]) -> list[str]:
    """`claims: {decider: {...}, ...}` on one line as a section of lines; the commas of the inner braces stay."""
    at = next((at for at, line in enumerate(lines) if re.match(r"claims:\s*\{", line)), None)
    if at is None:
        return lines
    inner = lines[at].partition("{")[2].rpartition("}")[0]
    claims = [claim.strip() for claim in re.split(r",(?![^{]*\})", inner) if claim.strip()]
    return [*lines[:at], "claims:", *(f"{_INDENT}{claim}" for claim in claims), *lines[at + 1 :]]
