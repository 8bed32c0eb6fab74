"""Tensors only: a model reads rows, keeps what it must remember of each sequence in a state, and answers logits.

Nothing here knows slots, requests, sampling or text. `interface` is what the engine codes against, `load` the one
way to a model.
"""

from tandem.model.config import ModelConfig
from tandem.model.interface import Block, Model, SequenceState, Wants
from tandem.model.load import load

__all__ = ["Block", "Model", "ModelConfig", "SequenceState", "Wants", "load"]
