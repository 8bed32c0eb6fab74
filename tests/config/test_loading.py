from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.config import check, load
from tandem.config.report import render_error
from tandem.errors import DocumentError

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path, text: str = "", name: str = "appliance.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def codes(caught: pytest.ExceptionInfo[DocumentError]) -> list[str]:
    return [problem.code for problem in caught.value.problems]


def test_an_empty_appliance_is_the_default_one(tmp_path: Path) -> None:
    documents = load(write(tmp_path), environment={})
    assert documents.profile_name == "smollm2-135m"
    assert documents.profile.weights.size == 98362432
    assert documents.residency_name == "laptop"
    assert documents.state == tmp_path / ".tandem"
    assert [path.name for path in documents.files] == ["appliance.yaml", "smollm2-135m.yaml", "laptop.yaml"]


def test_documents_beside_the_appliance_come_before_ours(tmp_path: Path) -> None:
    write(
        tmp_path,
        (ROOT / "residency/laptop.yaml").read_text().replace("floor: 1 GiB", "floor: 2 GiB"),
        "residency/laptop.yaml",
    )
    assert load(write(tmp_path), environment={}).residency.floor == 2 << 30


def test_a_profile_is_written_over_the_one_it_extends(tmp_path: Path) -> None:
    write(tmp_path, "extends: smollm2-135m\nmodel: mine\nkv: {heads: 5}\nsampling: {top_k: 7}\n", "profiles/mine.yaml")
    write(tmp_path, "extends: mine\nwindow: 4096\nserving: {side_window: 2048}\n", "profiles/short.yaml")
    documents = load(write(tmp_path, "profile: short\n"), environment={})
    profile = documents.profile
    assert (profile.model, profile.window, profile.kv.heads, profile.kv.layers) == ("mine", 4096, 5, 30)
    assert (profile.serving.side_window, profile.serving.chunk) == (2048, 256)
    assert (profile.sampling.top_k, profile.sampling.temperature) == (7, 0.2)
    assert [path.name for path in documents.files[1:4]] == ["short.yaml", "mine.yaml", "smollm2-135m.yaml"]


def test_weights_may_be_a_directory_which_no_hash_proves(tmp_path: Path) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    directory = "weights: {source: path:models/mine, distribution: null, sha256: null, size: null}\n"
    write(tmp_path, f"extends: smollm2-135m\n{directory}", "profiles/mine.yaml")
    located = load(write(tmp_path, "profile: mine\n"), environment={}).weights
    assert (located.path, located.present, located.fetchable) == (tmp_path / "models/mine", True, False)

    write(tmp_path, "extends: mine\nweights: {size: 3 GiB}\n", "profiles/sized.yaml")
    with pytest.raises(DocumentError) as caught:
        load(write(tmp_path, "profile: sized\n"), environment={})
    assert codes(caught) == ["not-allowed"]
    assert caught.value.problems[0].message.endswith("this profile's weights are a directory: models/mine")


def test_a_name_may_hold_dots(tmp_path: Path) -> None:
    assert load(write(tmp_path, "profile: qwen3.8-27b\n"), environment={}).profile_name == "qwen3.8-27b"


def test_a_document_may_be_named_by_its_path(tmp_path: Path) -> None:
    path = write(tmp_path, "profile: ./mine/one.yaml\nstate: /var/lib/tandem\n")
    write(tmp_path, "extends: ../mine/two.yaml\nmodel: one\n", "mine/one.yaml")
    write(tmp_path, "extends: smollm2-135m\n", "mine/two.yaml")
    documents = load(path, environment={})
    assert (documents.profile_name, documents.profile.model) == ("one", "one")
    assert documents.state == Path("/var/lib/tandem")


def test_failures_name_every_file_that_was_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "profile: absent\nresidency: laptop\n")
    with pytest.raises(DocumentError) as caught:
        load(path, environment={})
    assert set(caught.value.files) == {
        str(path),
        str(tmp_path / "profiles/absent.yaml"),
        str(ROOT / "residency/laptop.yaml"),
    }


def test_a_missing_appliance_is_a_problem_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        load(tmp_path / "appliance.yaml", environment={})
    assert codes(caught) == ["not-found"]
    assert caught.value.files == (str(tmp_path / "appliance.yaml"),)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"slots: \xe4\n"])
def test_text_that_is_not_utf8(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "appliance.yaml").write_bytes(content)
    with pytest.raises(DocumentError) as caught:
        load(tmp_path / "appliance.yaml", environment={})
    assert codes(caught) == ["syntax"]


def test_a_folder_in_the_place_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "appliance.yaml").mkdir()
    with pytest.raises(DocumentError) as caught:
        load(tmp_path / "appliance.yaml", environment={})
    assert codes(caught) == ["not-found"]


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert load(write(tmp_path, "\ufeffslots: {count: 3}\n"), environment={}).appliance.slots.count == 3


