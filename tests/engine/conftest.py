from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "model"))  # for `tiny_llama`: the engine's process needs a real file
sys.path.append(str(TESTS / "memory"))  # for a kernel that fails, and what the real one says of our memory
