"""What LangChain's ChatOpenAI makes of the appliance at `argv[1]`, as JSON. Run by `test_clients`."""

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

WEATHER: Any = {
    "title": "weather",
    "description": "The weather of a city",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}

model = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", model="default", max_retries=0)
bound = model.bind_tools([WEATHER])
question = HumanMessage("what is the weather?")
called = bound.invoke([question])
whole: Any = None
for piece in bound.stream([question]):
    whole = piece if whole is None else whole + piece
results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in called.tool_calls]
told = {
    "whole": model.invoke("hi").content,
    "streamed": "".join(piece.content for piece in model.stream("hi")),
    "calls": [[call["name"], call["args"]] for call in called.tool_calls],
    "streamed calls": [[call["name"], call["args"]] for call in whole.tool_calls],
    "after the results": bound.invoke([question, called, *results]).content,
    "structured": model.with_structured_output(WEATHER, method="json_schema").invoke("where?"),
    "counted": called.usage_metadata["output_tokens"] > 0,
}
print(json.dumps(told))
