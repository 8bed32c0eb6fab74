"""A Laya checkpoint small enough for a test: random weights, bytes for words, every part of the real ones.

`python tests/roles/laya_checkpoint.py FOLDER` writes one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModel, ModernBertConfig, PreTrainedTokenizerFast

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
CONFIG: dict[str, Any] = {
    "encoder": "random",
    "head_layers": 2,
    "max_len": 512,
    "head_max_len": 192,
    "act_costs": {"escalate": 0.3},
    "amp_dtype": "bf16",
    "temperature": [1.2, 1.0, 0.9],
    "temperature_by_options": {"choice:3-5": 1.1, "noul:2": 1.4},
}
WIDTH = 64


def byte_tokenizer() -> PreTrainedTokenizerFast:
    symbols = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: id for id, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def write(folder: Path, seed: int = 0) -> None:
    from laya.common import DecisionModel

    torch.manual_seed(seed)
    tokenizer = byte_tokenizer()
    encoder = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,
        global_attn_every_n_layers=3,
        local_attention=128,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    body = AutoModel.from_config(encoder, attn_implementation="sdpa")
    model = DecisionModel(body, CONFIG["head_layers"], len(CONFIG["act_costs"]) + 1)
    with torch.no_grad():  # as initialised, every answer would be the same
        model.scorer[3].weight.mul_(40)
        model.act_head[2].weight.mul_(4)
        for weight in model.encoder.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    encoder.save_pretrained(folder / "encoder")
    save_file(
        {name: value.half().contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "rl_agent_config.json").write_text(json.dumps(CONFIG))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
