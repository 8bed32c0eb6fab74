from __future__ import annotations

import msgspec
from appliances import DRAINING, LOADING, MEMORY, READY, World, make_plan, make_program, make_role
from msgspec.structs import replace

from tandem.contract.messages import ApplianceState, RoleState, decode, encode
from tandem.contract.plan import Live, Placement
from tandem.director.publish import publish
from tandem.director.state import Answer
from tandem.director.trial import propose
from tandem.units import GIB

EPOCH = 1_000_000.0


def picture(world: World) -> ApplianceState:
    answers = {name: Answer(process.health, world.now, process.unanswered) for name, process in world.running.items()}
    return publish(world.state, answers, MEMORY, world.now, EPOCH, {"gateway": 7})


def states(world: World) -> dict[str, str]:
    return {program.name: program.state for program in picture(world).programs}


def test_phases_of_a_life() -> None:
    world = World(make_plan())
    assert picture(world).phase == "starting"
    world.step()
    world.step()
    world.running["gateway"].health = READY
    world.step()
    world.running["engine"].health = replace(LOADING, progress=0.25)
    world.step()
    assert picture(world).phase == "starting"
    assert [program.progress for program in picture(world).programs] == [1.0, 0.25]
    world.running["engine"].health = READY
    world.settle()
    assert picture(world).phase == "serving"
    world.state = propose(
        world.state, make_plan("two", [make_program("gateway"), make_program("engine", "2")]), "", "", 0
    )
    world.step()
    assert picture(world).phase == "draining"
    world.running["engine"].health = DRAINING
    world.step()
    assert picture(world).phase == "starting"
    world.state = replace(world.state, stop=True)
    assert picture(world).phase == "stopping"


def test_a_crash_is_not_serving_and_three_are_a_failure() -> None:
    world = World(make_plan())
    world.settle()
    for expected in ("backoff", "backoff", "failed"):
        world.die("engine")
        world.step()
        assert (picture(world).phase, states(world)["engine"]) == ("starting", expected)
        world.step(10)
        world.step()


def test_a_silent_process_is_told_before_it_is_killed() -> None:
    world = World(make_plan())
    world.settle()
    world.running["engine"].unanswered = 2
    engine = picture(world).programs[1]
    assert (engine.state, engine.sentence) == ("ready", "does not answer (2 of 5)")


def test_times_are_unix_times_and_live_values_are_readable() -> None:
    world = World(make_plan())
    world.settle()
    seen = picture(world)
    assert seen.at == world.now + EPOCH
    assert all(EPOCH < program.since <= seen.at for program in seen.programs)
    assert msgspec.json.decode(seen.live, type=Live) == world.state.plan.live
    assert decode(encode(seen)) == seen


PROGRAMS = [make_program(name) for name in ("gateway", "engine", "narrator")]
PLANNED = Placement("narrator", True, 1, 2, 3, 4, 5, 6, "may load")


def with_narrator(claim: int) -> World:
    plan = replace(make_plan(programs=PROGRAMS), roles=(make_role("narrator", claim),), placements=(PLANNED,))
    return World(plan)


def test_a_role_that_is_refused_is_shown_with_its_reason() -> None:
    world = with_narrator(claim=1 << 50)
    world.settle()
    seen = picture(world)
    shown, role = seen.programs[-1], seen.roles[0]
    assert (shown.name, shown.state) == ("narrator", "refused")
    assert (role.state, role.claim, role.wait) == (RoleState.REFUSED, 1 << 50, 60.0)
    assert shown.sentence == role.sentence
    assert shown.sentence.startswith("not loaded: kept free for requests")
    assert seen.phase == "serving"


def test_a_role_on_hold_is_shown_at_once_whatever_its_process_does() -> None:
    world = with_narrator(claim=GIB)
    world.settle()
    assert picture(world).roles[0].state is RoleState.LOADED
    world.state = replace(world.state, asked=5)
    world.step()
    seen = picture(world)
    assert world.running["narrator"].stopping
    assert seen.programs[-1].state == "held"
    assert (seen.roles[0].state, seen.roles[0].wait) == (RoleState.UNLOADED_FOR_MEMORY, 60.0)
    assert seen.programs[-1].sentence == seen.roles[0].sentence
    assert decode(encode(seen)) == seen


def test_a_role_that_died_says_why() -> None:
    world = with_narrator(claim=0)
    world.settle()
    world.die("narrator")
    world.step()
    role = picture(world).roles[0]
    assert (role.state, role.sentence) == (RoleState.FAILED, "was killed by a signal; starts again in 0.5 s")


def test_placements_are_planned_until_they_are_given() -> None:
    world = with_narrator(claim=GIB)
    assert msgspec.json.decode(picture(world).placements, type=list[Placement]) == [PLANNED]
    world.settle()
    (given,) = msgspec.json.decode(picture(world).placements, type=list[Placement])
    assert (given.claim, given.available) == (GIB, MEMORY.available)


def test_the_parts_of_memory_sum_to_what_is_in_use() -> None:
    view = picture(World(make_plan())).memory
    assert view is not None
    parts = {part.name: part.bytes for part in view.parts}
    assert parts["gateway"] == 7
    assert sum(parts.values()) == MEMORY.total - MEMORY.available
