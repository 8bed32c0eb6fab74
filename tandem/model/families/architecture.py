"""What `config.json` of a checkpoint says about the model in it. Imports no torch: `tandem model inspect` reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tandem.model.config import AttentionConfig, DeltaConfig, ExpertsConfig, IndexConfig, ModelConfig, NgramConfig
from tandem.model.families.fields import Fields
from tandem.model.weights.safetensors import WrongWeights


class Kind(StrEnum):
    """How a layer looks back."""

    FULL = "full_attention"
    INDEXED = "indexed_attention"
    LINEAR = "linear_attention"


class Gate(StrEnum):
    """What scales a DeltaNet head's answer."""

    SILU = "silu"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that decides which tensors a model has and what is done with them."""

    family: str  # llama | qwen3 | qwen35 | flashnext
    model: ModelConfig
    kinds: tuple[Kind, ...]  # one a layer
    attention: AttentionConfig
    tied: bool  # the head is the embedding
    delta: DeltaConfig | None = None
    gate: Gate = Gate.SILU
    experts: ExpertsConfig | None = None  # None: one dense feed-forward a layer
    index: IndexConfig | None = None
    streams: int = 1  # residual streams a row travels as
    rank: int = 0  # of the mixture of several streams
    ngrams: NgramConfig | None = None
    mtp: bool = False  # the head that guesses ahead is there and wanted

    def bytes_a_token(self, element: int) -> int:
        """Of KV rows and index keys, `element` bytes a number, over all layers."""
        attention, index = self.attention, self.index
        layer = 2 * attention.kv_heads * attention.head_dim + (index.dim if index else 0)
        return (sum(kind is not Kind.LINEAR for kind in self.kinds) + self.mtp) * layer * element

    def fixed_bytes(self, element: int) -> int:
        """Of recurrent memories (4 bytes a number) and tails, however short the sequence."""
        total = 0
        if self.delta is not None:
            memory = self.delta.value_heads * self.delta.key_dim * self.delta.value_dim * 4
            tail = (self.delta.taps - 1) * self.delta.conv_width * element
            total += sum(kind is Kind.LINEAR for kind in self.kinds) * (memory + tail)
        if self.ngrams is not None:
            tail = self.ngrams.reach * self.streams * self.model.hidden * element
            total += len(self.ngrams.layers) * (tail + (self.ngrams.longest - 1) * 8)
        if self.mtp:  # several streams are carried on as they are, in float32
            total += self.streams * self.model.hidden * (element if self.streams == 1 else 4)
        return total


def read_architecture(fields: Fields) -> Architecture:
    """Raises `WrongWeights` naming the field that is missing, odd or not supported."""
    kind = fields.word("model_type")
    if kind not in _FAMILIES:
        raise WrongWeights(
            f"{fields.file} describes a model of type `{kind}`; known are {', '.join(_FAMILIES)}",
            "choose a model of one of these types",
        )
    return _FAMILIES[kind](fields)


def with_mtp(architecture: Architecture, fields: Fields) -> Architecture:
    """The same model with its head that guesses ahead, where its family has one that is read.

    Raises `WrongWeights` for one of another form.
    """
    if architecture.family not in _HEADED:
        return architecture
    text = fields.at("text_config")
    if text.whole("mtp_num_hidden_layers", 1) != 1:
        raise text.wrong("mtp_num_hidden_layers", "1")
    if text.flag("mtp_use_dedicated_embeddings", False):
        raise text.refuse("its head that guesses ahead has an embedding of its own")
    return replace(architecture, mtp=True)


def _llama(fields: Fields) -> Architecture:
    if fields.flag("mlp_bias", False):
        raise fields.refuse("its feed-forwards have biases")
    attention = _attention(fields, gated=False, turned=1.0)
    if attention.rope_dim != attention.head_dim:
        raise fields.refuse("only part of a head is turned")
    return Architecture(
        family="llama",
        model=_model(fields, attention, fields.whole("intermediate_size")),
        kinds=(Kind.FULL,) * fields.whole("num_hidden_layers"),
        attention=attention,
        tied=_is_tied(fields),
    )


def _qwen3(fields: Fields) -> Architecture:
    if fields.flag("use_sliding_window", False):
        raise fields.refuse("its attention sees a sliding window")
    attention = _attention(fields, gated=False, turned=1.0)
    return Architecture(
        family="qwen3",
        model=_model(fields, attention, fields.whole("intermediate_size")),
        kinds=(Kind.FULL,) * fields.whole("num_hidden_layers"),
        attention=attention,
        tied=_is_tied(fields),
    )


def _qwen35(fields: Fields) -> Architecture:
    text = fields.at("text_config")
    attention = _attention(text, gated=True, turned=0.25)
    experts = _experts(text) if text.has("num_experts") else None
    return Architecture(
        family="qwen35",
        model=_model(text, attention, experts.width if experts else text.whole("intermediate_size")),
        kinds=_kinds(text, Kind.FULL),
        attention=attention,
        tied=_is_tied(fields),
        delta=_delta(text),
        experts=experts,
    )


def _flashnext(fields: Fields) -> Architecture:
    text = fields.at("text_config")
    attention = _attention(text, gated=True, turned=0.25)
    experts = _experts(text)
    if not text.flag("norm_topk_prob", True):
        raise text.refuse("its experts' shares do not add up to 1")
    gate = text.word("output_gate_type", text.word("hidden_act", "silu"))
    if gate not in set(Gate):
        raise text.wrong("output_gate_type", " or ".join(f"`{each}`" for each in Gate))
    # Published configurations call the indexed layers full attention.
    kinds = tuple(Kind.INDEXED if kind is Kind.FULL else kind for kind in _kinds(text, Kind.INDEXED))
    return Architecture(
        family="flashnext",
        model=_model(text, attention, experts.width),
        kinds=kinds,
        attention=attention,
        tied=_is_tied(fields),
        delta=_delta(text),
        gate=Gate(gate),
        experts=experts,
        index=_index(text, attention),
        streams=text.whole("hc_count", 4),
        rank=text.whole("hc_lowrank", 320),
        ngrams=_ngrams(text, kinds) if text.values.get("ple_layer_ids") else None,
    )


_HEADED: Final = ("qwen35", "flashnext")

_FAMILIES: Final = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_5": _qwen35,
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "qwen4_exp": _flashnext,
    "qwen4_exp_text": _flashnext,
}
"""By the `model_type` of config.json."""


def _model(fields: Fields, attention: AttentionConfig, feed_forward: int) -> ModelConfig:
    rope = fields.at("rope_parameters")
    if rope.word("rope_type", "default") != "default" or fields.has("rope_scaling"):
        raise fields.refuse("its positions are scaled")
    if fields.word("hidden_act", "silu") != "silu":
        raise fields.wrong("hidden_act", "`silu`")
    return ModelConfig(
        layers=fields.whole("num_hidden_layers"),
        hidden=fields.whole("hidden_size"),
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        feed_forward=feed_forward,
        vocab=fields.whole("vocab_size"),
        norm_epsilon=fields.real("rms_norm_eps", 1e-6),
        rope_base=rope.real("rope_theta"),
        window=fields.whole("max_position_embeddings"),
        bos_token=fields.token("bos_token_id"),
        eos_token=fields.token("eos_token_id"),
    )


def _attention(fields: Fields, gated: bool, turned: float) -> AttentionConfig:
    """`turned` is the share of a head that is turned where the configuration does not say."""
    if fields.flag("attention_bias", False):
        raise fields.refuse("its attention has biases")
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    head_dim = fields.whole("head_dim", max(1, fields.whole("hidden_size") // heads))
    if heads % kv_heads:
        raise fields.refuse(f"{heads} heads cannot share {kv_heads} KV heads")
    rope_dim = int(head_dim * fields.at("rope_parameters").real("partial_rotary_factor", turned))
    if rope_dim % 2 or not 0 < rope_dim <= head_dim:
        raise fields.refuse(f"{rope_dim} of {head_dim} numbers of a head cannot be turned in pairs")
    return AttentionConfig(heads, kv_heads, head_dim, rope_dim, gated)


def _is_tied(fields: Fields) -> bool:
    return any(each.flag("tie_word_embeddings", False) for each in (fields, fields.at("text_config")))


def _kinds(fields: Fields, usual: Kind) -> tuple[Kind, ...]:
    """One a layer: spelled out, or every so many-th of the usual kind and the others linear."""
    layers = fields.whole("num_hidden_layers")
    interval = fields.whole("full_attention_interval", 4)
    implied = [usual if (index + 1) % interval == 0 else Kind.LINEAR for index in range(layers)]
    names = fields.list_of("layer_types", str, implied)
    allowed = dict.fromkeys((Kind.LINEAR, Kind.FULL, usual))
    if len(names) != layers or not set(names) <= set(allowed):
        raise fields.wrong("layer_types", f"{layers} of {' or '.join(f'`{kind}`' for kind in allowed)}")
    return tuple(Kind(name) for name in names)


def _delta(fields: Fields) -> DeltaConfig:
    config = DeltaConfig(
        key_heads=fields.whole("linear_num_key_heads", 16),
        value_heads=fields.whole("linear_num_value_heads", 32),
        key_dim=fields.whole("linear_key_head_dim", 128),
        value_dim=fields.whole("linear_value_head_dim", 128),
        taps=fields.whole("linear_conv_kernel_dim", 4),
    )
    if config.value_heads % config.key_heads:
        raise fields.refuse(f"{config.value_heads} value heads cannot share {config.key_heads} key heads")
    return config


def _experts(fields: Fields) -> ExpertsConfig:
    config = ExpertsConfig(
        experts=fields.whole("num_experts"),
        chosen=fields.whole("num_experts_per_tok"),
        width=fields.whole("moe_intermediate_size"),
        shared_width=fields.whole("shared_expert_intermediate_size"),
    )
    if config.chosen > config.experts:
        raise fields.wrong("num_experts_per_tok", f"at most {config.experts}, the number of experts")
    return config


def _index(fields: Fields, attention: AttentionConfig) -> IndexConfig:
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


def _ngrams(fields: Fields, kinds: tuple[Kind, ...]) -> NgramConfig:
    layers = tuple(sorted({number - 1 for number in fields.list_of("ple_layer_ids", int)}))
    if not all(0 <= layer < len(kinds) and kinds[layer] is Kind.LINEAR for layer in layers):
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
