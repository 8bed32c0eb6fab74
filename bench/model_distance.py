"""`python -m bench.model_distance WEIGHTS`: how far each served compute lies from float32 on the same file.

float32 (held against transformers by the tests) answers a few chats greedily. Each compute then reads the same tokens:
the prompt as prefill chunks, the answer one row at a time, as the engine would. Compared are the logits that chose each
token of the answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from bench.machine import facts
from bench.prompts import TOPICS, prompt
from tandem.model import Block, Model, Wants, load
from tandem.model.weights.quant import Compute
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

CHUNK = 256


@dataclass(frozen=True, slots=True)
class Distance:
    """Over all rows compared. Logits are in natural units, the divergence in nats."""

    rows: int
    mean: float  # absolute difference of a logit
    worst: float
    agreement: float  # share of rows whose best token is the same
    divergence: float  # mean KL(float32 || compute)
    worst_divergence: float
    gap: float  # float32's largest lead of its own best token over the one this compute chose

    @classmethod
    def between(cls, expected: Tensor, logits: Tensor) -> Self:
        """Both [rows, vocab]."""
        difference = (logits - expected).abs()
        log_p, log_q = expected.log_softmax(-1), logits.log_softmax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        best, chosen = expected.argmax(-1), logits.argmax(-1)
        lead = expected.gather(1, best[:, None]) - expected.gather(1, chosen[:, None])
        return cls(
            rows=len(expected),
            mean=difference.mean().item(),
            worst=difference.max().item(),
            agreement=(best == chosen).float().mean().item(),
            divergence=divergence.mean().item(),
            worst_divergence=divergence.max().item(),
            gap=lead.max().item(),
        )

    def __str__(self) -> str:
        return (
            f"{self.rows:6} {self.mean:10.4f} {self.worst:10.3f} {self.agreement:10.2%} "
            f"{self.divergence:10.5f} {self.worst_divergence:10.4f} {self.gap:10.3f}"
        )


COLUMNS = ("rows", "mean", "worst", "same best", "KL mean", "KL worst", "lead")
HEADER = " " * 10 + f"{COLUMNS[0]:>6} " + " ".join(f"{name:>10}" for name in COLUMNS[1:])


def read(model: Model, tokens: Sequence[int], prompt_rows: int) -> Iterator[Tensor]:
    """Logits [1, vocab] after the prompt and after each token that follows it but the last."""
    state = model.new_state(len(tokens))
    ids = torch.tensor(tokens)
    for start in range(0, prompt_rows, CHUNK):
        end = min(start + CHUNK, prompt_rows)
        logits = model.forward([Block(ids[start:end], start, state, Wants.LAST)])
    yield logits
    for at in range(prompt_rows, len(tokens) - 1):
        yield model.forward([Block(ids[at : at + 1], at, state)])


def answer(model: Model, tokens: Sequence[int], length: int) -> list[int]:
    """The prompt with `length` greedy tokens after it."""
    state = model.new_state(len(tokens) + length)
    written = list(tokens)
    logits = model.forward([Block(torch.tensor(tokens), 0, state)])
    for _ in range(length):
        written.append(int(logits[0].argmax()))
        logits = model.forward([Block(torch.tensor(written[-1:]), len(written) - 1, state)])
    return written


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.model_distance", description=__doc__.partition("\n")[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="length of each answer")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()

    template = ChatTemplate(Tokenizer(read_vocabulary(options.weights)))
    prompts = [template.prompt([ChatMessage("user", prompt(topic))]).tokens for topic in TOPICS[: options.chats]]
    reference = load(options.weights, Compute.FLOAT32, options.threads)
    chats = [(answer(reference, tokens, options.tokens), len(tokens)) for tokens in prompts]

    def logits_of(model: Model) -> Tensor:
        return torch.cat([logits for tokens, rows in chats for logits in read(model, tokens, rows)])

    expected = logits_of(reference)
    print(" ".join(f"{name}={value}" for name, value in facts().items()))
    print(HEADER)
    for compute in Compute:
        if compute is not Compute.FLOAT32:
            model = load(options.weights, compute, options.threads)
            print(f"{compute:10}{Distance.between(expected, logits_of(model))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
