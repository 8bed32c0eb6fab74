from __future__ import annotations

import sys
from pathlib import Path

for folder in ("gateway", "wire"):  # for the engine's double with the gateway before it, and for whole appliances
    sys.path.append(str(Path(__file__).parents[1] / folder))
