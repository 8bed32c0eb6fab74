"""What a checkpoint directory says about its model's words: `tokenizer.json` and the documents beside it.

Only byte-level byte pairs are read, which is what every family served from a directory has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandem.errors import CannotStart

TOKENIZER: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
SPECIALS: Final = "special_tokens_map.json"
TEMPLATE: Final = "chat_template.jinja"
GENERATION: Final = "generation_config.json"
CONFIG: Final = "config.json"

_FETCH_AGAIN: Final = "fetch this file again"
_NORMALIZERS: Final = frozenset({"Sequence", "NFC"})  # others shorten text, or say another one than the client did


@dataclass(frozen=True, slots=True)
class Added:
    """A token that stands for itself and is never the result of merging."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True, slots=True)
class Words:
    ordinary: dict[str, int]  # in the byte alphabet of GPT-2
    added: tuple[Added, ...]
    pairs: str  # a `tokenizer.json` that reads ordinary tokens only
    vocab_size: int  # ids the model has; above every id here
    bos: str | None
    eos: str | None
    add_bos: bool
    ends: tuple[int, ...]  # ids that end an answer
    chat_template: str | None


def read_words(directory: Path) -> Words:
    """Raises `CannotStart` naming the document that is missing, broken, or does not go with the model's weights."""
    file = directory / TOKENIZER
    if not file.exists():
        raise CannotStart(f"{file} is not there", f"fetch {TOKENIZER} of this model into {directory}")
    document, config = _read(file), _read(directory / CONFIG)
    settings = _read(directory / SPECIALS) | _read(directory / SETTINGS)
    text = config.get("text_config", config)
    try:
        added = tuple(
            Added(int(each["id"]), str(each["content"]), bool(each["special"])) for each in document["added_tokens"]
        )
        own = {each.content for each in added}
        ordinary = {str(token): int(id) for token, id in document["model"]["vocab"].items() if token not in own}
        _check_kind(file, document)
        vocab_size = int(text["vocab_size"])
        ends = tuple(id for each in (_read(directory / GENERATION), config, text) for id in _ids(each))
        pairs = json.dumps(_without_added(document, ordinary))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CannotStart(f"{file} and {CONFIG} do not read as a model's: {error!r}", "fetch both again") from error
    last = max((*ordinary.values(), *(each.id for each in added)))
    if last >= vocab_size:
        raise CannotStart(
            f"{file} has the token id {last:,}, and {CONFIG} describes a model of {vocab_size:,} ids",
            "take tokenizer and weights of one and the same model",
        )
    if unknown := sorted(set(ends) - set(ordinary.values()) - {each.id for each in added}):
        raise CannotStart(
            f"{directory} ends answers with the token id {unknown[0]:,}, which {file} does not have",
            "take tokenizer and weights of one and the same model",
        )
    return Words(
        ordinary=ordinary,
        added=added,
        pairs=pairs,
        vocab_size=vocab_size,
        bos=_content(settings.get("bos_token")),
        eos=_content(settings.get("eos_token")),
        add_bos=bool(settings.get("add_bos_token", False)),
        ends=ends,
        chat_template=_chat_template(directory / TEMPLATE, settings.get("chat_template")),
    )


def _check_kind(file: Path, document: Mapping[str, Any]) -> None:
    """What the rest of this package counts on: tokens are bytes, and text reaches them as it was written."""
    kind, cuts = document["model"].get("type", "BPE"), set(_kinds(document["pre_tokenizer"]))
    if kind != "BPE" or "ByteLevel" not in cuts:
        raise CannotStart(f"{file} holds a tokenizer of the kind `{kind}`; `BPE` over bytes is served")
    if others := set(_kinds(document["normalizer"])) - _NORMALIZERS:
        raise CannotStart(f"{file} rewrites text ({', '.join(sorted(others))}); a tokenizer that keeps it is served")
    if any(each.get("lstrip") or each.get("rstrip") for each in document["added_tokens"]):
        raise CannotStart(f"{file} has tokens that swallow the white space beside them; that is not served")


def _without_added(document: Mapping[str, Any], ordinary: Mapping[str, int]) -> dict[str, Any]:
    """The same code without any token that steers the model: whatever it is given to read, it finds none.

    They go from the vocabulary too: with `ignore_merges` a whole word is looked up in it.
    """
    model = document["model"] | {"vocab": ordinary, "dropout": None, "unk_token": None}
    return {"version": "1.0", "added_tokens": [], "model": model} | {
        part: document[part] for part in ("normalizer", "pre_tokenizer")
    }


def _kinds(part: Mapping[str, Any] | None) -> Iterator[str]:
    """The kinds of a normalizer or pre-tokenizer and of those inside it."""
    if part is not None:
        yield part["type"]
        for inner in (*part.get("normalizers", ()), *part.get("pretokenizers", ())):
            yield from _kinds(inner)


def _ids(document: Mapping[str, Any]) -> tuple[int, ...]:
    value = document.get("eos_token_id")
    return () if value is None else tuple(value) if isinstance(value, list) else (int(value),)


def _content(token: Any) -> str | None:
    """Special tokens are written as their text or as an object that has it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _chat_template(file: Path, setting: Any) -> str | None:
    """A document of its own comes before the setting, which may be several templates by name."""
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CannotStart(f"{file} cannot be read as text: {error}", _FETCH_AGAIN) from error
    if isinstance(setting, list):
        named = {each.get("name"): each.get("template") for each in setting if isinstance(each, dict)}
        setting = named.get("default")
    return setting if isinstance(setting, str) else None


def _read(file: Path) -> dict[str, Any]:
    """The object in `file`, empty where there is none."""
    if not file.exists():
        return {}
    try:
        read = json.loads(file.read_bytes())
    except OSError as error:
        raise CannotStart(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CannotStart(f"{file} is not JSON: {error}", _FETCH_AGAIN) from error
    if not isinstance(read, dict):
        raise CannotStart(f"{file} holds no JSON object", _FETCH_AGAIN)
    return read
