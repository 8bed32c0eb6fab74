"""Before any test imports torch: its threads sleep while they wait, as the plan has it for the engine."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
