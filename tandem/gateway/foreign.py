"""What the doors of other APIs have in common: their requests are put into OpenAI's words and go the same way.

Nothing is checked twice. What a door looks at itself is where its API says more, or says it elsewhere; what is wrong
is named by its place in the client's own request.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from tandem.gateway.completions import Completions
from tandem.gateway.conversation import Part
from tandem.gateway.dialect import Dialect, Wanted, WrittenCall
from tandem.gateway.envelopes import envelope
from tandem.gateway.errors import ApiError
from tandem.gateway.openai import ChatRequest, CompletionRequest, Generation
from tandem.gateway.prompts import Prompts
from tandem.gateway.reading import convert
from tandem.text.template import Prompt

Words = TypeVar("Words", bound=Generation)

Places: TypeAlias = tuple[tuple[str, str], ...]
"""Where a field of OpenAI's stands in another API: a pattern for the beginning of its place, and what stands there
instead. The first that matches counts."""


class ForeignChat(Dialect[Wanted]):
    """The half of a dialect that reads. Made for one request."""

    places: Places

    @abstractmethod
    def generation(self, wanted: Wanted) -> ChatRequest | CompletionRequest:
        """The same in OpenAI's words. Raises `ApiError` 400 naming the client's own place."""

    async def prompts(self, wanted: Wanted, generation: Generation, prompts: Prompts) -> list[Prompt]:
        if isinstance(generation, CompletionRequest):
            return await Completions().prompts(generation, generation, prompts)
        assert isinstance(generation, ChatRequest)
        return [await prompts.of_chat(generation)]

    def error(self, error: ApiError) -> bytes:
        return envelope(self.route, as_placed(error, self.places))


def in_openai_words(kind: type[Words], fields: Mapping[str, Any], places: Places) -> Words:
    """A field that is None is left out. Raises `ApiError` 400 naming the client's own place."""
    try:
        return convert(kind, {name: value for name, value in fields.items() if value is not None})
    except ApiError as error:
        raise as_placed(error, places) from None


def as_placed(error: ApiError, places: Places) -> ApiError:
    """The same error, about the client's own place."""
    inner = error.detail.param or ""
    own = next((re.sub(f"^{there}", here, inner) for there, here in places if re.match(there, inner)), inner)
    if own == inner:
        return error
    sentence, detail = error.sentence.replace(f"`{inner}", f"`{own}", 1), error.detail
    return ApiError(error.status, error.code, sentence, param=own, retry_after=error.retry_after, source=detail.source)


class Refused(Struct, frozen=True):
    """A field that asks for what a door does not do, unless its value asks for nothing."""

    name: str
    harmless: tuple[Any, ...]
    instead: str  # what to do


def refuse(wanted: Struct, fields: Iterable[Refused]) -> None:
    """Raises `ApiError` 400."""
    for field in fields:
        if getattr(wanted, field.name) not in field.harmless:
            raise ApiError(400, "unsupported_value", f"`{field.name}`: {field.instead}", param=field.name)


_TEXTS: Final = frozenset({"text", "input_text", "output_text", "reasoning_text", "summary_text"})
_IMAGES: Final = frozenset({"image", "image_url", "input_image"})


def text_parts(content: str | Iterable[Part] | None, place: str) -> list[dict[str, Any]]:
    """A content as OpenAI's parts. Raises `ApiError` 400 naming the part that is not text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [_text_part(content)]
    return [_text_part(_text_of(part, f"{place}[{n}]")) for n, part in enumerate(content)]


def joined(parts: Iterable[Part]) -> str:
    """The texts of parts of which any may be there, as in a model's own thinking."""
    return "".join(part.text or "" for part in parts)


def _text_of(part: Part, place: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in _TEXTS and part.type != "refusal":
        raise not_read(part.type, place)
    if text is None:
        param = f"{place}.{'refusal' if part.type == 'refusal' else 'text'}"
        raise ApiError(400, "invalid_value", f"`{param}`: this field is required", param=param)
    return text


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def not_read(kind: str, place: str) -> ApiError:
    """A piece of a message that no model here reads."""
    if kind in _IMAGES:
        return ApiError(400, "unsupported_value", f"`{place}`: this model does not see images; send text", param=place)
    named = f"`{kind}`" if kind.isidentifier() and kind.isascii() and len(kind) <= 40 else "this type"
    sentence = f"`{place}.type`: {named} is not read here; send text"
    return ApiError(400, "unsupported_value", sentence, param=f"{place}.type")


def effort_of(word: str | None) -> str | None:
    """Other APIs know words above `high`: as long as the model likes."""
    return None if word in ("xhigh", "max") else word


def required(value: Any, place: str) -> Any:
    """Raises `ApiError` 400 for a field that its type makes necessary."""
    if value is None:
        raise ApiError(400, "invalid_value", f"`{place}`: this field is required", param=place)
    return value


def arguments_of(call: WrittenCall) -> dict[str, Any]:
    """For APIs that take arguments as an object. A call that a limit cut has none yet: what there is of it stands
    under a name that no tool knows, so that nobody runs half of it."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return {"partial_json": call.arguments}
    return arguments if isinstance(arguments, dict) else {"partial_json": call.arguments}
