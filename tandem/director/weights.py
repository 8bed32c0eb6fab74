"""What a model's files say of themselves, held against the profile that names them, before any process reads them.

From headers alone and without torch: a truncated shard, a model of another family, a tokenizer of another model are
told in the moment of `check`, `up` or an edit, not minutes into a load. What only the numbers can show (a tensor of
another shape, a weight that is none) is found by the engine while it loads.
"""

from __future__ import annotations

from tandem.config import Documents
from tandem.errors import DocumentError, Problem


def check_weights(documents: Documents) -> None:
    """Nothing to say of weights that are not here yet.

    Raises `DocumentError` for a profile that does not describe them, `CannotStart` for files that are damaged, not
    known or not of one model.
    """
    from tandem.model.inspection import inspect
    from tandem.text.vocabulary import read_vocabulary

    if not documents.weights.present:
        return
    path, profile = documents.weights.path, documents.profile
    seen = inspect(path)
    if seen.family != profile.family:
        raise _wrong(
            documents,
            "wrong-family",
            f"the profile says `family: {profile.family}`, and {path} holds a model of the family `{seen.family}`",
            f"write `family: {seen.family}` in the profile, or name the weights of a `{profile.family}` model",
        )
    if profile.window > seen.window:
        raise _wrong(
            documents,
            "window",
            f"the profile declares a window of {profile.window:,} rows; the model in {path} has {seen.window:,}",
            f"write `window: {seen.window}` or less in the profile, and `serving.side_window` no larger",
        )
    read_vocabulary(path)


def _wrong(documents: Documents, code: str, sentence: str, help: str) -> DocumentError:
    problem = Problem(code, sentence, documents.place("profile"), (), help)
    return DocumentError((problem,), tuple(str(file) for file in documents.files))
