"""`python -m bench.model_distance`: how far what is served, and each of torch's computes, lies from float32 on the same
file, while answers are written.

float32 (held against transformers by the tests) answers a few chats greedily. Each reader then reads the same tokens:
the prompt as prefill chunks, the answer one row at a time, as the engine would. Compared are the logits that chose each
token of the answer. `bench.perplexity` compares the same over a text that is read as a prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from bench.machine import facts
from bench.prompts import TOPICS, prompt
from bench.readers import Reader, open_readers, served_engine
from bench.record import parser_of, write_record
from bench.turns import progress
from tandem.errors import TandemError
from tandem.model import Block, Model
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary


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

    @classmethod
    def over(cls, parts: Sequence[Distance]) -> Self:
        """All rows of all parts."""
        rows = sum(part.rows for part in parts)

        def mean(name: str) -> float:
            return float(sum(getattr(part, name) * part.rows for part in parts) / rows)

        return cls(
            rows=rows,
            mean=mean("mean"),
            worst=max(part.worst for part in parts),
            agreement=mean("agreement"),
            divergence=mean("divergence"),
            worst_divergence=max(part.worst_divergence for part in parts),
            gap=max(part.gap for part in parts),
        )

    def __str__(self) -> str:
        return (
            f"{self.rows:6} {self.mean:10.4f} {self.worst:10.3f} {self.agreement:10.2%} "
            f"{self.divergence:10.5f} {self.worst_divergence:10.4f} {self.gap:10.3f}"
        )


COLUMNS = ("rows", "mean", "worst", "same best", "KL mean", "KL worst", "lead")
HEADER = f"{COLUMNS[0]:>6} " + " ".join(f"{name:>10}" for name in COLUMNS[1:])


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
    parser = parser_of("bench.model_distance", __doc__)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="length of each answer")
    options = parser.parse_args()
    machine = facts()
    try:
        engine = served_engine(options.set)
        readers = open_readers(engine, progress)
    except TandemError as error:
        sys.stderr.write(f"model_distance: {error}\n")
        return error.exit_status
    template = ChatTemplate(Tokenizer(read_vocabulary(Path(engine.weights))))
    prompts = [template.prompt([ChatMessage("user", prompt(topic))]).tokens for topic in TOPICS[: options.chats]]
    chats = []
    for number, tokens in enumerate(prompts):
        progress(f"float32 writes answer {number + 1} of {len(prompts)}")
        chats.append((answer(readers[0].model, tokens, options.tokens), len(tokens)))

    def logits_of(reader: Reader) -> Tensor:
        progress(f"{reader.name} reads them")
        return torch.cat([logits for tokens, rows in chats for logits in reader.answer(tokens, rows)])

    expected = logits_of(readers[0])
    found = {reader.name: Distance.between(expected, logits_of(reader)) for reader in readers[1:]}
    print(f"\n{'':26}{HEADER}")
    print("\n".join(f"{name:26}{distance}" for name, distance in found.items()))
    measured = {
        "machine": machine,
        "model": Path(engine.weights).name,
        "sha256": engine.weights_sha256,
        "threads": engine.threads,
        "chunk": engine.chunk,
        "chats": options.chats,
        "tokens": options.tokens,
        "readers": {name: asdict(distance) for name, distance in found.items()},
    }
    print(f"written to {write_record(options.out, 'model-distance', measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
