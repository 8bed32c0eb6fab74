"""The engine lends its device's turn between two passes, and writes the same words as if it had not."""

from __future__ import annotations

from engine_toy import Hand, alone, ask, hand

from tandem.contract.messages import AskLease, Lease, ReturnLease
from tandem.engine.letters import PeerGone

ROLE = 7


def lent(driver: Hand, id: str) -> bool:
    (lease,) = driver.to(id, ROLE)
    assert isinstance(lease, Lease)
    return lease.granted


def test_while_the_turn_is_lent_no_pass_runs_and_the_answer_is_the_same() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=8))
    driver.turn()
    driver.turn(AskLease("t", 2.0, when_idle=False), peer=ROLE, seconds=0.1)
    before = driver.tokens("a")  # what the pass before wrote is told
    assert lent(driver, "t") and 0 < driver.engine.patience <= 2.0
    driver.turn(seconds=0.1)
    assert driver.tokens("a") == before
    driver.turn(ReturnLease("t"), peer=ROLE, seconds=0.1)
    driver.turn()
    assert len(driver.tokens("a")) > len(before)
    driver.until_idle()
    assert driver.tokens("a") == alone(ask("a", max_tokens=8))


def test_a_role_that_hangs_loses_its_turn_and_the_engine_goes_on() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=4))
    driver.turn(AskLease("t", 1.5, when_idle=False), peer=ROLE, seconds=0.1)
    before = driver.tokens("a")
    driver.turn(seconds=1.0)
    assert driver.tokens("a") == before
    driver.turn(seconds=1.0)
    driver.turn()
    assert len(driver.tokens("a")) > len(before), "its time was over"
    driver.until_idle()
    assert driver.tokens("a") == alone(ask("a", max_tokens=4))


def test_a_role_that_dies_gives_its_turn_back() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=4))
    driver.turn(AskLease("t", 2.0, when_idle=False), peer=ROLE, seconds=0.1)
    before = driver.tokens("a")
    driver.turn(PeerGone(), peer=ROLE, seconds=0.1)
    driver.turn()
    assert len(driver.tokens("a")) > len(before)


def test_a_decider_is_told_at_once_that_slot_0_is_busy() -> None:
    driver = hand()
    driver.turn(AskLease("idle", 1.0, when_idle=True), peer=ROLE)
    driver.turn(ReturnLease("idle"), peer=ROLE)
    driver.turn(ask("a", max_tokens=4))
    driver.turn(AskLease("busy", 1.0, when_idle=True), peer=ROLE)
    assert lent(driver, "idle") and not lent(driver, "busy")
