"""What one key may ask for, with the time by hand."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from gateway_appliance import LIMITS
from msgspec.structs import replace

from tandem.gateway.auth import Caller
from tandem.gateway.errors import ApiError
from tandem.gateway.quota import Quota

ANNA, BEN, NOBODY = Caller("anna", "a1"), Caller("ben", "b2"), Caller()


def test_a_minute_s_requests_are_counted_and_the_next_hears_when_to_come() -> None:
    quota, limits = Quota(), replace(LIMITS, per_key_requests=3)
    for now in (0.0, 10.0, 20.0):
        quota.arrive(ANNA, False, limits, now)
    for now, wait in ((25.0, 35.0), (59.5, 0.5)):
        with pytest.raises(ApiError) as caught:
            quota.arrive(ANNA, False, limits, now)
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "rate_limit_exceeded", wait)
        assert "`limits.per_key_requests` lets one key send 3 requests a minute" in str(caught.value)
    quota.arrive(BEN, False, limits, 25.0)
    quota.arrive(ANNA, False, limits, 60.0)  # the first is a minute old, and who was refused was not counted
    with pytest.raises(ApiError):
        quota.arrive(ANNA, False, limits, 69.9)
    quota.arrive(ANNA, False, limits, 70.0)


def test_a_lower_limit_acts_on_what_has_come_already() -> None:
    quota = Quota()
    for now in range(5):
        quota.arrive(ANNA, False, replace(LIMITS, per_key_requests=5), float(now))
    with pytest.raises(ApiError) as caught:
        quota.arrive(ANNA, False, replace(LIMITS, per_key_requests=2), 30.0)
    assert caught.value.retry_after == 33.0  # when the one at 3 is a minute old, one is left
    quota.arrive(ANNA, False, replace(LIMITS, per_key_requests=2), 63.0)


def test_requests_at_once_are_counted_while_they_run() -> None:
    quota, limits = Quota(), replace(LIMITS, per_key_running=2)
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(quota.running(ANNA, False, limits))
        with pytest.raises(ApiError) as caught, quota.running(ANNA, False, limits):
            pass
        assert (caught.value.status, caught.value.retry_after) == (429, 5.0)
        assert "`limits.per_key_running` lets one key have 2 requests here at once" in str(caught.value)
        with quota.running(ANNA, True, limits), quota.running(BEN, False, limits):
            pass
    with quota.running(ANNA, False, limits):
        pass


def test_tasks_are_counted_for_themselves() -> None:
    quota, limits = Quota(), replace(LIMITS, per_key_running=1, per_key_requests=1)
    with quota.running(ANNA, False, limits), quota.running(ANNA, True, limits), pytest.raises(ApiError):
        quota.running(ANNA, True, limits).__enter__()
    quota.arrive(ANNA, False, limits, 0.0)
    quota.arrive(ANNA, True, limits, 0.0)
    with pytest.raises(ApiError):
        quota.arrive(ANNA, True, limits, 1.0)


def test_without_keys_or_limits_nobody_is_counted() -> None:
    quota, limits = Quota(), replace(LIMITS, per_key_running=1, per_key_requests=1)
    with quota.running(NOBODY, False, limits), quota.running(NOBODY, False, limits):
        quota.arrive(NOBODY, False, limits, 0.0)
        quota.arrive(NOBODY, False, limits, 0.0)
    with quota.running(ANNA, False, LIMITS), quota.running(ANNA, False, LIMITS):
        quota.arrive(ANNA, False, LIMITS, 0.0)
        quota.arrive(ANNA, False, LIMITS, 0.0)
