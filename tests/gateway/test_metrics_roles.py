from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tandem.contract.messages import ApplianceState, MemoryPart, MemoryView, RoleState, RoleStatus
from tandem.gateway.metrics import Metrics

PICTURE = ApplianceState(
    plan_id="one",
    phase="serving",
    programs=(),
    live=b"{}",
    memory_available=3,
    memory_total=5,
    at=0.0,
    memory=MemoryView(5, 3, (MemoryPart("engine", 2),), free_blocks=1),
    roles=(
        RoleStatus("narrator", "narrator", RoleState.LOADED, "loaded", 1, 0.0),
        RoleStatus("shadow-reader", "shadow-reader", RoleState.UNLOADED_FOR_MEMORY, "on hold", 1, 0.0),
    ),
)


def samples(picture: ApplianceState | None) -> dict[tuple[str, ...], float]:
    text = Metrics(lambda: None, lambda: picture).render().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_each_role_is_in_one_state_and_every_state_is_there_to_be_asked_for() -> None:
    seen = samples(PICTURE)
    for role, state in (("narrator", "loaded"), ("shadow-reader", "unloaded_for_memory")):
        values = {each: seen["tandem_role", role, each] for each in RoleState}
        assert values == {each: float(each == state) for each in RoleState}
    assert seen["tandem_memory_bytes", "engine"] == 2
    assert seen["tandem_memory_free_blocks_bytes",] == 1


def test_a_director_that_has_not_spoken_yet_is_not_made_up() -> None:
    assert not any(name.startswith(("tandem_role", "tandem_memory")) for name, *_ in samples(None))
