"""Make or refresh `.venv` with the named extras: `python3 .ci/venv.py engine dev`.

Called by every make target, so the common case (nothing to do) takes milliseconds. Owns `.venv` and nothing else;
standard library only, because it runs before anything is installed. Three things make it safe to interrupt and to
run twice at once: a lock, a mark that says a set-up is under way, and a stamp that is written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
VENV = PROJECT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "tandem-stamp.json"  # what is installed; written last
MARK = VENV / "tandem-unfinished"  # there while a set-up is under way
LOG = VENV / "pip.log"

COST = "a minute or two; 1.1 GB of disk, several where pip takes the CUDA build of torch"


class SetUpFailed(Exception):
    """One sentence for the person at the terminal."""


def main(extras: list[str]) -> int:
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - PYTHON=... may name any interpreter
            raise SetUpFailed(f"tandem needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
        with locked():
            set_up(set(extras))
    except SetUpFailed as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the next make finishes the set-up\n")
        return 130
    return 0


def set_up(extras: set[str]) -> None:
    """Bring `.venv` to hold `extras`; do nothing when it already does."""
    stamp = read_stamp()
    wanted = fingerprint()
    is_usable = stamp.get("place", str(PROJECT)) == str(PROJECT) and not MARK.exists() and runs(PYTHON)
    if is_usable and stamp.get("wanted") == wanted and extras <= set(stamp.get("extras", ())):
        return
    if not is_usable:
        make_venv()
        stamp = {}
    extras |= set(stamp.get("extras", ()))  # a pulled change must not take the tests' packages away
    MARK.touch()
    install(extras)
    STAMP.write_text(json.dumps({"place": str(PROJECT), "wanted": wanted, "extras": sorted(extras)}))
    MARK.unlink()


def make_venv() -> None:
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise SetUpFailed(
                f"{sys.executable} cannot make virtual environments: it has no `{module}` module. "
                "On Debian and Ubuntu: apt install python3-venv"
            )
    if VENV.exists():
        say("the old .venv is unfinished, broken or was made elsewhere: starting afresh")
        shutil.rmtree(VENV)
    run([sys.executable, "-m", "venv", str(VENV)], "making .venv", log=None)


def install(extras: set[str]) -> None:
    names = ",".join(sorted(extras))
    say(f"installing tandem with {names or 'no extras'} into .venv ({COST})")
    begun = time.monotonic()
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar=off"]
    run([*pip, "--editable", f".[{names}]" if names else "."], "installing", log=LOG)
    say(f"installed in {time.monotonic() - begun:.0f} s")


def run(command: list[str], what: str, log: Path | None) -> None:
    """Run quietly, with a moving line on a terminal; on failure show the end of what was said.

    Raises `SetUpFailed` when the command fails.
    """
    begun = time.monotonic()
    with (log or Path(os.devnull)).open("wb") as output:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    status = process.wait(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    show_progress(what, log, time.monotonic() - begun)
        except KeyboardInterrupt:
            process.wait()  # it heard the same Ctrl-C
            raise
        finally:
            clear_progress()
    if status:
        said = "".join(f"  {line}\n" for line in tail(log, 25)) if log else ""
        raise SetUpFailed(f"{said}{what} failed (status {status})" + (f"; all of it is in {log}" if log else ""))


# --- small things ------------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """Changes when the declared dependencies, or what is compiled, may have changed."""
    native = PROJECT / "tandem/model/native"
    sources = sorted([*native.glob("*.h"), *native.glob("*.cpp")])  # not what was made of them
    read = [path.read_bytes() for path in (PROJECT / "pyproject.toml", *sources)]
    return hashlib.sha256(b"\0".join(read)).hexdigest()


def read_stamp() -> dict[str, Any]:
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def runs(python: Path) -> bool:
    """False when the interpreter under the environment has gone, as after a system upgrade."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time. The lock is on pyproject.toml: always there, and outside what a set-up may delete."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another make is setting up .venv: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(sentence: str) -> None:
    print(sentence, flush=True)


def show_progress(what: str, log: Path | None, seconds: float) -> None:
    if not sys.stdout.isatty():
        return
    line = (tail(log, 1) or [what])[0].strip() if log else what
    room = max(20, shutil.get_terminal_size().columns - 12)
    sys.stdout.write(f"\r\x1b[K  {seconds:4.0f} s  {line[:room]}")
    sys.stdout.flush()


def clear_progress() -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()


def tail(log: Path | None, count: int) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-count:] if log and log.exists() else []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
