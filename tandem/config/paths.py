"""Paths as documents write them. A path that cannot be is no error here: there is just nothing at it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PATH: Final = re.compile(r"~?\.{0,2}/.*|[a-z0-9_.\-]+(/[a-z0-9_.\-]+)+|.*\.[A-Za-z]\w{0,7}")


def under(base: Path, text: str) -> Path:
    """`text` relative to `base`, unless it is absolute or begins with `~`; a `~` nobody has stays as it is."""
    try:
        return base / Path(text).expanduser()
    except RuntimeError:
        return base / text


def is_file(path: Path) -> bool:
    """False too for names that no file system takes."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_directory(path: Path) -> bool:
    """False too for names that no file system takes."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """A file or a folder; False too for names that no file system takes."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_path_like(text: str) -> bool:
    """Whether `text` is written as a path is: rooted, in folders, or with a suffix. A pasted key is not."""
    return _PATH.fullmatch(text) is not None
