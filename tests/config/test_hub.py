"""Whole checkpoint directories from a hub on loopback: gated, sharded, interrupted, damaged."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem.config import Documents, load
from tandem.config.fetch import Pulled, pull
from tandem.errors import CannotStart, DocumentError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_this_test"
SHARDS = {f"model-0000{number}-of-00003.safetensors": bytes([number]) * (1 << 20) for number in (1, 2, 3)}
INDEX = json.dumps({"weight_map": {f"t{number}": name for number, name in enumerate(SHARDS)}}).encode()
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "generation_config.json": b'{"eos_token_id": 1}',
    "model.safetensors.index.json": INDEX,
} | SHARDS


@dataclass
class Hub:
    """Two servers as hubs are: one that knows files and gates, one that holds the large ones."""

    address: str = ""
    store: str = ""  # address of the second
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    gated: bool = False
    drop: dict[str, int] = field(default_factory=dict)  # bytes of a file after which its connection breaks
    fetched: list[tuple[str, str | None]] = field(default_factory=list)  # GET of a file, and its Range
    shown: dict[str, list[str | None]] = field(default_factory=lambda: {"hub": [], "store": []})  # Authorization


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        place = "hub"

        def do_HEAD(self) -> None:
            self.answer(b"")

        def do_GET(self) -> None:
            self.answer(hub.files.get(self.path.rpartition("/")[2], b""))

        def answer(self, body: bytes) -> None:
            hub.shown[self.place].append(self.headers.get("Authorization"))
            name = self.path.rpartition("/")[2]
            content = hub.files.get(name)
            if self.place == "hub":
                if status := self.refusal(name):
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if name in SHARDS:
                    self.point_to_the_store(name)
                    return
            assert content is not None
            asked = self.headers.get("Range")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if self.command == "GET":
                hub.fetched.append((name, asked))
            self.send_response(206 if asked else 200)
            self.send_header("ETag", '"0123"')
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = body[start:]
            if name in hub.drop:
                body, self.close_connection = body[: hub.drop[name]], True
            self.wfile.write(body)

        def refusal(self, name: str) -> int:
            shown = self.headers.get("Authorization")
            if hub.gated and shown != f"Bearer {TOKEN}":
                return 403 if shown else 401
            return 0 if name in hub.files and self.path == f"/owner/name/resolve/{COMMIT}/{name}" else 404

        def point_to_the_store(self, name: str) -> None:
            self.send_response(302)
            self.send_header("Location", f"{hub.store}/large/{name}")
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(FILES[name]).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(FILES[name])))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Store(Handler):
        place = "store"

    servers = [ThreadingHTTPServer((host, 0), each) for host, each in (("127.0.0.1", Handler), ("127.0.0.2", Store))]
    hub.address = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.store = f"http://127.0.0.2:{servers[1].server_address[1]}"
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in servers]
    for thread in threads:
        thread.start()
    yield hub
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


PROFILE = f"""
model: tiny
family: qwen3
window: 128
weights:
  source: hub:owner/name@{COMMIT}
  in_memory: {{float32: {{size: 8 MiB, basis: estimate}}}}
