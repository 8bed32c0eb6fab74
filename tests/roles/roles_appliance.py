"""A plan with one role, as small as a role's process needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "gateway"))  # for `gateway_appliance`

import msgspec
from gateway_appliance import make_plan

from tandem.contract.plan import Basis, Plan, Program, RolePlan


def make_role_plan(run: Path, device: str = "cpu", weights: str = "nowhere", **role: Any) -> Plan:
    fields = {"name": "decider-0", "kind": "decider", "backend": "lm-score"} | role
    plan = make_plan(run, Path(weights))
    name = fields["name"]
    planned = RolePlan(**fields, model="m", device=device, claim=1 << 30, basis=Basis.MEASURED, weights=weights)
    program = Program(name, fields["kind"], (), (), str(run / f"{name}.sock"), 60.0, 2.0, "f")
    engine = msgspec.structs.replace(plan.engine, device=device)
    return msgspec.structs.replace(plan, engine=engine, roles=(planned,), programs=(*plan.programs, program))
