"""Which slot a request gets, and why. Pure: facts in, a decision with its sentence and numbers out. Read `route` first.

Slot 0 has the widest window, so it is spared for what only it can hold; where all windows are equal no slot is
special. Rows that need not be read again are worth a wait, but a short one: every wait counts from the request's
arrival, so however many it meets, it has waited no longer than the longest of them when a free slot takes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.contract.plan import Routing
from tandem.engine.case import Case, Harm
from tandem.engine.facts import Ask, Grid, Held, Holder, SlotFacts, Take, Wait, WaitKind


def route(
    ask: Ask, slots: Sequence[SlotFacts], elsewhere: Sequence[Held], rules: Routing, grid: Grid, now: float
) -> Take | Wait:
    """`slots` are all of them in order; `now` is of the clock that `ask.arrived` is of.

    The first rule that has an answer decides. A prompt that only slot 0 can hold is compared with nothing else: then
    `Case.fitting` is slot 0 alone.
    """
    case = Case(ask, tuple(slots), tuple(elsewhere), rules, grid, now)
    for rule in (
        where_its_conversation_is,
        as_a_guest,
        ahead_of_its_turn,
        beside_a_long_conversation,
        whatever_is_free,
    ):
        if (answer := rule(case)) is not None:
            return answer
    return in_the_queue(case)


# --- the rules --------------------------------------------------------------------------------------------------


def where_its_conversation_is(case: Case) -> Take | Wait | None:
    """The slot that holds it, or slot 0 where nobody else can bring it back; a short while also when that is busy."""
    if (wish := case.wish) is None:
        return None
    if wish.slot.is_free:
        return case.take(wish.slot, wish.why)
    until = case.ask.arrived + wish.patience
    if case.now >= until or len(case.fitting) == 1:
        return None
    return Wait(wish.kind, f"{wish.sentence} after {wish.patience:g} s", wish.slot.index, until)


def as_a_guest(case: Case) -> Take | None:
    """Short, and beside slot 0's conversation: an idle side slot, even when slot 0 is free; else slot 0, whose rows are
    put aside. A side slot's own conversation is not given up for it while slot 0's can be put aside."""
    if case.is_level or not case.free or not case.is_guest_of(case.slot0):
        return None
    slot = min(case.free, key=lambda slot: (case.harm(slot), slot.index == 0, *case.preference(slot)))
    return case.take(slot, f"guest of slot 0's conversation of {case.slot0.kept:,} tokens")


def ahead_of_its_turn(case: Case) -> Take | None:
    """A task that is nobody's guest, because slot 0 holds little or nothing: an idle side slot where nothing is lost.
    The turn it belongs to may come right behind it, and may be too long for any other slot than slot 0."""
    idle = [slot for slot in case.free if slot.index and case.harm(slot) is Harm.NOTHING]
    if case.is_level or not case.rules.guests or not case.ask.task or not idle:
        return None
    return case.take(min(idle, key=case.preference), "a task, leaves slot 0 to conversations")


def beside_a_long_conversation(case: Case) -> Take | None:
    """A new conversation leaves one alone that no side slot could hold, while it can go elsewhere."""
    kept, idle = case.slot0.kept, [slot for slot in case.free if slot.index]
    is_long = kept + case.rules.side_min_room > case.side_window and case.harm(case.slot0) > Harm.LITTLE
    if case.is_level or not case.rules.new_first or not is_long or not idle or case.wish is not None:
        return None
    return case.take(min(idle, key=case.preference), f"{case.story}, beside one of {kept:,} tokens on slot 0")


def whatever_is_free(case: Case) -> Take | Wait | None:
    """Slot 0; a side slot when a client has that. Own work alone sends nobody to a side slot, it gives way."""
    ask, slot0 = case.ask, case.slot0
    if case.is_level or slot0.is_free:
        free = [slot for slot in case.free if case.is_level or slot.index == 0]
        return case.take(min(free, key=case.preference), case.story) if free else None
    if slot0.holder is Holder.OWN_WORK and not ask.own_work:
        until = ask.arrived + case.rules.own_work_wait
        if case.now < until:
            return Wait(WaitKind.OWN_WORK, _gives_way(slot0), slot0.index, until)
    if not case.free:
        return None
    busy = "" if case.wants_slot0 else ", slot 0 is busy"
    return case.take(min(case.free, key=case.preference), case.story + busy)


def in_the_queue(case: Case) -> Wait:
    """No slot that can hold it is free. A client's request asks own work to give way, wherever that runs."""
    if not case.ask.own_work:
        for slot in case.fitting:
            if slot.holder is Holder.OWN_WORK:
                return Wait(WaitKind.OWN_WORK, _gives_way(slot), slot.index)
    if len(case.fitting) == 1 < len(case.slots):
        return Wait(WaitKind.TOO_LONG, f"too long for a side slot ({case.side_window:,} tokens), waits for slot 0", 0)
    many = len(case.slots)
    return Wait(WaitKind.BUSY, "the slot is busy" if many == 1 else f"all {many} slots are busy")


def _gives_way(slot: SlotFacts) -> str:
    return f"slot {slot.index} does work of the appliance's own, which gives way"
