"""The model's own chat template, run in a sandbox that can neither change what it is given nor reach Python.

What people write reaches the template with every control token broken by a mark (`Tokenizer.guard`), so that only
the template's own control tokens steer the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from posixpath import commonprefix
from typing import Any, Final, NoReturn

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import structs

from tandem.contract.messages import Marks, Reasoning
from tandem.errors import CannotStart
from tandem.text import conversation
from tandem.text.conversation import ChatMessage as ChatMessage  # callers know it by this module
from tandem.text.parts import EVERYTHING_IS_TEXT, Reading
from tandem.text.reasoning import Tags, Thinking, find_reasoning, find_tags, opens_thinking
from tandem.text.tokenizer import Tokenizer
from tandem.text.toolcalls.formats import JSON, CallFormat, find_format
from tandem.text.tools import Tool

OWN_WORDS: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})  # no wish of a client's
_FORMS: Final = (conversation.as_they_came, conversation.merged, conversation.folded)


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    marks: Marks
    reasoning: Reasoning | None = None  # without a limit; None where the model answers at once, or nobody knows
    reading: Reading = EVERYTHING_IS_TEXT  # how its answer is read
    client: Prompt | None = None  # as the client's own messages render, where notes of ours stand between them


class TemplateRefused(ValueError):
    """The template does not take these messages; `str()` is the template's own sentence."""


class ChatTemplate:
    """Messages to a prompt. `now` is asked by templates that print a date. Raises `CannotStart` for a broken one."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        now: Callable[[], datetime] = datetime.now,
        call_format: CallFormat | None = None,
    ) -> None:
        """`call_format` is how the model writes calls, where its template does not show that."""
        vocabulary = tokenizer.vocabulary
        source = vocabulary.chat_template
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
        self._tags = find_tags(source)
        self._thoughts = _Thoughts(source, self._tags)
        self.call_format = call_format or find_format(source)
        try:
            self._template = environment.from_string(source)
            knows_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise CannotStart(f"the model's chat template is broken in line {error.lineno}: {error.message}") from error
        # Told in its own way, a model answers in its own way: where that is not read here, plain words ask for JSON.
        self._tells_tools = knows_tools and (call_format is not None or self.call_format is not JSON)

    def prompt(
        self,
        messages: Sequence[ChatMessage],
        thinks: bool = True,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Ids and marks, ready for the answer. At least one message. Without `thinks`, a template that can ask for an
        answer without thinking does. `template_kwargs` are words that a client has for the template alone.

        Messages go to the template as they came. Only when it refuses them are equal neighbours merged, system
        messages folded into the user's turn, calls told one by one and, last, tools told in plain words. Raises
        `TemplateRefused` with the sentence of the first refusal.
        """
        try:
            return self._prompt(messages, thinks, tools, template_kwargs or {})
        except RecursionError:
            raise TemplateRefused("the schema of a tool, or a word for the template, is nested too deeply") from None

    def _prompt(
        self, messages: Sequence[ChatMessage], thinks: bool, tools: Sequence[Tool], template_kwargs: Mapping[str, Any]
    ) -> Prompt:
        messages = conversation.settled(messages, self.call_format, self._tags)
        wishes: dict[str, Any] = {} if thinks else {"enable_thinking": False}  # left out, the template's default holds
        wishes |= {name: value for name, value in template_kwargs.items() if name not in OWN_WORDS}
        offered = [conversation.function(tool) for tool in tools]
        texts = chain.from_iterable(map(conversation.texts_of, messages))
        mark = _unused_character(chain(texts, _texts_in([offered, wishes])))

        def guard(text: str) -> str:
            return self._tokenizer.guard(text, mark)

        guarded = [conversation.with_texts(message, guard) for message in messages]
        guarded_tools = [Tool(**_changed(function, guard)) for function in offered]
        refusals = []
        for turns, shown in self._ways(guarded, guarded_tools):
            for form in _FORMS:
                try:
                    prompt = self._rendered(form(turns), shown, mark, _changed(wishes, guard))
                except TemplateRefused as refusal:
                    refusals.append(refusal)
                else:
                    return self._to_be_read(prompt, tools)
        raise refusals[0]

    def _ways(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool]
    ) -> Iterator[tuple[Sequence[ChatMessage], Sequence[Tool]]]:
        """The conversation and the tools that the template is told of, the best way first."""
        has_tools = bool(tools) or conversation.has_tools(messages)
        if self._tells_tools or not has_tools:
            yield messages, tools
        if self._tells_tools and any(len(message.tool_calls) > 1 for message in messages):
            yield conversation.one_call_a_turn(messages), tools
        if has_tools:
            yield conversation.plain(messages, tools), ()

    def _to_be_read(self, prompt: Prompt, tools: Sequence[Tool]) -> Prompt:
        thinking = None
        if self._tags is not None and prompt.reasoning is not None:
            thinking = Thinking(self._tags, prompt.reasoning.begun)
        reading = Reading(thinking, tuple(tools), self.call_format)
        return Prompt(prompt.tokens, prompt.marks, prompt.reasoning, reading)

    def _rendered(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], mark: str, wishes: Mapping[str, Any]
    ) -> Prompt:
        """The prefix that the shorter rendering shares with the whole one is where a part of the prompt ends."""
        text = self._render(messages, tools, {**wishes, "add_generation_prompt": True})
        first_user = next((n for n, message in enumerate(messages, 1) if message.role == "user"), len(messages))
        parts = [self._try_render(part, tools, wishes) for part in (messages[:first_user], messages)]
        ends = [_shared(text, part) for part in parts]
        tokens, (head_end, messages_end) = self._tokenizer.encode_with_places(text, ends, mark)
        reasoning = self._reasoning
        if reasoning is not None:
            reasoning = structs.replace(reasoning, begun=opens_thinking(tokens[messages_end:], reasoning))
        return Prompt(tuple(tokens), Marks(head_end=head_end, messages_end=messages_end), reasoning)

    def _try_render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], wishes: Mapping[str, Any]) -> str:
        """Without the generation prompt; nothing when the template does not take this part alone."""
        try:
            return self._render(messages, tools, {**wishes, "add_generation_prompt": False})
        except TemplateRefused:
            return ""

    def _render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], words: Mapping[str, Any]) -> str:
        turns = [self._turn(message) for message in messages]
        functions = [{"type": "function", "function": conversation.function(tool)} for tool in tools] or None
        try:
            return self._template.render({**words, "messages": turns, "tools": functions, "documents": None})
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise error if isinstance(error, TemplateRefused) else TemplateRefused(str(error)) from error

    def _turn(self, message: ChatMessage) -> dict[str, Any]:
        """In the words templates know. What a message does not have is not named: some only look whether it is."""
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn |= self._thoughts.told(message.reasoning, message.content)
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call.arguments)},
                }
                for call in message.tool_calls
            ]
        turn |= {key: value for key in ("tool_call_id", "name") if (value := getattr(message, key)) is not None}
        return turn


