from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tandem.contract.plan import KeySource
from tandem.gateway.auth import Access, Keys, Role, host_name, is_host_allowed, is_same_site, key_of


def test_without_a_source_the_api_is_open() -> None:
    caller = Keys(KeySource()).caller(None)
    assert caller is not None
    assert all(caller.may_use(access) for access in Access)


def test_what_a_key_is_for_is_said_by_its_name() -> None:
    source = KeySource(variable="API_KEYS", admin=("host", "nobody"), metrics_only=("prometheus",))
    keys = Keys(source, {"API_KEYS": "anna:one\nhost:two\nprometheus:three"})
    roles = [caller.role for key in (b"one", b"two", b"three") if (caller := keys.caller(key))]
    assert roles == [Role.USER, Role.ADMIN, Role.METRICS]


def test_a_key_names_its_caller_and_separates_their_caches(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# people\nanna:key-of-anna\n\n ben : key:with:colons \nzoë:schlüssel\n")
    keys = Keys(KeySource(file=str(file)))
    anna, ben, zoe = (keys.caller(key) for key in (b"key-of-anna", b"key:with:colons", "schlüssel".encode()))
    assert anna is not None and ben is not None and zoe is not None
    assert [caller.name for caller in (anna, ben, zoe)] == ["anna", "ben", "zoë"]
    assert len({anna.scope, ben.scope, zoe.scope}) == 3
    assert "key-of-anna" not in anna.scope
    for wrong in (None, b"", b"key-of-ann", b"key-of-anna ", b"anna", b"anna:key-of-anna"):
        assert keys.caller(wrong) is None


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("anna:old-key")
    keys = Keys(KeySource(file=str(file)))
    assert keys.caller(b"old-key") is not None
    replacement = tmp_path / "keys.new"
    replacement.write_text("anna:new-key")
    replacement.replace(file)  # as editors and secret managers do
    assert keys.caller(b"old-key") is None
    assert keys.caller(b"new-key") is not None


def test_a_file_that_is_gone_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("anna:key")
    keys = Keys(KeySource(file=str(file)))
    file.unlink()
    assert keys.caller(b"key") is None
    assert keys.caller(None) is None
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    file.write_text("anna:key")
    assert keys.caller(b"key") is not None


def test_keys_from_a_variable_and_lines_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"API_KEYS": "anna:one\njust-a-secret\n:two\nben:"}
    keys = Keys(KeySource(variable="API_KEYS"), environment)
    assert keys.caller(b"one") is not None
    assert keys.caller(b"two") is None
    assert keys.caller(b"just-a-secret") is None
    assert "just-a-secret" not in caplog.text
    assert Keys(KeySource(variable="UNSET"), {}).caller(b"") is None


def test_both_ways_to_show_a_key() -> None:
    assert key_of({b"authorization": b"Bearer abc"}) == b"abc"
    assert key_of({b"authorization": b"bearer  abc "}) == b"abc"
    assert key_of({b"x-api-key": b"abc"}) == b"abc"
    assert key_of({b"authorization": b"Basic abc"}) is None
    assert key_of({b"authorization": b"Bearer "}) is None
    assert key_of({}) is None


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:8080", "localhost"), ("LocalHost", "localhost"), ("[::1]:8080", "::1"),
        ("evil.example.", "evil.example"),
        ("http://a.example:3000", "a.example"), ("", ""), ("https://[::1]:1", "::1"),
    ],
)  # fmt: skip
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_on_loopback_only_loopback_names_are_served() -> None:
    for good in ("localhost:1", "127.0.0.1:1", "[::1]:1", "box.lan:1"):
        assert is_host_allowed(good, "127.0.0.1", ("box.lan",))
    for bad in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:1", "", "0.0.0.0"):
        assert not is_host_allowed(bad, "127.0.0.1", ("box.lan",))
    assert is_host_allowed("192.168.1.5:1", "192.168.1.5", ())
    assert is_host_allowed("any.name", "0.0.0.0", ())
    assert not is_host_allowed("any.name", "0.0.0.0", ("box.lan",))


def test_a_page_may_call_the_server_it_came_from() -> None:
    assert is_same_site("http://127.0.0.1:8080", "127.0.0.1:8080")
    for foreign in ("http://127.0.0.1:3000", "https://evil.example", "null", "http://127.0.0.1:8080.evil.example"):
        assert not is_same_site(foreign, "127.0.0.1:8080")
