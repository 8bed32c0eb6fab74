"""What a client offers the model to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Tool(Struct, frozen=True):
    name: str  # never empty
    description: str = ""
    parameters: Mapping[str, Any] = {}  # a JSON schema of an object; empty: it takes none
    strict: bool = False  # a forced call keeps every word of the schema, not only its shape
