"""A checkpoint directory as a source of tensors: named, checked, dequantized, read once.

A family asks for what it needs by name and shape. It asks a `Survey` first, which answers with tensors that have no
memory and so learns from headers alone what is missing, left over or mis-shaped; only then does it ask a `Reader`,
which reads. Nothing is loaded of a checkpoint that will be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor

from tandem.model.placement import HOST, Placement
from tandem.model.weights import blockscaled
from tandem.model.weights.blockscaled import Stored
from tandem.model.weights.packed import Packed, can_stay_packed, pack, plain
from tandem.model.weights.safetensors import (
    DTYPE_BYTES,
    Entry,
    Mapping,
    WrongWeights,
    read_config,
    read_directory,
)

_DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.uint8,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

_NAMED: Final = 4
"""Tensors that one sentence names; a wrong model lacks hundreds."""


class Source(Protocol):
    """Where a family gets its weights, and where they go."""

    @property
    def placement(self) -> Placement: ...

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`, in whatever format."""
        ...

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        """The tensor, of this shape, in `dtype`; on the model's device unless another is named."""
        ...

    def packed(self, name: str, out: int, width: int) -> Packed:
        """The matrix in the values it is stored in; what no kernel reads, in bfloat16."""
        ...

    def table(self, names: Sequence[str], rows: int, width: int) -> Table:
        """One long embedding table, in parts, that stays on disk."""
        ...


class Table(Protocol):
    def read(self, rows: Tensor) -> Tensor:
        """`rows` int64 of any shape -> their rows, one axis more."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What stands in a directory, from headers alone."""

    directory: Path
    config: dict[str, Any]
    entries: dict[str, Entry]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        return cls(directory, read_config(directory), read_directory(directory))

    def find(self, name: str) -> Entry | Stored | None:
        return blockscaled.recognise(name, self.entries) or self.entries.get(name)

    @property
    def fp8_block(self) -> tuple[int, int]:
        block = self.config.get("quantization_config", {}).get("weight_block_size") or (128, 128)
        return int(block[0]), int(block[1])


Built = TypeVar("Built")


def load(
    checkpoint: Checkpoint,
    build: Callable[[Source], Built],
    unused: Sequence[str] = (),
    progress: Callable[[float], None] = lambda share: None,
    placement: Placement = HOST,
) -> Built:
    """`build` twice: on headers to see that everything is there, then for real.

    Tensors whose names start with one of `unused` may be left over; any other that is not taken is an error.
    `progress` hears the share of bytes read, 0 to 1. Raises `WrongWeights`.
    """
    survey = Survey(checkpoint, placement)
    build(survey)
    survey.verdict(unused)
    reader = Reader(checkpoint, survey.bytes, progress, placement)
    try:
        built = build(reader)
    finally:
        reader.close()
    progress(1.0)
    return built


class Survey:
    """Answers with tensors on the meta device and remembers what was wrong with each question."""

    def __init__(self, checkpoint: Checkpoint, placement: Placement = HOST) -> None:
        self.placement = placement
        self._checkpoint = checkpoint
        self._taken: set[str] = set()
        self._problems: list[str] = []
        self.bytes = 0

    def has(self, name: str) -> bool:
        return self._checkpoint.find(name) is not None

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        stored = self._checkpoint.find(name)
        if stored is None:
            self._problems.append(f"`{name}` {list(shape)} is missing")
        else:
            self._see(stored, shape)
            if isinstance(stored, Stored):
                blockscaled.check(stored, self._checkpoint.fp8_block)
        return torch.empty(shape, dtype=dtype, device="meta")

    def packed(self, name: str, out: int, width: int) -> Packed:
        return plain(self.take(name, out, width, dtype=torch.bfloat16))

    def table(self, names: Sequence[str], rows: int, width: int) -> Table:
        parts = [self._checkpoint.entries.get(name) for name in names]
        found = [part for part in parts if part is not None]
        if len(found) < len(names):
            absent = next(name for name, part in zip(names, parts, strict=True) if part is None)
            self._problems.append(f"`{absent}`, one of {len(names)} parts of a table, is missing")
        elif any(part.shape[1:] != (width,) for part in found) or sum(part.shape[0] for part in found) != rows:
            held = [sum(part.shape[0] for part in found), *found[0].shape[1:]]
            self._problems.append(f"{found[0].file.name}: the parts of `{names[0]}` make {held}, not {[rows, width]}")
        self._taken.update(part.name for part in found)
        return DiskTable([])

    def _see(self, stored: Entry | Stored, shape: tuple[int, ...]) -> None:
        entries = stored.entries if isinstance(stored, Stored) else (stored,)
        self._taken.update(entry.name for entry in entries)
        self.bytes += stored.bytes
        if stored.shape != shape:
            first = entries[0]
            self._problems.append(f"{first.file.name}: `{first.name}` is {list(stored.shape)}, not {list(shape)}")

    def verdict(self, unused: Sequence[str]) -> None:
        """Raises one sentence for everything that is wrong between the headers and what was asked for."""
        for entry in self._checkpoint.entries.values():
            scale = entry.name.rpartition(".")[2] in blockscaled.ACTIVATION_SCALES
            if entry.name not in self._taken and not entry.name.startswith(tuple(unused)) and not scale:
                self._problems.append(f"{entry.file.name}: `{entry.name}` {list(entry.shape)} is not part of it")
        if self._problems:
            named, more = self._problems[:_NAMED], len(self._problems) - _NAMED
            raise WrongWeights(
                f"{self._checkpoint.directory} does not hold the model its config.json describes: "
                + "; ".join(named)
                + (f"; and {more} more" if more > 0 else ""),
                "fetch config.json and all shards of one revision",
            )


