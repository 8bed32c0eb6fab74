"""`/v1/responses`: the same answers as items, with an event for everything that happens to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field, structs

from tandem.gateway import sse
from tandem.gateway.answers import CompletionDetails, Usage
from tandem.gateway.dialect import Ending, Identity, Written, finish_word
from tandem.gateway.errors import ApiError
from tandem.gateway.foreign import ForeignChat
from tandem.gateway.logprobs import Shown
from tandem.gateway.openai import ChatRequest
from tandem.gateway.responses_request import PLACES, ReasoningWish, ResponsesRequest, ResponsesTool, TextFormat, to_chat
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


class ReasoningItem(Struct, frozen=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    content: list[ReasoningText] = field(default_factory=list)
    summary: list[Any] = field(default_factory=list)


class MessageItem(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: Status
    content: list[OutputText] = field(default_factory=list)
    role: Literal["assistant"] = "assistant"


class CallItem(Struct, frozen=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""


OutputItem: TypeAlias = ReasoningItem | MessageItem | CallItem


class InputDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class ResponsesUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int


class ResponsesFailure(Struct, frozen=True):
    code: str
    message: str


class Incomplete(Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class TextShown(Struct, frozen=True):
    format: TextFormat


class ResponsesAnswer(Struct, frozen=True, kw_only=True):
    """`store` is false whatever was asked: nothing is kept."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: Status
    output: list[OutputItem] = field(default_factory=list)
    usage: ResponsesUsage | None = None
    error: ResponsesFailure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningWish = ReasoningWish()
    temperature: float | None = None
    text: TextShown
    tool_choice: Any = "auto"
    tools: list[ResponsesTool] = field(default_factory=list)
    top_p: float | None = None
    background: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    previous_response_id: None = None
    store: bool = False
    truncation: Literal["disabled"] = "disabled"


def begun_answer(wanted: ResponsesRequest, identity: Identity) -> ResponsesAnswer:
    form = wanted.text.format if wanted.text is not None and wanted.text.format is not None else TextFormat("text")
    return ResponsesAnswer(
        id=identity.id,
        created_at=identity.created,
        model=identity.model,
        status="in_progress",
        instructions=wanted.instructions,
        max_output_tokens=wanted.max_output_tokens,
        parallel_tool_calls=wanted.parallel_tool_calls is not False,
        reasoning=wanted.reasoning or ReasoningWish(),
        temperature=wanted.temperature,
        text=TextShown(form),
        tool_choice=wanted.tool_choice or "auto",
        tools=wanted.tools or [],
        top_p=wanted.top_p,
        metadata=wanted.metadata if isinstance(wanted.metadata, dict) else {},
    )


def ended_answer(begun: ResponsesAnswer, output: Sequence[OutputItem], ending: Ending, usage: Usage) -> ResponsesAnswer:
    is_cut = finish_word(ending) == "length"
    return structs.replace(
        begun,
        status="incomplete" if is_cut else "completed",
        output=list(output),
        usage=_usage_of(usage),
        incomplete_details=Incomplete() if is_cut else None,
    )


def _usage_of(usage: Usage) -> ResponsesUsage:
    cached = InputDetails(usage.prompt_tokens_details.cached_tokens)
    told = usage.completion_tokens_details
    return ResponsesUsage(usage.prompt_tokens, cached, usage.completion_tokens, told, usage.total_tokens)


class Responses(ForeignChat[ResponsesRequest]):
    route = "/v1/responses"
    prefix = "resp_"
    request = ResponsesRequest
    stream_type = sse.STREAM_TYPE
    places = PLACES

    def generation(self, wanted: ResponsesRequest) -> ChatRequest:
        return to_chat(wanted)

    def chunks(self, wanted: ResponsesRequest, identity: Identity, names: Tokenizer | None) -> ResponsesChunks:
        return ResponsesChunks(begun_answer(wanted, identity))

    def whole(
        self,
        wanted: ResponsesRequest,
        identity: Identity,
        written: Sequence[Written],
        usage: Usage,
        names: Tokenizer | None,
    ) -> bytes:
        """The items of a stream, by the same hand."""
        (choice,) = written
        items = _Items(identity.id)
        output: list[OutputItem | None] = []
        for part in _parts(choice):
            if items.is_next(part):
                output.append(items.close("completed"))
                items.begin(part)
            items.add(part)
        output.append(items.close(_last_status(choice.ending)))
        begun = begun_answer(wanted, identity)
        return _encode(ended_answer(begun, [item for item in output if item is not None], choice.ending, usage))


def _parts(choice: Written) -> Iterator[AnswerPart]:
    if choice.thinking:
        yield Thought(choice.thinking)
    if choice.text:
        yield Text(choice.text)
    for n, call in enumerate(choice.calls):
        yield CallBegun(n, call.id, call.name)
        yield CallArguments(n, call.arguments)


def _last_status(ending: Ending) -> Status:
    return "incomplete" if finish_word(ending) == "length" else "completed"


