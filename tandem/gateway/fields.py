"""Kinds of fields that requests of several APIs have."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

MAX_CHOICES: Final = 16
MAX_STOPS: Final = 16
ENDLESS: Final = 1 << 31  # tokens, above any window; a client may name more than a message can carry
WHOLE_ROOM: Final = -1  # as a limit of tokens: as many as there is room for

Count = Annotated[int, Meta(ge=WHOLE_ROOM, description="Cut to the room there is. -1: all of it. Not 0.")]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
NumTop = Annotated[int, Meta(ge=0, le=20)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Ignored = Annotated[Any, Meta(description="Accepted; it changes nothing.")]
Refused = Annotated[Any, Meta(description="Accepted only with a value that asks for nothing; others are refused.")]
