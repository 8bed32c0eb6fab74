"""Parsers on text as kernels write it, and one reading of the machine at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.memory.reading import (
    CgroupReading,
    MachineReading,
    MemoryReading,
    find_cgroup,
    parse_buddyinfo,
    parse_cpu_quota,
    parse_limit,
    parse_meminfo,
    parse_reclaimable,
    read_box,
    read_memory,
    smaller,
)
from tandem.units import GIB, KIB, MIB

MEMINFO = b"""MemTotal:       127598592 kB
MemFree:         8388608 kB
MemAvailable:   30377247 kB
Buffers:           35996 kB
SwapTotal:      16777212 kB
SwapFree:       16000000 kB
HugePages_Total:       0
"""


def test_meminfo_is_read_in_kib() -> None:
    reading = parse_meminfo(MEMINFO)
    assert reading == MachineReading(available=30377247 * KIB, total=127598592 * KIB)
    assert reading.total / GIB == pytest.approx(121.69, abs=0.01)


BUDDYINFO = b"""Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  17687  15212   6842   5236   2859   2486   2994   1159    620    322   1828
"""


@pytest.mark.parametrize(("page", "blocks"), [(4 * KIB, 323 * 2 + 1831 * 4), (64 * KIB, (2486 + 2994 * 2) * 2)])
def test_free_blocks_are_those_of_2_mib_and_more(page: int, blocks: int) -> None:
    """A kernel of 64 KiB pages has 2 MiB in its fifth order."""
    text = BUDDYINFO if page == 4 * KIB else b"Node 0, zone Normal 17687 15212 6842 5236 2859 2486 2994\n"
    assert parse_buddyinfo(text, page) == blocks * MIB


@pytest.mark.parametrize(
    ("text", "limit"),
    [(b"max\n", None), (b"8589934592\n", 8 * GIB), (b"9223372036854771712\n", None), (b"0\n", 0)],
)
def test_limit(text: bytes, limit: int | None) -> None:
    assert parse_limit(text) == limit


def test_reclaimable_of_version_2() -> None:
    assert parse_reclaimable(b"anon 500\nfile 900\ninactive_file 100\nactive_file 20\nslab 7\n") == 120


def test_reclaimable_of_version_1_counts_the_levels_below() -> None:
    text = b"cache 1\ninactive_file 3\nactive_file 4\ntotal_cache 9\ntotal_inactive_file 300\ntotal_active_file 40\n"
    assert parse_reclaimable(text) == 340


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [(b"max", b"100000", None), (b"-1", b"100000", None), (b"200000", b"100000", 2), (b"150000", b"100000", 2)],
)
def test_cpu_quota(quota: bytes, period: bytes, cpus: int | None) -> None:
    assert parse_cpu_quota(quota, period) == cpus


V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V1_CONTAINER = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("cgroups", "mounts", "mount", "own"),
    [
        ("0::/\n", V2, "/sys/fs/cgroup", "/sys/fs/cgroup"),
        ("0::/user.slice/a.scope\n", V2, "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/a.scope"),
        ("4:memory:/box/x\n1:cpu:/\n0::/\n", V1, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/box/x"),
        ("4:cpu,memory:/docker/abc\n", V1_CONTAINER, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory"),
    ],
)
def test_own_cgroup_is_found(cgroups: str, mounts: str, mount: str, own: str) -> None:
    assert find_cgroup("memory", cgroups, mounts) == (Path(mount), Path(own))


def test_no_cgroup_is_no_error() -> None:
    assert find_cgroup("memory", "", V2) is None
    assert find_cgroup("memory", "0::/\n", "") is None


def test_the_tighter_of_machine_and_container_counts() -> None:
    machine = MachineReading(available=30 * GIB, total=120 * GIB)
    container = CgroupReading(limit=16 * GIB, usage=12 * GIB, reclaimable=3 * GIB)
    slice_above = CgroupReading(limit=64 * GIB, usage=20 * GIB, reclaimable=0)
    cut = smaller(machine, [container, slice_above])
    assert (cut.available, cut.total) == (7 * GIB, 16 * GIB)
    assert smaller(machine, [slice_above]).available == 30 * GIB
    assert smaller(machine, [], free_blocks=GIB) == MemoryReading(30 * GIB, 120 * GIB, GIB)


def test_a_container_over_its_limit_has_no_room() -> None:
    assert CgroupReading(limit=GIB, usage=2 * GIB, reclaimable=0).room == 0


def test_this_machine_reads() -> None:
    reading = read_memory()
    assert 0 < reading.available <= reading.total
    box = read_box()
    assert (box.memory_total, box.declared) == (reading.total, False)
    assert box.cpus >= 1
