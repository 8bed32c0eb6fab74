"""A model that thinks and calls tools, played by the engine double: its text is given, and how its tokens are cut."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from engine_double import Job
from gateway_appliance import Appliance

from tandem.contract.messages import FinishReason
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer

# ChatML with the marks of Hermes: thinking in `<think>`, calls as JSON in `<tool_call>`.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them in <tool_call></tool_call>.<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
ROUTE: Any = {
    "type": "function",
    "function": {
        "name": "route",
        "parameters": {
            "type": "object",
            "properties": {"from": {"$ref": "#/$defs/place"}, "to": {"$ref": "#/$defs/place"}},
            "$defs": {"place": {"type": "object", "properties": {"zip": {"type": "integer"}}}},
        },
    },
}
TOOLS = [WEATHER, CLOCK, ROUTE]


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


THINKING = "<think>\nThe user greets. 🙂 I greet back.\n</think>\n\n"
ZURICH = call("weather", city="Zürich 🏔", days=3)
NOW = call("clock")
WAY = call("route", **{"from": {"zip": 8000}, "to": {"zip": 3000}})


def as_model(tokenizer: Tokenizer) -> Tokenizer:
    """The default model's words, with the template above."""
    return Tokenizer(replace(tokenizer.vocabulary, chat_template=TEMPLATE))


def speaking(
    appliance: Appliance, text: str, width: int = 1, reason: FinishReason = FinishReason.STOP
) -> Callable[[Job], Awaitable[None]]:
    """A script: all of the text, `width` tokens at a time, however many were asked for."""
    tokens = appliance.service.prompts.tokenizer.encode_with_controls(text)
    return speaking_tokens([tokens[at : at + width] for at in range(0, len(tokens), width)], reason)


def speaking_tokens(
    pieces: Sequence[Sequence[int]], reason: FinishReason = FinishReason.STOP
) -> Callable[[Job], Awaitable[None]]:
    async def script(job: Job) -> None:
        job.start()
        for piece in pieces:
            job.tokens(*piece)
        job.finish(reason)

    return script


@dataclass
class Told:
    """One choice of a chat, as a client puts it together. Calls by their index."""

    thinking: str = ""
    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str | None = None

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(each["arguments"]) for each in self.calls.values()]

    @property
    def names(self) -> list[str]:
        return [each["name"] for each in self.calls.values()]


def put_together(chunks: Sequence[Any], index: int = 0) -> Told:
    told = Told()
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice["delta"]
        told.thinking += delta.get("reasoning_content") or ""
        told.text += delta.get("content") or ""
        told.finish = choice["finish_reason"] or told.finish
        for each in delta.get("tool_calls", ()):
            whole = told.calls.setdefault(each["index"], {"id": "", "name": "", "arguments": ""})
            whole["id"] += each.get("id", "")
            whole["name"] += each["function"].get("name", "")
            whole["arguments"] += each["function"].get("arguments", "")
    return told


def told_at_once(response: httpx.Response, index: int = 0) -> Told:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][index]
    message = choice["message"]
    calls = {n: {"id": each["id"], **each["function"]} for n, each in enumerate(message.get("tool_calls", ()))}
    return Told(message.get("reasoning_content", ""), message["content"] or "", calls, choice["finish_reason"])


def chunks_of(body: bytes) -> list[Any]:
    """Of a stream that ended as it should; errors in it are among them."""
    lines = [line for line in body.split(b"\n\n") if line and not line.startswith(b": ")]
    assert lines[-1] == b"data: [DONE]"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


async def streamed(appliance: Appliance, content: str = "hi", **fields: Any) -> list[Any]:
    response = await appliance.chat(content, stream=True, **fields)
    assert response.status_code == 200, response.text
    return chunks_of(response.content)


def text_of_prompt(appliance: Appliance, which: int = -1) -> str:
    """What the engine was asked, without its control tokens."""
    return decode(appliance.service.prompts.tokenizer, appliance.engine.requests[which].tokens)
