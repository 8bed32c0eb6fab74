"""Checkpoint directories served from outside: hybrids on three slots write what transformers writes, greedily."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from wire_appliance import Appliance, until

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]

FAMILIES = {"qwen35": "qwen35", "qwen35-moe": "qwen35", "flashnext": "flashnext"}  # checkpoint: family of its profile
POOLED = frozenset({"flashnext"})  # rows get memory when they are written
SPARE = 7
LENGTH = 32
PROMPTS = ("Then the rest.", "Then the others.", "Go.")  # none is answered in a word, or meets a near tie


def profile(name: str, directory: Path) -> dict[str, Any]:
    """Its figures as `tandem model inspect` has them."""
    from tandem.model.inspection import inspect

    seen = inspect(directory)
    index = 12 if seen.family == "flashnext" else 0
    few = {"size": "8 MiB", "basis": "estimate"}
    slot = {"size": f"{2 * seen.fixed_bytes + (1 << 20)} B", "basis": "arithmetic"}
    kv = {"layers": 1, "heads": 2, "head_dim": 16, "indexer_key": index}
    assert seen.bytes_a_token == 2 * (2 * kv["heads"] * kv["head_dim"] + index) * kv["layers"]
    return {
        "model": name,
        "family": FAMILIES[name],
        "window": seen.window,
        "weights": {"source": f"path:models/{name}", "in_memory": {"float32": few}},
        "kv": kv,
        "slot": {"graphs": slot, "plain": slot},
        "runtime": {"size": "240 MiB", "basis": "estimate"},
        "workspace": few,
        "serving": {"compute": "float32", "chunk": 16, "slots": 3, "side_window": seen.window},
    }


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """Filled by `box`: the model of transformers behind each checkpoint."""
    return {}


@pytest.fixture(scope="module")
def box(references: dict[str, Any]) -> Iterator[Appliance]:
    """An appliance with a checkpoint directory and a profile a family, none of them served yet."""
    import checkpoints
    from tiny_tokenizer import NUM_IDS, write_tokenizer

    appliance = Appliance()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints.COMMON, "vocab_size", NUM_IDS + SPARE)
        for name in FAMILIES:
            directory = appliance.base / "models" / name
            references[name] = checkpoints.save(name, directory)
            write_tokenizer(directory)
            text = json.dumps(profile(name, directory), indent=1)
            (appliance.base / "profiles" / f"{name}.yaml").write_text(text)
    yield appliance
    appliance.close()


def serve(appliance: Appliance, name: str) -> None:
    """The first is started, the others come by editing the document."""
    appliance.write(profile=name, slots={"count": 3}, memory={"kv_pool": name in POOLED})
    if appliance.health() is None:
        checked = appliance.run("check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        up = appliance.run("up", "--detach")
        assert up.returncode == 0, up.stdout + up.stderr
    until(lambda: (health := appliance.ready_health()) and health["model"] == name)


async def ask_together(appliance: Appliance, name: str) -> list[ChatCompletion]:
    async with appliance.async_client() as client:
        asked = (
            client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": prompt}], max_tokens=LENGTH, temperature=0
            )
            for prompt in PROMPTS
        )
        return list(await asyncio.gather(*asked))


def greedy(model: Any, tokenizer: Any, prompt: str) -> tuple[str, float]:
    """What transformers writes after the prompt, and the nearest its two best candidates came."""
    import torch
    from checkpoints import reference_logits

    turns = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    written: list[int] = []
    gap = float("inf")
    while len(written) < LENGTH:
        best = reference_logits(model, torch.tensor(ids + written))[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        if (token := int(best.indices[0])) in (0, 1):
            break
        written.append(token)
    return tokenizer.decode(written, skip_special_tokens=True), gap


def whole(text: str) -> str:
    """Without a character that the last token only began."""
    return text.rstrip("\ufffd")


@pytest.mark.parametrize("name", FAMILIES)
def test_three_clients_get_what_transformers_writes(box: Appliance, references: dict[str, Any], name: str) -> None:
    import transformers

    serve(box, name)
    answers = asyncio.run(ask_together(box, name))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(box.base / "models" / name)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        text, gap = greedy(references[name], tokenizer, prompt)
        assert gap > 1e-3, "a near tie shows nothing: take another prompt"
        assert whole(answer.choices[0].message.content or "") == whole(text)
        assert len(text) > 15
    health = box.settled()
    assert health.counters is not None and health.counters.rounds_by_size.get(3, 0) >= 10
    assert health.facts["family"] == FAMILIES[name]
