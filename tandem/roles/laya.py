"""The `laya` backend: a model made to decide, all questions as rows of one pass. Loaded from a folder, never from the
network.

The package may rewrite `tokenizer_config.json` in that folder once, when its class is missing or odd.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from tandem.contract.messages import Answer, Question, QuestionKind, State
from tandem.contract.plan import RolePlan
from tandem.errors import CannotStart
from tandem.roles.deciding import Decision

CONFIG: Final = "rl_agent_config.json"


class Laya:
    """Belongs to one thread."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent = agent
        self._name = name

    @property
    def model(self) -> str:
        return self._name

    def decide(
        self, state: State, questions: Sequence[Question], max_len: int | None, head_max_len: int | None
    ) -> Decision:
        said = self._agent.predict(
            state, {each.id: told(each) for each in questions}, max_len=max_len, head_max_len=head_max_len
        )
        usage = said["usage"]
        return Decision(
            tuple(heard(each, said["answers"][each.id]) for each in questions),
            usage["input_tokens"],
            usage["state_tokens"],
            usage["state_tokens_dropped"],
            tuple(usage.get("truncated_questions", ())),
        )


def told(question: Question) -> dict[str, Any]:
    """A question in the package's words."""
    words: dict[str, Any] = {"type": str(question.kind), "instructions": question.instructions}
    match question.kind:
        case QuestionKind.CHOICE:
            words["criteria"] = {label: meaning or None for label, meaning in question.criteria}
        case QuestionKind.SCORE:
            words["criteria"] = [meaning for _, meaning in question.criteria]
        case QuestionKind.NOUL:
            if meanings := {label: meaning for label, meaning in question.criteria if meaning}:
                words["criteria"] = meanings
            if question.names:
                words["labels"] = dict(zip(("false", "true"), question.names, strict=True))
    return words


def heard(question: Question, said: dict[str, Any]) -> Answer:
    """The package's answer in ours."""
    if question.kind is QuestionKind.NOUL:
        probabilities = {"false": 1.0 - said["noul"], "true": said["noul"]}
    else:
        probabilities = {str(label): float(p) for label, p in said["probabilities"].items()}
    labels = [label for label, _ in question.criteria]
    act = said.get("action", {}).get("act_probability")
    return Answer(question.id, tuple((label, probabilities[label]) for label in labels), act)


def open_laya(role: RolePlan) -> Laya:
    """Raises `CannotStart` when the package or the checkpoint is not here."""
    folder = Path(role.weights)
    if not (folder / CONFIG).is_file():
        raise CannotStart(f"{folder} is no Laya checkpoint: it has no {CONFIG}", "name the folder that has one")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the package is imported
    try:
        import laya
    except ImportError as error:
        raise CannotStart("the package `laya` is not installed", "pip install 'tandem-appliance[laya]'") from error
    torch.set_num_threads(role.threads)
    agent = laya.load(str(folder), device=role.device)
    if role.device == "cuda":  # half the memory of what the package keeps, and closer to it than bfloat16
        agent.model.half()
        agent.amp_enabled, agent.dtype = False, torch.float16
    return Laya(agent, folder.name)
