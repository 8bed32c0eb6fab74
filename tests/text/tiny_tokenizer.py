"""A byte-level tokenizer as checkpoints carry one: four added tokens, 256 bytes and a few merges."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

END_OF_TEXT, END_OF_TURN, TURN, THINK = "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<think>"
_MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("a", "s"), ("e", "r")]

NUM_IDS = 4 + 256 + len(_MERGES)
TEMPLATE = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)


def write_tokenizer(directory: Path, vocab_size: int | None = None) -> None:
    """Into a checkpoint's directory; with `vocab_size` also the config.json of a model that has none yet."""
    added = [END_OF_TEXT, END_OF_TURN, TURN, THINK]
    tokens = [*added, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in _MERGES)]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, _MERGES))
    tokenizer.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(added[:3])
    tokenizer.add_tokens([AddedToken(THINK, special=False, normalized=False)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    if vocab_size is not None:
        (directory / "config.json").write_text(json.dumps({"vocab_size": vocab_size, "eos_token_id": 1}))
