"""Where a profile's weights lie on this machine. Looks, never fetches (`fetch` does) and never imports a package."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.config.documents import Weights
from tandem.config.paths import exists, under

_HUB: Final = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(/(?P<file>[\w./-]+?))?(@(?P<revision>[\w./-]+))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubSource:
    repository: str  # OWNER/NAME
    file: str | None  # None: the whole checkpoint directory
    revision: str

    def url(self, endpoint: str, file: str | None = None) -> str:
        """Of `file`, or of the one file this is."""
        return f"{endpoint.rstrip('/')}/{self.repository}/resolve/{self.revision}/{file or self.file}"

    def below(self, state: Path) -> Path:
        """Where it lies on this machine. Directories stand apart: a file that was fetched alone makes none of them."""
        kind = "models" if self.file is not None else "checkpoints"
        return state / kind / self.repository / self.revision / (self.file or "")


@dataclass(frozen=True, slots=True)
class Located:
    """The absolute path the engine will open, and whether anything is there yet."""

    path: Path
    present: bool
    fetchable: bool  # `tandem pull` can bring it


def locate(weights: Weights, base: Path, state: Path) -> Located:
    """`package:` lies where the import system finds it or pip would put it, `path:` beside the
    appliance, `hub:` below the state directory.

    Raises `ValueError`, with the sentence for the user, when the source names nothing that could exist.
    """
    path = locate_source(weights.source, base, state)
    is_fetchable = weights.source.startswith("hub:") or (
        weights.source.startswith("package:") and weights.distribution is not None
    )
    return Located(path, exists(path), is_fetchable)


def locate_source(source: str, base: Path, state: Path) -> Path:
    """Raises as `locate` does."""
    kind, _, rest = source.partition(":")
    match kind:
        case "package":
            return _in_package(rest)
        case "path":
            return under(base, rest)
        case _:
            return hub_source(source).below(state)


def locate_model(model: str, base: Path, state: Path) -> Path:
    """Of a role: a path, or a source as a profile's weights have. Raises as `locate` does."""
    is_source = model.partition(":")[0] in ("package", "path", "hub")
    return locate_source(model, base, state) if is_source else under(base, model)


def hub_source(source: str) -> HubSource:
    """Raises `ValueError` as `locate` does."""
    match = _HUB.fullmatch(source.removeprefix("hub:"))
    if match is None or ".." in source:
        raise ValueError("a hub source is `hub:OWNER/NAME@COMMIT`, or `hub:OWNER/NAME/FILE`, maybe with `@REVISION`")
    if match["file"] is None and not _COMMIT.fullmatch(match["revision"] or ""):
        raise ValueError(
            "a hub source is `hub:OWNER/NAME@COMMIT` when it is a directory, pinned by the 40 digits of its commit, "
            "or `hub:OWNER/NAME/FILE`"
        )
    return HubSource(f"{match['owner']}/{match['name']}", match["file"], match["revision"] or "main")


def is_hub_directory(source: str) -> bool:
    """Whether it names a whole checkpoint of a hub; False also for what names nothing."""
    match = _HUB.fullmatch(source.removeprefix("hub:"))
    return source.startswith("hub:") and match is not None and match["file"] is None


def _in_package(rest: str) -> Path:
    module, slash, file = rest.partition("/")
    if not slash or not module.isidentifier() or ".." in file:
        raise ValueError("a package source is `package:MODULE/FILE`")
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0] if folders else Path(sysconfig.get_path("purelib"), module), file)
