"""On a machine with a device kernels are compiled, not interpreted."""

import os
import sys
from pathlib import Path

import torch

if torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "0"

sys.path.append(str(Path(__file__).parents[1] / "model"))  # the small checkpoints and packed weights of those tests
