"""What the `llm` command's library makes of the appliance at `argv[1]`, as JSON. Run by `test_clients` with a folder of
its own in LLM_USER_PATH."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import llm

Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(
    f"- {{model_id: tandem, model_name: default, api_base: '{sys.argv[1]}/v1', supports_tools: true,"
    " supports_schema: true}\n"
)

seen: list[Any] = []


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    seen.append(["weather", {"city": city, "days": days}])
    return "sunny"


def ask(question: str, **fields: Any) -> Any:
    return model.prompt(question, key="none", **fields)


model = llm.get_model("tandem")
schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
after = model.chain("what is the weather?", tools=[weather], key="none").text()
called, seen = seen, []
model.chain("what is the weather?", tools=[weather], key="none", stream=False).text()
told = {
    "whole": ask("hi", stream=False).text(),
    "streamed": "".join(ask("hi")),
    "calls": seen,
    "streamed calls": called,
    "after the results": after.removeprefix("Let me see.").strip(),
    "structured": json.loads(ask("where?", schema=schema, stream=False).text()),
    "counted": (response := ask("hi", stream=False)).text() != "" and response.usage().output > 0,
}
print(json.dumps(told))