class _Items:
    """The items of one answer: which is written now, and what it holds so far."""

    def __init__(self, response_id: str) -> None:
        self._suffix = response_id.partition("_")[2]
        self.index = -1  # of the item that is written, or was written last
        self._first: AnswerPart | None = None  # the part it began with; None: none is open
        self._text: list[str] = []

    @property
    def id(self) -> str:
        prefix = "rs" if isinstance(self._first, Thought) else "msg" if isinstance(self._first, Text) else "fc"
        return f"{prefix}_{self._suffix}{self.index:02d}"

    def is_next(self, part: AnswerPart) -> bool:
        """Whether an item begins with this part."""
        return isinstance(part, CallBegun) or (
            not isinstance(part, CallArguments) and type(part) is not type(self._first)
        )

    def begin(self, part: AnswerPart) -> None:
        self.index, self._first, self._text = self.index + 1, part, []

    def add(self, part: AnswerPart) -> None:
        if not isinstance(part, CallBegun):
            self._text.append(part.text)

    def item(self, status: Status) -> OutputItem:
        """The open item; without its content while it is in progress."""
        text, is_done = "".join(self._text), status != "in_progress"
        match self._first:
            case Thought():
                return ReasoningItem(self.id, status, [ReasoningText(text)] if is_done else [])
            case CallBegun(_, call_id, name):
                return CallItem(self.id, status, call_id, name, text if is_done else "")
            case _:
                return MessageItem(self.id, status, [OutputText(text)] if is_done else [])

    def close(self, status: Status) -> OutputItem | None:
        """The item that was open, if any."""
        done = self.item(status) if self._first is not None else None
        self._first = None
        return done


def _delta(part: Thought | Text | CallArguments) -> tuple[str, dict[str, Any]]:
    """The event of one more piece, and what it says of its place in the item."""
    match part:
        case Thought():
            return "response.reasoning_text.delta", {"content_index": 0}
        case Text():
            return "response.output_text.delta", {"content_index": 0, "logprobs": []}
        case CallArguments():
            return "response.function_call_arguments.delta", {}


def _endings(item: OutputItem) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is said of an item's content once it is whole, before the item itself."""
    match item:
        case CallItem():
            facts = {"name": item.name, "arguments": item.arguments}
            yield "response.function_call_arguments.done", facts
            return
        case ReasoningItem(content=[part]):
            yield "response.reasoning_text.done", {"content_index": 0, "text": part.text}
        case MessageItem(content=[part]):
            yield "response.output_text.done", {"content_index": 0, "text": part.text, "logprobs": []}
    yield "response.content_part.done", {"content_index": 0, "part": item.content[0]}


class ResponsesChunks:
    def __init__(self, begun: ResponsesAnswer) -> None:
        self._answer = begun
        self._items = _Items(begun.id)
        self._output: list[OutputItem] = []  # items that are whole
        self._num_events = 0
        self._ending: Ending | None = None

    def open(self) -> bytes:
        return b"".join(self._event(f"response.{what}", response=self._answer) for what in ("created", "in_progress"))

    def said(self, sentence: str) -> bytes:
        return sse.comment(sentence)

    def status(self, sentence: str, done: bool) -> bytes:
        return b""

    def begin(self, index: int, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        if part is None:
            return b""
        begun = self._begin_item(part) if self._items.is_next(part) else b""
        self._items.add(part)
        if isinstance(part, CallBegun):
            return begun
        name, place = _delta(part)
        return begun + self._of_item(name, delta=part.text, **place)

    def end(self, index: int, ending: Ending) -> bytes:
        self._ending = ending
        return self._end_item(_last_status(ending))

    def close(self, usage: Usage) -> bytes:
        assert self._ending is not None
        answer = ended_answer(self._answer, self._output, self._ending, usage)
        return self._event(f"response.{answer.status}", response=answer)

    def failed(self, error: ApiError) -> bytes:
        failure, broken = ResponsesFailure(error.code, error.sentence), self._items.close("incomplete")
        output = [*self._output, *([broken] if broken is not None else [])]
        answer = structs.replace(self._answer, status="failed", output=output, error=failure)
        return self._event("response.failed", response=answer)

    def _begin_item(self, part: AnswerPart) -> bytes:
        ended = self._end_item("completed")
        self._items.begin(part)
        item = self._items.item("in_progress")
        added = self._event("response.output_item.added", output_index=self._items.index, item=item)
        if isinstance(item, CallItem):
            return ended + added
        content = ReasoningText("") if isinstance(item, ReasoningItem) else OutputText("")
        return ended + added + self._of_item("response.content_part.added", content_index=0, part=content)

    def _end_item(self, status: Status) -> bytes:
        item = self._items.close(status)
        if item is None:
            return b""
        self._output.append(item)
        at = self._items.index
        ended = [self._event(name, item_id=item.id, output_index=at, **facts) for name, facts in _endings(item)]
        return b"".join([*ended, self._event("response.output_item.done", output_index=at, item=item)])

    def _of_item(self, name: str, /, **facts: Any) -> bytes:
        return self._event(name, item_id=self._items.id, output_index=self._items.index, **facts)

    def _event(self, name: str, /, **facts: Any) -> bytes:
        event = {"type": name, "sequence_number": self._num_events, **facts}
        self._num_events += 1
        return sse.event(name.encode(), _encode(event))
