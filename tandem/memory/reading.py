"""How much memory there is right now: the kernel's word, or the container's when that is smaller.

`MemAvailable` is the truth on boxes where CPU and GPU share one memory; `MemFree` and what a driver calls free
count page cache as used. A cgroup limit counts too, at every level above this process, because any of them may
be the one that kills. Files stay open and are read in place, so a reading costs microseconds and the director
can take several a second. No torch here.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tandem.contract.plan import Box
from tandem.units import MIB

BLOCK: Final = 2 * MIB  # of contiguous memory: a huge page, and a page of today's devices
_READ: Final = 16384  # bytes; more than meminfo or a memory.stat ever holds of what we look for
_NO_LIMIT: Final = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """All in bytes."""

    available: int  # what can be taken without swapping: the smaller of the machine's and the container's room
    total: int  # the machine's memory, or the container's limit when that is smaller
    free_blocks: int | None  # the machine's memory in free blocks of 2 MiB and more; None where the kernel hides it


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """One level of the hierarchy that has a limit."""

    limit: int
    usage: int
    reclaimable: int  # page cache that the kernel drops before it kills

    @property
    def room(self) -> int:
        return max(0, self.limit - self.usage + self.reclaimable)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """What `/proc/meminfo` says."""

    available: int
    total: int


def read_memory() -> MemoryReading:
    """This machine, now. Raises `OSError` where there is no `/proc/meminfo`."""
    return _sources().read()


def read_box(name: str = "this machine") -> Box:
    """What this machine offers to a plan."""
    memory = read_memory()
    cpus = len(os.sched_getaffinity(0))
    quotas = [quota for level in _levels("cpu") if (quota := _read_cpu_quota(level))]
    return Box(
        name=name,
        memory_total=memory.total,
        memory_available=memory.available,
        cpus=max(1, min([cpus, *quotas])),
        declared=False,
    )


# --- pure: text in, numbers out ---------------------------------------------------------------------------------


def parse_meminfo(text: bytes) -> MachineReading:
    """`/proc/meminfo`, whose sizes are KiB."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if fields := rest.split():
            sizes[name] = int(fields[0]) * 1024
    return MachineReading(available=sizes[b"MemAvailable"], total=sizes[b"MemTotal"])


def parse_buddyinfo(text: bytes, page: int = mmap.PAGESIZE) -> int:
    """`/proc/buddyinfo` -> bytes in free blocks of 2 MiB and more: huge pages and pages of a device are cut from these.

    A line is a zone; its k-th number counts free blocks of 2^k pages.
    """
    size = 0
    for line in text.splitlines():
        counts = line.split()[4:]  # after `Node 0, zone Normal`
        size += sum(int(count) << order for order, count in enumerate(counts) if page << order >= BLOCK) * page
    return size


def parse_limit(text: bytes) -> int | None:
    """`memory.max` or `memory.limit_in_bytes` -> bytes, or None when there is no limit."""
    word = text.strip()
    if word == b"max" or int(word) >= _NO_LIMIT:
        return None
    return int(word)


