"""What rows, slots and the engine take, in bytes. Plain numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.config.documents import Kv

PAGE: Final = 2 << 20  # the granularity in which device memory is committed, and a huge page on the host


def element_bytes(kv: Kv, compute: str) -> int:
    """One element of K or V: as wide as the activations, which are float32 only where everything is."""
    if kv.element is not None:
        return kv.element
    return 4 if compute == "float32" else 2


def kv_bytes_a_token(kv: Kv, element: int = 2) -> int:
    """What one token's rows take: attention layers x (K + V + indexer key), then drafters and rotary."""
    layer = (2 * kv.heads * kv.head_dim + kv.indexer_key) * element
    return kv.layers * layer + sum(kv.drafters) + kv.rotary


def slot_bytes(window: int, bytes_a_token: int, constant: int, *, pool: bool) -> int:
    """What a slot takes for good. With the pool that is its constant: rows cost when they are written."""
    return constant if pool else window * bytes_a_token + constant


def committed(rows: int, bytes_a_token: int) -> int:
    """Bytes behind `rows` written rows, in whole pages."""
    return -(-rows * bytes_a_token // PAGE) * PAGE


def declared_peak(configured: int, fixed: Sequence[int], window_bytes: int, *, pool: bool) -> int:
    """The most the engine may grow to: what it is configured for, and the side slots, which are its for good.

    `configured` counts slot 0's window; with the pool those rows belong to nobody until they are written.
    """
    return configured - (window_bytes if pool else 0) + sum(fixed)


def largest_reservation(window: int, margin_rows: int, bytes_a_token: int, workspace: int) -> int:
    """What one request that fills slot 0 may commit: every row of the window and one prefill chunk's workspace."""
    return workspace + committed(window + margin_rows, bytes_a_token)
