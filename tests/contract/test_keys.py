from __future__ import annotations

from pathlib import Path

import pytest

from tandem.contract.keys import key_file_warnings, key_warnings, read_keys
from tandem.contract.plan import KeySource

VARIABLE = KeySource(variable="MY_KEYS")


def test_a_line_is_a_name_and_a_key() -> None:
    lines = read_keys("# people\nann:one\n\n ben : two:parts \nsk-other\n:c\nd:\n")
    assert lines.keys == (("ann", "one"), ("ben", "two:parts"))
    assert lines.bad == (5, 6, 7)


@pytest.mark.parametrize("content", ["", "# nobody:yet\n\n", "sk-secret\n:b\na:\n"])
def test_keys_that_let_nobody_in_are_said(content: str) -> None:
    (said,) = key_warnings(VARIABLE, content)
    assert "`keys.variable` names holds no `name:key`" in said and "sk-" not in said


def test_lines_that_are_no_keys_are_said_by_number() -> None:
    (said,) = key_warnings(VARIABLE, "ann:sk-secret\n\n# bob\nsk-other\ncy:\n")
    assert "`keys.variable`" in said and "on lines 4, 5: " in said and "sk-" not in said
    (said,) = key_warnings(VARIABLE, "sk-other\n" * 9 + "ann:sk-secret")
    assert "on lines 1, 2, 3, 4, 5, 6, 7, 8 and more: " in said and "sk-" not in said


def test_a_listed_name_that_no_key_has_is_said() -> None:
    source = KeySource(variable="MY_KEYS", admin=("ann", "zed"), metrics_only=("s3cret",))
    unknown, pasted = key_warnings(source, "ann:s3cret\nben:other\n")
    assert unknown == "`keys.admin` names `zed`, and what `keys.variable` names has no key of that name"
    assert "`keys.metrics_only` holds a key itself" in pasted and "s3cret" not in pasted


def test_a_file_is_told_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    source = KeySource(file=str(path))
    for content, word in (
        (None, "is not there"),
        (b"zo\xeb:abc", "is not UTF-8"),
        (b"abc", "holds no"),
        (b"a:b\nc", "line 2"),
    ):
        if content is not None:
            path.write_bytes(content)
        (said,) = key_file_warnings(source)
        assert f"`keys.file` names {word}" in said or word in said
    path.write_text("a:b\n")
    assert key_file_warnings(source) == () == key_file_warnings(KeySource())
