from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "model"))  # for `tiny_llama`: headers are read from a real file
