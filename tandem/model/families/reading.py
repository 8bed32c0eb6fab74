"""What families read from a checkpoint: matrices stacked into one product, norms, and heads put in turning order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model.config import AttentionConfig, ExpertsConfig
from tandem.model.families.architecture import Architecture, Gate
from tandem.model.layers import RmsNorm
from tandem.model.mixers import Attention, DeltaMixer, NormedAttention
from tandem.model.moe import Experts, FeedForward, Together
from tandem.model.placement import HOST
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.packed import Packed, plain, stacked
from tandem.model.weights.quant import Compute, Dense, Int8, Matrix


class Asked:
    """A matrix that was only asked for: a survey's answer. It has a shape and nothing to multiply with."""

    def __init__(self, weight: Tensor) -> None:
        self.shape = (weight.shape[0], weight.shape[1])

    def __call__(self, rows: Tensor) -> Tensor:
        raise AssertionError("a surveyed model does not run")

    lookup = __call__


class Reading:
    """Asks `source` for tensors under `prefix` and makes them what layers multiply with."""

    def __init__(self, source: Source, prefix: str, compute: Compute, epsilon: float, centred: bool) -> None:
        self.source = source
        self.compute = compute
        self._prefix = prefix
        self._epsilon = epsilon
        self._offset = 1.0 if centred else 0.0  # centred norms are stored as their distance from 1

    def under(self, name: str) -> Reading:
        return Reading(self.source, f"{self._prefix}{name}.", self.compute, self._epsilon, bool(self._offset))

    def name(self, name: str) -> str:
        return self._prefix + name

    def tensor(self, name: str, *shape: int) -> Tensor:
        """In float32, whatever the compute type: vectors and other small things."""
        return self.source.take(self._prefix + name, *shape, dtype=torch.float32)

    def on_host(self, name: str, *shape: int) -> Tensor:
        """Whole numbers that the host reckons with, wherever the model lies."""
        return self.source.take(self._prefix + name, *shape, dtype=torch.int64, device=HOST.device)

    def norm(self, name: str, width: int, order: Tensor | None = None, plain: bool = False) -> RmsNorm:
        weight = self.tensor(f"{name}.weight", width) + (0.0 if plain else self._offset)
        return RmsNorm(weight if order is None else weight[order], self._epsilon, self.compute.dtype)

    def product(self, width: int, parts: Sequence[tuple[str, int]], order: Tensor | None = None) -> Matrix:
        """The matrices `parts` (name, outputs), stacked; `order` rearranges the outputs of the whole."""
        if self.source.placement.kernels:
            return self._packed_product(width, parts, order)
        weights = [self.weight(name, out, width) for name, out in parts]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return self.held(weight if order is None else weight[order])

    def _packed_product(self, width: int, parts: Sequence[tuple[str, int]], order: Tensor | None) -> Matrix:
        """As it is stored. Parts of different kinds stay apart, and are widened when they must be rearranged."""
        from tandem.model.kernels.products import PackedProduct, Side

        packed = [self.packed(name, out, width) for name, out in parts]
        if packed[0].values.is_meta:
            return Asked(torch.empty(sum(each.shape[0] for each in packed), width, device="meta"))
        if order is not None and len({each.kind for each in packed}) > 1:
            packed = [plain(each.float32().bfloat16()) for each in packed]
        runs = [stacked(list(run)) for _, run in groupby(packed, key=lambda each: each.kind)]
        if order is not None:
            runs = [runs[0].rearranged(order)]
        return PackedProduct(runs[0]) if len(runs) == 1 else Side([PackedProduct(run) for run in runs])

    def weight(self, name: str, out: int, width: int) -> Tensor:
        return self.source.take(f"{self._prefix}{name}.weight", out, width, dtype=self._taken)

    def held(self, weight: Tensor) -> Matrix:
        """The matrix in the form it is multiplied in."""
        if weight.is_meta:
            return Asked(weight)
        if self.compute in (Compute.INT8, Compute.INT4) and Int8.fits((weight.shape[0], weight.shape[1])):
            return Int8(weight)
        return Dense(weight.to(self.compute.dtype))

    @property
    def _taken(self) -> torch.dtype:
        """Read as what it will be, unless that is made from float32."""
        return torch.float32 if self.compute in (Compute.INT8, Compute.INT4) else self.compute.dtype

    def feed_forward(self, hidden: int, width: int) -> FeedForward:
        return FeedForward(
            self.product(hidden, [("gate_proj", width), ("up_proj", width)]),
            self.product(width, [("down_proj", hidden)]),
        )

    def experts(self, hidden: int, config: ExpertsConfig) -> Experts:
        """Experts lie in one tensor of three axes, or each in its own matrices (always so when quantized)."""
        if self.source.placement.kernels:
            return self._packed_experts(hidden, config)
        if self.source.has(self.name("experts.gate_up_proj")):
            shape = (config.experts, 2 * config.width, hidden)
            gate_up = self.source.take(self.name("experts.gate_up_proj"), *shape, dtype=self._taken)
            down = self.source.take(
                self.name("experts.down_proj"), config.experts, hidden, config.width, dtype=self._taken
            )
            experts = [FeedForward(self.held(gate_up[n]), self.held(down[n])) for n in range(config.experts)]
        else:
            each = [self.under(f"experts.{number}") for number in range(config.experts)]
            experts = [expert.feed_forward(hidden, config.width) for expert in each]
        return self._routed(hidden, config, experts)

    def _packed_experts(self, hidden: int, config: ExpertsConfig) -> Experts:
        """All of a layer in two matrices, an expert behind the other."""
        from tandem.model.kernels.experts import PackedExperts

        if self.source.has(self.name("experts.gate_up_proj")):
            take = self.source.take
            wide = take(self.name("experts.gate_up_proj"), config.experts, 2 * config.width, hidden, dtype=self._taken)
            narrow = take(self.name("experts.down_proj"), config.experts, hidden, config.width, dtype=self._taken)
            gate_up, down = plain(wide.flatten(0, 1)), plain(narrow.flatten(0, 1))
        else:
            each = [self.under(f"experts.{number}") for number in range(config.experts)]
            halves = ("gate_proj", "up_proj")
            gate_up = stacked([expert.packed(half, config.width, hidden) for expert in each for half in halves])
            down = stacked([expert.packed("down_proj", hidden, config.width) for expert in each])
        return self._routed(hidden, config, [], PackedExperts(gate_up, down, config))

    def packed(self, name: str, out: int, width: int) -> Packed:
        return self.source.packed(f"{self._prefix}{name}.weight", out, width)

    def _routed(
        self, hidden: int, config: ExpertsConfig, experts: Sequence[FeedForward], together: Together | None = None
    ) -> Experts:
        return Experts(
            router=self.product(hidden, [("gate", config.experts)]),
            experts=experts,
            chosen=config.chosen,
            shared=self.under("shared_expert").feed_forward(hidden, config.shared_width),
            shared_gate=self.product(hidden, [("shared_expert_gate", 1)]),
            together=together,
        )

    def attention(self, config: AttentionConfig, hidden: int, index: int) -> Attention:
        inputs = self.attention_inputs(config, hidden)
        output = self.product(config.heads * config.head_dim, [("o_proj", hidden)])
        return Attention(config, index, inputs, output, self.compute.dtype)

    def normed_attention(self, config: AttentionConfig, hidden: int, index: int) -> NormedAttention:
        order = turning_order(config.head_dim, config.rope_dim)
        return NormedAttention(
            config,
            index,
            self.attention_inputs(config, hidden),
            self.product(config.heads * config.head_dim, [("o_proj", hidden)]),
            self.norm("q_norm", config.head_dim, order),
            self.norm("k_norm", config.head_dim, order),
            self.compute.dtype,
        )

    def attention_inputs(self, config: AttentionConfig, hidden: int) -> Matrix:
        """Queries, keys, values and gates in one product. On disk a head's gate stands behind its query."""
        turned = turning_order(config.head_dim, config.rope_dim)
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        stored = torch.arange(2 * width if config.gated else width).view(config.heads, -1, config.head_dim)
        queries, gates = stored[:, 0][:, turned].flatten(), stored[:, 1:].flatten()
        keys = stored.numel() + turning_rows(turned, config.kv_heads)
        values = stored.numel() + kv_width + torch.arange(kv_width)
        parts = [("q_proj", stored.numel()), ("k_proj", kv_width), ("v_proj", kv_width)]
        return self.product(hidden, parts, torch.cat([queries, keys, values, gates]))

    def delta(self, architecture: Architecture, index: int) -> DeltaMixer:
        config, hidden = architecture.delta, architecture.model.hidden
        assert config is not None, "a linear layer of a model without any"
        heads = config.value_heads
        inputs = [
            ("in_proj_qkv", config.conv_width),
            ("in_proj_z", config.value_width),
            ("in_proj_b", heads),
            ("in_proj_a", heads),
        ]
        return DeltaMixer(
            config,
            index,
            self.product(hidden, inputs),
            self.product(config.value_width, [("out_proj", hidden)]),
            self.tensor("conv1d.weight", config.conv_width, 1, config.taps)[:, 0],
            self.tensor("A_log", heads).exp(),
            self.tensor("dt_bias", heads),
            self.norm("norm", config.value_dim, plain=True),
            _GATES[architecture.gate],
            self.compute.dtype,
        )

    def ends(self, body: Reading, architecture: Architecture) -> tuple[Matrix, Matrix]:
        """Embedding and head, which may be one."""
        model = architecture.model
        embedding = body.product(model.hidden, [("embed_tokens", model.vocab)])
        head = embedding if architecture.tied else self.product(model.hidden, [("lm_head", model.vocab)])
        return embedding, head


_GATES: Final[dict[Gate, Callable[[Tensor], Tensor]]] = {Gate.SILU: functional.silu, Gate.SIGMOID: torch.sigmoid}


def turning_order(head_dim: int, rope_dim: int) -> Tensor:
    """Where a head's numbers go so that the two which turn together lie side by side, as `rope` wants them.

    Checkpoints keep the first halves of the pairs before the second halves. Queries, keys and the weights of their
    norms are all rearranged, so no product notices.
    """
    pairs = torch.arange(rope_dim).view(2, -1).T.flatten()
    return torch.cat([pairs, torch.arange(rope_dim, head_dim)])


def turning_rows(order: Tensor, heads: int) -> Tensor:
    """`order` for the outputs of a projection of several heads."""
    return (torch.arange(heads)[:, None] * order.shape[0] + order).flatten()
