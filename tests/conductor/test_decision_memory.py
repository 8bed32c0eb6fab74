from __future__ import annotations

from tandem.conductor.conductor import Deciding
from tandem.conductor.memory import DecisionMemory, digests
from tandem.contract.plan import ClassPlan, Conducting, PackagePlan

DECISION = Deciding(
    Conducting(classes={"a": ClassPlan("p")}, default="a", packages={"p": PackagePlan("note")})
).decide()
TURNS = [("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three")]


def test_a_message_is_known_by_all_that_stands_before_it() -> None:
    known = list(digests("key", TURNS))
    assert list(digests("key", TURNS[:2])) == known[:2], "a later turn changes nothing of an earlier one"
    assert len(set(known)) == 4
    assert not set(known) & set(digests("other key", TURNS))
    changed = list(digests("key", [TURNS[0], ("user", "One"), *TURNS[2:]]))
    assert changed[0] == known[0] and not set(changed[1:]) & set(known)


def test_role_and_text_do_not_run_into_each_other() -> None:
    assert list(digests("", [("user", "x")])) != list(digests("", [("use", "rx")]))
    assert list(digests("", [("user", "\ud800")])), "a client's broken text is no reason to fail"


def test_the_ones_used_last_are_kept() -> None:
    memory = DecisionMemory(most=2)
    for name in (b"1", b"2"):
        memory.keep(name, DECISION)
    assert memory.find(b"1") is DECISION
    memory.keep(b"3", DECISION)
    assert memory.find(b"2") is None and memory.find(b"1") is DECISION and memory.find(b"3") is DECISION
