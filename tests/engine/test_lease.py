from __future__ import annotations

from tandem.contract.messages import AskLease
from tandem.engine.lease import LONGEST, Lending


def ask(lending: Lending, peer: int = 1, now: float = 0.0, **facts: bool) -> bool:
    asked = AskLease(f"id-{peer}", 1.0, when_idle=facts.pop("when_idle", False))
    return lending.ask(peer, asked, **{"slot_0_idle": True, "has_work": False, **facts}, now=now).granted


def test_one_turn_at_a_time_until_it_is_given_back() -> None:
    lending = Lending()
    assert ask(lending, 1) and lending.left(0.25) == 0.75
    assert not ask(lending, 2, now=0.5)
    lending.give_back(2, "id-1")
    lending.give_back(1, "another")
    assert lending.left(0.5) > 0, "only who has it gives it back"
    lending.give_back(1, "id-1")
    assert lending.left(0.5) == 0 and ask(lending, 2, now=0.5)


def test_a_turn_is_void_when_its_time_is_over_and_when_its_peer_is_gone() -> None:
    lending = Lending()
    assert ask(lending, 1)
    assert lending.left(1.0) == 0 and ask(lending, 2, now=1.0)
    lending.give_back(1, "id-1")
    assert lending.left(1.5) > 0, "what was void is nothing to give back"
    lending.give_back(2)
    assert lending.left(1.5) == 0


def test_nobody_holds_the_device_for_long() -> None:
    lending = Lending()
    assert lending.ask(1, AskLease("a", 3600.0, False), slot_0_idle=True, has_work=False, now=0.0).granted
    assert lending.left(0.0) == LONGEST


def test_who_may_only_work_beside_an_idle_slot_0_hears_at_once_that_it_is_busy() -> None:
    lending = Lending()
    assert not ask(lending, when_idle=True, slot_0_idle=False)
    assert ask(lending, when_idle=False, slot_0_idle=False)


def test_between_two_turns_requests_have_theirs() -> None:
    lending = Lending()
    assert ask(lending, has_work=True)
    lending.give_back(1)
    assert not ask(lending, has_work=True)
    lending.note_pass()
    assert ask(lending, has_work=True)
    lending.give_back(1)
    assert ask(lending, has_work=False), "nobody waits"
