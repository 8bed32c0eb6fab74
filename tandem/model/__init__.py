"""Tensors only: a model reads rows, keeps what it must remember of each sequence in a state, and answers logits.

Nothing here knows slots, requests, sampling or text. `interface` is what the engine codes against, `loading` the one
way to a model. Importing the package imports no torch: headers and configurations are read without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tandem.model.config import ModelConfig
    from tandem.model.interface import Block, Model, SequenceState, Wants
    from tandem.model.loading import load

__all__ = ["Block", "Model", "ModelConfig", "SequenceState", "Wants", "load"]

_HOMES: Final = {
    "ModelConfig": "config",
    "Block": "interface",
    "Model": "interface",
    "SequenceState": "interface",
    "Wants": "interface",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
