"""GGUF files: the header read once, each tensor read when it is asked for.

Knows the container and its block formats, no architecture. The header is parsed here and not with the `gguf`
package's reader, which takes seconds for a vocabulary; block formats and their sizes are that package's.
Tensors are read, not mapped: memory holds one stored tensor at a time, and a file that shrinks meanwhile is an
error instead of a signal.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import gguf
import numpy as np

from tandem.errors import CannotStart
from tandem.model.weights import grouped
from tandem.model.weights.grouped import Grouped

if TYPE_CHECKING:
    from torch import Tensor  # headers are read without torch; what returns tensors imports it

Value = int | float | bool | str | tuple[int | float | bool, ...] | None  # None: a list of strings, passed over

_KIND = gguf.GGMLQuantizationType
SUPPORTED: Final = frozenset(
    {_KIND.F32, _KIND.F16, _KIND.BF16, _KIND.Q4_0, _KIND.Q4_1, _KIND.Q5_0, _KIND.Q5_1, _KIND.Q8_0}
    | {_KIND.Q2_K, _KIND.Q3_K, _KIND.Q4_K, _KIND.Q5_K, _KIND.Q6_K}
)

_VALUE = gguf.GGUFValueType
_SCALARS: Final = {
    _VALUE.UINT8: "<B",
    _VALUE.INT8: "<b",
    _VALUE.UINT16: "<H",
    _VALUE.INT16: "<h",
    _VALUE.UINT32: "<I",
    _VALUE.INT32: "<i",
    _VALUE.FLOAT32: "<f",
    _VALUE.BOOL: "<?",
    _VALUE.UINT64: "<Q",
    _VALUE.INT64: "<q",
    _VALUE.FLOAT64: "<d",
}
_AGAIN: Final = "copy the whole file there again; `tandem pull` does so where the profile names a `hub:` or `package:`"
_NAMES_SHOWN: Final = 4  # tensors listed in one sentence
_WIDENED: Final = 1 << 20  # weights brought to float32 at a time


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file, not yet read. `shape` is torch's order: a matrix is [out, in]."""

    file: GgufFile
    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int  # from the start of the file
    size: int  # bytes

    @property
    def bits(self) -> int | None:
        """Of the whole numbers that `grouped` gives; None where the format is another."""
        return grouped.BITS.get(self.kind.name)

    @property
    def is_four_bit(self) -> bool:
        return self.bits == 4

    def float32(self) -> Tensor:
        """The weights in full. Raises `CannotStart` when one of them is not a finite number."""
        import torch

        data = self.file.read(self)
        if self.kind is _KIND.F32:
            return self._finite(torch.frombuffer(data, dtype=torch.float32).clone()).reshape(self.shape)
        block, block_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        width = self.shape[-1]
        stored = np.frombuffer(data, dtype=np.uint8).reshape(-1, width // block * block_bytes)
        weights = np.empty((stored.shape[0], width), dtype=np.float32)
        rows = max(1, _WIDENED // width)
        for first in range(0, stored.shape[0], rows):  # widening takes twice what it makes
            weights[first : first + rows] = gguf.quants.dequantize(stored[first : first + rows], self.kind)
        return self._finite(torch.from_numpy(weights)).reshape(self.shape)

    def bfloat16(self) -> Tensor:
        """The weights rounded to bfloat16, without a wider copy where the file keeps them so."""
        import torch

        if self.kind is not _KIND.BF16:
            return self.float32().bfloat16()
        stored = torch.frombuffer(self.file.read(self), dtype=torch.bfloat16)
        return self._finite(stored).view(self.shape)

    def grouped(self) -> Grouped:
        """The weights of a matrix of whole numbers (`bits`) without loss. Raises `CannotStart` as `float32` does."""
        import torch

        assert self.bits is not None, "asked first"
        block_bytes = gguf.GGML_QUANT_SIZES[self.kind][1]
        stored = torch.frombuffer(self.file.read(self), dtype=torch.uint8).view(self.shape[0], -1, block_bytes)
        matrix = grouped.unpack(self.kind.name, stored)
        self._finite(matrix.scale), self._finite(matrix.minimum)
        return matrix

    def _finite(self, numbers: Tensor) -> Tensor:

        if not all(math.isfinite(end) for end in numbers.aminmax()):  # a nan is both ends
            raise CannotStart(f"tensor `{self.name}` in {self.file.path} holds numbers that are not finite")
        return numbers


class GgufFile:
    """An open file: `metadata` and `tensors` by name. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises `CannotStart` for anything but a whole little-endian GGUF file."""
        self.path = path
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, StoredTensor] = {}
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CannotStart(f"cannot read the weights {path}: {error.strerror}") from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            _HeaderReader(self, self._file).read()
            self._check_ends()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes, and lets the kernel drop the rest of the file's cached pages."""
        self._drop_cached(self._size)
        self._file.close()

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise self._bad_key(key, "a text")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """A positive whole number. Raises `CannotStart` when it is absent (and no default is given) or not one."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._bad_key(key, "a positive whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(key, default)
        if not isinstance(value, float) or not math.isfinite(value):
            raise self._bad_key(key, "a number")
        return value

    def token(self, key: str) -> int | None:
        """A token id, or None when the file names none."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else None

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises `CannotStart` unless the file holds exactly these tensors, each in its shape and a known format."""
        absent = [f"`{name}` {_shape(shape)}" for name, shape in shapes.items() if name not in self.tensors]
        extra = [f"`{name}`" for name in self.tensors if name not in shapes]
        shared = [(self.tensors[name], shape) for name, shape in shapes.items() if name in self.tensors]
        wrong = [
            f"`{tensor.name}` is {_shape(tensor.shape)}, expected {_shape(shape)}"
            for tensor, shape in shared
            if tensor.shape != shape
        ]
        unknown = [f"`{tensor.name}` ({tensor.kind.name})" for tensor, _ in shared if tensor.kind not in SUPPORTED]
        for label, names in (
            ("lacks", absent),
            ("has unexpected tensors", extra),
            ("has tensors of wrong shape:", wrong),
        ):
            if names:
                raise CannotStart(f"{self.path} {label} {_some(names)}")
        if unknown:
            read = ", ".join(kind.name for kind in sorted(SUPPORTED))
            raise CannotStart(
                f"{self.path} uses formats that cannot be read: {_some(unknown)}; read are {read}",
                "choose a file of the same model in these formats",
            )

    def read(self, tensor: StoredTensor) -> bytearray:
        """The stored bytes. Raises `CannotStart` when the file no longer has them."""
        data = bytearray(tensor.size)
        self._file.seek(tensor.offset)
        if self._file.readinto(data) != tensor.size:
            raise CannotStart(f"{self.path} became shorter while it was read")
        self._drop_cached(tensor.offset + tensor.size)
        return data

    def _drop_cached(self, end: int) -> None:
        """Page cache of a file that is read once would only push out other memory, and break up its large blocks.

        Always from the start: the kernel drops no block of pages that is partly outside, as one between two tensors.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, end, os.POSIX_FADV_DONTNEED)

    def _check_ends(self) -> None:
        for tensor in self.tensors.values():
            end = tensor.offset + tensor.size
            if end > self._size:
                raise CannotStart(
                    f"{self.path} is truncated: tensor `{tensor.name}` ends at byte {end:,} of {self._size:,}",
                    help=_AGAIN,
                )

    def _bad_key(self, key: str, wanted: str) -> CannotStart:
        held = f"holds {self.metadata[key]!r}" if key in self.metadata else "is missing"
        return CannotStart(f"`{key}` {held} in {self.path}; {wanted} is needed")


