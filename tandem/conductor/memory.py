"""What was decided about the messages of conversations, so that later turns read as they read then.

A note stands behind the message that it was decided for and stays there: the prompt of a later turn begins with the
prompt of this one, and nothing has to be read twice. Only digests of messages are held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from tandem.conductor.conductor import Decision

MOST_KEPT: Final = 10_000  # messages; about 300 bytes each


def digests(scope: str, turns: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    """Of every message (role and text) with all that stand before it; conversations of different scopes share none."""
    so_far = blake2b(scope.encode(), digest_size=16).digest()
    for role, text in turns:
        so_far = blake2b(so_far + role.encode() + b"\0" + text.encode(errors="surrogatepass"), digest_size=16).digest()
        yield so_far


class DecisionMemory:
    """The decisions used last. Belongs to one thread."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._kept: OrderedDict[bytes, Decision] = OrderedDict()
        self._most = most

    def find(self, digest: bytes) -> Decision | None:
        if digest in self._kept:
            self._kept.move_to_end(digest)
        return self._kept.get(digest)

    def keep(self, digest: bytes, decision: Decision) -> None:
        self._kept[digest] = decision
        self._kept.move_to_end(digest)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
