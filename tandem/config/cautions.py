"""What documents may say and people seldom mean: nothing is refused for it, but it is said."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from tandem.config.documents import Appliance
from tandem.contract.keys import key_warnings
from tandem.contract.plan import KeySource


def find_cautions(appliance: Appliance, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences without a secret. A key file is looked at whenever somebody asks, since it changes by itself."""
    keys, host = appliance.keys, appliance.listen.host
    if keys.variable is not None:
        source = KeySource(None, keys.variable, keys.admin, keys.metrics_only)
        return tuple(key_warnings(source, environment.get(keys.variable, "")))
    if keys.file is not None or is_loopback(host):
        return ()
    return (f"the API answers on {host} without keys: anyone who reaches that port can use it",)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
