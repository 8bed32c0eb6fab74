import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "model"))  # for `checkpoints`: the shapes of every family
