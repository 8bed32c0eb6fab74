"""A whole checkpoint directory from a hub: every shard its index names and the documents beside them.

It grows in `NAME.part` beside its final name and is renamed when every file is there, so a directory under its final
name is whole. What each file is stands in `MANIFEST`: later pulls compare sizes with it and fetch what is damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tandem.config.documents import Downloads
from tandem.config.download import Report, Server, Wanted, ask, download, only_one, plain_words, room
from tandem.config.paths import under
from tandem.config.weights import HubSource
from tandem.errors import CannotStart

MANIFEST: Final = ".fetched.json"
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
NEEDED: Final = ("config.json", "tokenizer.json")
WELCOME: Final = (  # where a model has them
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


class Fetched(msgspec.Struct, frozen=True):
    """One file of a directory, as the hub announced it."""

    size: int | None
    sha256: str | None  # None: the hub states none for small files, whose size is compared


Manifest = dict[str, Fetched]


def declared_server(downloads: Downloads, base: Path, environment: Mapping[str, str] = os.environ) -> Server:
    """The hub and the token that was declared for it. Raises `CannotStart` for a token that is not where it should be;
    neither the token nor a name that may be one is ever said."""
    token: str | None = None
    if downloads.token_variable is not None:
        token = environment.get(downloads.token_variable, "").strip()
        if not token:
            raise CannotStart("the environment variable that `downloads.token_variable` names is not set")
    elif downloads.token_file is not None:
        try:
            token = under(base, downloads.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise CannotStart("the file that `downloads.token_file` names cannot be read") from None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token and token):
        raise CannotStart("what `downloads` names as a token does not read as one: one line, no spaces")
    return Server(downloads.endpoint.rstrip("/"), token)


def pull_directory(
    source: HubSource, path: Path, find: Callable[[], Server], report: Report, wait: Callable[[float], None]
) -> tuple[bool, bool]:
    """Whether anything was fetched, and whether every shard was proved by a sha256. Raises `CannotStart`.

    Of a directory that is whole no server is asked, and no token is needed.
    """
    part = path.with_name(path.name + ".part")
    with plain_words(path), only_one(path.with_name(path.name + ".lock")):
        if path.is_dir():
            manifest = _manifest(path)
            if not (broken := _broken(path, manifest)):
                return False, _is_proved(manifest)
            for name in broken:
                (path / name).unlink(missing_ok=True)
            path.rename(part)  # which is not there: it became `path` when it was whole
        server = find()
        part.mkdir(exist_ok=True)
        manifest = _announced(source, part, server, report, wait)
        _fetch(source, part, manifest, server, report, wait)
        (part / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        part.rename(path)
    return True, _is_proved(manifest)


def _announced(
    source: HubSource, part: Path, server: Server, report: Report, wait: Callable[[float], None]
) -> Manifest:
    """Every file of the directory, asked for before the first large one is fetched."""
    manifest: Manifest = {}

    def announce(name: str) -> bool:
        wanted = ask(source.url(server.endpoint, name), server)
        if wanted is not None:
            manifest[name] = Fetched(wanted.size, wanted.sha256)
        return wanted is not None

    for name in (*NEEDED, *WELCOME):
        if not announce(name) and name in NEEDED:
            raise CannotStart(
                f"{source.repository} at {source.revision} has no {name}",
                "name a repository of safetensors with its tokenizer, or one file as `hub:OWNER/NAME/FILE@REVISION`",
            )
    shards = [SINGLE]
    if announce(INDEX):
        _fetch(source, part, {INDEX: manifest[INDEX]}, server, report, wait)
        shards = _shards(part / INDEX)
    for name in shards:
        if not announce(name):
            raise CannotStart(
                f"{source.repository} at {source.revision} has no {name}", "check `source` and its revision"
            )
    return manifest


def _shards(index: Path) -> list[str]:
    """Raises `CannotStart` for an index that names what could not be a file beside it."""
    try:
        places = msgspec.json.decode(index.read_bytes(), type=dict[str, msgspec.Raw])["weight_map"]
        names = sorted(set(msgspec.json.decode(places, type=dict[str, str]).values()))
    except (msgspec.DecodeError, LookupError):
        index.unlink()
        raise CannotStart(f"{index.name} does not read as an index of shards", "run `tandem pull` again") from None
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise CannotStart(f"{index.name} names files that no checkpoint has", "choose another repository")
    return names


def _fetch(
    source: HubSource, part: Path, manifest: Manifest, server: Server, report: Report, wait: Callable[[float], None]
) -> None:
    """What of `manifest` is not in `part` yet. The whole of it has room on the disk before its first byte comes."""
    missing = _broken(part, manifest)
    begun = sum(file.stat().st_size for name in missing if (file := part / f"{name}.part").exists())
    room(part, max(0, sum(manifest[name].size or 0 for name in missing) - begun))
    for number, name in enumerate(missing, start=1):
        said = manifest[name]

        def tell(stage: str, done: int, total: int | None, number: int = number) -> None:
            report(f"{stage} {number} of {len(missing)} of" if len(missing) > 1 else stage, done, total)

        (part / name).unlink(missing_ok=True)
        wanted = Wanted(source.url(server.endpoint, name), said.size, said.sha256)
        download(wanted, part / name, server, tell, wait)


def _broken(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are absent or of another size."""
    return [
        name
        for name, said in manifest.items()
        if not (file := folder / name).is_file() or (said.size is not None and file.stat().st_size != said.size)
    ]


def _manifest(path: Path) -> Manifest:
    try:
        return msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        raise CannotStart(
            f"{path} was not put there by `tandem pull`", f"remove {path}, or serve it with `path:{path}`"
        ) from None


def _is_proved(manifest: Manifest) -> bool:
    return all(said.sha256 is not None for name, said in manifest.items() if name.endswith(".safetensors"))
