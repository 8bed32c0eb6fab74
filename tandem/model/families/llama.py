"""The Llama family: RMS norm, rotary positions, grouped attention, gated SiLU. Read from GGUF or from a directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from tandem.errors import CannotStart
from tandem.model.config import AttentionConfig, ModelConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families.architecture import Architecture
from tandem.model.families.reading import Reading
from tandem.model.interface import Model
from tandem.model.layers import RmsNorm
from tandem.model.mixers import Attention
from tandem.model.moe import FeedForward
from tandem.model.native.blocks import Blocks, pack_eight, pack_four
from tandem.model.native.model import NativeModel
from tandem.model.native.step import NativeStep, StepLayer
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.quant import Compute, Int8, Projection, projection, table

log = logging.getLogger("tandem.engine")

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"  # absent when the head shares the embedding
OUTPUT_NORM: Final = "output_norm.weight"
ROPE_FACTORS: Final = "rope_freqs.weight"
_MATRICES: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def build(
    source: Source,
    architecture: Architecture,
    compute: Compute,
    rope: Rope,
    attention: Callable[[Reading, AttentionConfig, int, int], Attention] = Reading.attention,
) -> Decoder:
    """From a checkpoint directory. `attention` reads a layer's: what distinguishes the dense families."""
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=False)
    body = root.under("model")
    layers = []
    for index in range(model.layers):
        layer = body.under(f"layers.{index}")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                attention(layer.under("self_attn"), architecture.attention, model.hidden, index),
                layer.norm("post_attention_layernorm", model.hidden),
                layer.under("mlp").feed_forward(model.hidden, model.feed_forward),
            )
        )
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement)


def read(file: GgufFile, compute: Compute, progress: Callable[[float], None]) -> Model:
    """From a GGUF file. Raises `CannotStart` when it is not what this family needs."""
    config = read_config(file)
    file.require(_shapes(file, config))
    if compute is Compute.INT4 and _runs_natively(file, config):
        return _read_native(file, config, progress)
    return _read(file, config, compute, progress)


def _read(file: GgufFile, config: ModelConfig, compute: Compute, progress: Callable[[float], None]) -> Decoder:
    tensors = file.tensors
    attention = AttentionConfig(config.heads, config.kv_heads, config.head_dim, config.head_dim, gated=False)

    def norm(name: str) -> RmsNorm:
        return RmsNorm(tensors[name].float32(), config.norm_epsilon, compute.dtype)

    def stacked(layer: int, *names: str) -> Projection:
        return projection([tensors[f"blk.{layer}.{name}.weight"] for name in names], compute)

    embedding = table([tensors[EMBEDDING]], compute)
    head = projection([tensors[OUTPUT]], compute) if OUTPUT in tensors else embedding
    layers = []
    for index in range(config.layers):
        progress((index + 1) / (config.layers + 2))  # embedding and head weigh about as much as a layer
        inputs = stacked(index, "attn_q", "attn_k", "attn_v")
        layers.append(
            Layer(
                norm(f"blk.{index}.attn_norm.weight"),
                Attention(attention, index, inputs, stacked(index, "attn_output"), compute.dtype),
                norm(f"blk.{index}.ffn_norm.weight"),
                FeedForward(stacked(index, "ffn_gate", "ffn_up"), stacked(index, "ffn_down")),
            )
        )
    return Decoder(config, compute.dtype, embedding, layers, norm(OUTPUT_NORM), head, _rope(file, config))


def _rope(file: GgufFile, config: ModelConfig) -> Rope:
    factors = file.tensors[ROPE_FACTORS].float32() if ROPE_FACTORS in file.tensors else None
    return Rope(config.head_dim, config.rope_base, config.window, factors)


def _runs_natively(file: GgufFile, config: ModelConfig) -> bool:
    """Where the native step was compiled, and pays, for matrices of 4 bits throughout."""
    matrices = [file.tensors[f"blk.{index}.{name}.weight"] for index in range(config.layers) for name in _MATRICES]
    head = file.tensors[OUTPUT if OUTPUT in file.tensors else EMBEDDING]
    if not NativeStep.pays() or not NativeStep.fits(config) or not Blocks.fits((head.shape[0], head.shape[1])):
        log.info("passes run in torch")
        return False
    if not all(each.is_four_bit and Blocks.fits((each.shape[0], each.shape[1])) for each in matrices):
        log.info("passes run in torch: not every matrix of the file has 4 bits")
        return False
    return True


def _read_native(file: GgufFile, config: ModelConfig, progress: Callable[[float], None]) -> NativeModel:
    tensors = file.tensors

    def norm(name: str) -> Tensor:
        return tensors[name].float32().contiguous()

    def packed(layer: int, *names: str) -> Blocks:
        return pack_four([tensors[f"blk.{layer}.{name}.weight"].four_bit() for name in names])

    def read_layer(index: int) -> StepLayer:
        progress((index + 2) / (config.layers + 2))  # embedding and head weigh about as much as a layer
        return StepLayer(
            attention_norm=norm(f"blk.{index}.attn_norm.weight"),
            qkv=packed(index, "attn_q", "attn_k", "attn_v"),
            attention_output=packed(index, "attn_output"),
            feed_forward_norm=norm(f"blk.{index}.ffn_norm.weight"),
            gate_up=packed(index, "ffn_gate", "ffn_up"),
            down=packed(index, "ffn_down"),
        )

    # The widest first: it is widened once, while little else is there.
    wide = tensors[EMBEDDING].float32()
    embedding = Int8(wide)
    head = pack_eight(wide if OUTPUT not in tensors else tensors[OUTPUT].float32())
    del wide
    layers = [read_layer(index) for index in range(config.layers)]
    step = NativeStep(config, layers, norm(OUTPUT_NORM), head, torch.get_num_threads(), turn_halves=False)
    log.info("passes run in the native step (%s)", step.family)
    return NativeModel(config, step, embedding, _rope(file, config))


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
