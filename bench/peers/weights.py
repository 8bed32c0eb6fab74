"""A GGUF file as the checkpoint directory that vLLM and transformers read: every weight dequantized, in bfloat16.

Runs as a program in the transformers peer's environment: `python weights.py FILE.gguf DIRECTORY`. Knows nothing of the
project.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(file: Path, directory: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"error: {file.name} has no chat template")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