kv: {{layers: 3, heads: 2, head_dim: 16}}
slot: {{graphs: {{size: 1 MiB, basis: estimate}}, plain: {{size: 1 MiB, basis: estimate}}}}
runtime: {{size: 240 MiB, basis: estimate}}
workspace: {{size: 8 MiB, basis: estimate}}
serving: {{compute: float32, side_window: 128}}
"""


def documents(folder: Path, hub: Hub, more: str = "") -> Documents:
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles/mine.yaml").write_text(PROFILE)
    path = folder / "appliance.yaml"
    path.write_text(f"profile: mine\ndownloads:\n  endpoint: {hub.address}\n{more}")
    return load(path, environment={})


def get(read: Documents) -> tuple[Pulled, list[tuple[str, int, int | None]]]:
    told: list[tuple[str, int, int | None]] = []
    return pull(read, lambda *progress: told.append(progress), wait=lambda _: None), told


def held(read: Documents) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in read.weights.path.iterdir() if not file.name.startswith(".")}


def test_every_shard_of_the_index_and_the_documents_beside_it(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    assert not read.weights.present
    pulled, told = get(read)
    assert pulled == Pulled(read.weights.path, fetched=True, verified=True)
    assert held(read) == FILES
    assert ("fetching 6 of 6 of", 1 << 20, 1 << 20) in told  # the index came first, and by itself
    assert {asked for _, asked in hub.fetched} == {None}
    count = len(hub.fetched)
    assert count == len(FILES)
    assert get(documents(tmp_path, hub))[0].fetched is False and len(hub.fetched) == count
    assert not list(read.weights.path.parent.glob("*.part"))


def test_a_model_in_one_piece_has_no_index(tmp_path: Path, hub: Hub) -> None:
    hub.files = {name: FILES[name] for name in ("config.json", "tokenizer.json")} | {"model.safetensors": b"x" * 100}
    read = documents(tmp_path, hub)
    assert get(read)[0].verified is False  # nobody stated a sha256: the size is what is compared
    assert held(read) == hub.files


def test_an_interrupted_pull_goes_on_with_the_file_it_was_at(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    second = sorted(SHARDS)[1]
    hub.drop[second] = 0
    with pytest.raises(CannotStart, match="dropped after 0 B"):
        get(read)
    assert not read.weights.path.exists()
    part = read.weights.path.with_name(COMMIT + ".part")
    (part / f"{second}.part").write_bytes(SHARDS[second][:1000])
    before = [name for name, _ in hub.fetched]
    hub.drop.clear()
    hub.fetched.clear()
    assert get(read)[0].fetched and held(read) == FILES
    assert dict(hub.fetched)[second] == "bytes=1000-"
    assert not {name for name, _ in hub.fetched} & (set(before) - {second})


def test_a_damaged_shard_is_fetched_again_and_nothing_else(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    get(read)
    first = sorted(SHARDS)[0]
    (read.weights.path / first).write_bytes(b"short")
    hub.fetched.clear()
    assert get(read)[0].fetched is True
    assert held(read) == FILES
    assert [name for name, _ in hub.fetched] == [first]


def test_a_shard_with_other_bytes_never_stands_in_the_directory(tmp_path: Path, hub: Hub) -> None:
    read = documents(tmp_path, hub)
    last = sorted(SHARDS)[-1]
    hub.files[last] = b"z" * (1 << 20)
    with pytest.raises(CannotStart, match=f"not the file that is pinned: {last} has sha256"):
        get(read)
    assert not read.weights.path.exists()
    hub.files[last] = FILES[last]
    assert get(read)[0].verified and held(read) == FILES


def test_the_disk_is_asked_for_all_shards_before_the_first_byte_of_one(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 2 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(CannotStart, match=r"3\.0 MiB to come, 2\.0 MiB free"):
        get(documents(tmp_path, hub))
    assert not {name for name, _ in hub.fetched} & set(SHARDS)


def test_a_gated_model_without_a_token_says_what_to_do(tmp_path: Path, hub: Hub) -> None:
    hub.gated = True
    with pytest.raises(
        CannotStart, match=r"wants permission for /owner/name/resolve/\w+/config.json \(status 401\)"
    ) as no:
        get(documents(tmp_path, hub))
    assert "accept the model's terms" in str(no.value.help) and "downloads.token_variable" in str(no.value.help)


@pytest.mark.parametrize("where", ["file", "variable"])
def test_the_token_opens_the_gate_and_is_shown_to_the_hub_alone(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    hub.gated = True
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("TANDEM_HUB_TOKEN", TOKEN)
    declared = "token_file: token" if where == "file" else "token_variable: TANDEM_HUB_TOKEN"
    read = documents(tmp_path, hub, f"  {declared}\n")
    pulled, told = get(read)
    assert pulled.verified and held(read) == FILES
    assert set(hub.shown["hub"]) == {f"Bearer {TOKEN}"}
    assert set(hub.shown["store"]) == {None} and len(hub.shown["store"]) == len(SHARDS)
    assert TOKEN not in repr(told)
    monkeypatch.delenv("TANDEM_HUB_TOKEN")
    (tmp_path / "token").rename(tmp_path / "away")
    assert get(read)[0].fetched is False  # what is here needs no permission any more
    (tmp_path / "away").rename(tmp_path / "token")
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "token"]
    assert not [file for file in written if TOKEN.encode() in file.read_bytes()]


def test_a_token_that_is_not_let_in(tmp_path: Path, hub: Hub) -> None:
    hub.gated = True
    (tmp_path / "token").write_text("hf_of_somebody_else")
    with pytest.raises(CannotStart, match=r"to the owner of the token \(status 403\)") as no:
        get(documents(tmp_path, hub, "  token_file: token\n"))
    assert "hf_of" not in f"{no.value} {no.value.help}"


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ("token_variable: NO_SUCH_TOKEN", "`downloads.token_variable` names is not set"),
        ("token_file: no-such-file", "`downloads.token_file` names cannot be read"),
        ("token_file: profiles/mine.yaml", "does not read as one"),
    ],
)
def test_a_token_that_is_not_where_it_should_be(tmp_path: Path, hub: Hub, declared: str, sentence: str) -> None:
    with pytest.raises(CannotStart, match=sentence) as no:
        get(documents(tmp_path, hub, f"  {declared}\n"))
    assert "NO_SUCH" not in str(no.value)
    assert not hub.shown["hub"]


def test_a_token_does_not_travel_unencrypted(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "token").write_text(TOKEN)
    hub.address = "http://hub.example"
    with pytest.raises(CannotStart, match=r"would travel readable for all to hub\.example"):
        get(documents(tmp_path, hub, "  token_file: token\n"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokenizer.json": None}, "owner/name at 0123456789abcdef0123456789abcdef01234567 has no tokenizer.json"),
        ({"model.safetensors.index.json": b"[]"}, "does not read as an index"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../../x.safetensors"}}'}, "names files that no"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "other.safetensors"}}'}, "has no other.safetensors"),
    ],
)
def test_a_repository_that_is_no_checkpoint(
    tmp_path: Path, hub: Hub, change: dict[str, bytes | None], sentence: str
) -> None:
    hub.files = {name: content for name, content in (FILES | change).items() if content is not None}
    read = documents(tmp_path, hub)
    with pytest.raises(CannotStart, match=sentence):
        get(read)
    assert not read.weights.path.exists()


def test_one_sha256_cannot_prove_a_directory(tmp_path: Path, hub: Hub) -> None:
    documents(tmp_path, hub)
    profile = tmp_path / "profiles/mine.yaml"
    profile.write_text(profile.read_text().replace("  in_memory", f"  sha256: {'0' * 64}\n  in_memory"))
    with pytest.raises(DocumentError) as wrong:
        load(tmp_path / "appliance.yaml", environment={})
    assert "are a directory of a hub" in wrong.value.problems[0].message


def test_a_token_is_read_in_one_place(tmp_path: Path, hub: Hub) -> None:
    with pytest.raises(DocumentError) as wrong:
        documents(tmp_path, hub, "  token_file: token\n  token_variable: T\n")
    assert "cannot both say where the token is read" in wrong.value.problems[0].message
