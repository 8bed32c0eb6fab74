"""Carries a Dockerfile out without a Docker engine: every stage is an overlay of this machine's own root.

The base image is taken to be this machine (FROM names are not fetched). Everything else is real: RUN runs in a chroot
with the stage's environment, COPY copies from the checkout or another stage, and nothing reaches the machine itself,
because a stage's writes land in its own upper folder. Knows the instructions our Dockerfile uses and refuses others.
Needs root and a kernel with overlayfs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    name: str
    rest: str


def parse(text: str) -> list[Instruction]:
    """Instructions in order: continuations joined, comments dropped."""
    instructions: list[Instruction] = []
    parts: list[str] = []
    begun = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        begun = begun or number
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            name, rest = " ".join(parts).split(None, 1)
            instructions.append(Instruction(begun, name.upper(), rest))
            parts, begun = [], 0
    return instructions


@dataclass(slots=True)
class Stage:
    """One stage under construction, and afterwards the image's configuration."""

    root: Path  # holds `upper`, `work` and the mount point `merged`
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": SYSTEM_PATH})
    workdir: str = "/"
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)

    @property
    def upper(self) -> Path:
        return self.root / "upper"

    def command(self, argv: list[str], extra: dict[str, str]) -> list[str]:
        """`argv` inside the stage. The mount lives in a namespace of its own and goes with its last process."""
        for name in ("upper", "work", "merged"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        merged = shlex.quote(str(self.root / "merged"))
        layers = f"lowerdir=/,upperdir={self.root}/upper,workdir={self.root}/work"
        environment = [f"{name}={value}" for name, value in {**self.environment, **extra}.items()]
        inside = shlex.join(["env", "-i", *environment, "/bin/sh", "-c", 'cd "$0" && exec "$@"', self.workdir, *argv])
        identity = "" if self.user == "root" else f"--userspec={self.user} "
        script = (
            f"mount -t overlay overlay -o {shlex.quote(layers)} {merged} && "
            f"mount -t proc proc {merged}/proc && mount --rbind /dev {merged}/dev && "
            f"exec chroot {identity}{merged} {inside}"
        )
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]


class StepFailed(Exception):
    pass


@dataclass(slots=True)
class Build:
    """Stages by name and by number; the last one built is the image."""

    context: Path
    scratch: Path
    arguments: dict[str, str]
    stages: dict[str, Stage] = field(default_factory=dict)
    image: Stage = field(init=False)

    def carry_out(self, instructions: list[Instruction]) -> Stage:
        """Raises `StepFailed` with the step's output, or `ValueError` for an instruction that is not known."""
        known: dict[str, str] = {}
        for step in instructions:
            rest = step.rest if step.name in ("RUN", "HEALTHCHECK", "ENTRYPOINT", "CMD") else expand(step.rest, known)
            match step.name:
                case "ARG":
                    name, _, default = rest.partition("=")
                    known[name] = self.arguments.get(name, default or known.get(name, ""))
                case "FROM":
                    self._begin(rest)
                case "ENV":
                    pairs = dict(pair.split("=", 1) for pair in shlex.split(expand(step.rest, self.image.environment)))
                    self.image.environment |= pairs
                case "WORKDIR":
                    self.image.workdir = rest
                    (self.image.upper / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(shlex.split(rest))
                case "RUN":
                    self._run(step, known)
                case "USER":
                    self.image.user = rest
                    self.image.environment["HOME"] = home(self.image, rest)  # as an engine does
                case "ENTRYPOINT":
                    self.image.entrypoint = json.loads(rest)
                case "HEALTHCHECK":
                    self.image.healthcheck = json.loads(rest[rest.index("[") :])
                case "STOPSIGNAL":
                    self.image.stop_signal = rest
                case "VOLUME":
                    self.image.volumes += json.loads(rest)
                case "EXPOSE":
                    self.image.ports += rest.split()
                case "LABEL":
                    pass
                case _:
                    raise ValueError(f"Dockerfile:{step.line}: {step.name} is not known here")
        return self.image

    def _begin(self, rest: str) -> None:
        name = rest.split()[2] if " AS " in rest.upper() else str(len(self.stages))
        self.image = Stage(self.scratch / f"stage-{len(self.stages)}")
        self.image.upper.mkdir(parents=True)
        self.stages[name] = self.image

    def _copy(self, words: list[str]) -> None:
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        if "chown" in options:
            raise ValueError("COPY --chown is not known here")
        origin = self.stages[options["from"]].upper if "from" in options else self.context
        copy = os.link if "from" in options else shutil.copy2  # a stage is thrown away: sharing its files is enough
        place = self.image.upper / str(Path(self.image.workdir, target)).lstrip("/")
        for source in sources:
            path = origin / source.lstrip("/")
            if path.is_dir():
                shutil.copytree(
                    path, place, symlinks=True, dirs_exist_ok=True, ignore=_not_in_an_image, copy_function=copy
                )
            else:
                into = place / path.name if target.endswith("/") or len(sources) > 1 else place
                into.parent.mkdir(parents=True, exist_ok=True)
                copy(path, into)

    def _run(self, step: Instruction, known: dict[str, str]) -> None:
        # What an operator would pass as build arguments for a mirror or a certificate, this machine has in these.
        inherited = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        command = self.image.command(["/bin/sh", "-c", step.rest], {**inherited, **known})
        ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if ran.returncode:
            said = (ran.stdout + ran.stderr)[-3000:]
            raise StepFailed(f"Dockerfile:{step.line}: RUN {step.rest}\nended with {ran.returncode}:\n{said}")


def _not_in_an_image(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def home(image: Stage, user: str) -> str:
    lines = (image.upper / "etc/passwd").read_text().splitlines()
    return next(entry[5] for entry in (line.split(":") for line in lines) if user in (entry[0], entry[2]))


def expand(text: str, values: dict[str, str]) -> str:
    """`$NAME` and `${NAME}`; an unknown name becomes nothing, as in a build."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: values.get(found[1] or found[2], ""), text)


@contextmanager
def running(image: Stage, extra: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The image's entry point, as its user; killed with everything it started if it is still there at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            image.command(image.entrypoint, extra), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.kill()  # unshare --kill-child takes the namespace's first process, and that one all others
            process.wait()


def main_process(process: subprocess.Popen[bytes]) -> int | None:
    """Pid, as seen here, of the entry point itself: the child of `unshare`. None: not born yet, or gone."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None


def stop(process: subprocess.Popen[bytes], image: Stage, patience: float) -> int:
    """`docker stop`: the stop signal to the entry point; its exit status. Raises `TimeoutExpired` when deaf."""
    pid = main_process(process)
    if pid is not None:
        os.kill(pid, signal.Signals[image.stop_signal])
    return process.wait(timeout=patience)


def is_healthy(process: subprocess.Popen[bytes], image: Stage) -> bool:
    """One run of the health check, inside the running image, as its user."""
    pid = main_process(process)
    if pid is None:
        return False
    inside = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in image.environment.items())])
    check = f"exec {inside} {shlex.join(image.healthcheck)}"
    enter = ["nsenter", "--target", str(pid), "--mount", "--pid", "--root"]
    return subprocess.run([*enter, "chroot", f"--userspec={image.user}", "/", "sh", "-c", check]).returncode == 0
