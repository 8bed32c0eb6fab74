"""The layers that look back: full attention, indexed attention, Gated DeltaNet.

A mixer takes the normed rows of a run and answers what goes into the residual stream. Its projections run once over
all rows; whatever reads or writes a sequence's state runs once a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model import delta, exact
from tandem.model.attention import attend, keep
from tandem.model.config import AttentionConfig, DeltaConfig, IndexConfig
from tandem.model.delta import Rows
from tandem.model.indexed import ROWS_AT_ONCE, BlockIndex, attend_selected
from tandem.model.layers import RmsNorm
from tandem.model.passes import Pass, Span
from tandem.model.rope import Rope, turn_
from tandem.model.rounds import Held, RoundTables
from tandem.model.state import Allocate, KvRows, Part, Recurrent, Tail
from tandem.model.weights.quant import Projection


class Attention:
    """Grouped attention. `layer` is where its rows lie in a state."""

    def __init__(
        self,
        config: AttentionConfig,
        layer: int,
        inputs: Projection,  # queries, keys, values and, when gated, gates: stacked
        output: Projection,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.inputs = inputs
        self.output = output
        self._layer = layer
        self._dtype = dtype

    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        return [KvRows(window, self.config.kv_heads, self.config.head_dim, self._dtype, allocate)]

    def products(self) -> Iterator[Projection]:
        yield from (self.inputs, self.output)

    def __call__(self, rows: Tensor, run: Pass, turns: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        queries, written = self._queries_and_kv(self.inputs(rows), turns)
        return self.output(self._attend(queries, written, run))

    def _attend(self, queries: Tensor, written: Tensor, run: Pass) -> Tensor:
        """Write the rows and look back: [rows, heads x head_dim]"""
        if run.tables is not None:
            from tandem.model.kernels.attention import attend_rows

            return attend_rows(self.config, self._layer, queries, written, run.tables)
        return run.filled(attend(self._layer, queries, written, run.spans))

    def _queries_and_kv(self, mixed: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Turned queries [rows, heads, head_dim] and turned keys with values [2, 1, kv_heads, rows, head_dim].

        Heads that are turned whole are turned where they lie: queries and keys in one call.
        """
        num_heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        heads = mixed.view(-1, num_heads + 2 * kv_heads, head_dim)
        turn_(heads[:, : num_heads + kv_heads], turns)
        kv = heads[:, num_heads:].view(-1, 2, 1, kv_heads, head_dim)
        return heads[:, :num_heads], kv.permute(1, 2, 3, 0, 4)


