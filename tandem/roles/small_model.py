"""A small causal language model that reads one text at a time, weighs how it may go on, or writes a few words.

What the text read last shares with the next from its start is not read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tandem.contract.plan import RolePlan
from tandem.model.interface import Block, Model, Wants
from tandem.model.loading import load
from tandem.model.tree import Tree
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

CHUNK: Final = 256  # rows of one pass over a text
MAX_ROWS: Final = 64  # of one pass over continuations
MAX_CONTINUATION: Final = 32  # tokens of a continuation that are weighed


class SmallModel:
    """Belongs to one thread."""

    def __init__(self, model: Model, tokenizer: Tokenizer, window: int = 2048) -> None:
        """`window` is the longest text, in tokens."""
        self.tokenizer = tokenizer
        self.window = min(window, model.config.window)
        self._template = ChatTemplate(tokenizer)
        self._model = model
        self._state = model.new_state(self.window + MAX_ROWS)
        self._read: list[int] = []  # tokens whose rows are there
        vocabulary = tokenizer.vocabulary
        self.end = [vocabulary.eos] if vocabulary.eos is not None else list(vocabulary.stop_tokens[-1:])
        """The token that ends a turn, where there is one."""

    def prompt(self, text: str) -> tuple[int, ...]:
        """A user's turn, ready for the answer, which is to come without thinking."""
        return self._template.prompt([ChatMessage("user", text)], thinks=False).tokens

    def weigh(self, text: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability of each continuation behind `text`, from one pass over the text and one over all of them.

        More of them than `MAX_ROWS` rows hold take further passes. `text` is shorter than the window.
        """
        weights: list[float] = []
        self._go_on(text[:-1])
        for part in _in_passes([each[:MAX_CONTINUATION] for each in continuations]):
            weights += self._weigh(text[-1], part)
        return weights

    def write(
        self, text: Sequence[int], most: int, until: float, is_whole: Callable[[Sequence[int]], bool] = lambda _: False
    ) -> list[int]:
        """The likeliest tokens behind `text`: up to `most`, a stop token, the time `until` (monotonic), or until they
        are `is_whole`."""
        written: list[int] = []
        self._go_on(text[:-1])
        token = text[-1]
        while len(written) < most and not is_whole(written) and self._has_room and time.monotonic() < until:
            token = int(self._forward([token], Wants.LAST)[0].argmax())
            if token in self.tokenizer.vocabulary.stop_tokens:
                break
            written.append(token)
        return written

    def text_of(self, tokens: Sequence[int]) -> str:
        """What cannot be a character, as the end of a text cut in the middle of one, is left out."""
        return b"".join(self.tokenizer.bytes_of[token] for token in tokens).decode(errors="ignore")

    @property
    def _has_room(self) -> bool:
        return len(self._read) < self.window

    def _go_on(self, tokens: Sequence[int]) -> None:
        """The state has read exactly `tokens`."""
        shared = 0
        while shared < min(len(tokens), len(self._read)) and tokens[shared] == self._read[shared]:
            shared += 1
        del self._read[self._state.resumable(shared) :]
        while (at := len(self._read)) < len(tokens):
            self._forward(tokens[at : at + CHUNK], Wants.NONE)

    def _forward(self, tokens: Sequence[int], wants: Wants) -> torch.Tensor:
        """float32 [wanted rows, vocab]"""
        with torch.inference_mode():
            logits = self._model.forward([Block(torch.tensor(tokens), len(self._read), self._state, wants)])
        self._read += tokens
        return logits

    def _weigh(self, last: int, continuations: Sequence[Sequence[int]]) -> list[float]:
        tree = Continuations(continuations)
        tokens = torch.tensor([last, *tree.tokens])
        block = Block(tokens, len(self._read), self._state, Wants.ALL, Tree(tree.parents))
        with torch.inference_mode():
            scores = self._model.forward([block]).log_softmax(-1)
            self._state.commit([0])
        self._read.append(last)
        weights = [
            sum(float(scores[row, token]) for row, token in zip(path, each, strict=True))
            for path, each in zip(tree.paths, continuations, strict=True)
        ]
        self._go_on(self._read[:-1])
        return weights


@dataclass
class Continuations:
    """Several ways a text may go on, as one tree behind its last token, which is row 0.

    A token's probability is read from the row before it, so a continuation's last token needs no row.
    """

    ways: Sequence[Sequence[int]]
    tokens: list[int] = field(default_factory=list)  # of the rows from 1 on
    parents: list[int] = field(default_factory=lambda: [0])  # row 0 names itself
    paths: list[list[int]] = field(default_factory=list)  # of each way: the row that tells of each of its tokens

    def __post_init__(self) -> None:
        """Ways are taken in order of their tokens, so that rows come parent before child, depth first."""
        rows: dict[tuple[int, ...], int] = {(): 0}
        for way in sorted({tuple(way[:-1]) for way in self.ways}):
            for end in range(1, len(way) + 1):
                if way[:end] not in rows:
                    rows[way[:end]] = len(self.parents)
                    self.parents.append(rows[way[: end - 1]])
                    self.tokens.append(way[end - 1])
        self.paths = [[rows[tuple(way[:end])] for end in range(len(way))] for way in self.ways]


def _in_passes(ways: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Runs of them whose rows fit one pass."""
    passes: list[list[Sequence[int]]] = []
    left = 0
    for way in ways:
        if len(way) > left:
            passes.append([])
            left = MAX_ROWS
        passes[-1].append(way)
        left -= len(way)
    return passes


def open_small_model(role: RolePlan) -> SmallModel:
    """Raises `CannotStart` when the model cannot be loaded or has no words."""
    path = Path(role.weights)
    compute = "bfloat16" if path.is_dir() else "int4"  # of a GGUF file: what it keeps in 4 bits stays so
    model = load(path, compute, role.threads, device=role.device, graphs=False)
    return SmallModel(model, Tokenizer(read_vocabulary(path)))
