"""Paths as documents write them. A path that cannot be is no error here: there is just nothing at it."""

from __future__ import annotations

from pathlib import Path


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
