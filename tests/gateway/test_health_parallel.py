"""How requests share the slots, as `/health` says it."""

from __future__ import annotations

from msgspec import structs

from tandem.contract.messages import Counters, Health, Parallel, SideDisk, SlotView, Turn
from tandem.gateway.health import AdmissionNow, ParallelNow, parallel_now

SLOTS = (SlotView(0, 262_144, 90_000, "writing", "r.0"), SlotView(1, 65_536, 0, "idle"))
COUNTERS = Counters({1: 40, 2: 9}, 58, 60, 3_000, 1_000, 7, 1, 0, 2, 3.0, 2.0)
SAID = Parallel(
    requested=2,
    max_running=1,
    max_running_reason="memory: the next needs 1.5 GiB, 0.5 GiB are left",
    turn=Turn("writing", (0,)),
    memory_needed=3,
    memory_left=1,
    waits={"spill_wait": 2, "busy": 1},
    slot0_gave_up=1,
    yielded=4,
    side_disk=SideDisk(5, 3, 12_288),
)
HEALTH = Health(True, "ready", "", slots=SLOTS, counters=COUNTERS, reserved=77, parallel=SAID)


def test_it_is_all_in_one_place() -> None:
    assert parallel_now(HEALTH) == ParallelNow(
        slots=SLOTS,
        requested=2,
        max_running=1,
        max_running_reason="memory: the next needs 1.5 GiB, 0.5 GiB are left",
        peak_running=2,
        turn=Turn("writing", (0,)),
        rounds_by_size={1: 40, 2: 9},
        admission=AdmissionNow(77, 3, 1),
        waits={"spill_wait": 2, "busy": 1},
        spill_waits=2,
        slot0_gave_up=1,
        yielded=4,
        side_disk=SideDisk(5, 3, 12_288),
    )


def test_there_is_nothing_to_share_without_side_slots_or_while_it_loads() -> None:
    assert parallel_now(None) is None
    assert parallel_now(Health(False, "loading", "")) is None
    assert parallel_now(structs.replace(HEALTH, slots=SLOTS[:1])) is None
    assert parallel_now(structs.replace(HEALTH, parallel=structs.replace(SAID, waits={}))).spill_waits == 0  # type: ignore[union-attr]
