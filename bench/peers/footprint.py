"""What a process holds, as the kernel counts it, and what tandem's engine holds it for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.machine import PROJECT
from bench.peers.model import Model
from bench.peers.servers import Server

_LONGEST_PROBE: Final = 180.0  # seconds


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. The first four are of the process that holds the model."""

    peak: int  # the most that was ever resident
    resident: int
    anonymous: int
    file: int  # mapped files: weights, libraries
    all_processes: int  # of the server; what several share is counted once


def footprint(server: Server) -> Footprint:
    """The process that holds the model is the one whose peak was highest."""
    found: list[tuple[int, dict[str, int]]] = []
    for process in server.processes():
        with suppress(OSError, psutil.NoSuchProcess):
            folder = Path("/proc", str(process.pid))
            status, rollup = (fields((folder / name).read_text()) for name in ("status", "smaps_rollup"))
            found.append((status["VmHWM"], rollup))
    peak, held = max(found, key=lambda each: each[0])
    resident, anonymous = held["Rss"], held["Anonymous"]
    return Footprint(peak, resident, anonymous, resident - anonymous, sum(rollup["Pss"] for _, rollup in found))


def fields(text: str) -> dict[str, int]:
    """Bytes by name, of the `Name:  123 kB` lines of a file in `/proc`."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].removesuffix(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def probe(model: Model) -> dict[str, int]:
    """What a fresh process holds: Python alone, then with what the engine imports, then with the weights."""
    command = [sys.executable, "-m", "bench.peers.probe", str(model.file), model.compute, str(model.threads)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=_LONGEST_PROBE, check=True)
    return {name: int(size) for name, size in json.loads(done.stdout).items()}


def engine_parts(server: Server) -> dict[str, int]:
    """The engine's own word: rows with memory behind them, copies of conversations."""
    assert server.appliance is not None
    said = server.appliance.health()["engine"]
    caches = sum(part["bytes"] for part in said["memory"] if part["name"] == "caches")
    return {"rows": sum(usage["committed"] for usage in said["kv"]), "caches": caches}


def split(ours: Footprint, probed: Mapping[str, int], parts: Mapping[str, int]) -> dict[str, int]:
    """tandem's engine, part by part, in bytes; they sum to its peak."""
    named = {
        "Python": probed["python"],
        "torch and other libraries": probed["libraries"] - probed["python"],
        "weights as the step reads them": probed["weights"] - probed["libraries"],
        "rows of conversations": parts["rows"],
        "copies of conversations": parts["caches"],
    }
    left = ours.resident - sum(named.values())
    return {**named, "workspace, heap": left, "given back since its peak": ours.peak - ours.resident}


def split_native(theirs: Footprint, model: Model) -> dict[str, int]:
    """llama-server: all rows of all slots have memory from the start."""
    return {
        "rows of conversations": model.kv_bytes,
        "weights and program, mapped": theirs.file,
        "weights in another order, workspace, heap": theirs.anonymous - model.kv_bytes,
        "given back since its peak": theirs.peak - theirs.resident,
    }
