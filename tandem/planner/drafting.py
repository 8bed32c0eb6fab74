"""Who guesses what comes next: the appliance's word, else the profile's, else the neutral value."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from tandem.config import Documents
from tandem.config.documents import Draft, DraftModel, Lookup
from tandem.config.paths import under
from tandem.contract.plan import Basis, DraftModelPlan, DraftPlan, LookupPlan, MemoryItem
from tandem.units import MIB

T = TypeVar("T")

_NODES = 15
_STORE = 64 * MIB


def plan_drafting(documents: Documents, compute: str) -> DraftPlan | None:
    """None where every round writes one token a slot. `compute` is the engine's."""
    draft = _resolved(documents)
    if draft.enabled is False:
        return None
    folder = documents.state / "draft"
    return DraftPlan(
        nodes=_first(draft.nodes, _NODES),
        lookup=_plan_lookup(draft.lookup, folder, documents.path.parent),
        mtp=_first(draft.mtp, True),
        model=_plan_model(documents, draft.model, compute),
        prices=str(folder / f"prices-{documents.profile_name}.json"),
    )


def drafting_memory(documents: Documents) -> tuple[MemoryItem, ...]:
    """What guessing takes beside the engine's own parts."""
    draft = _resolved(documents)
    if draft.enabled is False:
        return ()
    items = []
    if draft.lookup.enabled is not False and draft.lookup.scope != "request":
        size = _first(draft.lookup.size, _STORE)
        items.append(MemoryItem("lookup store", size, Basis.CONFIGURED, "token ids and their index, when it is full"))
    if draft.model.enabled is not False and draft.model.weights is not None:
        size = _first(draft.model.in_memory, 0)
        items.append(MemoryItem("draft model", size, Basis.CONFIGURED, "draft.model.in_memory"))
    return tuple(items)


def _plan_lookup(lookup: Lookup, folder: Path, base: Path) -> LookupPlan | None:
    if lookup.enabled is False:
        return None
    return LookupPlan(
        scope=_first(lookup.scope, "outputs"),
        readonly=_first(lookup.readonly, False),
        size=_first(lookup.size, _STORE),
        path=str(folder / "lookup"),
        corpus=None if lookup.corpus is None else str(under(base, lookup.corpus).absolute()),
    )


def _plan_model(documents: Documents, model: DraftModel, compute: str) -> DraftModelPlan | None:
    if model.enabled is False or documents.draft_weights is None:
        return None
    return DraftModelPlan(str(documents.draft_weights), _first(model.compute, compute))


def _resolved(documents: Documents) -> Draft:
    return documents.appliance.draft.over(documents.profile.draft)


def _first(said: T | None, neutral: T) -> T:
    return neutral if said is None else said
