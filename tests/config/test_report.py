from __future__ import annotations

import pytest

from tandem.config.report import records, render, render_error
from tandem.config.source import Span, read_tree
from tandem.errors import CannotStart, DocumentError, Place, Problem


def block(problem: Problem) -> list[str]:
    return render([problem]).splitlines()


def test_the_form() -> None:
    place = Place("appliance.yaml", 9, 5, 10, "slots.side_windw", "    side_windw: 65536")
    problem = Problem(
        "unknown-key",
        "unknown key `side_windw`",
        place,
        ("this section knows `count`, `side_window`, `graphs`",),
        "did you mean `side_window`?",
    )
    assert render([problem], "nothing was changed, the running plan stays as it is") == (
        "error[unknown-key]: unknown key `side_windw`\n"
        " --> appliance.yaml:9:5  (slots.side_windw)\n"
        "  |\n"
        "9 |     side_windw: 65536\n"
        "  |     ^^^^^^^^^^\n"
        "  = this section knows `count`, `side_window`, `graphs`\n"
        "  = help: did you mean `side_window`?\n"
        "\n"
        "appliance.yaml: 1 error; nothing was changed, the running plan stays as it is\n"
    )


def test_the_gutter_is_as_wide_as_the_number() -> None:
    lines = block(Problem("x", "y", Place("a.yaml", 1000, 1, 1, "", "key: 1")))
    assert lines[1:5] == ["    --> a.yaml:1000:1", "     |", "1000 | key: 1", "     | ^"]


@pytest.mark.parametrize(
    ("text", "under"),
    [
        ("漢字: bad\n", "      ^^^"),  # wide characters take two columns
        ("e\u0301: bad\n", "   ^^^"),  # a combining accent takes none
        ("'a\tb': bad\n", "       ^^^"),  # a tab is shown as one space
    ],
)
def test_the_caret_stands_under_the_value(text: str, under: str) -> None:
    tree, problems = read_tree(text, "a.yaml")
    assert problems == []
    (key,) = tree.plain()
    lines = block(Problem("x", "y", tree.place((key,))))
    assert lines[4].removeprefix("  | ") == under


def test_a_long_line_is_shown_around_the_caret() -> None:
    source = "a: [" + "x, " * 200 + "bad]"
    place = Place("a.yaml", 1, source.index("bad") + 1, 3, "a[200]", source)
    shown, caret = block(Problem("x", "y", place))[3:5]
    assert len(shown) < 160
    assert shown[caret.index("^") : caret.rindex("^") + 1] == "bad"


def test_a_caret_past_the_end_of_the_line() -> None:
    tree, _ = read_tree("a:", "a.yaml")
    assert block(Problem("x", "y", tree.place_of(Span(1, 3, 1))))[4] == "  |   ^"


def test_what_stands_in_no_file_has_no_line() -> None:
    place = Place("TANDEM_SLOTS__COUNT", 0, 21, 4, "slots.count", "TANDEM_SLOTS__COUNT=four")
    assert block(Problem("x", "y", place))[1:5] == [
        " --> TANDEM_SLOTS__COUNT  (slots.count)",
        "  |",
        "  | TANDEM_SLOTS__COUNT=four",
        "  |                     ^^^^",
    ]


def test_counts_are_by_document() -> None:
    one, two = Place("a.yaml", 1, 1, 1, "", "x"), Place("b.yaml", 1, 1, 1, "", "x")
    text = render([Problem("x", "y", one), Problem("x", "y", two), Problem("x", "y", two)])
    assert text.splitlines()[-1] == "a.yaml: 1 error, b.yaml: 2 errors; nothing was changed"


def test_an_error_beside_the_documents_is_its_sentence_and_its_fix() -> None:
    assert render_error(CannotStart("the port is busy", "free it")) == "error: the port is busy\n  = help: free it\n"
    assert render_error(CannotStart("the port is busy")) == "error: the port is busy\n"


def test_json_has_the_same_records() -> None:
    place = Place("a.yaml", 2, 3, 4, "slots.count", "  count: four")
    error = DocumentError((Problem("wrong-type", "expected a number", place, ("why",), "fix"),))
    assert records(error) == [
        {
            "code": "wrong-type",
            "message": "expected a number",
            "place": {"file": "a.yaml", "line": 2, "column": 3, "path": "slots.count"},
            "notes": ["why"],
            "help": "fix",
        }
    ]
    assert records(CannotStart("busy", "free it"))[0]["message"] == "busy"
