"""Clients' words to token ids, in one thread of its own.

One thread, because the engine's threads share these cores; a thread, because a long prompt takes a second, during
which every other stream would stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import msgspec

from tandem.contract.messages import Marks
from tandem.gateway.conversation import turn_of
from tandem.gateway.errors import ApiError
from tandem.gateway.openai import ChatRequest
from tandem.text.template import ChatTemplate, Prompt, TemplateRefused
from tandem.text.tokenizer import Tokenizer
from tandem.text.toolcalls.formats import FORMATS

_Result = TypeVar("_Result")


class Prompts:
    """`window` is the most tokens a prompt and its answer may have together; `model` is the name people know; `calls`
    is how the model writes calls, where its template does not show that."""

    def __init__(self, tokenizer: Tokenizer, window: int, model: str, calls: str | None = None) -> None:
        self.tokenizer = tokenizer
        self._model = model
        self._template = ChatTemplate(tokenizer, call_format=FORMATS[calls] if calls is not None else None)
        self.window = window
        self._thread = ThreadPoolExecutor(1, "prompts")

    async def of_chat(self, wanted: ChatRequest) -> Prompt:
        """Raises `ApiError` 400: too long, or not what the template takes."""
        return self._fitting(await self.rendered(wanted), "messages")

    async def rendered(self, wanted: ChatRequest) -> Prompt:
        """The same, whether or not it leaves room for an answer. What is surely too long is refused before it is
        read."""
        turns = [turn_of(message, n, self._model) for n, message in enumerate(wanted.messages)]
        offer = wanted.offer
        self._refuse_hopeless("".join(turn.content for turn in turns), "messages")
        try:
            prompt = await self._in_thread(
                lambda: self._template.prompt(
                    turns, wanted.thinking_limit != 0, offer.tools, wanted.chat_template_kwargs
                )
            )
        except TemplateRefused as refusal:
            raise ApiError(
                400, "invalid_messages", f"the model's template refused: {refusal}", param="messages", source="model"
            ) from None
        if offer.at_most_one:
            prompt = replace(prompt, reading=msgspec.structs.replace(prompt.reading, most_calls=1))
        return prompt

    async def of_text(self, text: str, param: str) -> Prompt:
        """A raw prompt: whoever writes it steers the model himself, so its control tokens count."""
        return self.of_ids(await self.tokenized(text, param), param)

    async def tokenized(self, text: str, param: str, begins: bool = True, controls: bool = True) -> list[int]:
        """`begins` with the token that begins a prompt, where the model has one. Without `controls`, what reads like a
        control token is only characters. Raises `ApiError` 400 for a text that is surely too long."""
        self._refuse_hopeless(text, param)
        encode = self.tokenizer.encode_with_controls if controls else self.tokenizer.encode
        ids = await self._in_thread(lambda: encode(text))
        vocabulary = self.tokenizer.vocabulary
        start = [vocabulary.bos] if begins and vocabulary.add_bos and vocabulary.bos is not None else []
        return [*start, *ids]

    def of_ids(self, ids: Sequence[int], param: str) -> Prompt:
        if not ids:
            raise ApiError(400, "invalid_value", f"`{param}`: expected at least one token", param=param)
        if max(ids) >= self.tokenizer.num_tokens:
            last = self.tokenizer.num_tokens - 1
            raise ApiError(400, "invalid_value", f"`{param}`: this model's token ids are 0 to {last}", param=param)
        return self._fitting(Prompt(tuple(ids), Marks(head_end=len(ids), messages_end=len(ids))), param)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _refuse_hopeless(self, text: str, param: str) -> None:
        least = self.tokenizer.least_tokens(text)
        if least >= self.window:
            raise self._too_long(f"at least {least}", param)

    def _fitting(self, prompt: Prompt, param: str) -> Prompt:
        if len(prompt.tokens) >= self.window:
            raise self._too_long(str(len(prompt.tokens)), param)
        return prompt

    def _too_long(self, count: str, param: str) -> ApiError:
        sentence = (
            f"this model's context length is {self.window} tokens, of which at least one is left for the answer; "
            f"the prompt has {count} tokens"
        )
        return ApiError(400, "context_length_exceeded", sentence, param=param)
