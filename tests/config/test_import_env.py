from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.config.documents import Appliance
from tandem.config.import_env import import_env
from tandem.config.shape import read_shape
from tandem.config.source import Layers, read_tree
from tandem.units import GIB

SERVE = """
# the reference box
QSE_PARALLEL=2            # 1 is one sequence
QSE_SIDE_MAX_LEN=65536
export QSE_PARALLEL_FLOOR_GB=15
QSE_SIDE_GRAPHS=off
QSE_SIDE_SLOT_CONST_GB="1.5"
QSE_KV_POOL=on
QSE_KV_MARGIN_ROWS=256
QSE_KV_HARD_FLOOR_GB=10
QSE_ROLE_RELOAD_MARGIN_GB=4
QSE_ROLE_RELOAD_S=60
QSE_ROLE_UNLOAD_LAYA=on
QWEN38_SIDE_CARRY=off
QWEN38_SIDE_SLOT0_WAIT_S=3
QWEN38_SIDE_HOME_WAIT_S=2.5
QWEN38_SIDE_CONTINUE=resident
QWEN38_SIDE_CONV=off
QWEN38_SIDE_GUESTS=off
QWEN38_SIDE_NEW_FIRST=off
QWEN38_SIDE_MIN_ROOM=32768
QWEN38_SIDE_DISK=off
QSE_SOMETHING_NEW=1
PYTHONPATH=/srv
"""


def read(document: str) -> Appliance:
    tree, problems = read_tree(document, "appliance.yaml")
    assert problems == []
    appliance, problems = read_shape(Layers((tree,)), Appliance)
    assert problems == []
    assert appliance is not None
    return appliance


def test_what_has_a_counterpart_is_in_the_document() -> None:
    said = read(import_env(SERVE).document)
    assert (said.slots.count, said.slots.side_window, said.slots.graphs) == (2, 65536, False)
    assert said.slots.side_constant == 3 * GIB // 2
    assert (said.memory.floor, said.memory.hard_floor) == (15 * GIB, 10 * GIB)
    assert (said.memory.kv_pool, said.memory.kv_margin_rows) == (True, 256)
    assert (said.profile, said.residency) == ("qwen3.8-27b", "dgx-spark")


def test_the_older_rules_of_slot_choice_are_kept() -> None:
    said = read(import_env(SERVE).document).routing
    assert (said.continues, said.past_head, said.guests, said.new_first, said.carry) == ("resident", *(False,) * 4)
    assert (said.slot0_wait, said.home_wait, said.own_work_wait, said.side_min_room) == (3.0, 2.5, 15.0, 32_768)
    assert len(import_env("QWEN38_SIDE_CONTINUE=rows\n").words) == 1


def test_every_other_line_is_a_sentence() -> None:
    words = import_env(SERVE).words
    assert [sentence.split("`")[1].split("=")[0] for sentence in words] == [
        "QSE_ROLE_RELOAD_MARGIN_GB",
        "QSE_ROLE_RELOAD_S",
        "QSE_ROLE_UNLOAD_LAYA",
        "QWEN38_SIDE_DISK",
        "QSE_SOMETHING_NEW",
        "PYTHONPATH",
    ]
    assert "`QSE_ROLE_RELOAD_MARGIN_GB=4`: belongs to the residency document: `reload.margin: 4 GiB`" in words


def test_a_value_it_could_not_have_had_is_a_sentence() -> None:
    imported = import_env("QSE_PARALLEL=two\nQSE_PARALLEL_FLOOR_GB=nan\nQSE_KV_POOL=perhaps\nQSE_REQUEST_TIMEOUT=-1\n")
    assert len(imported.words) == 4
    assert read(imported.document).slots.count is None


def test_a_value_out_of_our_range_is_a_sentence_too() -> None:
    assert any("slots.count" in sentence for sentence in import_env("QSE_PARALLEL=64\n").words)


def test_a_name_set_twice_counts_as_its_last_value() -> None:
    imported = import_env("QSE_PARALLEL=2\nQSE_PARALLEL=3\n")
    assert read(imported.document).slots.count == 3
    assert imported.words == ("`QSE_PARALLEL` is set twice; line 2 counts",)


def test_no_secret_is_said() -> None:
    imported = import_env("QSE_API_KEY=sk-verysecret\nHF_TOKEN=hf_verysecret\nQSE_NOTE=sk-verysecret1\nverysecret\n")
    assert "verysecret" not in imported.document + " ".join(imported.words)
    assert len(imported.words) == 4


NAMES = st.sampled_from(
    ["QSE_PARALLEL", "QSE_SIDE_SLOT_CONST_GB", "QSE_HOST", "QSE_QUEUE_TIMEOUT", "QWEN38_X", "OTHER"]
)


@given(st.lists(st.tuples(NAMES, st.text(max_size=12))))
def test_nothing_is_dropped_in_silence(lines: list[tuple[str, str]]) -> None:
    """Whatever the values are: each name is in the document or in a sentence, and the document is YAML."""
    text = "".join(f"{name}={value.splitlines()[0] if value.splitlines() else ''}\n" for name, value in lines)
    imported = import_env(text)
    tree, problems = read_tree(imported.document, "appliance.yaml")
    assert problems == []
    keys = {
        "QSE_PARALLEL": "count",
        "QSE_SIDE_SLOT_CONST_GB": "side_constant",
        "QSE_HOST": "host",
        "QSE_QUEUE_TIMEOUT": "queue_timeout",
    }
    for name in {name for name, _ in lines}:
        assert keys.get(name, "?") in str(tree.plain()) or any(name in sentence for sentence in imported.words)
