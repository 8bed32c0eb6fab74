"""Bytes of an event stream."""

from __future__ import annotations

from typing import Final

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold every token back
)
DONE: Final = b"data: [DONE]\n\n"


def data(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"


def comment(sentence: str) -> bytes:
    """A line every client skips. It keeps the connection alive and tells a person who looks why nothing comes."""
    return b": " + " ".join(sentence.split()).encode() + b"\n\n"