class NormedAttention(Attention):
    """With normed queries and keys, of which a part may be turned, and gates where the configuration says so."""

    def __init__(
        self,
        config: AttentionConfig,
        layer: int,
        inputs: Projection,
        output: Projection,
        query_norm: RmsNorm,
        key_norm: RmsNorm,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(config, layer, inputs, output, dtype)
        self._query_norm = query_norm
        self._key_norm = key_norm

    def __call__(self, rows: Tensor, run: Pass, turns: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        config, mixed = self.config, self.inputs(rows)
        queries, written = self._queries_and_kv(mixed, turns)
        answer = self._look(rows, queries, written, run, turns)
        if config.gated:
            gates = mixed[:, (config.heads + 2 * config.kv_heads) * config.head_dim :]
            answer = answer * gates.sigmoid()
        return self.output(answer)

    def write(self, rows: Tensor, run: Pass, turns: Tensor) -> None:
        """Keep of [rows, hidden] what later rows look at, and look at nothing."""
        _, written = self._queries_and_kv(self.inputs(rows), turns)
        for span in run.spans:
            keep(self._layer, written, span)

    def _queries_and_kv(self, mixed: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        queries = self._query_norm(mixed[:, :width].reshape(-1, config.heads, config.head_dim).float())
        keys = self._key_norm(mixed[:, width : width + kv_width].reshape(-1, config.kv_heads, config.head_dim).float())
        values = mixed[:, width + kv_width : width + 2 * kv_width].view(-1, config.kv_heads, config.head_dim)
        turn_(queries[..., : config.rope_dim], turns)
        turn_(keys[..., : config.rope_dim], turns)
        return queries, torch.stack([keys, values]).transpose(1, 2)[:, None]

    def _look(self, rows: Tensor, queries: Tensor, written: Tensor, run: Pass, turns: Tensor) -> Tensor:
        """Write the rows and look back: [rows, heads x head_dim]"""
        return self._attend(queries, written, run)


class IndexedAttention(NormedAttention):
    """Attention over what an index selects. Its parts of a state: the KV rows, then the index."""

    def __init__(
        self,
        config: AttentionConfig,
        layer: int,
        inputs: Projection,
        output: Projection,
        query_norm: RmsNorm,
        key_norm: RmsNorm,
        dtype: torch.dtype,
        index: IndexConfig,
        index_inputs: Projection,  # the index's queries and its one key: stacked
        index_query_norm: RmsNorm,
        index_key_norm: RmsNorm,
        rope: Rope,
    ) -> None:
        super().__init__(config, layer, inputs, output, query_norm, key_norm, dtype)
        self.index = index
        self.index_inputs = index_inputs
        self._index_query_norm = index_query_norm
        self._index_key_norm = index_key_norm
        self._rope = rope

    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        return [
            *super().new_parts(window, allocate),
            BlockIndex(self.index, window, self._dtype, self._finish, allocate),
        ]

    def products(self) -> Iterator[Projection]:
        yield from super().products()
        yield self.index_inputs

    def _finish(self, means: Tensor, positions: Tensor) -> Tensor:
        keys = self._index_key_norm(means.float())[:, None]
        turn_(keys[..., : self.config.rope_dim], self._rope.at(positions))
        return keys[:, 0]

    def _look(self, rows: Tensor, queries: Tensor, written: Tensor, run: Pass, turns: Tensor) -> Tensor:
        index = self.index
        mixed = self.index_inputs(rows)
        asked = self._index_query_norm(mixed[:, : index.heads * index.dim].reshape(-1, index.heads, index.dim).float())
        turn_(asked[..., : self.config.rope_dim], turns)
        fresh = mixed[:, index.heads * index.dim :]
        answers = []
        for span in run.spans:
            kv, part = keep(self._layer, written, span), self._keep_keys(fresh, span)
            selection = part.select(asked[span.place], span.start, span.tree)
            keys, values = kv[:, 0].transpose(1, 2)
            at_once = 1 if span.mask is None else ROWS_AT_ONCE
            scale = self.config.head_dim**-0.5
            answers.append(attend_selected(queries[span.place], keys, values, selection, scale, at_once))
        return run.filled(torch.cat(answers).flatten(1))

    def write(self, rows: Tensor, run: Pass, turns: Tensor) -> None:
        super().write(rows, run, turns)
        fresh = self.index_inputs(rows)[:, self.index.heads * self.index.dim :]
        for span in run.spans:
            self._keep_keys(fresh, span)

    def _keep_keys(self, fresh: Tensor, span: Span) -> BlockIndex:
        part = span.state.layers[self._layer][1]
        assert isinstance(part, BlockIndex)
        part.keys[span.start : span.start + span.rows] = fresh[span.place]
        return part


class DeltaMixer:
    """A Gated DeltaNet layer. Its parts of a state: the recurrent memory, then the convolution's tail."""

    def __init__(
        self,
        config: DeltaConfig,
        layer: int,
        inputs: Projection,  # queries, keys, values, gates of the output, rates, decays: stacked
        output: Projection,
        conv: Tensor,  # float32 [conv_width, taps]
        decay_rate: Tensor,  # float32 [value_heads], positive
        decay_bias: Tensor,  # float32 [value_heads]
        norm: RmsNorm,
        gate: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.inputs = inputs
        self.output = output
        self._layer = layer
        self._conv = conv
        self._decay_rate = decay_rate
        self._decay_bias = decay_bias
        self._norm = norm
        self._gate = gate
        self._dtype = dtype

    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        config = self.config
        return [
            Recurrent(config.value_heads, config.key_dim, config.value_dim, self._conv.device),
            Tail((config.taps - 1, config.conv_width), self._dtype, device=self._conv.device),
        ]

    def products(self) -> Iterator[Projection]:
        yield from (self.inputs, self.output)

    def __call__(self, rows: Tensor, run: Pass, turns: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        config = self.config
        heads = config.value_heads
        mixed, gates, rates, decays = torch.split(
            self.inputs(rows), [config.conv_width, config.value_width, heads, heads], dim=1
        )
        rates = exact.sigmoid(rates)
        log_decay = -self._decay_rate * exact.softplus(decays.float() + self._decay_bias)
        if run.tables is not None:
            read = self._recur_together(mixed, rates, log_decay, run.tables)
        else:
            read = run.filled(torch.cat([self._recur(mixed, rates, log_decay, span) for span in run.spans]))
        gated = self._norm(read).float() * self._gate(gates.float().view(-1, heads, config.value_dim))
        return self.output(gated.flatten(1).to(rows.dtype))

    def _recur_together(self, mixed: Tensor, rates: Tensor, log_decay: Tensor, tables: RoundTables) -> Tensor:
        """All blocks of a round at once, on kernels: float32 [16, value_heads, value_dim]"""
        from tandem.model.kernels.delta import RoundRows, convolve, recur

        config = self.config
        fresh = mixed.bfloat16()
        convolved = functional.silu(convolve(fresh, self._conv, self._layer, tables))
        queries, keys, values = torch.split(convolved, [config.key_width, config.key_width, config.value_width], dim=1)
        queries, keys = (delta.unit(each.view(-1, config.key_heads, config.key_dim)) for each in (queries, keys))
        rows = RoundRows(
            queries * config.key_dim**-0.5,
            keys,
            values.reshape(-1, config.value_heads, config.value_dim).contiguous(),
            log_decay.contiguous(),
            rates.contiguous(),
        )
        read, corrections, faded = recur(config, rows, self._layer, tables)
        shared = config.value_heads // config.key_heads
        tables.held[self._layer] = Held(fresh, keys.repeat_interleave(shared, dim=1), corrections, faded)
        return tables.filled(read)

    def _recur(self, mixed: Tensor, rates: Tensor, log_decay: Tensor, span: Span) -> Tensor:
        """One block through convolution and recurrence: float32 [rows, value_heads, value_dim]"""
        config = self.config
        memory, tail = span.state.layers[self._layer][:2]
        assert isinstance(memory, Recurrent) and isinstance(tail, Tail)
        fresh = mixed[span.place]
        look_back = span.tree.look_back(config.taps - 1, mixed.device)
        convolved = functional.silu(delta.causal_conv(tail.rows.float(), fresh.float(), self._conv, look_back))
        rows = self._bring(convolved, rates[span.place], log_decay[span.place])
        tail.take(fresh, span.settled)
        if span.settled:
            # A few rows are taken one by one: their bits are then those of decoding.
            read = delta.scan if span.mask is not None else delta.walk
            return read(memory.memory, rows).transpose(0, 1)
        outputs, corrections = delta.read(memory.memory, rows, span.tree)
        memory.hold(corrections)
        return outputs.transpose(0, 1)

    def _bring(self, convolved: Tensor, rates: Tensor, log_decay: Tensor) -> Rows:
        config = self.config
        queries, keys, values = torch.split(convolved, [config.key_width, config.key_width, config.value_width], dim=1)
        shared = config.value_heads // config.key_heads

        def by_head(flat: Tensor) -> Tensor:
            heads = delta.unit(flat.view(flat.shape[0], config.key_heads, config.key_dim))
            return heads.repeat_interleave(shared, dim=1).transpose(0, 1)

        return Rows(
            queries=by_head(queries) * config.key_dim**-0.5,
            keys=by_head(keys),
            values=values.reshape(-1, config.value_heads, config.value_dim).transpose(0, 1),
            log_decay=log_decay.T,
            rates=rates.T,
        )
