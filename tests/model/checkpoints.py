"""Small random checkpoints with the shapes that matter, and the reference model each is the checkpoint of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCAB = 96
WINDOW = 128

ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": WINDOW, "eos_token_id": 1, "bos_token_id": 0}
QUARTER = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}


def llama() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    shape = {**COMMON, **ATTENTION, "num_hidden_layers": 3, "intermediate_size": 96}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, rope_parameters=rope))


def llama_tied() -> nn.Module:
    """As SmolLM2 is published: the head is the embedding, and the width of a head goes without saying."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    shape = {**COMMON, **heads, "num_hidden_layers": 2, "intermediate_size": 96, "tie_word_embeddings": True}
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, rope_parameters=rope))


def qwen3() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**COMMON, **ATTENTION, num_hidden_layers=3, intermediate_size=96, rope_parameters=rope)
    )


def qwen3_tied() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    shape = {**COMMON, **ATTENTION, "num_hidden_layers": 2, "intermediate_size": 96, "tie_word_embeddings": True}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape, rope_parameters=rope))


def qwen35() -> nn.Module:
    text = {**COMMON, **ATTENTION, **DELTA, "num_hidden_layers": 4, "intermediate_size": 96, "rope_parameters": QUARTER}
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**text))


def qwen35_moe() -> nn.Module:
    text = {**COMMON, **ATTENTION, **DELTA, **EXPERTS, "num_hidden_layers": 4, "rope_parameters": QUARTER}
    return transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**text))


def flashnext() -> nn.Module:
    text = {**COMMON, **ATTENTION, **DELTA, **EXPERTS, "num_hidden_layers": 4, "rope_parameters": QUARTER}
    index = {"indexer_n_heads": 6, "indexer_kv_heads": 1, "indexer_head_dim": 12}
    budget = {"indexer_budget": 24, "indexer_compress_ratio": 4}
    streams = {"hc_count": 3, "hc_lowrank": 32, "output_gate_type": "sigmoid"}
    ngrams = {"ple_layer_ids": [1, 3], "ple_embed_dim": 24, "heads_per_ngram": 3, "ngram_vocab_size_base": 50}
    parts = {"make_ngram_vocab_size_divisible_by": 16, "split_ngram_parts": 4}
    return transformers.Qwen4ExpForCausalLM(
        transformers.Qwen4ExpTextConfig(**text, **index, **budget, **streams, **ngrams, **parts)
    )


FAMILIES = {
    "llama": llama,
    "llama-tied": llama_tied,
    "qwen3": qwen3,
    "qwen3-tied": qwen3_tied,
    "qwen35": qwen35,
    "qwen35-moe": qwen35_moe,
    "flashnext": flashnext,
}


def save(family: str, directory: Path) -> nn.Module:
    """Write the checkpoint of a family to `directory`; returns the reference model, ready to answer."""
    torch.manual_seed(7)
    model = FAMILIES[family]().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:  # larger than the library's start, so that every part of a layer matters
            # Routers the most: two experts that score within rounding of each other may be chosen either way.
            large = "embed" in name or "conv1d" in name or "mlp.gate." in name
            nn.init.normal_(parameter, std=0.6 if large else 0.15)
        elif name.endswith("A_log"):  # memories that last: what fades at once is next to nothing, and shows nothing
            nn.init.uniform_(parameter, -5.0, -1.5)
        elif "norm" in name:
            parameter.data += torch.randn_like(parameter) * 0.2
    model.save_pretrained(directory)
    return model


@torch.no_grad()
def reference_logits(model: Any, tokens: Tensor) -> Tensor:
    """float32 [rows, vocab] of one sequence read whole."""
    return model(input_ids=tokens[None], use_cache=False).logits[0].float()


def random_tokens(rows: int, seed: int) -> Tensor:
    """With an end-of-text here and there: some families look at where texts end."""
    tokens = torch.randint(2, VOCAB, (rows,), generator=torch.Generator().manual_seed(seed))
    tokens[5::17] = COMMON["eos_token_id"]
    return tokens


def pieces(total: int, *edges: int) -> Iterator[tuple[int, int]]:
    marks = [0, *edges, total]
    yield from pairwise(marks)
