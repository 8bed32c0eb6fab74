"""Every kernel compiles for the devices the appliance is for, with no device near."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="Triton is Linux's")
@pytest.mark.parametrize(("capability", "device"), [(90, "H200"), (121, "GB10")])
def test_kernels_compile(capability: int, device: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    ran = subprocess.run(
        [sys.executable, script, str(capability)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    made = [line.split(":")[0] for line in ran.stdout.splitlines()]
    assert set(made) == {
        "_multiply", "_add_parts", "_widen", "_multiply_chosen",
        "_write", "_look_back", "_merge", "_convolve", "_recur",
    }, device  # fmt: skip
