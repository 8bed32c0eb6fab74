"""How a model's thinking is told from its answer: by the tags its chat template speaks of, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.contract.messages import Reasoning
from tandem.text.tokenizer import Tokenizer

_TAGS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def find_reasoning(tokenizer: Tokenizer) -> Reasoning | None:
    """None where the template does not speak of thinking: such a model answers at once."""
    template = tokenizer.vocabulary.chat_template
    for open, close in _TAGS:
        if open in template and close in template:
            opening, closing = (tuple(tokenizer.encode_with_controls(tag)) for tag in (open, close))
            return Reasoning(opening, closing)
    return None


def opens_thinking(generation_prompt: Sequence[int], reasoning: Reasoning) -> bool:
    """Whether the model begins inside a block: the tokens behind the last message open one and do not end it."""
    return _last(reasoning.open, generation_prompt) > _last(reasoning.close, generation_prompt)


def _last(mark: tuple[int, ...], tokens: Sequence[int]) -> int:
    """Where `mark` begins for the last time; before everything when it does not."""
    starts = range(len(tokens) - len(mark), -1, -1)
    return next((at for at in starts if tuple(tokens[at : at + len(mark)]) == mark), -1)
