"""What a decision changes in a request, and what it never does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tandem.conductor.conductor import Deciding, Decision
from tandem.conductor.status import MARK
from tandem.contract.plan import ClassPlan, Conducting, PackagePlan
from tandem.gateway.openai import ChatRequest
from tandem.gateway.shaping import last_task, plain_text, shaped, without_status

TOOL = {"type": "function", "function": {"name": "look"}}


def request(content: Any = "Fix parser.py", **fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return msgspec.convert(body, ChatRequest)


def decided(effort: str | None = None, **package: Any) -> Decision:
    conducting = Conducting(
        classes={"a": ClassPlan("p", effort)},
        default="a",
        packages={"p": PackagePlan(**package)},
        efforts={"none": 0, "low": 500},
    )
    return Deciding(conducting).decide()


def test_a_package_fills_in_what_the_client_left_open() -> None:
    decision = decided(sampling={"temperature": 0.1, "top_k": 5}, effort="low", tools="none")
    found = shaped(request(tools=[TOOL]), decision, {})
    assert (found.temperature, found.top_k, found.thinking_limit, found.tool_choice) == (0.1, 5, 500, "none")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"temperature": 1.0}, ("temperature", 1.0)),
        ({"top_k": 0}, ("top_k", 0)),
        ({"reasoning_effort": "high"}, ("thinking_limit", 16_384)),
        ({"max_reasoning_tokens": 7}, ("thinking_limit", 7)),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ("thinking_limit", None)),
        ({"tools": [TOOL], "tool_choice": "auto"}, ("tool_choice", "auto")),
        ({}, ("tool_choice", None)),  # no tools are offered
    ],
)
def test_a_client_s_own_word_stands(said: dict[str, Any], kept: tuple[str, Any]) -> None:
    decision = decided(sampling={"temperature": 0.1, "top_k": 5}, effort="none", tools="required")
    name, value = kept
    assert getattr(shaped(request(**said), decision, {}), name) == value


def test_a_note_stands_behind_its_message_whatever_the_message_is_made_of() -> None:
    parts = [{"type": "text", "text": "Fix"}, {"type": "text", "text": "parser.py"}]
    assert plain_text(shaped(request(), None, {0: "Be exact."}).messages[0]) == "Fix parser.py\n\nBe exact."
    assert plain_text(shaped(request(parts), None, {0: "Be exact."}).messages[0]) == "Fix\nparser.py\n\nBe exact."


def test_nothing_to_do_is_the_same_request() -> None:
    plain = request()
    assert shaped(plain, decided(), {}) is plain and without_status(plain) is plain


def test_the_task_is_the_user_s_last_word_and_only_answers_lose_our_lines() -> None:
    messages = [
        {"role": "user", "content": f"{MARK}mine"},
        {"role": "assistant", "content": f"{MARK}Answering\nHello"},
        {"role": "user", "content": "Go on"},
        {"role": "assistant", "content": None},
    ]
    found = without_status(msgspec.convert({"messages": messages}, ChatRequest))
    assert [plain_text(message) for message in found.messages] == [f"{MARK}mine", "Hello", "Go on", ""]
    assert last_task(found) == "Go on"
