"""llama.cpp's own server, built here from the source that llama-cpp-python carries, for this machine's processor.

Two builds where the processor has AMX, one with it and one without: which is faster depends on the work.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import cpu_features
from bench.peers.environments import PEERS, Environment, NotMeasured, run
from bench.peers.model import Model
from bench.peers.servers import Recipe
from tandem.units import MIB

NAME: Final = "llama-server"
VERSION: Final = "0.3.36"  # of llama-cpp-python
GUESSING: Final = f"{NAME}, guessing"
_TOOLS: Final = ("scikit-build-core==0.11.*", "cmake==3.*", "ninja==1.*")
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_CCACHE=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# GCC 12 is told that loading the tile configuration reads its first 8 bytes, and leaves the others unwritten: the
# program dies. Here it is told all 64.
_TILES: Final = """\
#ifdef __AMX_TILE__
#include <immintrin.h>
static inline void bench_load_tiles(const void *tiles) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])tiles));
}
#undef _tile_loadconfig
#define _tile_loadconfig bench_load_tiles
#endif
"""


@dataclass(frozen=True, slots=True)
class Build:
    """One way to compile it."""

    name: str
    flags: str  # for the compiler, beside -march=native


def builds(features: frozenset[str], tiles: Path) -> list[Build]:
    """`features` as the kernel names them; `tiles` is the header that mends AMX."""
    if "amx_int8" not in features:
        return [Build(NAME, "")]
    plain = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    return [Build(f"{NAME}, AMX", f"-include {tiles}"), Build(f"{NAME}, no AMX", plain)]


def installed(model: Model) -> list[Recipe]:
    """One recipe a build, and the first once more with llama.cpp's own guesses. Raises `NotMeasured`."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise NotMeasured("there is no C++ compiler to build it with")
    folder = PEERS / NAME
    tools = Environment(folder)
    tools.install(_TOOLS, 10**9, 600)
    source = _source(tools)
    tiles = folder / "tiles.h"
    tiles.write_text(_TILES)
    made = [(build, _built(tools, source, build)) for build in builds(cpu_features(), tiles)]
    recipes = [_recipe(build.name, program, model, ()) for build, program in made]
    guesses = ("--spec-type", "ngram-simple")
    return [*recipes, _recipe(GUESSING, made[0][1], model, guesses)]


def _source(tools: Environment) -> Path:
    source = tools.folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if source.exists():
        return source
    package = f"llama-cpp-python=={VERSION}"
    fetch = ("-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python", package)
    run([str(tools.python), *fetch], tools.folder / "fetch.log", 900, environment=_paths(tools), most_bytes=10**9)
    aside = tools.folder / "unpacking"
    shutil.rmtree(aside, ignore_errors=True)
    with tarfile.open(next(tools.folder.glob(f"llama_cpp_python-{VERSION}.tar*"))) as archive:
        archive.extractall(aside, filter="data")
    (aside / source.relative_to(tools.folder).parts[0]).rename(source.parents[1])
    return source


def _built(tools: Environment, source: Path, build: Build) -> Path:
    folder = tools.folder / build.name.replace(", ", "-").replace(" ", "-")
    stamp = folder / "stamp"  # of what is being compiled: an interrupted build goes on where it was
    wanted = "\n".join((VERSION, *_OPTIONS, build.flags, *sorted(cpu_features())))
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        flags = [f"-DCMAKE_{language}_FLAGS={build.flags}" for language in ("C", "CXX")]
        configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja", *_OPTIONS, *flags]
        run(configure, folder / "configure.log", 600, environment=_paths(tools))
        stamp.write_text(wanted)
    compile = ["cmake", "--build", str(folder), "--target", "llama-server", "-j", str(len(os.sched_getaffinity(0)))]
    run(compile, folder / "build.log", 7200, environment=_paths(tools))
    return folder / "bin" / "llama-server"


def _paths(tools: Environment) -> Mapping[str, str]:
    return {"PATH": f"{tools.python.parent}{os.pathsep}{os.environ['PATH']}"}


def _recipe(name: str, program: Path, model: Model, guesses: tuple[str, ...]) -> Recipe:
    threads = str(model.threads)
    settings = (
        "--threads", threads, "--threads-batch", threads, "--parallel", str(model.slots),
        "--ctx-size", str(model.slots * model.window), "--flash-attn", "on", *guesses,
    )  # fmt: skip
    return Recipe(
        name=name,
        command=(str(program), "--model", str(model.file), "--host", "127.0.0.1", "--port", "{port}", *settings),
        settings=f"llama-cpp-python {VERSION}; {' '.join(settings)}",
        needs=model.kv_bytes + 4 * model.file.stat().st_size + 256 * MIB,
        more={"ignore_eos": True},
        kinds=frozenset({"edit"}) if guesses else None,
    )
