from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "model"))  # for `tiny_llama`: the engine's process needs a real file
