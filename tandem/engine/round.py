"""The two passes of a sequence's life: a chunk of its prompt, and a round of every writing slot together.

A pass that raises ends the requests it carried, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.contract.messages import RefusalCode
from tandem.draft.drafting import Bid, Drafting
from tandem.draft.tree import DraftTree
from tandem.engine.grammar.mask import GrammarStuck
from tandem.engine.slot import Failed, Sequence, Slot
from tandem.memory.pages import CommitRefused
from tandem.model.interface import Block, Model, Wants
from tandem.model.tree import Tree

log = logging.getLogger("tandem.engine")

Logits = NDArray[np.float32]  # [rows, vocab]

NO_MEMORY_RETRY: Final = 15.0  # seconds; by then some request has given its rows back


def commit(slot: Slot, rows: int) -> bool:
    """Whether the first `rows` rows have memory now; a refusal ends the request that wanted them, and no other."""
    try:
        slot.memory.commit(rows)
    except CommitRefused as refused:
        log.warning("slot %d: %s", slot.index, refused)
        running_on(slot).end = Failed(str(refused), RefusalCode.NO_MEMORY, NO_MEMORY_RETRY)
        return False
    return True


@dataclass(frozen=True, slots=True)
class Round:
    """What one was, to be counted."""

    slots: int = 0  # that took part
    rows: int = 0  # of the joint pass, guesses included


def step(model: Model, slots: list[Slot], drafting: Drafting, clock: Callable[[], float]) -> Round:
    """One round over writing slots: draft, one joint pass, accept, commit. At most `model.row_bucket` rows.

    A slot that gets no memory for its next row does not take part.
    """
    slots = [slot for slot in slots if commit(slot, slot.rows + 1)]
    if not slots:
        return Round()
    rows = len(slots)
    with ending_only(slots):
        guesses = drafting.propose([bid(slot, drafting.nodes) for slot in slots], model.row_bucket)
        blocks = [draft(slot, tree) for slot, tree in zip(slots, guesses.trees, strict=True)]
        began = clock()
        logits = model.forward(blocks).numpy(force=True)
        rows = len(logits)
        chosen = [accept(*each) for each in zip(slots, guesses.trees, by_block(logits, blocks), strict=True)]
        drafting.learn(guesses, chosen, clock() - began)
    return Round(len(slots), rows)


def bid(slot: Slot, nodes: int) -> Bid:
    """Guesses only as many as may still be written, so that their rows have room in the slot and in its reservation;
    and none where memory refuses to hold them."""
    sequence = running_on(slot)
    limit = min(nodes, sequence.tokens_left - 1)
    try:
        slot.memory.commit(slot.rows + 1 + limit)
    except CommitRefused:
        limit = 0
    return Bid(sequence.followed, slot.rows, limit, sequence.choice.forced(sequence.written))


def draft(slot: Slot, tree: DraftTree) -> Block:
    """The last written token, whose row is still missing, and the guesses behind it."""
    tokens = ids([running_on(slot).written[-1], *tree.tokens])
    return Block(tokens, slot.rows, slot.state, Wants.ALL, Tree(tree.to_block_parents()) if tree.nodes else None)


def ids(tokens: Several[int]) -> Tensor:
    """int64 [tokens]. By way of numpy: `torch.tensor` takes six microseconds more, a slot a round."""
    return torch.from_numpy(np.array(tokens, dtype=np.int64))


def by_block(logits: Logits, blocks: list[Block]) -> list[Logits]:
    """Each block's rows."""
    ends = accumulate(block.rows for block in blocks)
    return [logits[end - block.rows : end] for block, end in zip(blocks, ends, strict=True)]


def accept(slot: Slot, tree: DraftTree, rows: Logits) -> list[int]:
    """Write what the model chooses, going on behind each guess that it confirms: all that it chose, or nothing when
    that failed. The slot keeps the rows of what was confirmed, whatever comes in between."""
    sequence, chosen, path = running_on(slot), list[int](), [0]
    before = len(sequence.written)
    with ending_only([slot]):
        chosen.append(sequence.write(rows[0]))
        while sequence.end is None and (node := tree.child(path[-1] - 1, chosen[-1])) is not None:
            path.append(node + 1)
            chosen.append(sequence.write(rows[node + 1]))
    with ending_only([slot]):
        if tree.nodes:
            slot.state.commit(path)
        slot.wrote(slot.rows + len(path))
        sequence.rounds += 1
        sequence.drafted += tree.nodes
        sequence.accepted += len(path) - 1
        sequence.followed.follow(sequence.written[before:])
    return [] if isinstance(sequence.end, Failed) else chosen


def read_chunk(model: Model, slot: Slot, chunk: int) -> int:
    """Read the prompt up to the next chunk boundary; at its end choose the first token. Returns the rows read."""
    sequence = running_on(slot)
    prompt, start = sequence.prompt, sequence.read
    end = min(start - start % chunk + chunk, len(prompt))
    if not commit(slot, end):
        return 0
    with ending_only([slot]):
        wants = Wants.LAST if end == len(prompt) else Wants.NONE
        logits = model.forward([Block(ids(prompt[start:end]), start, slot.state, wants)])
        sequence.read = end
        slot.wrote(end)
        if end % slot.unit == 0:
            slot.keep(end)
        if not sequence.is_reading:
            sequence.write(logits.numpy(force=True)[0])
            sequence.followed.follow(prompt)
            sequence.followed.follow(sequence.written)
    return end - start


def running_on(slot: Slot) -> Sequence:
    assert slot.sequence is not None, f"slot {slot.index} is idle"
    return slot.sequence


@contextmanager
def ending_only(slots: list[Slot]) -> Iterator[None]:
    """A failure in here ends the requests on these slots; the caller goes on."""
    try:
        yield
    except GrammarStuck as stuck:
        for sequence in map(running_on, slots):
            sequence.end = Failed(str(stuck), RefusalCode.BAD_REQUEST)
    except Exception as error:
        log.exception("a pass failed; it ends the requests on slots %s", [slot.index for slot in slots])
        for sequence in map(running_on, slots):
            sequence.end = Failed(f"the engine could not go on with this request ({type(error).__name__})")
