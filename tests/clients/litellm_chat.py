"""What LiteLLM makes of the appliance at `argv[1]`, as JSON. Run by `test_clients`."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the other one is fetched

import litellm

litellm.suppress_debug_info = True  # it would stand among the JSON

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
SERVER: Any = {"model": "openai/default", "api_base": f"{sys.argv[1]}/v1", "api_key": "none", "num_retries": 0}


def ask(*messages: Any, **fields: Any) -> Any:
    return litellm.completion(messages=list(messages), **SERVER, **fields)


def calls(message: Any) -> list[Any]:
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or ()]


hello, question = ({"role": "user", "content": text} for text in ("hi", "what is the weather?"))
called = ask(question, tools=[WEATHER]).choices[0].message
pieces = list(ask(question, tools=[WEATHER], stream=True, stream_options={"include_usage": True}))
rebuilt: Any = litellm.stream_chunk_builder(pieces, messages=[question])
where: Any = {"role": "user", "content": "where?"}
results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in called.tool_calls]
form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER["function"]["parameters"]}}
told = {
    "whole": ask(hello).choices[0].message.content,
    "streamed": "".join(piece.choices[0].delta.content or "" for piece in ask(hello, stream=True)),
    "calls": calls(called),
    "streamed calls": calls(rebuilt.choices[0].message),
    "after the results": ask(question, called.model_dump(), *results, tools=[WEATHER]).choices[0].message.content,
    "structured": json.loads(
        ask({"role": "user", "content": "where?"}, response_format=form).choices[0].message.content
    ),
    "counted": rebuilt.usage.completion_tokens > 0,
}
print(json.dumps(told))
