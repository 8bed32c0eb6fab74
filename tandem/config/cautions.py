"""What documents may say and people seldom mean: nothing is refused for it, but it is said."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tandem.config.documents import Appliance
from tandem.config.paths import is_file, under

SHOWN: Final = 8  # of bad lines


def find_cautions(appliance: Appliance, base: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences without a secret. `base` is the folder of the appliance document."""
    keys, host = appliance.keys, appliance.listen.host
    if keys.variable is not None:
        return _about_keys("variable", environment.get(keys.variable, ""))
    if keys.file is not None:
        return _about_key_file(under(base, keys.file))
    if is_loopback(host):
        return ()
    return (f"the API answers on {host} without keys: anyone who reaches that port can use it",)


def _about_key_file(path: Path) -> tuple[str, ...]:
    if not is_file(path):
        return ()  # which is refused
    try:
        return _about_keys("file", path.read_text())
    except (OSError, UnicodeDecodeError):
        return (_closed("file", "could not be read"),)


def _about_keys(key: str, text: str) -> tuple[str, ...]:
    """As the gateway reads them: `name:key` a line, none of which is quoted."""
    good, bad = list[int](), list[int]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, _, secret = (part.strip() for part in line.partition(":"))
            (good if name and secret else bad).append(number)
    if not good:
        return (_closed(key, "held no `name:key`"),)
    if not bad:
        return ()
    lines = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:SHOWN]))}{' and more' if bad[SHOWN:] else ''}"
    return (f"what `keys.{key}` names had no `name:key` on {lines} when it was read: who shows that key is not let in",)


def _closed(key: str, what: str) -> str:
    """In the past: a key may have been written since, and the gateway reads it at once."""
    return f"what `keys.{key}` names {what} when it was read: while that is so, nobody is let in"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
