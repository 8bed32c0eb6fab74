"""Who may import whom, and that what is declared is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

# Not imported by us: a program of its own, and what uvicorn picks up by itself.
RUN_NOT_IMPORTED = {"supervisor", "uvloop", "httptools"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imported() -> set[str]:
    """Distributions that some module of the package imports, anywhere in it."""
    modules: set[str] = set()
    for path in (PROJECT / "tandem").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    return {canonicalize_name(name) for module in modules for name in known.get(module, ())}


def test_imports_follow_the_contracts() -> None:
    linted = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=PROJECT, capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout


def test_every_dependency_is_imported_somewhere() -> None:
    assert names(DECLARED["dependencies"]) - imported() == RUN_NOT_IMPORTED


def test_nothing_is_imported_that_is_not_declared() -> None:
    extras = DECLARED["optional-dependencies"]
    declared = names(DECLARED["dependencies"]) | names(extras["engine"]) | names(extras["cuda"]) | names(extras["laya"])
    # pydantic-core: what pydantic raises and describes errors with, part of its interface.
    assert imported() - declared - {"pydantic-core", "tandem-appliance"} <= {"cuda-bindings", "cuda-core"}
