"""The model's own chat template, run in a sandbox that can neither change what it is given nor reach Python.

What people write reaches the template with every control token broken by a mark (`Tokenizer.guard`), so that only
the template's own control tokens steer the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from posixpath import commonprefix
from typing import Any, Final, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import structs

from tandem.contract.messages import Marks, Reasoning
from tandem.errors import CannotStart
from tandem.text.reasoning import find_reasoning, opens_thinking
from tandem.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    marks: Marks
    reasoning: Reasoning | None = None  # without a limit; None where the model answers at once, or nobody knows


class TemplateRefused(ValueError):
    """The template does not take these messages; `str()` is the template's own sentence."""


class ChatTemplate:
    """Messages to a prompt. `now` is asked by templates that print a date. Raises `CannotStart` for a broken one."""

    def __init__(self, tokenizer: Tokenizer, now: Callable[[], datetime] = datetime.now) -> None:
        vocabulary = tokenizer.vocabulary
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {
            "raise_exception": _refuse,
            "strftime_now": lambda form: now().strftime(form),
            "bos_token": vocabulary.text_of(vocabulary.bos),
            "eos_token": vocabulary.text_of(vocabulary.eos),
        }
        self._tokenizer = tokenizer
        self._reasoning = find_reasoning(tokenizer)
        try:
            self._template = environment.from_string(vocabulary.chat_template)
        except jinja2.TemplateSyntaxError as error:
            raise CannotStart(f"the model's chat template is broken in line {error.lineno}: {error.message}") from error

    def prompt(self, messages: Sequence[ChatMessage], thinks: bool = True) -> Prompt:
        """Ids and marks, ready for the answer. At least one message. Without `thinks`, a template that can ask for an
        answer without thinking does.

        Messages go to the template as they came. Only when it refuses them are equal neighbours merged, then system
        messages folded into the user's turn. Raises `TemplateRefused` with the sentence of the first refusal.
        """
        mark = _unused_character(message.content for message in messages)
        guarded = [ChatMessage(m.role, self._tokenizer.guard(m.content, mark)) for m in messages]
        refusals = []
        for form in (_as_they_came, _merged, _folded):
            try:
                return self._rendered(form(guarded), mark, thinks)
            except TemplateRefused as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def _rendered(self, messages: Sequence[ChatMessage], mark: str, thinks: bool) -> Prompt:
        """The prefix that the shorter rendering shares with the whole one is where a part of the prompt ends."""
        text = self._render(messages, add_generation_prompt=True, thinks=thinks)
        first_user = next((n for n, message in enumerate(messages, 1) if message.role == "user"), len(messages))
        head = self._try_render(messages[:first_user])
        ends = (_shared(text, head), _shared(text, self._try_render(messages)))
        tokens, (head_end, messages_end) = self._tokenizer.encode_with_places(text, ends, mark)
        reasoning = self._reasoning
        if reasoning is not None:
            reasoning = structs.replace(reasoning, begun=opens_thinking(tokens[messages_end:], reasoning))
        return Prompt(tuple(tokens), Marks(head_end=head_end, messages_end=messages_end), reasoning)

    def _try_render(self, messages: Sequence[ChatMessage]) -> str:
        """Without the generation prompt; nothing when the template does not take this part alone."""
        try:
            return self._render(messages, add_generation_prompt=False)
        except TemplateRefused:
            return ""

    def _render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool, thinks: bool = True) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        wishes = {} if thinks else {"enable_thinking": False}  # left out, the template's own default holds
        try:
            return self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **wishes
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise error if isinstance(error, TemplateRefused) else TemplateRefused(str(error)) from error


def _as_they_came(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    return messages


def _merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Neighbours of one role become one message, an empty line between their texts."""
    return [
        ChatMessage(role, "\n\n".join(message.content for message in run))
        for role, run in groupby(messages, key=lambda message: message.role)
    ]


def _folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """System messages say their word at the beginning of the first user turn."""
    system = [ChatMessage("user", message.content) for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    at = next((n for n, message in enumerate(others) if message.role == "user"), 0)
    return _merged([*others[:at], *system, *others[at:]])


def _shared(*texts: str) -> int:
    """How many characters the texts have in common from the start."""
    return len(commonprefix(texts))


_NONCHARACTERS: Final = range(0xFDD0, 0xFDF0)  # Unicode keeps them for uses like this
_PRIVATE: Final = range(0xF0000, 0xFFFFE)


def _unused_character(texts: Iterator[str]) -> str:
    """A character that none of the texts contains, to break control tokens with."""
    used = set[str]().union(*texts)
    for character in map(chr, chain(_NONCHARACTERS, _PRIVATE)):
        if character not in used:
            return character
    raise TemplateRefused("the messages use every character that Unicode leaves for private use")


def _refuse(sentence: str) -> NoReturn:
    raise TemplateRefused(sentence)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Unlike Jinja's own: plain JSON, not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
