"""Traces played on a clock of their own: the smallest ones by hand, made-up traffic whole."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json, structs

from tandem.contract.plan import Routing
from tandem.engine.facts import Grid
from tandem.engine.replay import Arrival, ClientReport, Replay, Served, Setting, num_shared, reports
from tandem.engine.traffic import AGENT, CHAT, two_clients

# Reading a token takes a second, writing one as long.
SLOW = Setting((16, 16), Grid(4, 1), Routing(), read_rate=1.0, write_rate=1.0)


def arrival(id: str, prompt: int, max_tokens: int, at: float = 0.0, **more: object) -> Arrival:
    return Arrival(id, at, ((f"{id} says", prompt),), max_tokens, prompt, **more)  # type: ignore[arg-type]


def played(setting: Setting, *trace: Arrival) -> dict[str, Served]:
    return {each.id: each for each in Replay(setting).play(trace).served}


@pytest.mark.parametrize(
    ("waiting", "slots", "started"),
    [
        ([("c", 2, 2), ("d", 1, 1)], 2, {"c": 0, "d": None}),  # C takes A's place; then no slot is left
        ([("c", 3, 2)], 2, {"c": 0}),  # three blocks, where four are free
        ([("c", 8, 2), ("d", 1, 1)], 3, {"c": None, "d": None}),  # five do not fit, and D may not pass C
    ],
    ids=["C", "larger C", "none"],
)
def test_the_lesson_of_the_boundary(
    waiting: list[tuple[str, int, int]], slots: int, started: dict[str, float | None]
) -> None:
    """Six blocks of two tokens; A has written all it may, B still writes three. Who starts at that boundary?"""
    setting = structs.replace(SLOW, windows=(16,) * slots, memory_rows=12, block=2)
    running = [arrival("a", 2, 1), arrival("b", 1, 3)]
    late = [arrival(id, prompt, max_tokens, at=2.5) for id, prompt, max_tokens in waiting]
    found = played(setting, *running, *late)
    boundary = found["a"].ended
    assert boundary < found["b"].ended
    for id, at in started.items():
        begun_at_once = found[id].waited + 2.5 <= max(boundary, 3.2)
        assert begun_at_once is (at is not None), (id, found[id])


def test_one_request_alone() -> None:
    (only,) = Replay(SLOW).play([arrival("a", 6, 3, at=5.0)]).served
    assert (only.slot, only.cached, only.waited, only.ttft, only.ended) == (0, 0, 0.0, 6.0, 13.0)


def test_the_next_turn_goes_on_where_the_one_before_was_read() -> None:
    first = Arrival("a", 0.0, (("head", 4), ("hello", 2)), 2, 6)
    second = Arrival("b", 20.0, (("head", 4), ("hello", 2), ("and then", 3)), 2, 6)
    assert played(SLOW, first, second)["b"].cached == 6
    assert played(structs.replace(SLOW, grid=Grid(4, 4)), first, second)["b"].cached == 4


@pytest.mark.parametrize(("cache", "cached"), [(0, 0), (599, 0), (600, 600)])
def test_who_makes_way_comes_back_from_the_cache_when_that_had_room(cache: int, cached: int) -> None:
    narrow = Setting((2_000,), Grid(100, 100), Routing(), 100.0, 1.0, cache)
    one = [Arrival(f"one {n}", n * 100.0, (("one", 600), *(("more", 200),) * n), 2, 300) for n in range(2)]
    other = Arrival("other", 50.0, (("other", 600),), 2, 300)
    assert played(narrow, one[0], other, one[1])["one 1"].cached == cached


def test_own_work_gives_way() -> None:
    own = arrival("own", 4, 10, own_work=True)
    replay = Replay(structs.replace(SLOW, windows=(16,))).play([own, arrival("client", 2, 2, at=6.5)])
    assert replay.yielded == ["own"] and [each.id for each in replay.served] == ["client"]
    assert replay.waits == {"own_work_wait": 1}


def test_what_has_no_room_is_refused_before_anything_is_played() -> None:
    with pytest.raises(ValueError, match="a: its prompt of 16 tokens has no room in slot 0"):
        Replay(SLOW).play([arrival("a", 16, 1)])
    with pytest.raises(ValueError, match="a: needs more memory than there is"):
        Replay(structs.replace(SLOW, memory_rows=8)).play([arrival("a", 6, 4)])


def test_pieces_are_shared_from_the_first_that_differs_on_not_at_all() -> None:
    one = (("a", 3), ("b", 4), ("c", 5))
    assert num_shared(one, one) == 12
    assert num_shared(one, (("a", 3), ("x", 4), ("c", 5))) == 3
    assert num_shared(one, (("a", 2), ("b", 4))) == num_shared(one, ()) == 0


TRACES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 50), st.integers(1, 40), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(TRACES, st.sampled_from([(64,), (64, 64), (64, 32, 32)]), st.sampled_from([None, 120]))
def test_everybody_is_served_and_no_slot_twice_at_once(
    drawn: list[tuple[int, int, int, int, bool]], windows: tuple[int, ...], rows: int | None
) -> None:
    trace = [
        Arrival(str(n), float(at), ((f"chat {chat}", prompt),), max_tokens, min(2, prompt), own_work=own)
        for n, (at, prompt, max_tokens, chat, own) in enumerate(drawn)
    ]
    setting = structs.replace(SLOW, windows=windows, memory_rows=rows, block=2, cache_rows=100)
    replay = Replay(setting).play(trace)
    assert Counter(each.id for each in replay.served) + Counter(replay.yielded) == Counter(a.id for a in trace)
    assert all(lane.run is None and 0 <= lane.busy <= replay.now + 1e-6 for lane in replay.lanes)
    at = {each.id: each.at for each in trace}
    for index in range(len(windows)):
        mine = sorted((at[e.id] + e.waited, e.ended) for e in replay.served if e.slot == index)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(mine))
    assert Replay(setting).play(trace).served == replay.served


# --- the traffic of the reports ---------------------------------------------------------------------------------

TRAFFIC = two_clients(requests=250)


def test_the_traffic_has_the_medians_of_the_reports_and_is_the_same_every_time() -> None:
    assert two_clients(requests=250) == TRAFFIC
    for client, middle in ((AGENT, 103_000), (CHAT, 19_000)):
        turns = [arrival.tokens for arrival in TRAFFIC if arrival.client == client.name and not arrival.task]
        assert len(turns) == 250 and median(turns) == pytest.approx(middle, rel=0.02)
    assert {arrival.max_tokens for arrival in TRAFFIC if not arrival.task} == {65_536, 32_768 + 8_256}
    lines = [json.encode(arrival) for arrival in TRAFFIC]
    assert [json.decode(line, type=Arrival) for line in lines] == TRAFFIC


def test_each_conversation_grows() -> None:
    last: dict[str, Arrival] = {}
    for arrival in TRAFFIC:
        if arrival.task:
            continue
        name = arrival.id.split(".")[0]
        if name in last:
            before = last[name]
            assert arrival.at > before.at and num_shared(before.prompt, arrival.prompt) == before.tokens
        last[name] = arrival
    assert len(last) == 10 + 50


def report(client: str, windows: tuple[int, ...], cache: int = 400_000, **rules: object) -> ClientReport:
    setting = Setting(windows, Grid(2_048, 2_048), Routing(**rules), 1_200.0, 45.0, cache)  # type: ignore[arg-type]
    return next(each for each in reports(Replay(setting).play(TRAFFIC), TRAFFIC) if each.client == client)


@pytest.mark.parametrize(("window", "chat"), [(65_536, 0.57), (8_192, 0.0)])
def test_what_a_side_window_takes_of_each_client(window: int, chat: float) -> None:
    whole = {"side_min_room": 65_536}
    assert report("open-webui", (262_144, window), **whole).fit_a_side_slot == pytest.approx(chat, abs=0.01)
    assert report("opencode", (262_144, window), **whole).on_side_slots == 0.0


@pytest.mark.parametrize(("window", "chat"), [(65_536, 0.745), (8_192, 0.0)])
def test_what_it_takes_when_max_tokens_may_be_cut(window: int, chat: float) -> None:
    assert report("open-webui", (262_144, window)).fit_a_side_slot == pytest.approx(chat, abs=0.01)
    assert report("opencode", (262_144, window)).fit_a_side_slot == 0.0


def test_side_slots_shorten_the_chats_wait_and_caches_what_the_agent_reads() -> None:
    alone, beside = (report("open-webui", windows) for windows in ((262_144,), (262_144, 65_536, 65_536)))
    assert beside.ttft < alone.ttft and beside.on_side_slots > 0.5
    without, with_cache = (report("opencode", (262_144,), cache) for cache in (0, 400_000))
    assert with_cache.cached > without.cached
