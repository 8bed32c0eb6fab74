"""The Flash-Next family: Gated DeltaNet and indexed attention over hyper-connected streams, experts in every layer,
and in some a memory of n-grams that stays on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from tandem.model.config import NgramConfig
from tandem.model.decoder import Decoder, Mixer
from tandem.model.families.architecture import Architecture, Kind
from tandem.model.families.qwen35 import body_prefix
from tandem.model.families.reading import Reading, turning_order, turning_rows
from tandem.model.hyper import Blend, Connection, StreamNorm
from tandem.model.mixers import IndexedAttention
from tandem.model.moe import Experts
from tandem.model.mtp import MtpHead, StreamsNeck
from tandem.model.ngrams import Hashing, NgramMemory, hashing, table_rows
from tandem.model.passes import Pass
from tandem.model.rope import Rope
from tandem.model.state import Allocate, Part
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute, Matrix, Projection


@dataclass(frozen=True, slots=True)
class HyperLayer:
    """As `decoder.Layer`, over several streams; some bring a memory of n-grams along."""

    ngrams: NgramMemory | None
    mixer_connection: Connection
    mixer: Mixer
    feed_forward_connection: Connection
    feed_forward: Experts

    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        return [*self.mixer.new_parts(window, allocate), *(self.ngrams.new_parts() if self.ngrams else ())]

    def products(self) -> Iterator[Projection]:
        for each in (self.ngrams, self.mixer_connection, self.mixer, self.feed_forward_connection, self.feed_forward):
            if each is not None:
                yield from each.products()

    def gated_widths(self) -> Iterator[int]:
        return self.feed_forward.gated_widths()

    def __call__(self, stream: Tensor, run: Pass, turns: Tensor) -> Tensor:
        if self.ngrams is not None:
            stream += self.ngrams(stream, run)
        mixed, weights = self.mixer_connection.read(stream)
        stream += self.mixer(mixed, run, turns).float()[:, None] * weights
        mixed, weights = self.feed_forward_connection.read(stream)
        stream += self.feed_forward(mixed).float()[:, None] * weights
        return stream


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    return _Building(source, architecture, compute, rope).decoder()


class _Building:
    """Puts the layers together from what `source` holds."""

    def __init__(self, source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> None:
        self._architecture = architecture
        self._hidden = architecture.model.hidden
        self._rope = rope
        self._root = Reading(source, "", compute, architecture.model.norm_epsilon, centred=True)
        self._body = self._root.under(body_prefix(source))

    def decoder(self) -> Decoder:
        model, streams = self._architecture.model, self._architecture.streams
        layers = [self._layer(index, self._body.under(f"layers.{index}")) for index in range(model.layers)]
        embedding, head = self._root.ends(self._body, self._architecture)
        leave = self._blend(self._body.under("hyper_connection_mixer"))
        dtype, placement = self._root.compute.dtype, self._root.source.placement
        mtp = self._mtp(self._root.under("mtp"), embedding, head) if self._architecture.mtp else None
        return Decoder(model, dtype, embedding, layers, leave, head, self._rope, streams, placement, False, mtp)

    def _mtp(self, reading: Reading, embedding: Matrix, head: Matrix) -> MtpHead:
        model, streams = self._architecture.model, self._architecture.streams
        neck = StreamsNeck(
            streams,
            reading.norm("pre_fc_norm_embedding", self._hidden),
            reading.norm("pre_fc_norm_hidden", streams * self._hidden),
            reading.product(self._hidden, [("fc_embedding", self._hidden)]),
            reading.product(self._hidden, [("fc_hidden", self._hidden)]),
            self._blend(reading.under("hyper_connection_mixer")),
        )
        attention = self._attention(model.layers, reading.under("layers.0.self_attn"))
        layer = self._around(attention, reading.under("layers.0"))
        blend = layer.mixer_connection.blend
        return MtpHead(neck, layer, blend, attention, embedding, head, self._rope)

    def _layer(self, index: int, layer: Reading) -> HyperLayer:
        architecture, ngrams = self._architecture, self._architecture.ngrams
        mixer: Mixer
        if architecture.kinds[index] is Kind.LINEAR:
            mixer = layer.under("linear_attn").delta(architecture, index)
        else:
            mixer = self._attention(index, layer.under("self_attn"))
        memory = self._ngrams(index, layer.under("ple"), ngrams) if ngrams and index in ngrams.layers else None
        return self._around(mixer, layer, memory)

    def _around(self, mixer: Mixer, layer: Reading, ngrams: NgramMemory | None = None) -> HyperLayer:
        experts = self._architecture.experts
        assert experts is not None
        return HyperLayer(
            ngrams,
            self._connection(layer.under("attn_hyper_connection")),
            mixer,
            self._connection(layer.under("mlp_hyper_connection")),
            layer.under("mlp").experts(self._hidden, experts),
        )

    def _attention(self, index: int, layer: Reading) -> IndexedAttention:
        config, sizes = self._architecture.attention, self._architecture.index
        assert sizes is not None
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
        width, rank = self._architecture.streams * self._hidden, self._architecture.rank
        return Blend(
            self._stream_norm(reading, "hc_norm"),
            reading.product(width, [("input_mix_weight_down", rank)]),
            reading.product(rank, [("input_mix_weight_up", width)]),
            reading.compute.dtype,
        )

    def _connection(self, reading: Reading) -> Connection:
        streams = self._architecture.streams
        inject = reading.product(streams * self._hidden, [("block_inject_weight", streams)])
        return Connection(self._blend(reading), inject)

    def _stream_norm(self, reading: Reading, name: str) -> StreamNorm:
        streams = self._architecture.streams
        weight = 1 + reading.tensor(f"{name}.weight", streams * self._hidden)
        return StreamNorm(weight.view(streams, self._hidden), self._architecture.model.norm_epsilon)

    def _ngrams(self, index: int, reading: Reading, config: NgramConfig) -> NgramMemory:
        place, width = config.layers.index(index), self._architecture.streams * self._hidden
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
            return hashing(config, place, self._architecture.model.vocab)
        heads = config.all_heads
        return Hashing(
            reading.on_host("layer_multipliers", config.longest),
            reading.on_host("ngram_heads_vocab_sizes", heads),
            reading.on_host("ngram_heads_offsets", heads),
        )
