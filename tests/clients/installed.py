"""Where `make test-clients` puts other people's clients."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "clients"
LIBRARIES = CACHE / "libraries" / "bin" / "python"
BINARIES = CACHE / "npm" / "node_modules" / ".bin"
OPEN_WEBUI = CACHE / "open-webui" / "bin" / "python"


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"`make test-clients` installs {path.relative_to(CACHE)}")


def chromium() -> str | None:
    """The system's, else the one that was fetched."""
    known = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    fetched = (str(path) for path in CACHE.glob("browsers/chromium-*/chrome-linux*/chrome"))
    return next(filter(None, known), None) or next(fetched, None)
