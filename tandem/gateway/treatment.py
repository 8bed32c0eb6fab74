"""Every field that a chat or completion request may hold, and what becomes of it. The table in docs/api.md is this."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from tandem.gateway.errors import ApiError


class Treatment(StrEnum):
    HONOURED = "honoured"
    ACCEPTED = "accepted without effect"
    REFUSED = "refused by name"


class Field(Struct, frozen=True):
    treatment: Treatment
    about: str
    harmless: tuple[Any, ...] = ()  # values that ask for nothing, where the field is refused otherwise


def _honoured(about: str) -> Field:
    return Field(Treatment.HONOURED, about)


def _accepted(about: str) -> Field:
    return Field(Treatment.ACCEPTED, about)


def _refused(about: str, *harmless: Any) -> Field:
    return Field(Treatment.REFUSED, about, (None, *harmless))


FIELDS: Final[dict[str, Field]] = {
    "messages": _honoured("any order of roles; contents as a string, null or parts of text"),
    "prompt": _honoured("a text, several, a list of token ids, or several"),
    "model": _honoured("the model's name or an alias of it; left out: the one there is"),
    "stream": _honoured("events as the answer is written"),
    "stream_options": _honoured("`include_usage`: one further event with the counts"),
    "n": _honoured("1 to 16 answers, side by side"),
    "max_tokens": _honoured("of the answer, thinking included; cut to the room there is; -1: all of it"),
    "max_completion_tokens": _honoured("the same, and goes before `max_tokens`"),
    "stop": _honoured("up to 16 strings; the answer ends before the first that comes"),
    "seed": _honoured("the same seed, the same answer"),
    "temperature": _honoured("0 to 5; 0 takes the likeliest token"),
    "top_p": _honoured("0 to 1"),
    "top_k": _honoured("0 or -1: all"),
    "min_p": _honoured("0 to 1"),
    "repetition_penalty": _honoured("above 0, up to 10"),
    "presence_penalty": _honoured("-2 to 2"),
    "frequency_penalty": _honoured("-2 to 2"),
    "logit_bias": _honoured("token ids of this model, each with -100 to 100"),
    "logprobs": _honoured("in chats true or false, in completions 0 to 20"),
    "top_logprobs": _honoured("0 to 20, with `logprobs: true`"),
    "response_format": _honoured("`text`, `json_object`, `json_schema`"),
    "structured_outputs": _honoured("`json`, `json_object`, `regex`, `choice` or `grammar`"),
    "guided_json": _honoured("a JSON schema"),
    "guided_regex": _honoured("a regular expression"),
    "guided_choice": _honoured("one of these texts"),
    "guided_grammar": _honoured("a grammar"),
    "json_schema": _honoured("a JSON schema"),
    "grammar": _honoured("a grammar"),
    "end_loops": _honoured("an answer that repeats itself without end is ended"),
    "tools": _honoured("those of the type `function`; others are left out, and `X-Tandem-Ignored` names their places"),
    "tool_choice": _honoured("`none`, `auto`, `required`, or one by its name"),
    "parallel_tool_calls": _honoured("false: one call an answer"),
    "max_reasoning_tokens": _honoured("tokens of thinking; goes before `reasoning_effort`"),
    "reasoning_effort": _honoured("the same by a word"),
    "reasoning_format": _honoured("`deepseek`: thinking in a field of its own; `none`: in the text, with its tags"),
    "include_reasoning": _honoured("false: thinking is not sent"),
    "chat_template_kwargs": _honoured("further words for the model's template; `enable_thinking` among them"),
    "cache_prompt": _honoured("false: every token is read, whatever was kept; it changes no answer"),
    "user": _accepted("nothing is kept by user"),
    "metadata": _accepted("nothing is kept"),
    "store": _accepted("nothing is kept"),
    "safety_identifier": _accepted("nothing is kept by user"),
    "prompt_cache_key": _accepted("prompts are found again by their tokens"),
    "prompt_cache_retention": _honoured("`24h`: memory keeps the conversation for a day, as far as there is room"),
    "service_tier": _accepted("there is one"),
    "prediction": _accepted("guesses are the appliance's, and change no answer"),
    "verbosity": _accepted("the model has no such word"),
    "functions": _refused("`tools` are served", []),
    "function_call": _refused("`tool_choice` is served", "none", "auto"),
    "modalities": _refused("the model writes text", ["text"]),
    "audio": _refused("the model writes text"),
    "web_search_options": _refused("nothing is looked up"),
    "suffix": _refused("the model continues, it does not fill in", ""),
    "echo": _refused("the prompt is not repeated", False),
    "best_of": _refused("`n` answers are all told", 1),
}


def refuse_unhonoured(request: Struct) -> None:
    """Raises `ApiError` 400 for a known field that asks for what is not done here."""
    for name in request.__struct_fields__:
        field = FIELDS[name]
        if field.treatment is Treatment.REFUSED and getattr(request, name) not in field.harmless:
            raise ApiError(400, "unsupported_value", f"`{name}` is not served here: {field.about}", param=name)


def table(chat: type[Struct], plain: type[Struct]) -> str:
    """The table, for docs/api.md."""
    lines = ["| field | of | | |", "|---|---|---|---|"]
    for name, field in FIELDS.items():
        kinds = [word for word, kind in (("chat", chat), ("plain", plain)) if name in kind.__struct_fields__]
        lines.append(f"| `{name}` | {', '.join(kinds)} | {field.treatment} | {field.about} |")
    return "\n".join(lines) + "\n"
