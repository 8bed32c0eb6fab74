"""The compiled step: found beside this file, called through ctypes. `abi.h` is the other side of these structs."""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


class MatrixC(Structure):
    _fields_ = [("blocks", c_void_p), ("outputs", c_int32), ("inputs", c_int32), ("bits", c_int32), ("unused", c_int32)]


class LayerC(Structure):
    _fields_ = [
        *((name, MatrixC) for name in ("qkv", "attention_output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm")),
    ]


class ShapeC(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layers", "hidden", "feed_forward", "heads", "kv_heads", "head_dim")),
        ("turn_halves", c_int32),
        ("epsilon", c_float),
    ]


class ModelC(Structure):
    _fields_ = [("shape", ShapeC), ("layer", POINTER(LayerC)), ("last_norm", c_void_p), ("head", MatrixC)]


class SpanC(Structure):
    _fields_ = [
        ("kv", c_void_p),
        ("window", c_int64),
        *((name, c_int32) for name in ("start", "first", "rows", "unused")),
    ]


class PassC(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("rows", "spans", "wanted_rows", "unused")),
        ("span", POINTER(SpanC)),
        *((name, c_void_p) for name in ("parents", "turns", "wanted", "stream", "logits")),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """None where it was not built: there was no compiler when the package was installed."""
    path = _path()
    return None if path is None else _declare(ctypes.CDLL(str(path)))


@cache
def build() -> str:
    """Names the compiled code by its content: another one may give rows other bits. Empty where nothing was built."""
    path = _path()
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _path() -> Path | None:
    beside = (Path(__file__).with_name(f"_step{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next((path for path in beside if path.exists()), None)


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    found.tandem_family.argtypes, found.tandem_family.restype = [c_int32], ctypes.c_char_p
    found.tandem_team.argtypes, found.tandem_team.restype = [c_int32], c_void_p
    found.tandem_disband.argtypes, found.tandem_disband.restype = [c_void_p], None
    found.tandem_step.argtypes = [c_int32, POINTER(ModelC), POINTER(PassC), c_void_p]
    found.tandem_step.restype = None
    return found


def families() -> tuple[str, ...]:
    """What this processor runs, best first; empty where nothing was built."""
    found, names = library(), list[str]()
    while found is not None and (name := found.tandem_family(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)
