"""What a model remembers of one sequence, as one thing that can be measured, copied, kept and put back.

A state is a list of parts, one or more a layer. A part holds tensors of two kinds. Rows: entry r belongs to position
r, is written once and read by later rows, so forgetting is starting lower (KV, index keys). Fixed: of one size, and
true of exactly one position, the rows read so far (recurrent memories, convolution tails, the last tokens). Fixed
tensors cannot be rewound; they are snapshots' reason to be.

A model may carry a head that guesses ahead (`tandem.model.mtp`). What it remembers is one part more, `MtpRows`.

A block with a tree is read without being final: its rows lie where they were written, its fixed tensors are
untouched, until `commit` names the path that was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tandem.model.delta import Corrections, next_tail
from tandem.model.placement import HOST, moved
from tandem.model.saved import Saved, describe, load_rows, pack, rows_size, save_rows, unpack


class Allocate(Protocol):
    """Where rows lie: a tensor like `torch.empty`'s, whose axis `row_axis` counts rows. `kind` is for accounting.

    Rows may have memory only from the moment that someone sees to it; a state touches none before a pass writes it.
    """

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, row_axis: int, kind: str) -> Tensor: ...


def allocate_at_once(shape: Sequence[int], dtype: torch.dtype, row_axis: int, kind: str) -> Tensor:
    """An ordinary tensor. It is not initialised: on a CPU the kernel gives memory to a row when it is first written."""
    return torch.empty(tuple(shape), dtype=dtype)


def allocate_on(device: torch.device) -> Allocate:
    """As `allocate_at_once`, on `device`: there memory is taken at once in earnest."""

    def allocate(shape: Sequence[int], dtype: torch.dtype, row_axis: int, kind: str) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    return allocate


class Part(Protocol):
    """The tensors of one kind of memory in one layer."""

    def by_row(self) -> Sequence[Tensor]:
        """Views [window, ...] whose entry r belongs to position r."""
        ...

    def fixed(self) -> Sequence[Tensor]:
        """Tensors of one size, true of one position."""
        ...

    def begin(self, start: int) -> None:
        """Rows from `start` on are about to be written anew; at 0 everything is forgotten."""
        ...

    def settle(self, path: Sequence[int]) -> None:
        """The tree that was read last ends as `path`, whose rows have been moved together already."""
        ...


class KvRows:
    """Keys and values of an attention layer.

    Heads lie outside rows: attention reads one head's rows in sequence, 1.6 times faster at 1,500 rows than over rows
    of all heads.
    """

    def __init__(
        self, window: int, kv_heads: int, head_dim: int, dtype: torch.dtype, allocate: Allocate = allocate_at_once
    ) -> None:
        self.kv = allocate((2, 1, kv_heads, window, head_dim), dtype, 3, "attention")

    def by_row(self) -> Sequence[Tensor]:
        return (self.kv[0, 0].transpose(0, 1), self.kv[1, 0].transpose(0, 1))

    def fixed(self) -> Sequence[Tensor]:
        return ()

    def begin(self, start: int) -> None:
        pass

    def settle(self, path: Sequence[int]) -> None:
        pass


class Tail:
    """The last few inputs of something that looks a fixed way back: a convolution, an n-gram."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, fill: int = 0, device: torch.device = HOST.device
    ) -> None:
        self.rows = torch.full(shape, fill, dtype=dtype, device=device)  # [reach, ...], oldest first
        self._fill = fill
        self._held: Tensor | None = None

    def take(self, rows: Tensor, settled: bool) -> None:
        """What comes after the tail: to stay, or as the rows of a tree that is yet to be settled."""
        if settled:
            self.rows.copy_(next_tail(self.rows, rows))
        else:
            self._held = rows

    def by_row(self) -> Sequence[Tensor]:
        return ()

    def fixed(self) -> Sequence[Tensor]:
        return (self.rows,)

    def begin(self, start: int) -> None:
        if start == 0:
            self.rows.fill_(self._fill)

    def settle(self, path: Sequence[int]) -> None:
        assert self._held is not None, "a path of a tree that was never read"
        self.rows.copy_(next_tail(self.rows, self._held, path))
        self._held = None


