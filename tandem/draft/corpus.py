"""A text the owner names, for guesses from the first request on: read once, held in memory, never written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tandem.draft.archive import SIZES
from tandem.draft.grams import BOUNDARY, GramIndex, View, Words
from tandem.errors import CannotStart
from tandem.text.tokenizer import Tokenizer
from tandem.units import format_bytes

log = logging.getLogger("tandem.draft")

TOKENS: Final = ".npy"  # a NumPy array of token ids; any other file is text
_PIECE: Final = 1 << 18  # characters that are tokenized at once, up to the end of a line


def read_corpus(path: Path, tokenizer: Tokenizer) -> View:
    """Raises `CannotStart` when the file is not there, is not what its name says, or is not this tokenizer's."""
    index = GramIndex(SIZES)
    try:
        if path.suffix == TOKENS:
            index.append(_token_ids(path, tokenizer.num_tokens))
        else:
            for piece in _pieces(path):
                index.append(tokenizer.encode(piece))
    except (OSError, ValueError) as error:
        raise CannotStart(
            f"the corpus {path} cannot be read: {error}", "name a text or a .npy file, or none"
        ) from error
    index.append([BOUNDARY])
    index.seal()
    log.info("corpus: %d tokens, %s of memory", index.num_words - 1, format_bytes(index.num_bytes))
    return index.view


def _pieces(path: Path) -> Iterator[str]:
    """Whole lines: where a piece ends, its last token may be another than in one go, which costs a guess at most."""
    with path.open(encoding="utf-8") as lines:
        while piece := lines.readlines(_PIECE):
            yield "".join(piece)


def _token_ids(path: Path, num_tokens: int) -> Words:
    """Raises `ValueError` saying what is wrong with them."""
    ids = np.load(path, allow_pickle=False)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"it holds an array of {ids.dtype} with {ids.ndim} dimensions, not a list of token ids")
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_tokens):
        raise ValueError(f"it holds ids from {ids.min()} to {ids.max()}; this tokenizer has {num_tokens}")
    return np.asarray(ids, np.uint32)
