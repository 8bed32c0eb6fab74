from __future__ import annotations

from pathlib import Path

import pytest

from tandem.config import load
from tandem.config.cautions import is_loopback
from tandem.errors import DocumentError


def cautions(folder: Path, text: str, **environment: str) -> tuple[str, ...]:
    path = folder / "appliance.yaml"
    path.write_text(text)
    return load(path, environment=environment).cautions


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.local"])
def test_an_open_door_is_said(tmp_path: Path, host: str) -> None:
    (said,) = cautions(tmp_path, f"listen: {{host: '{host}'}}")
    assert said == f"the API answers on {host} without keys: anyone who reaches that port can use it"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(tmp_path: Path, host: str) -> None:
    assert is_loopback(host)
    assert cautions(tmp_path, f"listen: {{host: '{host}'}}") == ()


def test_a_variable_without_keys_is_said(tmp_path: Path) -> None:
    (said,) = cautions(tmp_path, "keys: {variable: MY_KEYS}", MY_KEYS="sk-secret\n:b\na:\n")
    assert "`keys.variable`" in said and "sk-" not in said
    (tmp_path / "keys.txt").write_text("")
    assert cautions(tmp_path, "keys: {file: keys.txt}") == ()  # a file is asked when somebody wants to know


def test_a_key_file_that_is_no_text_is_refused_as_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_bytes("zo\u00eb:sk-secret".encode("latin-1"))
    with pytest.raises(DocumentError) as caught:
        cautions(tmp_path, "keys: {file: keys.txt}")
    (problem,) = caught.value.problems
    assert (problem.code, problem.place and problem.place.path) == ("not-found", "keys.file")
    assert problem.message == f"the file that `keys.file` names is not UTF-8 text: {tmp_path}/keys.txt"


@pytest.mark.parametrize(
    ("written", "is_said"),
    [
        *((path, True) for path in ("keys.txt", "./keys", "/run/keys", "~/.keys", "secrets/keys")),
        *(
            (key, False)
            for key in ("correct-horse-battery", "Zm9v/YmFyYmF6cXV4+w==", "sk-abcdefgh1234.txt", "ann:s3cret")
        ),
    ],
)
def test_a_path_is_said_and_what_may_be_a_key_is_not(tmp_path: Path, written: str, is_said: bool) -> None:
    with pytest.raises(DocumentError) as caught:
        cautions(tmp_path, f"keys:\n  file: '{written}'\n")
    (problem,) = caught.value.problems
    assert problem.place is not None
    assert (written.strip("~./") in problem.message, written in problem.place.source) == (is_said, is_said)
