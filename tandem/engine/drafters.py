"""Who guesses on this engine: the plan's drafters, opened and closed, and what their guesses cost to check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tandem.contract.plan import EnginePlan
from tandem.draft.drafting import Drafting
from tandem.draft.interface import Drafter
from tandem.draft.lookup import open_lookup
from tandem.draft.model import open_model
from tandem.draft.mtp import MtpDrafter
from tandem.draft.price import Staircase, read_prices
from tandem.model.interface import Model
from tandem.text.vocabulary import read_vocabulary


@contextmanager
def drafting_of(plan: EnginePlan, model: Model) -> Iterator[Drafting]:
    """As the plan has it. Leaving writes down what drafters have learned.

    Raises `CannotStart` for what cannot be opened.
    """
    draft = plan.draft
    if draft is None:
        yield no_drafting()
        return
    with ExitStack() as opened:
        drafters: list[Drafter[Any]] = []
        if draft.lookup is not None:
            lookup = open_lookup(draft.lookup, read_vocabulary(Path(plan.weights)))
            opened.callback(lookup.close)
            drafters.append(lookup)
        if model.mtp is not None and draft.mtp:
            drafters.append(MtpDrafter(model.mtp))
        if draft.model is not None:
            served, vocab = Path(plan.weights), model.config.vocab
            drafters.append(open_model(draft.model, served, vocab, plan.threads, plan.device))
        yield Drafting(drafters, draft.nodes, Staircase(read_prices(Path(draft.prices), facts_of(plan))))


def no_drafting() -> Drafting:
    """Every round writes one token a slot."""
    return Drafting((), nodes=0, prices=Staircase())


def facts_of(plan: EnginePlan) -> dict[str, str]:
    """What prices of passes hold for."""
    return {
        "weights": plan.weights_sha256 or plan.weights,
        "compute": plan.compute,
        "device": plan.device,
        "threads": str(plan.threads),
        "torch": str(torch.__version__),
    }
