"""What a model says about its words: the tokens, how they join, which of them steer the model.

Reads the `tokenizer.*` keys of a GGUF header, or the documents of a checkpoint directory; knows no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from tandem.errors import CannotStart
from tandem.text.checkpoint import read_words
from tandem.text.header import Value, read_metadata


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Models end a turn, or a document, with tokens that the header does not always name.
_ENDS: Final = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>")
_INSTRUCT: Final = "serve an instruct model, which has one"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: tuple[str, ...]  # by id; ordinary tokens in the byte alphabet of GPT-2; "" where a model has spare ids
    kinds: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]  # in order of rank
    pre: str  # how text is cut before merging
    bos: int | None
    eos: int | None
    add_bos: bool
    stop_tokens: tuple[int, ...]  # ids that end an answer, ascending
    chat_template: str
    pairs: str | None = None  # a `tokenizer.json` without added tokens, where a model has one: says merges and cut

    def text_of(self, token: int | None) -> str:
        return "" if token is None else self.tokens[token]


def read_vocabulary(path: Path) -> Vocabulary:
    """Of a GGUF file or a checkpoint directory.

    Raises `CannotStart` when there is no byte-pair vocabulary, no chat template, or no sense in what there is.
    """
    return _of_directory(path) if path.is_dir() else _of_file(path)


def _of_directory(directory: Path) -> Vocabulary:
    words = read_words(directory)
    if words.chat_template is None:
        raise CannotStart(f"{directory} carries no chat template", _INSTRUCT)
    tokens, kinds = [""] * words.vocab_size, [TokenKind.UNUSED] * words.vocab_size
    for token, id in words.ordinary.items():
        tokens[id], kinds[id] = token, TokenKind.NORMAL
    for added in words.added:
        tokens[added.id] = added.content
        kinds[added.id] = TokenKind.CONTROL if added.special else TokenKind.USER_DEFINED
    ids = words.ordinary | {added.content: added.id for added in words.added}
    bos, eos = (ids.get(text) if text is not None else None for text in (words.bos, words.eos))
    return Vocabulary(
        tokens=tuple(tokens),
        kinds=tuple(kinds),
        merges=(),
        pre="",
        bos=bos,
        eos=eos,
        add_bos=words.add_bos,
        stop_tokens=_stops(ids, (eos, *words.ends)),
        chat_template=words.chat_template,
        pairs=words.pairs,
    )


def _of_file(path: Path) -> Vocabulary:
    header = read_metadata(path)
    model = header.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CannotStart(f"{path.name} has a tokenizer of the kind `{model}`; `gpt2` (byte pairs) is served")
    tokens = _strings(header, "tokenizer.ggml.tokens", path)
    kinds = header.get("tokenizer.ggml.token_type")
    eos = _id(header, "tokenizer.ggml.eos_token_id")
    template = header.get("tokenizer.chat_template")
    if not isinstance(template, str):
        raise CannotStart(f"{path.name} carries no chat template", _INSTRUCT)
    ids = {token: id for id, token in enumerate(tokens)}
    named = (eos, *(_id(header, f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")))
    return Vocabulary(
        tokens=tokens,
        kinds=tuple(int(k) for k in kinds) if isinstance(kinds, tuple) else (TokenKind.NORMAL,) * len(tokens),
        merges=tuple(_pair(merge) for merge in _strings(header, "tokenizer.ggml.merges", path)),
        pre=str(header.get("tokenizer.ggml.pre", "gpt-2")),
        bos=_id(header, "tokenizer.ggml.bos_token_id"),
        eos=eos,
        add_bos=bool(header.get("tokenizer.ggml.add_bos_token", False)),
        stop_tokens=_stops(ids, named),
        chat_template=template,
    )


def _stops(ids: Mapping[str, int], named: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({ids[text] for text in _ENDS if text in ids} | {id for id in named if id is not None}))


def _strings(header: dict[str, Value], key: str, path: Path) -> tuple[str, ...]:
    value = header.get(key)
    if not isinstance(value, list):
        raise CannotStart(f"{path.name} has no `{key}`")
    return tuple(str(item) for item in value)


def _id(header: dict[str, Value], key: str) -> int | None:
    value = header.get(key)
    return value if isinstance(value, int) else None


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
