"""The conversations of `verify_texts` as requests of one model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Final

import msgspec

from tandem.contract.messages import Generate, Grammar, GrammarKind, Sampling
from tandem.engine.grammar.compiling import build, read_words
from tandem.engine.grammar.mask import Compiled
from tandem.engine.grammar.trial import judge
from tandem.engine.verify_texts import CONVERSATIONS, Conversation
from tandem.engine.verify_turns import Case
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

_EVERY: Final = 3  # a conversation of so many is also drawn with a seed
_SAMPLING: Final = Sampling(temperature=0.8, repetition_penalty=1.05, frequency_penalty=0.1)
_OBJECT: Final = Grammar(GrammarKind.JSON_OBJECT, "")


def cases_of(weights: Path, prompts: int, tokens: int) -> list[Case]:
    """`prompts` conversations of all kinds, with answers of at most `tokens` tokens: greedy, and some drawn too."""
    tokenizer = Tokenizer(read_vocabulary(weights))
    template = ChatTemplate(tokenizer)
    chosen = spread(CONVERSATIONS, prompts)
    grammar = _read_grammar(weights) if any(each.is_json for each in chosen) else None
    cases = []
    for number, conversation in enumerate(chosen):
        rendered = template.prompt(_messages(conversation))
        stops = tokenizer.vocabulary.stop_tokens
        ways = [("greedy", Sampling())]
        if number % _EVERY == 0:
            ways.append(("drawn", _seeded(number)))
        for scope, sampling in ways:
            ask = Generate(
                id=f"{conversation.kind} {number}, {scope}",
                tokens=rendered.tokens,
                max_tokens=tokens,
                stop_tokens=stops,
                sampling=sampling,
                marks=rendered.marks,
                scope=scope,
                grammar=_OBJECT if conversation.is_json else None,
            )
            cases.append(Case(ask, grammar if conversation.is_json else None))
    return cases


def spread(conversations: Sequence[Conversation], count: int) -> list[Conversation]:
    """`count` of them, evenly over their order, so of every kind; from the start again when there are not so many."""
    if count >= len(conversations):
        endless = cycle(conversations)
        return [next(endless) for _ in range(count)]
    return [conversations[(2 * n + 1) * len(conversations) // (2 * count)] for n in range(count)]


def _messages(conversation: Conversation) -> list[ChatMessage]:
    roles = cycle(("user", "assistant"))
    return [ChatMessage(role, turn) for role, turn in zip(roles, conversation.turns, strict=False)]


def _seeded(number: int) -> Sampling:
    return msgspec.structs.replace(_SAMPLING, seed=1000 + number)


def _read_grammar(weights: Path) -> Compiled:
    built = build(judge(_OBJECT).source, read_words(weights))
    assert isinstance(built, Compiled), "a JSON object is a grammar"
    return built