class _HeaderReader:
    """Walks a header once and fills its file's `metadata` and `tensors`."""

    def __init__(self, target: GgufFile, file: BinaryIO) -> None:
        self._target = target
        self._file = file

    def read(self) -> None:
        path = self._target.path
        if self._file.read(4) != b"GGUF":
            raise CannotStart(f"{path} is not a GGUF file")
        try:
            version = self._number("<I")
            if version not in (2, 3):
                raise CannotStart(f"{path} is GGUF version {version}; little-endian versions 2 and 3 are read")
            num_tensors, num_keys = self._number("<Q"), self._number("<Q")
            for _ in range(num_keys):
                key = self._text()
                self._target.metadata[key] = self._value(_VALUE(self._number("<I")))
            self._read_tensors(num_tensors)
        except (struct.error, EOFError) as error:
            raise CannotStart(f"{path} is truncated: it ends inside its header", help=_AGAIN) from error
        except (ValueError, OverflowError, MemoryError) as error:  # an unknown type, a text that is none, absurd counts
            raise CannotStart(f"{path} has a damaged header: {error}", help=_AGAIN) from error

    def _read_tensors(self, count: int) -> None:
        entries = []
        for _ in range(count):
            name = self._text()
            shape = tuple(reversed([self._number("<Q") for _ in range(self._number("<I"))]))
            entries.append((name, shape, _KIND(self._number("<I")), self._number("<Q")))
        alignment = self._target.whole("general.alignment", 32)
        start = -(-self._file.tell() // alignment) * alignment
        for name, shape, kind, offset in entries:
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            if name in self._target.tensors:
                raise ValueError(f"tensor `{name}` appears twice")
            if not shape or shape[-1] % block:
                raise ValueError(f"tensor `{name}` {_shape(shape)} cannot be {kind.name}")
            size = math.prod(shape) // block * block_bytes
            self._target.tensors[name] = StoredTensor(self._target, name, shape, kind, start + offset, size)

    def _value(self, kind: gguf.GGUFValueType) -> Value:
        if kind is _VALUE.STRING:
            return self._text()
        if kind is not _VALUE.ARRAY:
            value: int | float | bool = struct.unpack(_SCALARS[kind], self._exactly(struct.calcsize(_SCALARS[kind])))[0]
            return value
        item, length = _VALUE(self._number("<I")), self._number("<Q")
        if item is _VALUE.STRING:
            for _ in range(length):
                self._exactly(self._number("<Q"))
            return None
        if item is _VALUE.ARRAY:
            raise ValueError("a list of lists")
        form = _SCALARS[item]
        return struct.unpack(f"<{length}{form[1]}", self._exactly(length * struct.calcsize(form)))

    def _text(self) -> str:
        return self._exactly(self._number("<Q")).decode()

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._exactly(struct.calcsize(form)))[0]
        return number

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size) if size <= self._target._size else b""
        if len(data) != size:
            raise EOFError
        return data


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
