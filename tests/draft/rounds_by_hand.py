"""Rounds of one greedy sequence, as the engine runs them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tandem.draft.interface import Drafter
from tandem.draft.tree import NO_GUESS, DraftTree
from tandem.model.interface import Block, Model, Wants
from tandem.model.tree import Tree

SCOPE = "scope"


@dataclass
class Written:
    tokens: list[int] = field(default_factory=list)
    trees: list[DraftTree] = field(default_factory=list)  # as they were proposed, one a round
    accepted: list[int] = field(default_factory=list)  # nodes of them


def write(
    model: Model, prompt: Tensor, tokens: int, drafter: Drafter[Any] | None = None, limit: int = 4, window: int = 128
) -> Written:
    """At least `tokens` tokens behind `prompt`."""
    state, written, rows = model.new_state(window), Written(), len(prompt)
    session = drafter.begin(state, SCOPE) if drafter else None
    chosen = [greedy(model.forward([Block(prompt, 0, state, Wants.LAST)]))[0]]
    if drafter:
        drafter.follow(session, prompt.tolist())
    while True:
        written.tokens += chosen
        if drafter:
            drafter.follow(session, chosen)
        if len(written.tokens) >= tokens:
            return written
        tree = drafter.propose([session], [limit])[0] if drafter else NO_GUESS
        block = torch.tensor([written.tokens[-1], *tree.tokens])
        shape = Tree(tree.to_block_parents()) if tree.nodes else None
        answers = greedy(model.forward([Block(block, rows, state, Wants.ALL, shape)]))
        chosen, path = [answers[0]], [0]
        while (node := tree.child(path[-1] - 1, chosen[-1])) is not None:
            path.append(node + 1)
            chosen.append(answers[node + 1])
        if tree.nodes:
            state.commit(path)
        rows += len(path)
        written.trees.append(tree)
        written.accepted.append(len(path) - 1)


def greedy(logits: Tensor) -> list[int]:
    best: list[int] = logits.argmax(dim=-1).tolist()
    return best


def follow(drafter: Drafter[Any], session: Any, *tokens: Sequence[int]) -> None:
    for some in tokens:
        drafter.follow(session, some)
