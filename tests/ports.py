"""A port for a process that is told its port before it binds it."""

from __future__ import annotations

import random
import socket

LOW, HIGH = (
    20_000,
    32_000,
)  # below those that a kernel gives to who asks for any port, or calls somebody
_draw = random.SystemRandom()


def free_port() -> int:
    """Free on the loopback now, and taken by chance alone until it is bound."""
    while True:
        port = _draw.randrange(LOW, HIGH)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
