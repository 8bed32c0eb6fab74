"""A tensor over any address, through a hand-made DLPack capsule.

DLPack names the device in so many words, so nothing has to lie behind the address yet, and it carries a deleter,
so the addresses live exactly as long as the last view of the tensor.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

_DEVICE_TYPES: Final = {"cpu": 1, "cuda": 2}
_UNSIGNED: Final = 1


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dims", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # null: contiguous
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_alive: Final[dict[int, tuple[Any, ...]]] = {}  # address of the struct -> what must live while torch uses it


def _forget(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_forget_in_c = _Deleter(_forget)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def bytes_at(address: int, size: int, device: torch.device, owner: object) -> Tensor:
    """uint8 [size] over `address` on `device`; `owner` is kept alive by the tensor's storage."""
    shape = (ctypes.c_int64 * 1)(size)
    managed = _Managed(deleter=_forget_in_c)
    managed.tensor = _Tensor(
        data=address,
        device=_Device(_DEVICE_TYPES[device.type], device.index or 0),
        dims=1,
        dtype=_DataType(_UNSIGNED, 8, 1),
        shape=shape,
    )
    key = ctypes.addressof(managed)
    _alive[key] = (managed, shape, owner)
    try:
        return from_dlpack(_new_capsule(key, b"dltensor", None))
    except BaseException:
        _alive.pop(key, None)  # nobody took the capsule over
        raise