class Reader:
    """Reads tensor by tensor. Beside the tensor itself a piece of its file is in memory, never more."""

    def __init__(
        self, checkpoint: Checkpoint, total: int, progress: Callable[[float], None], placement: Placement = HOST
    ) -> None:
        self.placement = placement
        self._checkpoint = checkpoint
        self._total = max(total, 1)
        self._done = 0
        self._progress = progress
        self._shards: dict[Path, Mapping] = {}
        self._kept: set[Path] = set()  # shards that tables go on reading

    def has(self, name: str) -> bool:
        return self._checkpoint.find(name) is not None

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        stored = self._checkpoint.find(name)
        assert stored is not None and stored.shape == shape, "surveyed before it is read"
        out = torch.empty(shape, dtype=dtype, device=device or self.placement.device)
        if isinstance(stored, Stored):
            self._dequantize(stored, out)
        else:
            self._copy(stored, out.view(-1))
        return out

    def packed(self, name: str, out: int, width: int) -> Packed:
        stored = self._checkpoint.find(name)
        if not isinstance(stored, Stored) or not can_stay_packed(stored.format, self._checkpoint.fp8_block):
            return plain(self.take(name, out, width, dtype=torch.bfloat16))
        assert stored.shape == (out, width), "surveyed before it is read"
        values = torch.empty(stored.values.shape, dtype=torch.uint8, device=self.placement.device)
        self._copy_bytes(stored, values.view(-1))
        scales = self._whole(stored.scales)
        check_scales(stored, scales)
        overall = None if stored.overall is None else self._whole(stored.overall).to(values.device)
        return pack(stored.format, stored.shape, values, scales.to(values.device), overall)

    def table(self, names: Sequence[str], rows: int, width: int) -> Table:
        parts = [self._checkpoint.entries[name] for name in names]
        self._kept.update(part.file for part in parts)
        return DiskTable([(self._shard(part.file), part) for part in parts])

    def close(self) -> None:
        for file, shard in self._shards.items():
            if file not in self._kept:
                shard.close()
        self._shards.clear()

    def _shard(self, file: Path) -> Mapping:
        if file not in self._shards:
            self._shards[file] = Mapping(file)
        return self._shards[file]

    def _copy(self, entry: Entry, flat: Tensor) -> None:
        size = DTYPE_BYTES[entry.dtype]
        shard = self._shard(entry.file)
        for start, stop in shard.pieces(entry, size):
            piece = flat[(start - entry.start) // size : (stop - entry.start) // size]
            piece.copy_(_view(shard, entry.dtype, start, stop))
            _check_finite(entry, piece, (start - entry.start) // size)
            self._advance(stop - start)

    def _copy_bytes(self, stored: Stored, flat: Tensor) -> None:
        entry = stored.values
        shard = self._shard(entry.file)
        for start, stop in shard.pieces(entry, 1):
            piece = flat[start - entry.start : stop - entry.start]
            piece.copy_(_view(shard, "U8", start, stop))
            if entry.dtype == "F8_E4M3" and bool(((piece & 0x7F) == 0x7F).any()):
                raise _broken(entry, int(((piece & 0x7F) == 0x7F).nonzero()[0]) + start - entry.start)
            self._advance(stop - start)

    def _dequantize(self, stored: Stored, out: Tensor) -> None:
        block = self._checkpoint.fp8_block
        scales = self._whole(stored.scales)
        overall = None if stored.overall is None else self._whole(stored.overall)
        values, shard = stored.values, self._shard(stored.values.file)
        row_bytes = values.bytes // values.shape[0]
        for start, stop in shard.pieces(values, row_bytes * block[0]):
            rows = slice((start - values.start) // row_bytes, (stop - values.start) // row_bytes)
            piece = _view(shard, values.dtype, start, stop).view(rows.stop - rows.start, -1)
            some = blockscaled.scale_rows(stored.format, scales, rows, block)
            out[rows] = blockscaled.dequantize(stored.format, piece, some, overall, block)
            _check_finite(values, out[rows], rows.start * stored.shape[1])
            self._advance(stop - start)

    def _whole(self, entry: Entry) -> Tensor:
        shard = self._shard(entry.file)
        tensor = _view(shard, entry.dtype, entry.start, entry.stop).view(entry.shape).clone()
        shard.give_back(entry.start, entry.stop)
        self._advance(entry.bytes)
        return tensor

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done / self._total, 1.0))


class DiskTable:
    """An embedding table that is read row by row where it lies and never becomes part of the process's size.

    All rows of a call are announced to the kernel before the first is read, so that a disk serves them together.
    """

    def __init__(self, parts: Sequence[tuple[Mapping, Entry]]) -> None:
        self._parts = list(parts)
        counts = torch.tensor([entry.shape[0] for _, entry in parts], dtype=torch.int64)
        self._stops = counts.cumsum(0)

    def read(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(-1)
        part_of = torch.bucketize(flat, self._stops, right=True)
        firsts = torch.cat([self._stops.new_zeros(1), self._stops])
        entry = self._parts[0][1]
        out = torch.empty(flat.shape[0], entry.shape[1], dtype=_DTYPES[entry.dtype])
        wanted = [(int(part), part_of == part) for part in torch.unique(part_of)]
        for part, here in wanted:
            self._announce(part, torch.unique(flat[here] - firsts[part]))
        for part, here in wanted:
            shard, entry = self._parts[part]
            table = _view(shard, entry.dtype, entry.start, entry.stop).view(entry.shape)
            out[here] = table[flat[here] - firsts[part]]
            del table
            shard.forget(entry.start, entry.stop)
        return out.view(*rows.shape, -1)

    def _announce(self, part: int, rows: Tensor) -> None:
        shard, entry = self._parts[part]
        row_bytes = entry.bytes // entry.shape[0]
        for row in rows.tolist():
            shard.announce(entry.start + row * row_bytes, row_bytes)


def _view(shard: Mapping, dtype: str, start: int, stop: int) -> Tensor:
    """The mapped bytes as a flat tensor, without a copy; must not outlive the mapping."""
    if start == stop:
        return torch.empty(0, dtype=_DTYPES[dtype])
    return torch.frombuffer(
        shard.memory, dtype=_DTYPES[dtype], count=(stop - start) // DTYPE_BYTES[dtype], offset=start
    )


def _check_finite(entry: Entry, piece: Tensor, first: int) -> None:
    # By its ends, which a NaN is both of: unlike a mask they take no memory beside the weights.
    if piece.is_floating_point() and piece.numel() and not bool(torch.stack(piece.aminmax()).isfinite().all()):
        raise _broken(entry, int((~piece.reshape(-1).isfinite()).nonzero()[0]) + first)


def check_scales(stored: Stored, scales: Tensor) -> None:
    """A scale that is not a number makes a whole block so."""
    _check_finite(stored.scales, scales.float() if scales.is_floating_point() else scales, 0)


def _broken(entry: Entry, element: int) -> WrongWeights:
    return WrongWeights(
        f"{entry.file}: `{entry.name}` holds a value that is not a number (element {element:,})",
        "fetch this file again; if it stays, the published weights are broken",
    )
