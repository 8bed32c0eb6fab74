"""Settings of the servers this one grew from (`QSE_*`, `QWEN38_*`) become an appliance.yaml, and words for the rest.

Nothing is dropped in silence: every line of the file is a key, or a sentence. A value that may be a secret is in
neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tandem.config.documents import Appliance
from tandem.config.quantities import exact_duration, exact_size
from tandem.config.shape import read_shape
from tandem.config.source import Layers, is_secret, read_tree, without_secrets
from tandem.units import GIB


@dataclass(frozen=True, slots=True)
class Imported:
    document: str  # an appliance.yaml
    words: tuple[str, ...]  # what has no counterpart, and why


def _whole(text: str) -> str:
    return str(int(text))


def _switch(text: str) -> str:
    if text.lower() in {"on", "1", "true", "yes"}:
        return "on"
    if text.lower() in {"off", "0", "false", "no"}:
        return "off"
    raise ValueError


def _continues(text: str) -> str:
    if text.lower() not in {"client", "resident"}:
        raise ValueError
    return text.lower()


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e12:
        raise ValueError
    return number


def _gib(text: str) -> str:
    return exact_size(round(_number(text) * GIB))


def _seconds(text: str) -> str:
    return exact_duration(_number(text))


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "QSE_PARALLEL": ("slots.count", _whole),
    "QSE_SIDE_MAX_LEN": ("slots.side_window", _whole),
    "QSE_SIDE_GRAPHS": ("slots.graphs", _switch),
    "QSE_SIDE_SLOT_CONST_GB": ("slots.side_constant", _gib),
    "QSE_PARALLEL_FLOOR_GB": ("memory.floor", _gib),
    "QSE_KV_HARD_FLOOR_GB": ("memory.hard_floor", _gib),
    "QSE_KV_POOL": ("memory.kv_pool", _switch),
    "QSE_KV_MARGIN_ROWS": ("memory.kv_margin_rows", _whole),
    "QSE_REQUEST_TIMEOUT": ("limits.request_timeout", _seconds),
    "QSE_QUEUE_TIMEOUT": ("limits.queue_timeout", _seconds),
    "QWEN38_SIDE_CONTINUE": ("routing.continues", _continues),
    "QWEN38_SIDE_CONV": ("routing.past_head", _switch),
    "QWEN38_SIDE_GUESTS": ("routing.guests", _switch),
    "QWEN38_SIDE_NEW_FIRST": ("routing.new_first", _switch),
    "QWEN38_SIDE_CARRY": ("routing.carry", _switch),
    "QWEN38_SIDE_SLOT0_WAIT_S": ("routing.slot0_wait", _seconds),
    "QWEN38_SIDE_HOME_WAIT_S": ("routing.home_wait", _seconds),
    "QWEN38_SIDE_MIN_ROOM": ("routing.side_min_room", _whole),
    "QSE_HOST": ("listen.host", json.dumps),
    "QSE_PORT": ("listen.port", _whole),
}

_RESIDENCY: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "QSE_ROLE_RELOAD_MARGIN_GB": ("reload.margin", _gib),
    "QSE_ROLE_RELOAD_S": ("reload.after", _seconds),
    "QSE_ROLE_THRASH_S": ("reload.thrash", _seconds),
    "QSE_ROLE_MAX_HOLD_S": ("reload.max_hold", _seconds),
}

_CACHES: Final = "there is no cache of this kind to size or to switch"

_WORDS: Final[Mapping[str, str]] = {
    "QSE_ROLE_UNLOAD_LAYA": "belongs to the deciders: declare them and write `roles.deciders.may_unload`",
    "QWEN38_SIDE_DISK": _CACHES,
    "QWEN38_SIDE_RESIDENT_GB": _CACHES,
    "QWEN38_SIDE_STASH_GB": _CACHES,
}

_LINE: Final = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)")
_HEAD: Final = "# Imported. `tandem check` reads it, `tandem plan` shows what it takes.\n"


def import_env(text: str) -> Imported:
    """The appliance that `text`, an environment file, describes. A name set twice counts as its last value."""
    words: list[str] = []
    settings = _settings(text, words)
    keys: dict[str, str] = {}
    for name, value in settings.items():
        path, read = _KEYS.get(name, _RESIDENCY.get(name, ("", str)))
        if not path:
            words.append(_unknown(name, value))
            continue
        try:
            written = read(value)
        except (ValueError, OverflowError):
            words.append(f"{_shown(name, value)}: not a value it could have had; left out")
            continue
        if name in _RESIDENCY:
            words.append(f"{_shown(name, value)}: belongs to the residency document: `{path}: {written}`")
        else:
            keys[path] = written
    document = _document(keys, qwen=any(name.startswith(("QSE_", "QWEN38_")) for name in settings))
    tree, _ = read_tree(document, "appliance.yaml")
    _, problems = read_shape(Layers((tree,)), Appliance)
    words += [f"`{problem.place.path}`: {problem.message}" for problem in problems if problem.place is not None]
    return Imported(document, tuple(words))


def _settings(text: str, words: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            words.append(f"line {number} is not NAME=VALUE; left out")
            continue
        name, value = match["name"], _unquoted(match["value"])
        if name in settings:
            words.append(f"`{name}` is set twice; line {number} counts")
        settings[name] = value
    return settings


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"\s+#", value, maxsplit=1)[0].strip()


def _unknown(name: str, value: str) -> str:
    if is_secret(name):
        return f"`{name}`: a key never stands in a document; put it in a file and write `keys.file`"
    if name in _WORDS:
        return f"{_shown(name, value)}: {_WORDS[name]}"
    if name.startswith(("QSE_", "QWEN38_")):
        return f"{_shown(name, value)}: no counterpart in this version; left out"
    return f"`{name}`: not a setting of the engine; left out"


def _shown(name: str, value: str) -> str:
    return f"`{name}`" if is_secret(name) else f"`{without_secrets(f'{name}={value[:60]}')}`"


def _document(keys: Mapping[str, str], *, qwen: bool) -> str:
    lines = [_HEAD, "profile: qwen3.8-27b\nresidency: dgx-spark\n" if qwen else ""]
    sections: dict[str, list[str]] = {}
    for path, written in keys.items():
        section, key = path.split(".")
        sections.setdefault(section, []).append(f"  {key}: {written}\n")
    return "".join(lines) + "".join(f"\n{section}:\n{''.join(rows)}" for section, rows in sections.items())
