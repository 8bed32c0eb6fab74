"""Bytes of an event stream."""

from __future__ import annotations

from typing import Final

STREAM_TYPE: Final = b"text/event-stream; charset=utf-8"
DONE: Final = b"data: [DONE]\n\n"  # ends a stream of OpenAI's


def headers(stream_type: bytes) -> list[tuple[bytes, bytes]]:
    """Of any answer that is sent as it is written."""
    return [
        (b"content-type", stream_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # proxies that buffer would hold every token back
    ]


def data(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"


def event(name: bytes, json: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + json + b"\n\n"


def comment(sentence: str) -> bytes:
    """A line every client skips. It keeps the connection alive and tells a person who looks why nothing comes."""
    return b": " + " ".join(sentence.split()).encode() + b"\n\n"
