"""What a request says about itself beside its body: whose rows it may find, which conversation it is of, whether it is
a task beside one.

A hint decides where a request runs and never what it answers: a wrong one costs time alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tandem.contract.plan import Api
from tandem.gateway.auth import Caller

# Headers in which clients name their conversation: opencode's, then Open WebUI's.
_CONVERSATIONS: Final = (b"x-session-id", b"x-openwebui-chat-id")
_NO_TASK: Final = frozenset({b"", b"0", b"false", b"no", b"none", b"off"})


class Hints(Struct, frozen=True):
    scope: str = ""  # requests of different scopes never share cached rows
    conversation: str = ""  # a hash, or nothing
    is_task: bool = False


def hints_of(headers: Mapping[bytes, bytes], openings: Sequence[str], caller: Caller, api: Api) -> Hints:
    """`openings` are the texts of the request by whose beginnings a task is known. Its own word goes before them."""
    said = headers.get(b"x-task")
    is_task = begins(openings, api.tasks) if said is None else said.strip().lower() not in _NO_TASK
    scope = caller.scope if api.cache_scope == "key" else ""
    return Hints(scope, _conversation(headers, caller), is_task)


def begins(openings: Sequence[str], tasks: Sequence[str]) -> bool:
    return any(opening.lstrip().startswith(tuple(tasks)) for opening in openings)


def _conversation(headers: Mapping[bytes, bytes], caller: Caller) -> str:
    """Of one key: another's conversation never has the same hash, whatever it is called."""
    said = next((headers[name] for name in _CONVERSATIONS if headers.get(name)), None)
    if said is None:
        return ""
    return hashlib.sha256(b"conversation:" + caller.scope.encode() + b":" + said).hexdigest()[:16]
