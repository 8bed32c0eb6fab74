"""The Flash-Next family: Gated DeltaNet and indexed attention over hyper-connected streams, experts in every layer,
and in some a memory of n-grams that stays on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model.config import ModelConfig
from tandem.model.decoder import Decoder, Mixer
from tandem.model.families.fields import Fields
from tandem.model.families.qwen3 import is_tied, read_attention, read_model, rope_of
from tandem.model.families.qwen35 import LINEAR, body_prefix, read_delta, read_experts, read_kinds
from tandem.model.families.reading import Reading, turning_order, turning_rows
from tandem.model.hyper import Blend, Connection, StreamNorm
from tandem.model.indexed import IndexConfig
from tandem.model.mixers import AttentionConfig, DeltaConfig, IndexedAttention
from tandem.model.moe import Experts, ExpertsConfig
from tandem.model.ngrams import Hashing, NgramConfig, NgramMemory, hashing, table_rows
from tandem.model.passes import Pass
from tandem.model.rope import Rope
from tandem.model.state import Part
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute, Projection

UNREAD: Final = ("model.visual.", "mtp.")

INDEXED: Final = "indexed_attention"
_ALSO_INDEXED: Final = "full_attention"  # what published configurations call it

_GATES: Final[dict[str, Callable[[Tensor], Tensor]]] = {"silu": functional.silu, "sigmoid": torch.sigmoid}


@dataclass(frozen=True, slots=True)
class Config:
    model: ModelConfig
    kinds: tuple[str, ...]  # LINEAR or INDEXED, one a layer
    attention: AttentionConfig
    index: IndexConfig
    delta: DeltaConfig
    gate: str
    experts: ExpertsConfig
    streams: int
    rank: int  # of the mixture of streams
    ngrams: NgramConfig | None
    tied: bool


def read_config(fields: Fields) -> Config:
    """Raises `WrongWeights` naming the field that is missing, odd or not supported."""
    text = fields.at("text_config")
    attention = read_attention(text, gated=True)
    experts = read_experts(text)
    if not text.flag("norm_topk_prob", True):
        raise text.refuse("its experts' shares do not add up to 1")
    gate = text.word("output_gate_type", text.word("hidden_act", "silu"))
    if gate not in _GATES:
        raise text.wrong("output_gate_type", " or ".join(f"`{name}`" for name in _GATES))
    kinds = tuple(INDEXED if kind == _ALSO_INDEXED else kind for kind in _kinds(text))
    return Config(
        model=read_model(text, attention, experts.width),
        kinds=kinds,
        attention=attention,
        index=read_index(text, attention),
        delta=read_delta(text),
        gate=gate,
        experts=experts,
        streams=text.whole("hc_count", 4),
        rank=text.whole("hc_lowrank", 320),
        ngrams=read_ngrams(text, kinds) if text.values.get("ple_layer_ids") else None,
        tied=is_tied(fields) or is_tied(text),
    )


def _kinds(text: Fields) -> tuple[str, ...]:
    return read_kinds(text, (LINEAR, _ALSO_INDEXED, INDEXED))


def read_index(fields: Fields, attention: AttentionConfig) -> IndexConfig:
    index = IndexConfig(
        heads=fields.whole("indexer_n_heads"),
        dim=fields.whole("indexer_head_dim"),
        budget=fields.whole("indexer_budget"),
        ratio=fields.whole("indexer_compress_ratio"),
    )
    if fields.whole("indexer_kv_heads", 1) != 1:
        raise fields.wrong("indexer_kv_heads", "1")
    if index.budget % index.ratio:
        raise fields.wrong("indexer_budget", f"a multiple of `indexer_compress_ratio`, {index.ratio}")
    if attention.rope_dim > index.dim:
        raise fields.wrong("indexer_head_dim", f"at least {attention.rope_dim}, the numbers of a head that are turned")
    return index


def read_ngrams(fields: Fields, kinds: tuple[str, ...]) -> NgramConfig:
    layers = tuple(sorted({number - 1 for number in fields.list_of("ple_layer_ids", int)}))
    if not all(0 <= layer < len(kinds) and kinds[layer] == LINEAR for layer in layers):
        raise fields.wrong("ple_layer_ids", "numbers, from 1, of linear attention layers")
    separator = fields.token("eos_token_id")
    if separator is None:
        raise fields.wrong("eos_token_id", "a token id: n-grams do not reach across it")
    longest = fields.whole("ngram_size", 3)
    if longest < 2:
        raise fields.wrong("ngram_size", "at least 2")
    config = NgramConfig(
        layers=layers,
        width=fields.whole("ple_embed_dim", fields.whole("hidden_size")),
        longest=longest,
        heads=fields.whole("heads_per_ngram", 8),
        smallest_vocabulary=fields.whole("ngram_vocab_size_base", 20_000_000),
        padding=fields.whole("make_ngram_vocab_size_divisible_by", 128),
        parts=fields.whole("split_ngram_parts", 512),
        seed=fields.whole("seed", 1234),
        taps=fields.whole("ple_conv_kernel_size", 4),
        separator=separator,
    )
    if config.width % config.all_heads:
        raise fields.wrong("ple_embed_dim", f"a multiple of the n-gram heads, {config.all_heads}")
    return config


def prepare(fields: Fields, compute: Compute) -> Callable[[Source], Decoder]:
    """Raises `WrongWeights` for a configuration that cannot be read."""
    config = read_config(fields)
    rope = rope_of(config.model, config.attention)
    return lambda source: Building(source, config, compute, rope).decoder()


@dataclass(frozen=True, slots=True)
class HyperLayer:
    """As `decoder.Layer`, over several streams; some bring a memory of n-grams along."""

    ngrams: NgramMemory | None
    mixer_connection: Connection
    mixer: Mixer
    feed_forward_connection: Connection
    feed_forward: Experts

    def new_parts(self, window: int) -> list[Part]:
        return [*self.mixer.new_parts(window), *(self.ngrams.new_parts() if self.ngrams else ())]

    def products(self) -> Iterator[Projection]:
        for each in (self.ngrams, self.mixer_connection, self.mixer, self.feed_forward_connection, self.feed_forward):
            if each is not None:
                yield from each.products()

    def __call__(self, stream: Tensor, run: Pass, turns: Tensor) -> Tensor:
        if self.ngrams is not None:
            stream += self.ngrams(stream, run)
        mixed, weights = self.mixer_connection.read(stream)
        stream += self.mixer(mixed, run, turns).float()[:, None] * weights
        mixed, weights = self.feed_forward_connection.read(stream)
        stream += self.feed_forward(mixed).float()[:, None] * weights
        return stream


class Building:
    """Puts the layers together from what `source` holds."""

    def __init__(self, source: Source, config: Config, compute: Compute, rope: Rope) -> None:
        self._config = config
        self._hidden = config.model.hidden
        self._rope = rope
        self._root = Reading(source, "", compute, config.model.norm_epsilon, centred=True)
        self._body = self._root.under(body_prefix(source))

    def decoder(self) -> Decoder:
        config, model = self._config, self._config.model
        layers = [self._layer(index, self._body.under(f"layers.{index}")) for index in range(model.layers)]
        embedding = self._body.product(model.hidden, [("embed_tokens", model.vocab)])
        head = embedding if config.tied else self._root.product(model.hidden, [("lm_head", model.vocab)])
        leave = self._blend(self._body.under("hyper_connection_mixer"))
        dtype = self._root.compute.dtype
        return Decoder(model, dtype, embedding, layers, leave, head, self._rope, config.streams)

    def _layer(self, index: int, layer: Reading) -> HyperLayer:
        config, ngrams = self._config, self._config.ngrams
        mixer: Mixer
        if config.kinds[index] == LINEAR:
            mixer = layer.under("linear_attn").delta(config.delta, self._hidden, index, _GATES[config.gate])
        else:
            mixer = self._attention(index, layer.under("self_attn"))
        has_ngrams = ngrams is not None and index in ngrams.layers
        return HyperLayer(
            self._ngrams(index, layer.under("ple"), ngrams) if ngrams is not None and has_ngrams else None,
            self._connection(layer.under("attn_hyper_connection")),
            mixer,
            self._connection(layer.under("mlp_hyper_connection")),
            layer.under("mlp").experts(self._hidden, config.experts),
        )

    def _attention(self, index: int, layer: Reading) -> IndexedAttention:
        config, sizes = self._config.attention, self._config.index
        order = turning_order(config.head_dim, config.rope_dim)
        index_order = turning_order(sizes.dim, config.rope_dim)
        indexer = layer.under("indexer")
        outputs = (sizes.heads + 1) * sizes.dim
        return IndexedAttention(
            config,
            index,
            layer.attention_inputs(config, self._hidden),
            layer.product(config.heads * config.head_dim, [("o_proj", self._hidden)]),
            layer.norm("q_norm", config.head_dim, order),
            layer.norm("k_norm", config.head_dim, order),
            layer.compute.dtype,
            sizes,
            indexer.product(self._hidden, [("index_qk_proj", outputs)], turning_rows(index_order, sizes.heads + 1)),
            indexer.norm("q_layernorm", sizes.dim, index_order),
            indexer.norm("k_layernorm", sizes.dim, index_order),
            self._rope,
        )

    def _blend(self, reading: Reading) -> Blend:
        width, rank = self._config.streams * self._hidden, self._config.rank
        return Blend(
            self._stream_norm(reading, "hc_norm"),
            reading.product(width, [("input_mix_weight_down", rank)]),
            reading.product(rank, [("input_mix_weight_up", width)]),
            reading.compute.dtype,
        )

    def _connection(self, reading: Reading) -> Connection:
        streams = self._config.streams
        inject = reading.product(streams * self._hidden, [("block_inject_weight", streams)])
        return Connection(self._blend(reading), inject)

    def _stream_norm(self, reading: Reading, name: str) -> StreamNorm:
        streams = self._config.streams
        weight = 1 + reading.tensor(f"{name}.weight", streams * self._hidden)
        return StreamNorm(weight.view(streams, self._hidden), self._config.model.norm_epsilon)

    def _ngrams(self, index: int, reading: Reading, config: NgramConfig) -> NgramMemory:
        place, width = config.layers.index(index), self._config.streams * self._hidden
        embedding = reading.under("ple_embedding")
        rows = table_rows(config, place)
        table = embedding.under("ngram_embedding")
        names = [table.name(f"shard_{number}.weight") for number in range(config.parts)]
        if table.source.has(table.name("weight")):
            names = [table.name("weight")]
        return NgramMemory(
            config,
            index,
            self._hashing(embedding, config, place),
            table.source.table(names, rows, config.width // config.all_heads),
            reading.product(config.width, [("key_proj", width)]),
            reading.product(config.width, [("value_proj", self._hidden)]),
            self._stream_norm(reading, "norm_key"),
            self._stream_norm(reading, "norm_query"),
            self._stream_norm(reading, "norm_conv"),
            reading.tensor("conv1d.weight", width, 1, config.taps)[:, 0],
            reading.compute.dtype,
        )

    def _hashing(self, reading: Reading, config: NgramConfig, place: int) -> Hashing:
        """As the checkpoint spells it out, or else as its configuration implies."""
        if not reading.source.has(reading.name("layer_multipliers")):
            return hashing(config, place, self._config.model.vocab)
        heads = config.all_heads
        return Hashing(
            reading.whole("layer_multipliers", config.longest),
            reading.whole("ngram_heads_vocab_sizes", heads),
            reading.whole("ngram_heads_offsets", heads),
        )
