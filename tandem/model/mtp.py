"""The head that guesses ahead (multi-token prediction): one layer of the model's own kind behind the last one.

Its row for a token is made of the token's embedding and of what the model carried out of the token before; it answers
what follows that token. While the model reads, the head only writes down keys and values of its layer: nothing looks
at its answers then, so neither attention nor feed-forward run. To guess further it carries on what it answered itself.

Read are the tensors that published Qwen3.5 checkpoints call `mtp.fc`, `mtp.pre_fc_norm_embedding`,
`mtp.pre_fc_norm_hidden`, `mtp.layers.0.*` and `mtp.norm`, and Flash-Next's `mtp.fc_embedding`, `mtp.fc_hidden`,
`mtp.pre_fc_norm_*`, `mtp.layers.0.*` and `mtp.hyper_connection_mixer.*`; embedding and output head are the model's.
`transformers` leaves all of them out. Held against an independent implementation in tests (`tests/model/heads.py`:
plain torch around the reference library's own layer), on random weights; never against a released model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tandem.model.hyper import Blend
from tandem.model.interface import Allocate, SequenceState
from tandem.model.layers import RmsNorm
from tandem.model.mixers import NormedAttention
from tandem.model.passes import Pass, Span
from tandem.model.placement import moved
from tandem.model.rope import Rope
from tandem.model.state import MtpRows, Tail
from tandem.model.tree import chain
from tandem.model.weights.quant import Matrix, Projection

if TYPE_CHECKING:
    from tandem.model.decoder import LayerLike


class Neck(Protocol):
    """How a family carries a row on and what its head makes of it."""

    @property
    def carried(self) -> tuple[int, torch.dtype]:
        """Width and type of what is carried from a row to the next."""
        ...

    def products(self) -> Iterator[Projection]: ...

    def carry(self, stream: Tensor) -> Tensor:
        """What the model's own residual stream carries on: [rows, width]"""
        ...

    def enter(self, embedded: Tensor, carried: Tensor) -> Tensor:
        """Tokens, float32 [rows, hidden], and what was carried to them -> the head's residual stream."""
        ...

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The head's residual stream -> normed rows for the output head, and what it carries on itself."""
        ...


@dataclass(frozen=True, slots=True)
class RowNeck:
    """Of a model with one residual stream: its normed rows are carried, and laid beside the next token's."""

    model_norm: RmsNorm  # the model's last
    token_norm: RmsNorm
    carried_norm: RmsNorm
    join: Projection  # [hidden, 2 x hidden]: the token first
    norm: RmsNorm
    dtype: torch.dtype

    @property
    def carried(self) -> tuple[int, torch.dtype]:
        return self.join.shape[0], self.dtype

    def products(self) -> Iterator[Projection]:
        yield self.join

    def carry(self, stream: Tensor) -> Tensor:
        return self.model_norm(stream)

    def enter(self, embedded: Tensor, carried: Tensor) -> Tensor:
        return self.join(torch.cat([self.token_norm(embedded), self.carried_norm(carried.float())], dim=1)).float()

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.norm(stream)
        return rows, rows


@dataclass(frozen=True, slots=True)
class StreamsNeck:
    """Of a model with several: the streams are carried as they are, normed as one row, and each meets the token."""

    streams: int
    token_norm: RmsNorm
    carried_norm: RmsNorm  # over all streams at once
    token: Projection  # [hidden, hidden]
    stream: Projection  # [hidden, hidden], one for all streams
    blend: Blend

    @property
    def carried(self) -> tuple[int, torch.dtype]:
        return self.streams * self.stream.shape[1], torch.float32

    def products(self) -> Iterator[Projection]:
        yield from (self.token, self.stream, *self.blend.products())

    def carry(self, stream: Tensor) -> Tensor:
        return stream.flatten(1)

    def enter(self, embedded: Tensor, carried: Tensor) -> Tensor:
        # Stream by stream: rows of one product are then rows of the pass, whose bits are their own.
        streams = self.carried_norm(carried).view(carried.shape[0], self.streams, -1).unbind(1)
        entered = torch.stack([self.stream(each.contiguous()).float() for each in streams], dim=1)
        return entered + self.token(self.token_norm(embedded)).float()[:, None]

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return self.blend(stream), self.carry(stream)


