"""What a figure was measured on and with: without it no figure means anything."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def facts() -> dict[str, str | int | float]:
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal") or "",
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": _version("torch"),
        "tandem": _version("tandem-appliance"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+edits" if _git("status", "--porcelain") else ""),
    }


def cpu_features() -> frozenset[str]:
    """As the kernel names them: `avx512f`, `amx_int8`, `asimddp`."""
    return frozenset((_field("/proc/cpuinfo", "flags") or _field("/proc/cpuinfo", "Features") or "").split())


def _field(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
