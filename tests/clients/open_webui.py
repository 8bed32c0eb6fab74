"""Open WebUI on a free port, and a person in a browser before it. `make test-clients` installs Open WebUI
aside; the browser is the system's Chromium, or one that Playwright fetched."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from installed import OPEN_WEBUI, chromium, needs
from ports import free_port

HERE = Path(__file__).parent
CHROMIUM = chromium()
both_installed = [
    needs(OPEN_WEBUI),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]
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


@asynccontextmanager
async def open_webui(folder: Path, appliance: str, **settings: str) -> AsyncIterator[str]:
    """Its address, once it answers. Everything it keeps lies in `folder`."""
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", folder / "open-webui.log"
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DATA_DIR": str(folder),
        "OPENAI_API_BASE_URL": f"{appliance}/v1",
        "OPENAI_API_KEY": "none",
    }
    serve = (OPEN_WEBUI, "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as output:
        server = await asyncio.create_subprocess_exec(
            *serve, cwd=folder, env=own | QUIET | settings, stdout=output, stderr=output
        )
    try:
        await _until_up(url, server, log)
        yield url
    finally:
        server.terminate()
        await server.wait()


async def _until_up(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
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


async def seen_by(person: str, url: str) -> Any:
    """What the script of this name, a person in the browser, saw there."""
    process = await asyncio.create_subprocess_exec(
        *(OPEN_WEBUI, HERE / f"{person}.py", url, str(CHROMIUM)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        seen, errors = await asyncio.wait_for(process.communicate(), 300)
    except TimeoutError:
        process.terminate()  # its browser ends with it
        raise
    assert process.returncode == 0, errors.decode()[-4000:]
    return json.loads(seen)
