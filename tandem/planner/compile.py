"""Documents and a box become the plan. `compile_plan` is the whole path, in order."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Final

import msgspec

from tandem.config import Documents
from tandem.config.paths import under
from tandem.config.settings import find_overridden
from tandem.contract.keys import key_file_warnings
from tandem.contract.plan import (
    Api,
    Basis,
    Box,
    EnginePlan,
    Floors,
    GatewayPlan,
    Hysteresis,
    KeySource,
    Limits,
    Live,
    MemoryItem,
    Paths,
    Placement,
    Plan,
    Program,
    RolePlan,
    Routing,
)
from tandem.planner.caching import plan_caches
from tandem.planner.checks import check_fit, check_served, not_yet
from tandem.planner.conducting import plan_conducting
from tandem.planner.drafting import plan_drafting
from tandem.planner.roles import place_roles, plan_roles
from tandem.planner.serving import Serving, chosen, resolve, sampling
from tandem.planner.waterfall import BESIDE, EngineMemory

_SOCKET_PATH: Final = 107  # bytes the kernel takes for a unix socket's name
_LONGEST_SOCKET: Final = len("/supervisord.sock.4194304")  # supervisord binds under a name with its pid, then links
_LOAD_RATE: Final = 100 << 20  # bytes a second a cold, slow disk still reads
ROLE_GRACE: Final = 2.0  # seconds from TERM to KILL: a role keeps nothing, and its memory is wanted now

Variables = dict[str, str]


def compile_plan(
    documents: Documents,
    box: Box,
    *,
    python: str = sys.executable,
    uid: int = os.getuid(),
    held: int = 0,
) -> Plan:
    """The plan of `documents` on `box`.

    `held` are the bytes our own running processes hold on that box now: they would be given back for the new plan,
    so they count as available. Raises `DoesNotFit` with the arithmetic.
    """
    serving = resolve(documents, box)
    check_served(documents, box, serving)
    live = plan_live(documents)
    memory = check_fit(documents, box, serving, live.floors.floor, held)
    roles = plan_roles(documents, serving)
    placements = place_roles(roles, box.memory_available + held, memory, live.floors)
    paths = plan_paths(documents.state, uid)
    engine = plan_engine(documents, serving, memory)
    gateway = plan_gateway(documents, serving, paths)
    weights = documents.profile.weights.in_memory[serving.compute]
    plan = Plan(
        id="",
        appliance=str(documents.path),
        documents=tuple(str(file) for file in documents.files),
        paths=paths,
        box=box,
        live=live,
        engine=engine,
        gateway=gateway,
        roles=roles,
        programs=plan_programs(
            python, str(documents.path), paths, engine, gateway, roles, live.limits, loading_seconds(weights.size)
        ),
        memory=waterfall(box, held, memory, roles, placements, live.floors),
        placements=placements,
        warnings=tuple(plan_warnings(documents, serving, roles)),
        key_warnings=key_file_warnings(live.keys),
        overridden=find_overridden(documents.layers),
    )
    return msgspec.structs.replace(plan, id=plan_id(plan))


def plan_live(documents: Documents) -> Live:
    appliance, residency = documents.appliance, documents.residency
    limits, keys, deciders = appliance.limits, appliance.keys, appliance.roles.deciders
    file = None if keys.file is None else str(under(documents.path.parent, keys.file).absolute())
    return Live(
        limits=Limits(**{name: getattr(limits, name) for name in Limits.__struct_fields__}),
        floors=Floors(
            floor=chosen(appliance.memory.floor, residency.floor),
            hard_floor=chosen(appliance.memory.hard_floor, residency.hard_floor),
            margin=residency.margin,
        ),
        hysteresis=Hysteresis(
            reload_margin=residency.reload.margin,
            reload_after=residency.reload.after,
            thrash=residency.reload.thrash,
            max_hold=residency.reload.max_hold,
            unload_deciders=deciders is not None and deciders.may_unload,
        ),
        keys=KeySource(file, keys.variable, keys.admin, keys.metrics_only),
        sampling=sampling(appliance.sampling, documents.profile.sampling),
        conductor=appliance.conductor.enabled,
        ledger_days=max(1, round(appliance.ledger.retention / 86400)),
        routing=Routing(**{name: getattr(appliance.routing, name) for name in Routing.__struct_fields__}),
        conducting=plan_conducting(appliance.conductor),
        api=Api(**{name: getattr(appliance.api, name) for name in Api.__struct_fields__}),
    )


def plan_paths(state: Path, uid: int) -> Paths:
    """Where things lie. The kernel wants short names of sockets, and supervisord splits what it includes at spaces
    and reads it as a pattern: a deep or oddly named `state` has its run directory in /tmp."""
    run = state / "run"
    if len(os.fsencode(run)) + _LONGEST_SOCKET > _SOCKET_PATH or re.search(r"[\s*?[]", str(run)):
        run = Path(f"/tmp/tandem-{uid}-{hashlib.sha256(os.fsencode(state)).hexdigest()[:10]}")
    return Paths(state=str(state), run=str(run), logs=str(state / "logs"))


def plan_engine(documents: Documents, serving: Serving, memory: EngineMemory) -> EnginePlan:
    profile = documents.profile
    return EnginePlan(
        backend=documents.appliance.engine.backend,
        family=profile.family,
        weights=str(documents.weights.path),
        weights_sha256=profile.weights.sha256,
        compute=serving.compute,
        device=serving.device,
        threads=serving.threads,
        chunk=serving.chunk,
        slots=serving.slots,
        bytes_a_token=serving.bytes_a_token,
        workspace=profile.workspace.size,
        kv_pool=serving.kv_pool,
        kv_margin_rows=serving.margin_rows,
        graphs=serving.graphs,
        declared_peak=memory.peak,
        draft=plan_drafting(documents, serving.compute),
        end_loops=chosen(documents.appliance.engine.end_loops, profile.serving.end_loops),
        caches=plan_caches(documents, memory.caches, serving.count),
    )


def plan_gateway(documents: Documents, serving: Serving, paths: Paths) -> GatewayPlan:
    listen, profile = documents.appliance.listen, documents.profile
    return GatewayPlan(
        host=listen.host,
        port=listen.port,
        model=profile.model,
        aliases=profile.aliases,
        weights=str(documents.weights.path),
        window=serving.window,
        side_window=serving.side_window if serving.count > 1 else serving.window,
        ledger=str(Path(paths.state, "ledger.sqlite")),
        cors_origins=listen.cors_origins,
        allowed_hosts=listen.allowed_hosts,
        calls=profile.calls,
    )


def plan_programs(
    python: str,
    appliance: str,
    paths: Paths,
    engine: EnginePlan,
    gateway: GatewayPlan,
    roles: tuple[RolePlan, ...],
    limits: Limits,
    loading: float,
) -> tuple[Program, ...]:
    """The processes in start order: the director starts the others, gateway and engine together, so that the one
    answers while the other loads; roles come when both are ready."""

    def program(
        name: str, reads: object, start: float, stop: float, environment: Variables, role: str | None = None
    ) -> Program:
        command = (python, "-m", "tandem", *(("role", name) if role else (name,)), "--run", paths.run)
        variables = (("PYTHONUNBUFFERED", "1"), *environment.items())
        return Program(
            name=name,
            kind=role or name,
            command=command,
            environment=variables,
            socket=None if name == "director" else f"{paths.run}/{name}.sock",
            start_timeout=start,
            stop_timeout=stop,
            fingerprint=short_hash((command, variables, paths, reads)),
        )

    # Read when torch is imported. A waiting thread spins for some microseconds, which spans the gap between two
    # products (without it a step took 1.5 times as long), and then sleeps: one that spins on takes the core from
    # whoever it waits for as soon as anything else runs, and a step took ten times as long.
    def threads(count: int) -> Variables:
        return {"OMP_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}

    tokenizers = {"TOKENIZERS_PARALLELISM": "false"}
    helpers = (
        program(role.name, role, loading_seconds(role.claim), ROLE_GRACE, threads(role.threads) | tokenizers, role.kind)
        for role in roles
    )
    return (
        program("director", appliance, 30, limits.drain_timeout + 30, {}),
        program("gateway", gateway, 30, limits.drain_timeout + 5, tokenizers),
        program("engine", engine, loading, limits.drain_timeout + 10, threads(engine.threads)),
        *helpers,
    )


def loading_seconds(size: int) -> float:
    """From spawn to ready that are still no failure: imports, then `size` bytes from a slow disk."""
    return 60 + size / _LOAD_RATE


def waterfall(
    box: Box,
    held: int,
    memory: EngineMemory,
    roles: tuple[RolePlan, ...],
    placements: tuple[Placement, ...],
    floors: Floors,
) -> tuple[MemoryItem, ...]:
    """From the box's total down: what each part takes. What is left after the last line is nobody's yet."""
    elsewhere = box.memory_total - box.memory_available - held
    basis = Basis.CONFIGURED if box.declared else Basis.MEASURED
    admitted = {placement.role for placement in placements if placement.admitted}
    return (
        MemoryItem("kernel and other programs", elsewhere, basis, "total less MemAvailable"),
        BESIDE,
        *memory.items,
        *(MemoryItem(role.name, role.claim, role.basis, "claim") for role in roles if role.name in admitted),
        MemoryItem("floor", floors.floor, Basis.CONFIGURED, "MemAvailable is never planned below it"),
    )


def plan_warnings(documents: Documents, serving: Serving, roles: tuple[RolePlan, ...]) -> list[str]:
    warnings = [f"planned, but not served: {problem.message} yet" for problem in not_yet(documents, serving)]
    if not warnings and not documents.weights.present:
        fetch = ": run `tandem pull`" if documents.weights.fetchable else f": put them at {documents.weights.path}"
        warnings.append(f"the weights are not here yet{fetch}")
    warnings += (
        f"the model of {role.name} is not at {role.weights}: it cannot start"
        for role in roles
        if not Path(role.weights).exists()
    )
    return [*warnings, *documents.cautions]


def foresee(documents: Documents, box: Box) -> tuple[str, ...]:
    """What a plan of `documents` warns of, also when it does not fit `box`."""
    serving = resolve(documents, box)
    warnings = plan_warnings(documents, serving, plan_roles(documents, serving))
    return (*warnings, *key_file_warnings(plan_live(documents).keys))


def plan_id(plan: Plan) -> str:
    """The same documents on the same kind of box make the same id: what the memory happens to be now is left out."""
    return short_hash((plan.appliance, plan.paths, plan.live, plan.engine, plan.gateway, plan.roles, plan.programs))


def short_hash(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:12]
