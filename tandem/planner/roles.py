"""The roles the appliance declares, in the order they ask for memory, and residency's answer to each."""

from __future__ import annotations

from tandem.config import Documents
from tandem.config.documents import Deciders, Figure, Helper, ShadowReader
from tandem.config.weights import locate_model
from tandem.contract.plan import Basis, Floors, Placement, RolePlan
from tandem.planner.serving import Serving, chosen
from tandem.planner.waterfall import BESIDE, EngineMemory
from tandem.residency.placement import may_load


def plan_roles(documents: Documents, serving: Serving) -> tuple[RolePlan, ...]:
    """One of every kind before the second of any: a second decider only saves time, a narrator is a function.

    The shadow reader is last of all: it answers nobody.
    """
    declared, claims = documents.appliance.roles, documents.residency.claims
    threads = max(1, serving.threads // 2)  # beside the engine, which has all of them

    def role(name: str, kind: str, said: Deciders | Helper, claim: Figure | None) -> RolePlan:
        size = said.claim if said.claim is not None else claim.size if claim is not None else 0
        basis = Basis.CONFIGURED if said.claim is not None or claim is None else claim.basis
        backend = said.backend if isinstance(said, Deciders | ShadowReader) else "lm"
        device = chosen(said.device, serving.device)
        weights = str(locate_model(said.model, documents.path.parent, documents.state).absolute())
        return RolePlan(name, kind, backend, said.model, device, size, basis, weights, threads)

    roles = []
    deciders = declared.deciders
    if deciders is not None:
        roles.append(role("decider-0", "decider", deciders, claims.decider))
    if declared.narrator is not None:
        roles.append(role("narrator", "narrator", declared.narrator, claims.narrator))
    if deciders is not None:
        roles += [role(f"decider-{n}", "decider", deciders, claims.decider) for n in range(1, deciders.count)]
    if declared.shadow_reader is not None:
        roles.append(role("shadow-reader", "shadow-reader", declared.shadow_reader, claims.shadow_reader))
    return tuple(roles)


def place_roles(
    roles: tuple[RolePlan, ...], available: int, memory: EngineMemory, floors: Floors
) -> tuple[Placement, ...]:
    """Residency's answers as they will be given: the engine is loaded, then one role after the other asks."""
    left = available - BESIDE.bytes - memory.loaded
    placements = []
    for role in roles:
        placement = may_load(
            role.name,
            available=left,
            engine_now=memory.loaded,
            declared_peak=memory.peak,
            claim=role.claim,
            floor=floors.floor,
            margin=floors.margin,
        )
        placements.append(placement)
        left -= role.claim if placement.admitted else 0
    return tuple(placements)