def test_problems_of_one_phase_come_together_in_the_order_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, "extends: smollm2-135m\nwindow: big\n", "profiles/mine.yaml")
    with pytest.raises(DocumentError) as caught:
        load(write(tmp_path, "listen: {port: x}\nprofile: mine\nslots: {count: y}\n"), environment={})
    places = [(Path(problem.place.file).name, problem.place.line) for problem in caught.value.problems if problem.place]
    assert places == [("appliance.yaml", 1), ("appliance.yaml", 3), ("mine.yaml", 2)]


def test_keys_that_cannot_be_read_stop_everything(tmp_path: Path) -> None:
    path = write(tmp_path, "keys: {variable: MY_KEYS}\n")
    with pytest.raises(DocumentError):
        load(path, environment={})
    with pytest.raises(DocumentError):
        load(path, environment={"MY_KEYS": ""})
    assert load(path, environment={"MY_KEYS": "alice:x"}).appliance.keys.variable == "MY_KEYS"
    path = write(tmp_path, "keys: {file: keys.txt}\n")
    with pytest.raises(DocumentError):
        load(path, environment={})
    write(tmp_path, "alice:x\n", "keys.txt")
    assert load(path, environment={}).appliance.keys.file == "keys.txt"


def test_the_variable_that_carries_keys_is_no_override(tmp_path: Path) -> None:
    """Whoever names it: the document, a variable or a flag."""
    path = write(tmp_path, "keys: {variable: TANDEM_API_KEYS}\n")
    keys = {"TANDEM_API_KEYS": "alice:x"}
    assert load(path, environment=keys).appliance.keys.variable == "TANDEM_API_KEYS"
    path = write(tmp_path)
    assert load(path, ["keys.variable=TANDEM_API_KEYS"], keys).appliance.keys.variable == "TANDEM_API_KEYS"
    keys["TANDEM_KEYS__VARIABLE"] = "TANDEM_API_KEYS"
    assert load(path, environment=keys).appliance.keys.variable == "TANDEM_API_KEYS"


def test_check_tells_the_kind_by_the_folder(tmp_path: Path) -> None:
    assert check(write(tmp_path), {}) == "appliance"
    assert check(ROOT / "profiles/qwen3.8-27b.yaml", {}) == "profile"
    assert check(ROOT / "residency/dgx-spark.yaml", {}) == "residency"


def test_a_base_profile_may_lack_what_its_heirs_bring_but_not_misspell(tmp_path: Path) -> None:
    assert check(write(tmp_path, "family: llama\n", "profiles/_base.yaml"), {}) == "profile"
    with pytest.raises(DocumentError) as caught:
        check(write(tmp_path, "famly: llama\nwindow: x\n", "profiles/_base.yaml"), {})
    assert codes(caught) == ["unknown-key", "wrong-type"]


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "x" * 300, "a/" + "y" * 300, "a\\0b", "/", ".", "..", ""])
@pytest.mark.parametrize(
    "key", ["state", "profile", "residency", "keys: {file", "roles: {narrator: {claim: 1 GiB, model"]
)
def test_paths_that_cannot_be(tmp_path: Path, key: str, name: str) -> None:
    path = write(tmp_path, f'{key}: "{name}"{"}" * key.count("{")}\n')
    try:
        load(path, environment={})
    except DocumentError as error:
        assert all(problem.place is not None for problem in error.problems)


GOOD = (ROOT / "docs/examples/spark-with-roles.yaml").read_text()
SNIPPETS = [
    ": ", "{", "}", "[", "]", "&a ", "*a", "<<: ", "- ", "\t", "!!int ", "null", "\u2028", "1e999", "0o7", "\x00",
    "\x07", "'", '"', "|", ">", "#", "---\n", "...\n", "? ", "%YAML 1.1\n", "\ufeff", "~", "on", "9" * 40, "-1",
    ".nan", "=", "keys: sk-1234567890\n", "extends: x\n", "\n", "  ", "é漢", "{" * 70,
]  # fmt: skip
EDITS = st.lists(
    st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.sampled_from(SNIPPETS)), min_size=1, max_size=4
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EDITS)
def test_no_edit_makes_a_traceback(tmp_path: Path, edits: list[tuple[int, int, str]]) -> None:
    """Whatever is cut out of and put into a good document: it loads, or every finding has a place and can be said."""
    text = GOOD
    for at, cut, put in edits:
        text = text[:at] + put + text[at + cut :]
    path = tmp_path / "appliance.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load(path, environment={})
    except DocumentError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.place is not None or "cannot be read" in problem.message, problem
        if "keys: sk-1234567890" in text:
            assert "sk-1234567890" not in render_error(error)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["slots", "memory", "roles", "limits", "listen", "keys", "engine", "sampling", "profile", "state"]),
    VALUES,
)
def test_no_value_makes_a_traceback(tmp_path: Path, key: str, value: object) -> None:
    import json

    path = tmp_path / "appliance.yaml"
    path.write_text(f"{key}: {json.dumps(value)}\n", encoding="utf-8")  # JSON is YAML
    try:
        load(path, environment={})
    except DocumentError as error:
        assert all(problem.place is not None for problem in error.problems)
        render_error(error)
