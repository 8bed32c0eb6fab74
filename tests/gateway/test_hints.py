from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from tandem.config.documents import TASKS
from tandem.contract.plan import Api
from tandem.gateway.auth import Caller
from tandem.gateway.hints import hints_of
from tandem.gateway.openai import ChatRequest

ANNA, BEN = Caller("anna", "a1"), Caller("ben", "b2")
API = Api(tasks=TASKS)


def openings(*turns: tuple[str, Any]) -> tuple[str, ...]:
    messages = [{"role": role, "content": content} for role, content in turns]
    return convert({"messages": messages}, ChatRequest).openings


SYSTEM = ("system", "You are a helpful assistant.")
OPENCODE = (
    ("system", "You are a title generator. You output ONLY a thread title."),
    ("user", "Generate a title for this conversation:\n"),
    ("user", "how do I sort a list?"),
)
OPEN_WEBUI = [
    "### Task:\nGenerate a concise title summarizing the chat history.\n### Guidelines:",
    "### Task:\nPredict 3-5 useful messages this user might naturally send next to advance their current objective.",
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Guidelines:",
    "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history",
    "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next",
    "### Task:\nAnalyze the chat history to determine the necessity of generating search queries, in the given",
    "### Task:\nYou are an autocompletion system. Continue the text in `<text>` based on the completion type",
    "### Task:\nGenerate a detailed prompt for am image generation task based on the given language and context.",
]
CHATS = [
    (SYSTEM, ("user", "### Task:\nWrite a poem about the sea")),
    (SYSTEM, ("user", "Please generate a title for this conversation: we met at noon")),
    (SYSTEM, ("user", "Generate 1-3 broad tags for my blog")),
    (("user", OPEN_WEBUI[0]), ("assistant", "Sea 🌊"), ("user", "why that one?")),
    (SYSTEM, ("user", [{"type": "text", "text": "what is a title generator?"}])),
    (("user", None),),
]


def test_tasks_of_open_webui_and_opencode_are_known_by_how_they_begin() -> None:
    assert hints_of({}, openings(*OPENCODE), ANNA, API).is_task
    for text in OPEN_WEBUI:
        assert hints_of({}, openings(("user", text)), ANNA, API).is_task, text
        assert hints_of({}, openings(SYSTEM, ("user", [{"type": "text", "text": text}])), ANNA, API).is_task


@pytest.mark.parametrize("turns", CHATS)
def test_a_chat_is_never_taken_for_a_task(turns: Any) -> None:
    """BR-055."""
    assert not hints_of({}, openings(*turns), ANNA, API).is_task


@pytest.mark.parametrize(("said", "is_task"), [(b"title", True), (b"1", True), (b"false", False), (b"", False)])
def test_the_header_goes_before_the_shape(said: bytes, is_task: bool) -> None:
    for turns in (OPENCODE, (SYSTEM, ("user", "hi"))):
        assert hints_of({b"x-task": said}, openings(*turns), ANNA, API).is_task is is_task


def test_which_shapes_there_are_is_the_appliance_s_word() -> None:
    assert hints_of({}, openings(("user", "TITLE: x")), ANNA, Api(tasks=("TITLE:",))).is_task
    assert not hints_of({}, openings(*OPENCODE), ANNA, Api()).is_task


def test_a_conversation_is_named_by_a_hash_of_its_key_and_its_header() -> None:
    def named(headers: dict[bytes, bytes], caller: Caller = ANNA) -> str:
        return hints_of(headers, (), caller, API).conversation

    one = named({b"x-session-id": b"ses_secret"})
    assert one == named({b"x-session-id": b"ses_secret"}) == named({b"x-openwebui-chat-id": b"ses_secret"})
    assert len({one, named({b"x-session-id": b"other"}), named({b"x-session-id": b"ses_secret"}, BEN)}) == 3
    assert one and "secret" not in one
    assert named({}) == named({b"x-session-id": b""}) == ""


def test_rows_are_shared_within_a_key_or_the_whole_appliance() -> None:
    assert [hints_of({}, (), who, API).scope for who in (ANNA, BEN)] == ["a1", "b2"]
    assert [hints_of({}, (), who, Api(cache_scope="appliance")).scope for who in (ANNA, BEN)] == ["", ""]