class Recurrent:
    """The matrix a head of a Gated DeltaNet layer. float32 in every mode: it gathers thousands of small corrections."""

    def __init__(self, heads: int, key_dim: int, value_dim: int, device: torch.device = HOST.device) -> None:
        self.memory = torch.zeros(heads, key_dim, value_dim, device=device)
        self._held: Corrections | None = None

    def hold(self, corrections: Corrections) -> None:
        self._held = corrections

    def by_row(self) -> Sequence[Tensor]:
        return ()

    def fixed(self) -> Sequence[Tensor]:
        return (self.memory,)

    def begin(self, start: int) -> None:
        if start == 0:
            self.memory.zero_()

    def settle(self, path: Sequence[int]) -> None:
        assert self._held is not None, "a path of a tree that was never read"
        self._held.commit(self.memory, path)
        self._held = None


class MtpRows:
    """What the head that guesses ahead remembers: the rows of its one layer, and what its next row is made of.

    Its row for a token is made of the token and of what the model carried out of the token before, so a sequence's
    first token has none. It is counted from that token before: where the layer and its index see row n, here lies
    row n + 1, that of the token at position n + 1. Here entry r belongs to position r as in every part.
    """

    def __init__(
        self,
        window: int,
        new_parts: Callable[[int, Allocate], list[Part]],  # of the layer
        carry: Tail,
        allocate: Allocate = allocate_at_once,
    ) -> None:
        self._whole: list[Tensor] = []

        def from_the_second(shape: Sequence[int], dtype: torch.dtype, row_axis: int, kind: str) -> Tensor:
            """All but the first of rows that start with the first token's, which is never written."""
            rows = shape[row_axis]
            tensor = allocate((*shape[:row_axis], rows + 1, *shape[row_axis + 1 :]), dtype, row_axis, "mtp")
            self._whole.append(tensor.movedim(row_axis, 0))
            return tensor.narrow(row_axis, 1, rows)

        self.parts = tuple(new_parts(window - 1, from_the_second))
        self.carry = carry  # of the last row read: [1, width]

    def by_row(self) -> Sequence[Tensor]:
        return self._whole

    def fixed(self) -> Sequence[Tensor]:
        return self.carry.fixed()

    def begin(self, start: int) -> None:
        for part in self.parts:
            part.begin(max(start - 1, 0))
        self.carry.begin(start)

    def settle(self, path: Sequence[int]) -> None:
        for part in self.parts:
            part.settle(path)
        self.carry.settle(path)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The fixed tensors of a state at one position: with the rows below it, all that a sequence is.

    Empty for a model of attention alone, whose rows say everything.
    """

    position: int
    tensors: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def on_host(self) -> Snapshot:
        """Itself, or a copy of it where it lies on a device."""
        return Snapshot(self.position, tuple(tensor.to(HOST.device) for tensor in self.tensors))

    def pack(self) -> Tensor:
        """uint8 [bytes] on the host; `SequenceState.unpack` reads it."""
        return pack(self.tensors)


class SequenceState:
    """Everything a model remembers of one sequence. It owns neither tokens nor a request."""

    can_rewind: bool = True  # to any row; otherwise a sequence goes on where it is, starts over or is restored

    def __init__(
        self, window: int, dtype: torch.dtype, layers: Sequence[Sequence[Part]], mtp: MtpRows | None = None
    ) -> None:
        """`layers` are the parts of each layer; `dtype` is that of KV rows. The layer of `mtp` comes behind them."""
        self.window = window
        self.dtype = dtype
        self.mtp = mtp
        self.layers = (*(tuple(parts) for parts in layers), *((mtp.parts,) if mtp else ()))
        self._parts = (*(part for parts in layers for part in parts), *((mtp,) if mtp else ()))
        self._rows = tuple(tensor for part in self._parts for tensor in part.by_row())
        self._fixed = tuple(tensor for part in self._parts for tensor in part.fixed())
        self.can_rewind = not self._fixed
        self._position = 0
        self._tree: tuple[int, int] | None = None  # start and rows of a block that is not settled

    def kv(self, layer: int) -> Tensor:
        """[2, 1, kv_heads, window, head_dim], keys first, of an attention layer."""
        part = self.layers[layer][0]
        assert isinstance(part, KvRows), f"layer {layer} has no KV rows"
        return part.kv

    @property
    def keys(self) -> list[Tensor]:
        """[window, kv_heads, head_dim] of every attention layer; row r holds position r."""
        return [part.by_row()[0] for part in self._parts if isinstance(part, KvRows)]

    @property
    def values(self) -> list[Tensor]:
        """As `keys`."""
        return [part.by_row()[1] for part in self._parts if isinstance(part, KvRows)]

    @property
    def bytes_a_token(self) -> int:
        """Bytes one row takes, over all layers."""
        total: int = sum(rows.nbytes for rows in self._rows)
        return total // self.window

    @property
    def fixed_bytes(self) -> int:
        """Bytes that a state takes however short its sequence is; what a snapshot costs."""
        return sum(tensor.nbytes for tensor in self._fixed)

    @property
    def position(self) -> int:
        """Rows read so far; a tree that is not settled is not among them."""
        return self._position

    @cached_property
    def addresses(self) -> Tensor:
        """int64, one a part: where its tensor (of rows, else the fixed one) begins. It never moves."""
        return torch.tensor([(part.by_row() or part.fixed())[0].data_ptr() for parts in self.layers for part in parts])

    def resumable(self, rows: int) -> int:
        """The most rows, at most `rows`, after which the next block may start as things are."""
        return rows if self.can_rewind else self._position if self._position <= rows else 0

    def begin(self, start: int, rows: int, settled: bool) -> None:
        """A pass is about to read `rows` rows at `start`, to stay (`settled`) or as a tree."""
        assert self._tree is None or start == 0, "the last tree is not settled"
        assert 0 <= start <= self.window - rows, "a block outside its window"
        assert start == self.resumable(start), f"at row {self._position}, cannot go on at {start}"
        for part in self._parts:
            part.begin(start)
        self._position = start + rows if settled else start
        self._tree = None if settled else (start, rows)

    def commit(self, path: Sequence[int]) -> None:
        """Keep `path` of the tree that was read last: its rows from the root on, none to forget it all."""
        assert self._tree is not None, "no tree to commit"
        start, rows = self._tree
        assert all(0 <= row < rows for row in path), "a path outside its tree"
        if list(path) != list(range(len(path))):
            places = moved(torch.as_tensor(path) + start, self._rows[0].device)
            for tensor in self._rows:
                tensor[start : start + len(path)] = tensor[places]
        for part in self._parts:
            part.settle(path)
        self._position, self._tree = start + len(path), None

    def snapshot(self) -> Snapshot:
        """A copy of what the rows do not hold."""
        assert self._tree is None, "the last tree is not settled"
        return Snapshot(self._position, tuple(tensor.clone() for tensor in self._fixed))

    def restore(self, snapshot: Snapshot) -> None:
        """Back to where `snapshot` was taken; rows below its position must still be those of its sequence."""
        for tensor, kept in zip(self._fixed, snapshot.tensors, strict=True):
            tensor.copy_(kept)
        self._position, self._tree = snapshot.position, None

    # --- copies on the host ---

    @cached_property
    def format(self) -> str:
        """How copies of this state lie: where it is the same, a copy of one may be loaded into the other."""
        return describe(self._rows, self._fixed)

    def saved_bytes(self, rows: int) -> int:
        """What a copy of `rows` rows takes."""
        return rows_size(self._rows, rows)

    def save(self, first: int, last: int) -> Saved:
        """A copy on the host of rows `first` to `last`, which are final. What is fixed is a snapshot's."""
        assert 0 <= first <= last <= self.window, "rows outside the window"
        return save_rows(self._rows, first, last)

    def load(self, saved: Saved, rows: int | None = None) -> None:
        """Put rows back, all of the copy or its first `rows`; they must have memory.

        The state goes on behind them. One that cannot rewind must be restored first, or it starts over.
        """
        rows = saved.rows if rows is None else rows
        assert saved.first + rows <= self.window, "rows outside the window"
        for part in self._parts:
            part.begin(saved.first)
        load_rows(saved, self._rows, rows)
        self._position, self._tree = (saved.first + rows if self.can_rewind else 0), None

    def unpack(self, data: Tensor, position: int) -> Snapshot:
        """A snapshot of a state of this format, as it was packed."""
        return Snapshot(position, unpack(data, self._fixed))

    def copy_from(self, other: SequenceState, rows: int, at: Snapshot | None = None) -> None:
        """Become `other` up to `rows`: where it can go on, or where the snapshot `at` of it was taken. Windows may
        differ; `rows` must fit."""
        there = other.resumable(rows) if at is None else at.position
        assert rows == there and rows <= self.window, "not a place to go on from"
        for part in self._parts:
            part.begin(0)
        for mine, theirs in zip(self._rows, other._rows, strict=True):
            mine[:rows] = theirs[:rows]
        self.restore(at or Snapshot(rows, other._fixed))
