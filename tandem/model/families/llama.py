"""The Llama family: RMS norm, rotary positions, grouped attention, gated SiLU. Read from GGUF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from tandem.errors import CannotStart
from tandem.model.attention import attend
from tandem.model.bucket import RowFunction, measure_row_bucket
from tandem.model.config import ModelConfig
from tandem.model.interface import Allocate, Block, SequenceState, allocate_at_once
from tandem.model.layers import RmsNorm, gated_silu
from tandem.model.passes import Pass, passes
from tandem.model.rope import Rope, turn_
from tandem.model.state import KvRows
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.quant import Compute, Dense, Int8, Projection, projection, table

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"  # absent when the head shares the embedding
OUTPUT_NORM: Final = "output_norm.weight"
ROPE_FACTORS: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: RmsNorm
    qkv: Projection  # queries, keys and values stacked
    attention_output: Projection
    feed_forward_norm: RmsNorm
    gate_up: Projection  # gate and up stacked
    down: Projection


class Llama:
    """Implements `interface.Model`."""

    def __init__(
        self,
        config: ModelConfig,
        compute: Compute,
        embedding: Dense | Int8,
        layers: Sequence[Layer],
        output_norm: RmsNorm,
        head: Projection,
        rope: Rope,
    ) -> None:
        self.config = config
        self._compute = compute
        self._embedding = embedding
        self._layers = layers
        self._output_norm = output_norm
        self._head = head
        self._rope = rope
        self.row_bucket = measure_row_bucket(self._row_functions(), compute.dtype)

    @classmethod
    def read(cls, file: GgufFile, compute: Compute, progress: Callable[[float], None]) -> Self:
        """Raises `CannotStart` when the file is not what this family needs."""
        config = read_config(file)
        file.require(_shapes(file, config))
        tensors = file.tensors
        epsilon = config.norm_epsilon

        def norm(name: str) -> RmsNorm:
            return RmsNorm(tensors[name].float32(), epsilon, compute.dtype)

        def stacked(layer: int, *names: str) -> Projection:
            return projection([tensors[f"blk.{layer}.{name}.weight"] for name in names], compute)

        embedding = table([tensors[EMBEDDING]], compute)
        head = projection([tensors[OUTPUT]], compute) if OUTPUT in tensors else embedding
        layers = []
        for index in range(config.layers):
            progress((index + 1) / (config.layers + 2))  # embedding and head weigh about as much as a layer
            layers.append(
                Layer(
                    attention_norm=norm(f"blk.{index}.attn_norm.weight"),
                    qkv=stacked(index, "attn_q", "attn_k", "attn_v"),
                    attention_output=stacked(index, "attn_output"),
                    feed_forward_norm=norm(f"blk.{index}.ffn_norm.weight"),
                    gate_up=stacked(index, "ffn_gate", "ffn_up"),
                    down=stacked(index, "ffn_down"),
                )
            )
        factors = tensors[ROPE_FACTORS].float32() if ROPE_FACTORS in tensors else None
        rope = Rope(config.head_dim, config.rope_base, config.window, factors)
        return cls(config, compute, embedding, layers, norm(OUTPUT_NORM), head, rope)

    def new_state(self, window: int, allocate: Allocate = allocate_at_once) -> SequenceState:
        if not 0 < window <= self.config.window:
            raise ValueError(f"a window of {window} rows; the model has 1 to {self.config.window}")
        config, dtype = self.config, self._compute.dtype
        rows = [[KvRows(window, config.kv_heads, config.head_dim, dtype, allocate)] for _ in range(config.layers)]
        return SequenceState(window, dtype, rows)

    @torch.inference_mode()
    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = [self._run(each) for each in passes(blocks, self.row_bucket)]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _run(self, run: Pass) -> Tensor:
        """One run of the weights; float32 logits of the wanted rows."""
        turns = self._rope.at(run.positions)
        rows = self._embedding.lookup(run.tokens)  # the residual stream: float32 [rows, hidden]
        for index, layer in enumerate(self._layers):
            queries, written = self._queries_and_kv(layer.qkv(layer.attention_norm(rows)), turns)
            rows += layer.attention_output(attend(index, queries, written, run.spans))
            rows += layer.down(gated_silu(layer.gate_up(layer.feed_forward_norm(rows))))
        if run.wanted is not None:
            rows = rows.index_select(0, run.wanted)
        if not rows.shape[0]:
            return rows.new_empty(0, self.config.vocab)
        return self._head(self._output_norm(rows)).float()

    def _queries_and_kv(self, qkv: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Turned queries [rows, heads, head_dim] and turned keys with values [2, 1, kv_heads, rows, head_dim]."""
        num_heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        heads = qkv.view(-1, num_heads + 2 * kv_heads, head_dim)
        turn_(heads[:, : num_heads + kv_heads], turns)
        kv = heads[:, num_heads:].view(-1, 2, 1, kv_heads, head_dim)
        return heads[:, :num_heads], kv.permute(1, 2, 3, 0, 4)

    def _row_functions(self) -> Iterator[tuple[RowFunction, int]]:
        """Everything that runs over all rows of a pass at once; products of one form and shape once."""
        yield self._output_norm, self.config.hidden
        yield gated_silu, 2 * self.config.feed_forward
        products = [self._head]
        for layer in self._layers:
            products += [layer.qkv, layer.attention_output, layer.gate_up, layer.down]
        for product in {(type(each), each.shape): each for each in products}.values():
            yield product, product.shape[1]


