"""transformers' `generate` behind the smallest server that streams: `generate_server.py`, in an environment of its own.

That environment also dequantizes the weights, for vLLM too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.environments import PEERS, Environment
from bench.peers.model import Model, bf16_needs, dequantized
from bench.peers.servers import Recipe

NAME: Final = "transformers"
_PACKAGES: Final = (
    "torch==2.13.0",
    "transformers==5.24.*",
    "accelerate==1.*",  # without it no GGUF file is read
    "gguf==0.19.*",
    "sentencepiece",
    "protobuf",
)


def environment() -> Environment:
    """Raises `NotMeasured`."""
    made = Environment(PEERS / NAME)
    made.install(_PACKAGES, 4 * 10**9, 1800)
    return made


def installed(model: Model) -> list[Recipe]:
    """Raises `NotMeasured`."""
    here = environment()
    directory = dequantized(model, here)
    program = Path(__file__).with_name("generate_server.py")
    threads, most = str(model.threads), str(model.slots)
    return [
        Recipe(
            name=NAME,
            command=(str(here.python), str(program), str(directory), "{port}", threads, most),
            settings=f"{_PACKAGES[1]}, {_PACKAGES[0]}; bfloat16, {threads} threads, one static batch of {most}",
            needs=bf16_needs(model),
            environment={"HF_HUB_OFFLINE": "1"},
        )
    ]
