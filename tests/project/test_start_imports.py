"""What the processes of a start import: everything they do not need is time that somebody waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# The command as it is typed; only what would start processes is left out.
UP = """
import tandem.cli.raising
async def nothing(plan, **_):
    return 0
tandem.cli.raising.raise_appliance = nothing
from tandem.cli import app
app(["up", "--detach", "--set", "state={state}", "--set", "listen.port=1"], standalone_mode=False)
"""
HEAVY = {"torch", "transformers", "safetensors", "llguidance", "litestar", "uvicorn"}
UNWANTED = {
    "tandem up": (UP, HEAVY | {"tokenizers", "httpx"}),
    "any command": ("import tandem.cli", HEAVY | {"rich", "pydantic", "yaml", "msgspec", "numpy", "psutil", "httpx"}),
    "the director": ("import tandem.director.loop", HEAVY | {"pydantic", "yaml", "numpy", "rich", "httpx"}),
    "the gateway": (
        "import tandem.gateway.app",
        {"torch", "transformers", "safetensors", "llguidance", "numpy", "pydantic", "rich", "httpx"},
    ),
    "the engine's channels": ("import tandem.engine.worker", {"torch", "transformers", "litestar", "pydantic", "rich"}),
    "the engine's device thread": (
        "import tandem.engine.device",
        {"transformers", "litestar", "pydantic", "rich", "torch._dynamo", "torch._inductor", "sympy", "httpx"},
    ),
}


@pytest.mark.parametrize("who", UNWANTED)
def test_nothing_is_imported_that_a_start_does_not_need(who: str, tmp_path: Path) -> None:
    script, unwanted = UNWANTED[who]
    script = script.format(state=tmp_path / "state") + "\nimport sys; print(' '.join(sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    imported = set(ran.stderr.splitlines()[-1].split())
    assert {"tandem"} <= imported
    assert not imported & unwanted
