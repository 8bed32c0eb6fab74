"""A random Llama or Qwen3 of a few thousand weights, written as GGUF the way the converters of its family write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind


@dataclass(frozen=True)
class TinyLlama:
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    vocab: int = 160
    window: int = 192
    rope_base: float = 10000.0
    epsilon: float = 1e-5
    tied: bool = True
    seed: int = 0
    family: str = "llama"  # or qwen3: queries and keys are normed, and their rows stored as trained
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # by the last word but one of a tensor's name; else F32

    def with_kind(self, kind: Kind) -> TinyLlama:
        """Every matrix in one format."""
        names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "token_embd", "output")
        return replace(self, kinds=dict.fromkeys(names, kind))

    def weights(self) -> dict[str, np.ndarray]:
        """GGUF name -> float32, query and key rows in half-split order as transformers has them."""
        random = np.random.default_rng(self.seed)

        def matrix(out: int, into: int) -> np.ndarray:
            return (random.standard_normal((out, into)) / into**0.5).astype(np.float32)

        def norm(width: int = self.hidden) -> np.ndarray:
            return random.uniform(0.5, 1.5, width).astype(np.float32)

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        named = {"token_embd.weight": matrix(self.vocab, self.hidden), "output_norm.weight": norm()}
        if not self.tied:
            named["output.weight"] = matrix(self.vocab, self.hidden)
        for index in range(self.layers):
            named |= {
                f"blk.{index}.attn_norm.weight": norm(),
                f"blk.{index}.attn_q.weight": matrix(queries, self.hidden) * 2,
                f"blk.{index}.attn_k.weight": matrix(keys, self.hidden) * 2,
                f"blk.{index}.attn_v.weight": matrix(keys, self.hidden),
                f"blk.{index}.attn_output.weight": matrix(self.hidden, queries),
                f"blk.{index}.ffn_norm.weight": norm(),
                f"blk.{index}.ffn_gate.weight": matrix(self.feed_forward, self.hidden),
                f"blk.{index}.ffn_up.weight": matrix(self.feed_forward, self.hidden),
                f"blk.{index}.ffn_down.weight": matrix(self.hidden, self.feed_forward),
            }
            if self.family == "qwen3":
                named |= {f"blk.{index}.{name}.weight": norm(self.head_dim) for name in ("attn_q_norm", "attn_k_norm")}
        return named

    def write(self, path: Path, change: Mapping[str, np.ndarray | None] | None = None) -> Path:
        """`change` replaces tensors by name, adds new ones, and leaves out those given as None."""
        writer = gguf.GGUFWriter(path, self.family)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.window)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_layer_norm_rms_eps(self.epsilon)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_token_list(["a", "b"])  # a list of texts, which a reader of tensors passes over
        for name, weight in (self.weights() | dict(change or {})).items():
            if weight is None:
                continue
            kind = self.kinds.get(name.split(".")[-2], Kind.F32)
            stored = self._in_file_order(name, weight)
            if kind is Kind.F32:
                writer.add_tensor(name, stored)
            else:
                writer.add_tensor(name, gguf.quants.quantize(stored, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _in_file_order(self, name: str, weight: np.ndarray) -> np.ndarray:
        """Query and key rows: the two numbers of a head that turn together side by side."""
        heads = self._turned(name)
        if heads is None or weight.shape[0] != heads * self.head_dim:
            return weight
        halves = weight.reshape(heads, 2, self.head_dim // 2, -1)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))

    def half_split(self, name: str, weight: np.ndarray) -> np.ndarray:
        """A matrix of a file in the order transformers has it; undoes `_in_file_order`."""
        heads = self._turned(name)
        if heads is None:
            return weight
        pairs = weight.reshape(heads, self.head_dim // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))

    def _turned(self, name: str) -> int | None:
        """Heads of a matrix that is stored in turning order."""
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads} if self.family == "llama" else {}
        return heads.get(name.split(".")[-2])

    def reference(self, weights: Mapping[str, np.ndarray] | None = None) -> Any:
        """`weights` (or this model's own) in transformers, float32."""
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

        config, build = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[
            self.family
        ]
        model = build(
            config(
                vocab_size=self.vocab,
                hidden_size=self.hidden,
                intermediate_size=self.feed_forward,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.kv_heads,
                head_dim=self.head_dim,
                max_position_embeddings=self.window,
                rms_norm_eps=self.epsilon,
                rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
                tie_word_embeddings=self.tied,
            )
        )
        names = {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }
        state = {}
        for name, weight in (weights or self.weights()).items():
            *block, kind, _ = name.split(".")
            where = f"model.layers.{block[1]}.{names[kind]}" if block else names[kind]
            state[f"{where}.weight"] = torch.from_numpy(weight)
        if self.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        return model.eval()