class _Thoughts:
    """How a template takes past thinking: as a field, in the text it splits by itself, or not at all."""

    def __init__(self, template: str, tags: Tags | None) -> None:
        self._field = next((name for name in ("reasoning_content", "thinking") if f".{name}" in template), None)
        self._tags = tags if tags is not None and f"split('{tags.close}')" in template else None

    def told(self, reasoning: str, content: str) -> dict[str, str]:
        if self._field is not None:
            return {self._field: reasoning}
        if self._tags is not None:
            return {"content": f"{self._tags.open}\n{reasoning}\n{self._tags.close}\n\n{content}"}
        return {}


class _Written(dict[str, str]):
    """Arguments that are no JSON object: shown as they were written wherever a template puts them whole, and as one
    parameter where it writes a call parameter by parameter."""

    def __init__(self, written: str) -> None:
        super().__init__(arguments=written)

    def __str__(self) -> str:
        return self["arguments"]


def _arguments(written: str) -> dict[str, Any]:
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return _Written(written)
    return value if isinstance(value, dict) else _Written(written)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Unlike Jinja's own: plain JSON, not escaped for HTML."""
    if isinstance(value, _Written):
        return str(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON, every text in it changed, names too."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(name): _changed(each, change) for name, each in value.items()}
        case list() | tuple():
            return [_changed(each, change) for each in value]
        case _:
            return value


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            yield from value
            for each in value.values():
                yield from _texts_in(each)
        case list() | tuple():
            for each in value:
                yield from _texts_in(each)


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
