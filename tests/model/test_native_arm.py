"""The native step as a program without Python (`native/step_check.cpp`): what pyproject.toml compiles, checked in every
family this processor has, and, cross-compiled and under emulation, in those of arm64."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem.model.native.library import families

PROJECT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("native")
EXTENSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def compiled(compiler: str, folder: Path, *flags: str) -> Path:
    """The program, of the sources and with the flags that the package is built with; `flags` come after those."""
    sources = [PROJECT / name for name in EXTENSION["sources"]]
    of_families = [path for path in sources if path.name.startswith("step_")]  # each is included by its checks
    rest = [*(path for path in sources if path not in of_families), CHECKS / "step_check.cpp"]
    jobs = [(CHECKS / "lanes_check.cpp", [f'-DFAMILY="{path.name}"'], f"{path.stem}.o") for path in of_families]
    jobs += [(path, [], f"{path.stem}.o") for path in rest]
    command = [compiler, *EXTENSION["extra-compile-args"], f"-I{sources[0].parent}", f"-I{CHECKS}", *flags]

    def compile(source: Path, defines: list[str], name: str) -> None:
        said = subprocess.run([*command, *defines, "-c", source, "-o", folder / name], capture_output=True, text=True)
        assert said.returncode == 0, said.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile, *zip(*jobs, strict=True)))
    objects = [folder / name for *_, name in jobs]
    program = folder / "step_check"
    said = subprocess.run([compiler, "-pthread", *flags, *objects, "-o", program], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return program


def found_families(*command: str | Path) -> tuple[str, ...]:
    """Runs all checks; every line must be good. The families that ran, best first."""
    said = subprocess.run(command, capture_output=True, text=True)
    lines = said.stdout.splitlines()
    assert said.returncode == 0, [line for line in lines if not line.startswith("good")] + [said.stderr]
    assert said.stderr == ""
    assert lines[-1] == "all good"
    return names(said.stdout)


def names(output: str) -> tuple[str, ...]:
    title, _, rest = output.splitlines()[0].partition(":")
    assert title == "families"
    return tuple(rest.split())


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler (g++) on this machine")


@needs_compiler
@pytest.mark.timeout(300)
def test_on_this_processor(tmp_path: Path) -> None:
    """Compiled in little time: the arithmetic is written out, so the level of optimization must not change it."""
    found = found_families(compiled("g++", tmp_path, "-O1"))
    assert found[-1] == "portable"
    assert families() in ((), found)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_thread_reads_what_another_has_not_finished(tmp_path: Path) -> None:
    """Under the thread sanitizer, which knows the orders that C++ promises, not only those this processor keeps."""
    try:
        program = compiled("g++", tmp_path, "-O1", "-g", "-fsanitize=thread")
        subprocess.run([program, "families"], check=True, capture_output=True)
    except (AssertionError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the thread sanitizer does not work here: {error}")
    found_families(program)


@pytest.fixture(scope="module")
def arm64_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.machine() == "aarch64":
        pytest.skip("this processor is one: it runs the checks itself")
    for tool, package in ((CROSS, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian and Ubuntu: apt install {package})")
    return compiled(CROSS, tmp_path_factory.mktemp("arm64"), "-static", "-Wall", "-Wextra", "-Werror")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_family_of_arm64(arm64_program: Path) -> None:
    assert found_families(EMULATOR, "-cpu", "max", arm64_program) == ("neon_i8mm", "neon", "portable")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "expected"),
    [("neoverse-n1", ("neon", "portable")), ("cortex-a72", ("portable",))],
    ids=["dot products of signed bytes only", "no dot products"],
)
def test_older_arm64_takes_what_it_has(arm64_program: Path, processor: str, expected: tuple[str, ...]) -> None:
    command: list[str | Path] = [EMULATOR, "-cpu", processor, arm64_program, "families"]
    assert names(subprocess.run(command, check=True, capture_output=True, text=True).stdout) == expected
