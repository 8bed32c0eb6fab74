"""Documents and boxes for the planner's tests: the shipped documents under overrides, on a box that is written down."""

from __future__ import annotations

from pathlib import Path

from tandem.config import Documents, load
from tandem.contract.plan import Box, Plan
from tandem.planner.compile import compile_plan
from tandem.units import GIB

ROOT = Path(__file__).resolve().parents[2]
APPLIANCE = ROOT / "appliance.yaml"
EXAMPLE = ROOT / "docs" / "examples" / "spark-with-roles.yaml"
LAPTOP = Box("laptop", 16 * GIB, 10 * GIB, 8, declared=False)
SPARK = ("profile=qwen3.8-27b", "residency=dgx-spark")


def documents(*flags: str, appliance: Path = APPLIANCE) -> Documents:
    return load(appliance, flags, {})


def box_of(documents: Documents) -> Box:
    box = documents.residency.box
    assert box is not None
    return Box(documents.residency_name, box.total, box.available, box.cpus, declared=True)


def plan(*flags: str, appliance: Path = APPLIANCE, box: Box | None = None, held: int = 0) -> Plan:
    """The plan on this box, or on the one the residency document declares."""
    read = documents(*flags, appliance=appliance)
    return compile_plan(read, box or box_of(read), python="/usr/bin/python3", uid=1000, held=held)
