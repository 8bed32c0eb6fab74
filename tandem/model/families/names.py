"""The tensors of a dense model, whatever its source calls them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What a source calls the tensors, without `.weight` at the end; those of a layer behind its own prefix."""

    embedding: str
    head: str
    last_norm: str
    layer: str  # with a place for its number
    attention_norm: str
    qkv: tuple[str, str, str]
    query_norm: str
    key_norm: str
    attention_output: str
    feed_forward_norm: str
    gate_up: tuple[str, str]
    down: str
