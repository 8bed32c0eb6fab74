"""What guesses did, as clients, Prometheus and the ledger are told."""

from __future__ import annotations

import sqlite3

import pytest
from engine_double import Job
from gateway_appliance import Start

from tandem.contract.messages import Counters, Health
from tandem.gateway.metrics import Metrics

pytestmark = pytest.mark.anyio


async def answer(job: Job) -> None:
    job.start()
    job.tokens(100, 101, 102)
    job.finish(rounds=2, drafted=20, accepted=7)


async def test_guesses_are_told_in_timings_and_kept_in_the_ledger(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = answer
        timings = (await appliance.chat()).json()["timings"]
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (20, 7)
        path = appliance.service.plan.gateway.ledger
        await appliance.until(lambda: ledger(path) == [(2, 20, 7)])


async def test_metrics_tell_guesses_by_drafter_and_rounds_by_rows() -> None:
    counters = Counters(
        {1: 3, 2: 1}, 40, 21, 100, 9, 3, 0, 0, 2, 0.5, 0.1,
        rounds_by_rows={1: 1, 13: 3}, drafted={"lookup": 30, "mtp": 5}, accepted={"lookup": 16}, draft_seconds=0.25,
    )  # fmt: skip
    metrics = Metrics(lambda: Health(True, "ready", "ready", counters=counters)).render().decode()
    assert 'tandem_engine_drafted_total{drafter="lookup"} 30.0' in metrics
    assert 'tandem_engine_drafted_total{drafter="mtp"} 5.0' in metrics
    assert 'tandem_engine_accepted_total{drafter="lookup"} 16.0' in metrics
    assert 'tandem_engine_rounds_by_rows_total{rows="13"} 3.0' in metrics
    assert "tandem_engine_draft_seconds_total 0.25" in metrics
    assert "tandem_engine_rows_a_round 10.0" in metrics
    assert "tandem_engine_accepted_a_round 4.0" in metrics


def ledger(path: str) -> list[tuple[int, int, int]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT rounds, drafted, accepted FROM requests").fetchall()
    except sqlite3.OperationalError:  # not there yet
        return []
    finally:
        connection.close()
