from __future__ import annotations

import pytest

from tandem.config.source import HIDDEN, Layers, Span, is_secret, read_tree, read_value, without_secrets


def plain(text: str) -> dict[str, object]:
    tree, problems = read_tree(text, "a.yaml")
    assert problems == []
    return tree.plain()


def test_scalars_mean_what_people_mean() -> None:
    text = "a: on\nb: No\nc: 65_536\nd: 60:30\ne: 2026-10-06\nf: 0x10\ng: 1.5\nh: ~\ni: '5'\nj: 010\nk: .inf\nl: +3\n"
    assert plain(text) == {
        "a": True,
        "b": False,
        "c": 65536,
        "d": "60:30",
        "e": "2026-10-06",
        "f": "0x10",
        "g": 1.5,
        "h": None,
        "i": "5",
        "j": 10,
        "k": ".inf",
        "l": 3,
    }


def test_a_key_is_the_word_that_is_written() -> None:
    assert plain("on: 1\n1: 2\nnull: 3\n") == {"on": 1, "1": 2, "null": 3}


def test_aliases_and_merges_are_resolved() -> None:
    text = "a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}\nd: {<<: [{x: 7}, *a]}\n"
    assert plain(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": 3},
        "d": {"x": 7, "y": 2},
    }


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert plain("") == plain("# nothing\n") == plain("---\n") == {}


def test_a_list_is_immutable() -> None:
    assert plain("a: [1, [2]]") == {"a": (1, (2,))}


@pytest.mark.parametrize(
    ("text", "path", "on_key", "expected"),
    [
        ("slots:\n  count: 4\n", ("slots", "count"), False, (2, 10, 1)),
        ("slots:\n  count: 4\n", ("slots", "count"), True, (2, 3, 5)),
        ("slots:\n  count: 4\n", ("slots",), False, (1, 1, 5)),  # a section is pointed at by its key
        ("a: [x, why]\n", ("a", 1), False, (1, 8, 3)),
        ("a: |\n  many\n  lines\n", ("a",), False, (1, 4, 1)),
        ("\ufeffa: 1", ("a",), False, None),  # the byte order mark is the reader's to take off
        ("a: 'käse' # c\n", ("a",), False, (1, 4, 6)),
        ("a: 1\u2028b: 22\n", ("b",), False, (2, 4, 2)),  # YAML's line breaks count, not Python's
    ],
)
def test_places(text: str, path: tuple[str | int, ...], on_key: bool, expected: tuple[int, int, int] | None) -> None:
    tree, _ = read_tree(text, "a.yaml")
    place = tree.place(path, on_key=on_key)
    if expected is not None:
        assert place is not None
        assert (place.line, place.column, place.length) == expected


def test_what_a_document_does_not_say_has_no_place() -> None:
    tree, _ = read_tree("slots: {count: 4}\n", "a.yaml")
    assert tree.place(("slots", "graphs")) is None
    assert tree.place(("slots", "count", "more")) is None
    nearest = Layers((tree,)).nearest(("slots", "graphs"))
    assert nearest is not None
    assert (nearest.column, nearest.length, nearest.path) == (1, 5, "slots.graphs")


def test_the_strongest_layer_is_shown() -> None:
    over, _ = read_tree("slots: {count: 9}\n", "over.yaml")
    under, _ = read_tree("slots: {count: 4, graphs: on}\n", "under.yaml")
    layers = Layers((over, under))
    assert [layers.place(("slots", key)).file for key in ("count", "graphs")] == ["over.yaml", "under.yaml"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",  # contains itself
        "[" * 400 + "]" * 400,
        "a: " + "{x: " * 100 + "1" + "}" * 100,
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
        ),  # a billion ones
        "a: " + "x" * (1 << 20),
    ],
    ids=["cycle", "deep list", "deep mapping", "laughs", "long"],
)
def test_documents_made_to_hurt_are_refused(text: str) -> None:
    tree, problems = read_tree(text, "a.yaml")
    assert [problem.code for problem in problems] == ["syntax"]
    assert tree.plain() == {}


def test_duplicates_are_reported_all_at_once_and_the_first_stays() -> None:
    tree, problems = read_tree("a: 1\nb: {x: 1, x: 2}\na: 2\n", "a.yaml")
    assert [(problem.code, problem.place and problem.place.line) for problem in problems] == [
        ("duplicate-key", 2),
        ("duplicate-key", 3),
    ]
    assert tree.plain() == {"a": 1, "b": {"x": 1}}


def test_a_value_from_outside_is_read_as_in_the_document() -> None:
    node, problems = read_value("[a, 2]", 20, "TANDEM_X__YYYYYYYY=[a, 2]", "TANDEM_X__YYYYYYYY")
    assert problems == []
    assert node.plain() == ("a", 2)
    assert node.span == Span(0, 20, 6)
    assert read_value("", 3, "a=", "a")[0].plain() is None


@pytest.mark.parametrize(
    "line",
    [
        "api_key: secret",
        "  password: 'secret'",
        "- token: secret",
        "TANDEM_API_KEY=secret",
        "engine: {hf_token: secret, device: cpu}",
        "keys: [alice:secret]",
        "anything: sk-secret1234",
        "header: Bearer secret1234",
    ],
)
def test_secrets_are_hidden_and_columns_kept(line: str) -> None:
    shown = without_secrets(line)
    assert "secret" not in shown
    assert len(shown) == len(line)
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "line", ["indexer_key: 128", "default_max_tokens: 5", "monkey: banana", "sha256: b179c952", "keys:"]
)
def test_what_is_no_secret_is_shown(line: str) -> None:
    assert without_secrets(line) == line


def test_names_that_hold_secrets() -> None:
    assert [name for name in ("key", "QSE_API_KEY", "keys", "hf_token", "monkey", "max_tokens") if is_secret(name)] == [
        "key",
        "QSE_API_KEY",
        "keys",
        "hf_token",
    ]
