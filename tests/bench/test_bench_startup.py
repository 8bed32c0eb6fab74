"""What logs say of a start becomes seconds, and the table says whether they were few enough."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from bench.appliance import DidNotStart
from bench.startup import FIRST, READY, Start, ends, middle, report, stages

BEGAN = datetime.fromisoformat("2026-11-30T11:00:00.000").timestamp()
LOGS = {
    "supervisord.log": [
        "2026-11-30 11:00:00,700 INFO supervisord started with pid 7",
        "2026-11-30 11:00:00,800 INFO spawned: 'director' with pid 8",
        "2026-11-30 11:00:01,100 INFO spawned: 'engine' with pid 9",
    ],
    "gateway.log": ["2026-11-30T11:00:02.100 INFO    [tandem.gateway] ready after 1.0 s (runtime 0.7, vocabulary 0.3)"],
    "engine.log": [
        "2026-11-30T11:00:02.900 INFO    [tandem.engine] passes run in the native step (avx512)",
        "2026-11-30T11:00:03.250 INFO    [tandem.engine] ready after 2.1 s (runtime 1.6, drafting and caches 0.1): ...",
    ],
}
START = Start({READY: 3.3, FIRST: 3.5}, {"runtime": 1.6}, {"engine": 2.0})


def test_a_step_ends_with_a_line_of_a_log() -> None:
    assert ends(LOGS, BEGAN) == {
        "supervisord runs": pytest.approx(0.7),
        "director starts": pytest.approx(0.8),
        "gateway and engine start": pytest.approx(1.1),
        "gateway is ready": pytest.approx(2.1),
        "engine is ready": pytest.approx(3.25),
    }


def test_a_line_that_is_not_there_is_told() -> None:
    with pytest.raises(DidNotStart, match=r"engine\.log does not say `ready after`"):
        ends({**LOGS, "engine.log": []}, BEGAN)


def test_the_engine_s_own_account_is_read() -> None:
    assert stages(LOGS["engine.log"]) == {"runtime": 1.6, "drafting and caches": 0.1}


def test_the_middle_is_taken_of_each_number() -> None:
    starts = [replace(START, ends={READY: seconds, FIRST: 2 * seconds}) for seconds in (5.0, 1.0, 2.0)]
    assert middle(starts).ends == {READY: 2.0, FIRST: 4.0}


def test_the_verdict_follows_the_median_and_names_the_slowest() -> None:
    slow = replace(START, ends={READY: 8.0, FIRST: 9.0})
    assert report(slow, [START, START, slow]).endswith("after 3.50 s (slowest of 3: 9.00): under 5 s")
    assert report(slow, [START, slow, slow]).endswith("after 9.00 s (slowest of 3: 9.00): not under 5 s")