def parse_reclaimable(text: bytes) -> int:
    """`memory.stat` -> bytes of file cache. Version 1 counts the levels below only in its `total_` lines."""
    sizes: dict[bytes, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name.endswith((b"inactive_file", b"active_file")):
            sizes[name] = int(value)
    prefix = b"total_" if b"total_inactive_file" in sizes else b""
    return sizes.get(prefix + b"inactive_file", 0) + sizes.get(prefix + b"active_file", 0)


def parse_cpu_quota(quota: bytes, period: bytes) -> int | None:
    """Whole processors, rounded up; None when there is no quota (`max`, or -1 in version 1)."""
    if quota in (b"max", b"-1"):
        return None
    return -(-int(quota) // int(period))


def find_cgroup(controller: str, cgroups: str, mounts: str) -> tuple[Path, Path] | None:
    """The mount point and this process's own folder below it, or None when the controller is nowhere.

    `cgroups` is `/proc/self/cgroup`, `mounts` is `/proc/self/mountinfo`. A version 1 hierarchy that has the
    controller wins, since version 2 then does not.
    """
    paths: dict[str, str] = {}  # controller -> path; "" is version 2
    for line in cgroups.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    if controller in paths:
        return _find_mount("cgroup", controller, paths[controller], mounts)
    if "" in paths:
        return _find_mount("cgroup2", None, paths[""], mounts)
    return None


def _find_mount(kind: str, option: str | None, path: str, mounts: str) -> tuple[Path, Path] | None:
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, filesystem = left.split(), right.split()
        if len(fields) < 5 or len(filesystem) < 3 or filesystem[0] != kind:
            continue
        if option is not None and option not in filesystem[2].split(","):
            continue
        # Inside a container the mount may show only a subtree: its root is then part of our path.
        root, point = fields[3], Path(fields[4])
        inner = path.removeprefix(root) if root != "/" else path
        return point, point / inner.strip("/")
    return None


def smaller(machine: MachineReading, levels: list[CgroupReading], free_blocks: int | None = None) -> MemoryReading:
    """The machine's reading, cut to the tightest of the limits above this process."""
    return MemoryReading(
        available=min([machine.available, *(level.room for level in levels)]),
        total=min([machine.total, *(level.limit for level in levels)]),
        free_blocks=free_blocks,
    )


# --- effects: the open files ------------------------------------------------------------------------------------


def _levels(controller: str) -> list[Path]:
    """This process's folder of `controller` and every folder above it, up to the mount point."""
    try:
        found = find_cgroup(controller, Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return []
    if found is None:
        return []
    mount, own = found
    return [own, *(above for above in own.parents if above.is_relative_to(mount))]


def _read_cpu_quota(level: Path) -> int | None:
    try:
        if (modern := level / "cpu.max").exists():
            quota, period = modern.read_bytes().split()
        else:
            quota = (level / "cpu.cfs_quota_us").read_bytes().strip()
            period = (level / "cpu.cfs_period_us").read_bytes().strip()
    except (OSError, ValueError):
        return None
    return parse_cpu_quota(quota, period)


@dataclass(frozen=True, slots=True)
class _Level:
    """Open files of one cgroup folder."""

    limit: int
    usage: int
    stat: int

    def read(self) -> CgroupReading | None:
        """None when this level has no limit (it may get one later, so the files stay open)."""
        limit = parse_limit(os.pread(self.limit, _READ, 0))
        if limit is None:
            return None
        return CgroupReading(
            limit=limit,
            usage=int(os.pread(self.usage, _READ, 0)),
            reclaimable=parse_reclaimable(os.pread(self.stat, _READ, 0)),
        )


@dataclass(frozen=True, slots=True)
class _Sources:
    meminfo: int
    buddyinfo: int | None
    levels: tuple[_Level, ...]

    def read(self) -> MemoryReading:
        machine = parse_meminfo(os.pread(self.meminfo, _READ, 0))
        blocks = None if self.buddyinfo is None else parse_buddyinfo(os.pread(self.buddyinfo, _READ, 0))
        return smaller(machine, [reading for level in self.levels if (reading := level.read())], blocks)


def _open_level(folder: Path) -> _Level | None:
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        if not (folder / limit).exists():
            continue
        try:
            return _Level(
                *(os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC) for name in (limit, usage, "memory.stat"))
            )
        except OSError:
            return None
    return None  # the root of version 2 has no limit file


@cache
def _sources() -> _Sources:
    """Opened once a process and kept: the cgroup a process lives in does not change under it here."""
    meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
    buddyinfo = None
    with suppress(OSError):  # some containers hide it
        buddyinfo = os.open("/proc/buddyinfo", os.O_RDONLY | os.O_CLOEXEC)
    return _Sources(meminfo, buddyinfo, tuple(level for folder in _levels("memory") if (level := _open_level(folder))))
