"""What a model's files say of themselves, held against the profile that names them, before any process reads them.

From headers alone and without torch: a truncated shard, a model of another family, a tokenizer of another model are
told in the moment of `check`, `up` or an edit, not minutes into a load. What only the numbers can show (a tensor of
another shape, a weight that is none) is found by the engine while it loads.
"""

from __future__ import annotations

from typing import Final

from tandem.config import Documents
from tandem.errors import DocumentError, Problem

_DRAFT_MODEL: Final = ("draft", "model", "weights")


def check_weights(documents: Documents) -> None:
    """Nothing to say of weights that are not here yet.

    Raises `DocumentError` for a profile that does not describe them, `CannotStart` for files that are damaged, not
    known or not of one model.
    """
    from tandem.model.inspection import KvRows, inspect, window_too_long, wrong_family, wrong_rows
    from tandem.text.vocabulary import read_vocabulary

    if (drafting := documents.draft_weights) is not None:
        if not drafting.exists():
            help = "put a model of the same tokenizer there (it is not fetched), or write `draft.model: off`"
            raise _wrong(documents, "not-found", (f"there is no model to draft at {drafting}", help), _DRAFT_MODEL)
        inspect(drafting)
        read_vocabulary(drafting)
    if not documents.weights.present:
        return
    path, profile = documents.weights.path, documents.profile
    seen = inspect(path)
    if seen.family != profile.family:
        raise _wrong(documents, "wrong-family", wrong_family(path, profile.family, seen.family))
    if profile.window > seen.window:
        raise _wrong(documents, "window", window_too_long(path, profile.window, seen.window))
    kv = profile.kv
    rows = KvRows(kv.layers, kv.heads, kv.head_dim, kv.indexer_key)
    if not seen.takes(rows):
        raise _wrong(documents, "wrong-rows", wrong_rows(path, rows, seen))
    read_vocabulary(path)


def _wrong(
    documents: Documents, code: str, said: tuple[str, str], key: tuple[str, ...] = ("profile",)
) -> DocumentError:
    """`said`: what is wrong, and what to do. `key`: where."""
    sentence, help = said
    problem = Problem(code, sentence, documents.place(*key), (), help)
    return DocumentError((problem,), tuple(str(file) for file in documents.files))