def read_config(file: GgufFile) -> ModelConfig:
    """The model's shape from the file's metadata. Raises `CannotStart` naming the key that is missing or odd."""
    hidden = file.whole("llama.embedding_length")
    heads = file.whole("llama.attention.head_count")
    kv_heads = file.whole("llama.attention.head_count_kv", heads)
    head_dim = file.whole("llama.attention.key_length", max(hidden // heads, 1))
    for wrong, what in (
        (heads % kv_heads, f"{heads} heads cannot share {kv_heads} KV heads"),
        (head_dim % 2, f"a head of {head_dim} numbers cannot be turned in pairs"),
        (file.whole("llama.rope.dimension_count", head_dim) != head_dim, "only part of a head is rotated"),
        (file.whole("llama.attention.value_length", head_dim) != head_dim, "keys and values differ in size"),
        (file.metadata.get("llama.rope.scaling.type", "none") != "none", "its positions are scaled"),
        ("llama.expert_count" in file.metadata and file.metadata["llama.expert_count"] != 0, "it has experts"),
        (EMBEDDING not in file.tensors, f"it has no `{EMBEDDING}`"),
    ):
        if wrong:
            raise CannotStart(f"{file.path} is a llama model that cannot be read: {what}")
    return ModelConfig(
        layers=file.whole("llama.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=file.whole("llama.feed_forward_length"),
        vocab=file.tensors[EMBEDDING].shape[0],
        norm_epsilon=file.real("llama.attention.layer_norm_rms_epsilon"),
        rope_base=file.real("llama.rope.freq_base", 10000.0),
        window=file.whole("llama.context_length"),
        bos_token=file.token("tokenizer.ggml.bos_token_id"),
        eos_token=file.token("tokenizer.ggml.eos_token_id"),
    )


def _shapes(file: GgufFile, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the file must hold; those a model may have or not are named when the file has them."""
    hidden, wide = config.hidden, config.feed_forward
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, hidden), OUTPUT_NORM: (hidden,)}
    if OUTPUT in file.tensors:
        shapes[OUTPUT] = (config.vocab, hidden)
    if ROPE_FACTORS in file.tensors:
        shapes[ROPE_FACTORS] = (config.head_dim // 2,)
    for index in range(config.layers):
        shapes |= {
            f"blk.{index}.attn_norm.weight": (hidden,),
            f"blk.{index}.attn_q.weight": (config.query_width, hidden),
            f"blk.{index}.attn_k.weight": (config.kv_width, hidden),
            f"blk.{index}.attn_v.weight": (config.kv_width, hidden),
            f"blk.{index}.attn_output.weight": (hidden, config.query_width),
            f"blk.{index}.ffn_norm.weight": (hidden,),
            f"blk.{index}.ffn_gate.weight": (wide, hidden),
            f"blk.{index}.ffn_up.weight": (wide, hidden),
            f"blk.{index}.ffn_down.weight": (hidden, wide),
        }
    return shapes
