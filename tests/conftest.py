"""Before any test imports torch: its threads sleep while they wait, as the plan has it for the engine; and kernels
run in Triton's interpreter, which needs no device (`tests/gpu/conftest.py` takes that back where there is one)."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TRITON_INTERPRET", "1")
