"""What each door sends, byte for byte, for every kind of answer.

`transcripts/API_CASE.txt` holds a stream, then the whole answer. `GOLDEN=write pytest ...` writes them anew; read them
before you keep them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.contract.messages import FinishReason
from tandem.gateway.answers import Timings
from tandem.gateway.anthropic import Messages
from tandem.gateway.anthropic_request import MessagesRequest, MessagesTurn
from tandem.gateway.chat import Chat
from tandem.gateway.conversation import Message
from tandem.gateway.dialect import Ending, Gathered, Identity, make_usage
from tandem.gateway.errors import ApiError
from tandem.gateway.ollama import OllamaChat, OllamaGenerate
from tandem.gateway.ollama_request import OllamaChatRequest, OllamaGenerateRequest
from tandem.gateway.openai import ChatRequest, StreamOptions
from tandem.gateway.responses import Responses
from tandem.gateway.responses_request import ResponsesRequest
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought

GOLDEN = Path(__file__).parent / "transcripts"
ERROR = ApiError(503, "engine_restarted", "the engine stopped while it worked on this request", source="engine")
TEXT = [Text("Hel"), Text("lo, 🙂\n")]
THOUGHT = [Thought("I gr"), Thought("eet.")]
FIRST = [CallBegun(0, "call_a", "weather"), CallArguments(0, '{"city":'), CallArguments(0, '"Zürich"}')]
SECOND = [CallBegun(1, "call_b", "time"), CallArguments(1, "{}")]
ANSWERS: dict[str, tuple[list[AnswerPart], FinishReason, str | None]] = {
    "text": (TEXT, FinishReason.STOP, None),
    "stop_string": (TEXT, FinishReason.STOP, "<end>"),
    "thinking": ([*THOUGHT, *TEXT], FinishReason.STOP, None),
    "one_call": ([*THOUGHT, *TEXT, *FIRST], FinishReason.STOP, None),
    "two_calls": ([*FIRST, *SECOND], FinishReason.STOP, None),
    "cut": (TEXT[:1], FinishReason.LENGTH, None),
    "cut_call": ([*TEXT, *FIRST[:2]], FinishReason.LENGTH, None),
    "nothing": ([], FinishReason.STOP, None),
}
CHAT = ChatRequest(messages=[Message("user", "hi")], stream_options=StreamOptions(include_usage=True))
DOORS: dict[str, tuple[Any, Any]] = {
    "chat": (Chat, CHAT),
    "chat_both": (lambda: Chat("both"), ChatRequest(messages=CHAT.messages)),
    "chat_tags": (lambda: Chat("tags"), ChatRequest(messages=CHAT.messages)),
    "messages": (Messages, MessagesRequest(messages=[MessagesTurn("user", "hi")])),
    "responses": (Responses, ResponsesRequest(input="hi", instructions="Be kind.")),
    "ollama_chat": (lambda: OllamaChat("m"), OllamaChatRequest()),
    "ollama_generate": (lambda: OllamaGenerate("m"), OllamaGenerateRequest()),
}


def ending_of(parts: list[AnswerPart], reason: FinishReason, stop: str | None) -> Ending:
    timings = Timings(3, 7, 20.0, 350.0, 5, 50.0, 100.0, 1.5, 0, 0)
    return Ending(reason, any(isinstance(part, CallBegun) for part in parts), stop, timings, None)


def stream(door: str, case: str) -> bytes:
    make, wanted = DOORS[door]
    dialect = make()
    chunks = dialect.chunks(wanted, Identity(f"{dialect.prefix}0123", 1_700_000_000, "m"), None)
    sent = [chunks.open(), chunks.said("two requests are before this one"), chunks.status("waits", False)]
    sent.append(chunks.begin(0, make_usage(10, 3, 0, 0)))
    parts, reason, stop = ANSWERS["text" if case == "error" else case]
    sent += [chunks.piece(0, part, ()) for part in parts[: len(parts) // 2]]
    sent.append(chunks.said("reading"))
    sent += [chunks.piece(0, part, ()) for part in parts[len(parts) // 2 :]]
    if case == "error":
        sent.append(chunks.failed(ERROR))
    else:
        sent += [chunks.end(0, ending_of(parts, reason, stop)), chunks.close(make_usage(10, 3, 5, 2))]
    return b"".join(sent)


def whole(door: str, case: str) -> bytes:
    make, wanted = DOORS[door]
    dialect = make()
    if case == "error":
        error: bytes = dialect.error(ERROR)
        return error
    parts, reason, stop = ANSWERS[case]
    gathered = Gathered()
    for part in parts:
        gathered.add(part)
    written = [gathered.whole(0, ending_of(parts, reason, stop))]
    identity = Identity(f"{dialect.prefix}0123", 1_700_000_000, "m")
    answer: bytes = dialect.whole(wanted, identity, written, make_usage(10, 3, 5, 2), None)
    return answer


@pytest.mark.parametrize("case", [*ANSWERS, "error"])
@pytest.mark.parametrize("door", DOORS)
def test_a_door_sends(door: str, case: str) -> None:
    said = stream(door, case) + b"---\n" + msgspec.json.format(whole(door, case), indent=1) + b"\n"
    golden = GOLDEN / f"{door}_{case}.txt"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        golden.write_bytes(said)
    assert said.decode() == golden.read_text()
