"""The two passes of a sequence's life: a chunk of its prompt, and a round of every writing slot together.

A pass that raises ends the requests it carried, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from tandem.contract.messages import RefusalCode
from tandem.engine.slot import Failed, Sequence, Slot
from tandem.memory.pages import CommitRefused
from tandem.model.interface import Block, Model, Wants

log = logging.getLogger("tandem.engine")

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


def step(model: Model, slots: list[Slot]) -> int:
    """One round over writing slots: draft, one joint pass, accept, commit. At most `model.row_bucket` rows.

    Returns how many slots took part: a slot that gets no memory for its next row does not.
    """
    slots = [slot for slot in slots if commit(slot, slot.rows + 1)]
    if not slots:
        return 0
    with ending_only(slots):
        blocks = [draft(slot) for slot in slots]
        logits = model.forward(blocks)  # [rows of all blocks, vocab]
        for slot, block, rows in zip(slots, blocks, torch.split(logits, [block.rows for block in blocks]), strict=True):
            with ending_only([slot]):
                chosen = accept(running_on(slot), rows)
                slot.wrote(block.start + len(chosen))
                running_on(slot).commit(chosen)
    return len(slots)


def draft(slot: Slot) -> Block:
    """The last written token, whose row is still missing. Guesses would stand behind it."""
    return Block(torch.tensor(running_on(slot).written[-1:]), slot.rows, slot.state, Wants.ALL)


def accept(sequence: Sequence, rows: Tensor) -> list[int]:
    """The guesses that the model's own choice confirms, and its next choice, which comes with them for free."""
    return [sequence.choose(rows[0].numpy(force=True), sequence.written)]


def read_chunk(model: Model, slot: Slot, chunk: int) -> int:
    """Read the prompt up to the next chunk boundary; at its end choose the first token. Returns the rows read."""
    sequence = running_on(slot)
    prompt, start = sequence.prompt, sequence.read
    end = min(start - start % chunk + chunk, len(prompt))
    if not commit(slot, end):
        return 0
    with ending_only([slot]):
        wants = Wants.LAST if end == len(prompt) else Wants.NONE
        logits = model.forward([Block(torch.tensor(prompt[start:end]), start, slot.state, wants)])
        sequence.read = end
        slot.wrote(end)
        if end % chunk == 0:
            slot.keep(end)
        if not sequence.is_reading:
            sequence.commit(accept(sequence, logits))
    return end - start


def running_on(slot: Slot) -> Sequence:
    assert slot.sequence is not None, f"slot {slot.index} is idle"
    return slot.sequence


@contextmanager
def ending_only(slots: list[Slot]) -> Iterator[None]:
    """A failure in here ends the requests on these slots; the caller goes on."""
    try:
        yield
    except Exception as error:
        log.exception("a pass failed; it ends the requests on slots %s", [slot.index for slot in slots])
        for sequence in map(running_on, slots):
            sequence.end = Failed(f"the engine could not go on with this request ({type(error).__name__})")
