"""How models write calls of tools: each family was trained with marks of its own.

Beside its own form every model may answer with the bare JSON of calls, `{"name": ..., "arguments": {...}}` or a list
of such objects, from the first character on: that is how a forced call is written (`callgrammar`), and what a model
without a form of its own is told to write.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

from msgspec import Struct

_LETTERS: Final = string.ascii_letters + string.digits
_MISTRAL_ID: Final = 9  # its templates refuse ids of any other length


class CallFormat(Struct, frozen=True):
    name: str  # as a profile says it
    openings: tuple[str, ...] = ()  # marks that begin a call, in the model's text
    closing: str = ""  # ends what an opening began; may be missing
    others: tuple[str, ...] = ()  # inside a call
    short_ids: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of tokens that show nothing otherwise, and that are read here."""
        return (*self.openings, *((self.closing,) if self.closing else ()), *self.others)

    def new_id(self) -> str:
        if self.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(_MISTRAL_ID))
        return f"call_{secrets.token_hex(12)}"

    def takes_id(self, id: str) -> bool:
        """Whether templates of this family take such an id back."""
        return not self.short_ids or (len(id) == _MISTRAL_ID and id.isascii() and id.isalnum())


JSON: Final = CallFormat("json")
HERMES: Final = CallFormat("hermes", ("<tool_call>",), "</tool_call>")
QWEN_XML: Final = CallFormat("qwen-xml", ("<tool_call>", "<function="), "</tool_call>")
LLAMA: Final = CallFormat("llama", ("<|python_tag|>", "<function="))
MISTRAL: Final = CallFormat("mistral", ("[TOOL_CALLS]",), others=("[ARGS]", "[CALL_ID]"), short_ids=True)
FORMATS: Final = {each.name: each for each in (JSON, HERMES, QWEN_XML, LLAMA, MISTRAL)}


def find_format(template: str) -> CallFormat:
    """The form that a chat template renders calls in; bare JSON where it speaks of none."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return QWEN_XML if "<function=" in template else HERMES
    if "<|python_tag|>" in template or "<|start_header_id|>" in template:
        return LLAMA
    return JSON
