"""How a model's thinking is told from its answer: by the tags its chat template speaks of.

The engine follows them as token ids (`Reasoning`); what people read is told apart as text (`read_thinking`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from tandem.contract.messages import Reasoning
from tandem.text.pieces import Thought
from tandem.text.source import WHITE, Reads, Source, held_back
from tandem.text.tokenizer import Tokenizer


class Tags(Struct, frozen=True):
    open: str
    close: str


_TAGS: Final = (Tags("<think>", "</think>"), Tags("[THINK]", "[/THINK]"))
_BETWEEN: Final = "\n\n"  # blocks that follow one another


class Thinking(Struct, frozen=True):
    """What tells thinking from answer in the text behind one prompt."""

    tags: Tags
    begun: bool  # the prompt has opened a block


def find_tags(template: str) -> Tags | None:
    """None where the template does not speak of thinking: such a model answers at once."""
    return next((tags for tags in _TAGS if tags.open in template and tags.close in template), None)


def find_reasoning(tokenizer: Tokenizer) -> Reasoning | None:
    """The tags as token ids."""
    tags = find_tags(tokenizer.vocabulary.chat_template)
    if tags is None:
        return None
    opening, closing = (tuple(tokenizer.encode_with_controls(tag)) for tag in (tags.open, tags.close))
    return Reasoning(opening, closing)


def opens_thinking(generation_prompt: Sequence[int], reasoning: Reasoning) -> bool:
    """Whether the model begins inside a block: the tokens behind the last message open one and do not end it."""
    return _last(reasoning.open, generation_prompt) > _last(reasoning.close, generation_prompt)


def read_thinking(source: Source, thinking: Thinking, emit: Callable[[Thought], None]) -> Reads[None]:
    """Reads the block that the answer begins with, further ones right behind it, and the white space around them,
    which is nobody's text.

    Tags further on are text: a model that explains them would otherwise vanish into thinking. A prompt that opens the
    block is at times followed by the tag once more.
    """
    between = ""  # what stands between this block and the one before

    def say(thought: str) -> None:
        nonlocal between
        emit(Thought(between + thought))
        between = ""

    start = source.at
    yield from source.skip()
    is_inside = (yield from source.take(thinking.tags.open)) or thinking.begun
    if not is_inside:
        source.at = start
    while is_inside:
        yield from source.skip()
        source.settle()
        began = source.at
        while not _think(source, thinking.tags.close, say):
            if source.is_whole:
                return
            yield
        if source.at - began > len(thinking.tags.close):
            between = _BETWEEN
        yield from source.skip()
        source.settle()
        is_inside = yield from source.take(thinking.tags.open)


def _think(source: Source, close: str, say: Callable[[str], None]) -> bool:
    """Reads what has come and says whether the block ended in it. Held back is what may be the end, and white space."""
    rest = source.rest
    at = rest.find(close)
    if at >= 0:
        thought, behind = rest[:at].rstrip(WHITE), at + len(close)
    else:
        thought = rest if source.is_whole else rest[: len(rest) - held_back(rest, (close,))]
        thought = thought.rstrip(WHITE)
        behind = len(rest) if source.is_whole else len(thought)
    source.at += behind
    source.settle()
    if thought:
        say(thought)
    return at >= 0


def without_thinking(content: str, tags: Tags) -> tuple[str | None, str]:
    """A past answer that a client sends back with its thinking in tags, as thinking and answer."""
    begun = content.lstrip(WHITE)
    thought, close, answer = begun.removeprefix(tags.open).partition(tags.close)
    if not begun.startswith(tags.open) or not close:
        return None, content
    return thought.strip(WHITE), answer.lstrip(WHITE)


def _last(mark: tuple[int, ...], tokens: Sequence[int]) -> int:
    """Where `mark` begins for the last time; before everything when it does not."""
    starts = range(len(tokens) - len(mark), -1, -1)
    return next((at for at in starts if tuple(tokens[at : at + len(mark)]) == mark), -1)
