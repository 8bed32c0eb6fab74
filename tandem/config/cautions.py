"""What documents may say and people seldom mean: nothing is refused for it, but it is said."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from tandem.config.documents import Appliance
from tandem.config.paths import is_file, under


def find_cautions(appliance: Appliance, base: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences without a secret. `base` is the folder of the appliance document."""
    keys, host = appliance.keys, appliance.listen.host
    if keys.variable is not None:
        return () if holds_key(environment.get(keys.variable, "")) else (_closed("variable", "held no `name:key`"),)
    if keys.file is not None:
        return _about_key_file(under(base, keys.file))
    if is_loopback(host):
        return ()
    return (f"the API answers on {host} without keys: anyone who reaches that port can use it",)


def _about_key_file(path: Path) -> tuple[str, ...]:
    if not is_file(path):
        return ()  # which is refused
    try:
        return () if holds_key(path.read_text()) else (_closed("file", "held no `name:key`"),)
    except (OSError, UnicodeDecodeError):
        return (_closed("file", "could not be read"),)


def _closed(key: str, what: str) -> str:
    """In the past: a key may have been written since, and the gateway reads it at once."""
    return f"what `keys.{key}` names {what} when it was read: while that is so, nobody is let in"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def holds_key(text: str) -> bool:
    """Whether any line is a key, as the gateway reads them."""
    lines = (line.strip() for line in text.splitlines())
    parts = (line.partition(":") for line in lines if not line.startswith("#"))
    return any(name.strip() and key.strip() for name, _, key in parts)
