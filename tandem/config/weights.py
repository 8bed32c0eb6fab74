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

_HUB: Final = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)/(?P<file>[\w./-]+?)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubFile:
    repository: str  # OWNER/NAME
    file: str
    revision: str

    def url(self, endpoint: str) -> str:
        return f"{endpoint.rstrip('/')}/{self.repository}/resolve/{self.revision}/{self.file}"


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
    kind, _, rest = weights.source.partition(":")
    match kind:
        case "package":
            path = _in_package(rest)
        case "path":
            path = under(base, rest)
        case _:
            hub = hub_file(weights.source)
            path = state / "models" / hub.repository / hub.revision / hub.file
    return Located(path, exists(path), kind == "hub" or (kind == "package" and weights.distribution is not None))


def hub_file(source: str) -> HubFile:
    match = _HUB.fullmatch(source.removeprefix("hub:"))
    if match is None or ".." in source:
        raise ValueError("a hub source is `hub:OWNER/NAME/FILE`, with `@REVISION` when it is pinned")
    return HubFile(f"{match['owner']}/{match['name']}", match["file"], match["revision"] or "main")


def _in_package(rest: str) -> Path:
    module, slash, file = rest.partition("/")
    if not slash or not module.isidentifier() or ".." in file:
        raise ValueError("a package source is `package:MODULE/FILE`")
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0] if folders else Path(sysconfig.get_path("purelib"), module), file)