class MtpHead:
    """Implements `interface.GuessingHead`."""

    def __init__(
        self,
        neck: Neck,
        layer: LayerLike,
        mixer_input: Callable[[Tensor], Tensor],  # the residual stream -> what the layer's attention reads
        attention: NormedAttention,  # the layer's
        embedding: Matrix,
        head: Projection,
        rope: Rope,
    ) -> None:
        self._neck = neck
        self._layer = layer
        self._mixer_input = mixer_input
        self._attention = attention
        self._embedding = embedding
        self._head = head
        self._rope = rope

    def new_rows(self, window: int, allocate: Allocate) -> MtpRows:
        """What it keeps of one sequence."""
        width, dtype = self._neck.carried
        carry = Tail((1, width), dtype, device=self._rope.device)
        return MtpRows(window, self._layer.new_parts, carry, allocate)

    def products(self) -> Iterator[Projection]:
        yield from self._neck.products()
        yield from self._layer.products()

    def gated_widths(self) -> Iterator[int]:
        return self._layer.gated_widths()

    def read(self, stream: Tensor, run: Pass) -> None:
        """Read along: `stream` is what the model's last layer made of the rows of `run`."""
        carried = self._neck.carry(stream)
        befores, spans, kept, rows = [], [], [], 0
        for span in run.spans:
            part = rows_of(span.state)
            fresh = carried[span.place]
            before = torch.cat([part.carry.rows, fresh])[span.tree.look_back(1, fresh.device)[:, 1]]
            part.carry.take(fresh, span.settled)
            first = 0 if span.start else 1  # nothing was carried to a sequence's first token
            if first == span.rows:
                continue
            assert not first or span.settled, "a sequence does not start with a tree"
            tree = chain(span.rows - 1) if first else span.tree
            spans.append(Span(span.state, span.start + first - 1, rows, tree.rows, tree, span.settled, mask=None))
            befores.append(before[first:])
            kept.append(torch.arange(span.first + first, span.first + span.rows))
            rows += tree.rows
        if not spans:
            return
        places = torch.cat(kept)
        tokens = run.tokens[places]
        positions = run.positions[moved(places, carried.device)] - 1
        behind = Pass(tokens, positions, tuple(spans), wanted=None)
        entered = self._neck.enter(self._lookup(tokens, carried.device), torch.cat(befores))
        self._attention.write(self._mixer_input(entered), behind, self._rope.at(positions))

    @torch.inference_mode()
    def guess(
        self, states: Sequence[SequenceState], tokens: Sequence[int], ahead: int = 0, carried: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `interface.GuessingHead.guess`."""
        if carried is None:
            assert ahead == 0, "who looks ahead carries on"
            for state in states:
                rows_of(state).begin(state.position)
            carried = torch.cat([rows_of(state).carry.rows for state in states])
        spans = tuple(
            Span(state, state.position + ahead - 1, row, 1, chain(1), settled=True, mask=None)
            for row, state in enumerate(states)
        )
        asked = torch.tensor(tokens)
        positions = moved(torch.tensor([span.start for span in spans]), carried.device)
        stream = self._neck.enter(self._lookup(asked, carried.device), carried)
        stream = self._layer(stream, Pass(asked, positions, spans, wanted=None), self._rope.at(positions))
        rows, carried = self._neck.leave(stream)
        return self._head(rows).float(), carried

    def _lookup(self, tokens: Tensor, device: torch.device) -> Tensor:
        return self._embedding.lookup(moved(tokens, device))


def rows_of(state: SequenceState) -> MtpRows:
    assert state.mtp is not None, "a state of a model without a head that guesses"
    return state.mtp
