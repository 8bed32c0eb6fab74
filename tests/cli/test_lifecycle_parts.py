"""The parts of `up`, `down`, `status` and `logs` that need no process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from ports import free_port
from typer.testing import CliRunner

from tandem.cli import app, appliance, screen
from tandem.cli.appliance import Lock, check_port, leftovers, prepare, rouse, supervisord_pid
from tandem.cli.logs import Tail
from tandem.cli.raising import raise_appliance
from tandem.config import load
from tandem.contract.messages import ApplianceState, ReloadReport
from tandem.contract.plan import KeySource, Paths, Plan
from tandem.director.rundir import write_plan
from tandem.director.supervisord import SupervisordGone, configuration
from tandem.errors import CannotStart, DocumentError
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    document = tmp_path / "appliance.yaml"
    document.write_text("profile: smollm2-135m\nresidency: laptop\n")
    return compile_plan(load(document, environment={}), read_box())


# --- before it starts -------------------------------------------------------------------------------------------


def test_directories_are_made_and_the_run_directory_is_emptied(plan: Plan) -> None:
    prepare(plan)
    run = Path(plan.paths.run)
    (run / "director.json").write_text("{}")
    (run / "deep").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run / "engine.sock"))
    listener.close()
    prepare(plan)
    assert list(run.iterdir()) == []
    assert Path(plan.paths.logs).is_dir()


def test_a_full_disk_is_told_before_anything_starts(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(CannotStart, match=r"is full: 1\.0 MiB free, 256\.0 MiB needed"):
        prepare(plan)


def test_a_state_that_cannot_be_written_is_told(plan: Plan, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CannotStart, match="cannot be written: Not a directory"):
        prepare(replace(plan, paths=Paths(str(blocked / "state"), str(tmp_path / "run"), str(tmp_path / "logs"))))


def test_a_run_directory_that_is_somebody_elses_link_is_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(CannotStart, match="is not ours"):
        prepare(replace(plan, paths=Paths(str(tmp_path), str(tmp_path / "link"), str(tmp_path / "logs"))))


def test_a_free_port_is_no_trouble_and_a_busy_one_names_its_holder() -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(CannotStart, match=rf"port {port} .* \(held by .*, pid {os.getpid()}\)"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    with pytest.raises(CannotStart, match="cannot be used: Cannot assign requested address"):
        check_port("203.0.113.9", 8080)


def test_the_lock_is_held_by_whoever_inherits_it(plan: Plan) -> None:
    lock = Lock(plan.paths)
    assert not lock.is_held()
    descriptor = lock.take()
    assert descriptor is not None and lock.is_held()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    os.close(descriptor)
    assert lock.is_held()
    child.communicate(b"\n")
    assert not lock.is_held()


def test_a_second_taker_gets_none(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appliance, "LOCK_PATIENCE", 0.05)
    first = Lock(plan.paths).take()
    assert first is not None and Lock(plan.paths).take() is None
    os.close(first)


def test_leftovers_are_ours_and_nobody_elses(plan: Plan) -> None:
    def sleeper(run: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "input()", "engine", "--run", run], stdin=subprocess.PIPE)

    def supervisord(run: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "input()", appliance.SUPERVISORD]
        return subprocess.Popen(command, env={"TANDEM_RUN": run}, stdin=subprocess.PIPE)

    ours, other = sleeper(plan.paths.run), sleeper(plan.paths.run + "-other")
    parent, stranger = supervisord(plan.paths.run), supervisord(plan.paths.run + "-other")
    processes = (ours, other, parent, stranger)
    try:
        assert {process.pid for process in leftovers(plan.paths)} == {ours.pid, parent.pid}
        appliance.end_leftovers(leftovers(plan.paths), plan.paths, patience=0.0)
        assert leftovers(plan.paths) == [] and other.poll() is None and stranger.poll() is None
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_pid_file_of_another_process_is_not_believed(plan: Plan) -> None:
    prepare(plan)
    assert supervisord_pid(plan.paths) is None
    Path(plan.paths.run, "supervisord.pid").write_text(str(os.getpid()))
    assert supervisord_pid(plan.paths) is None


def test_supervisords_file_is_found_and_names_no_place_of_its_own() -> None:
    text = configuration().read_text()
    assert "%(ENV_TANDEM_RUN)s/programs.conf" in text
    assert "[program:" not in text


def test_a_missing_supervisor_folder_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.director.supervisord.CONFIGURATION", "supervisor/other.conf")
    with pytest.raises(CannotStart, match=r"other\.conf is neither in .* nor in /opt/tandem"):
        configuration()


def test_a_disk_that_fills_up_while_the_plan_is_written_is_one_sentence(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "plan.json")

    monkeypatch.setattr(appliance, "write_plan", full)
    with pytest.raises(CannotStart, match=r"plan\.json: No space left on device"):
        asyncio.run(raise_appliance(replace(plan, gateway=replace(plan.gateway, port=0)), detach=True, variables={}))
    assert not Lock(plan.paths).is_held()


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/v1"),
        ("0.0.0.0", "http://127.0.0.1:8080/v1"),
        ("::", "http://[::1]:8080/v1"),
        ("fd00::1", "http://[fd00::1]:8080/v1"),
        ("box.local", "http://box.local:8080/v1"),
    ],
)
def test_the_url_is_one_that_can_be_opened_here(plan: Plan, host: str, url: str) -> None:
    assert screen.url(replace(plan, gateway=replace(plan.gateway, host=host, port=8080))) == url


@pytest.mark.parametrize("where", ["file", "variable"])
def test_the_curl_line_finds_a_key_and_never_prints_one(plan: Plan, tmp_path: Path, where: str) -> None:
    text = "# keys\n\nmaria: sk-se:cret \nolder:sk-2\n"
    (tmp_path / "my keys").write_text(text)
    keys = KeySource(file=str(tmp_path / "my keys")) if where == "file" else KeySource(variable="THE_KEYS")
    line = screen.curl(replace(plan, live=replace(plan.live, keys=keys)))
    assert "cret" not in line
    shown = subprocess.run(
        ["sh", "-c", line.replace("curl", "printf '%s\\n'", 1)],
        env={**os.environ, "THE_KEYS": text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Authorization: Bearer sk-se:cret\n" in shown.stdout


def test_status_says_what_the_key_file_is_now(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, live=replace(plan.live, keys=KeySource(file=str(tmp_path / "keys"))), warnings=())
    seen = ApplianceState("plan", "serving", (), b"{}", 1, 1, 0.0)
    assert "warning: what `keys.file` names is not there" in "\n".join(screen.status_lines(seen, plan))
    (tmp_path / "keys").write_text("ann:key\n")
    assert "warning" not in "\n".join(screen.status_lines(seen, plan))


def test_an_open_appliance_needs_no_header(plan: Plan) -> None:
    assert "Authorization" not in screen.curl(plan)


def test_a_refused_edit_is_shown_whole() -> None:
    report = ReloadReport(0.0, "refused", "refused", "1 problem", "error[unknown-key]: unknown key `x`\n --> a:1:1\n")
    lines = screen.render_report(report).splitlines()
    assert lines[0].startswith("last edit, ") and lines[0].endswith(": refused: 1 problem")
    assert lines[1:] == ["  error[unknown-key]: unknown key `x`", "   --> a:1:1"]


# --- logs -------------------------------------------------------------------------------------------------------


def test_a_log_is_followed_across_rotation_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"one\ntwo\nthr")
    tail = Tail(path)
    assert tail.last(1) == ["two"]
    assert tail.more() == []
    with path.open("ab") as log:
        log.write("ee\nv\u00ec\n".encode())
    assert tail.more() == ["three", "v\u00ec"]
    with path.open("ab") as log:
        log.write(b"last of this file\n")
    path.rename(tmp_path / "engine.log.1")
    path.write_bytes(b"first of the next\n")
    assert tail.more() == ["last of this file", "first of the next"]
    path.write_bytes(b"cut\n")
    assert tail.more() == ["cut"]


def test_a_log_that_comes_later_is_followed_from_its_start(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "engine.log")
    assert tail.last(5) == [] and tail.more() == []
    (tmp_path / "engine.log").write_text("hello\n")
    assert tail.more() == ["hello"]


# --- commands on nothing ----------------------------------------------------------------------------------------


def test_commands_when_nothing_runs(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    monkeypatch.chdir(Path(plan.appliance).parent)
    status = runner.invoke(app, ["status"])
    assert (status.exit_code, "not running" in status.output) == (1, True)
    assert runner.invoke(app, ["status", "--json"]).output == '{"phase": "down"}\n'
    down = runner.invoke(app, ["down"])
    assert (down.exit_code, down.output) == (0, "nothing was running\n")
    assert isinstance(runner.invoke(app, ["logs", "engine"]).exception, CannotStart)
    Path(plan.appliance).write_text("profile: [\n")
    assert runner.invoke(app, ["status"]).exit_code == 1  # a broken document hides nothing
    assert runner.invoke(app, ["down"]).exit_code == 0


@pytest.mark.parametrize(
    "document", [None, "state: elsewhere\nprofile: [\n", "profile: nobody\nstate: 'elsewhere' # x\n"]
)
@pytest.mark.parametrize("how", ["document", "flag", "variable"])
def test_what_runs_is_found_without_its_document(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, document: str | None, how: str
) -> None:
    path = Path(plan.appliance)
    path.unlink() if document is None else path.write_text(document)
    folder = {"flag": "flagged", "variable": "varied"}.get(how, "elsewhere" if document else ".tandem")
    if how == "variable":
        monkeypatch.setenv("TANDEM_STATE", folder)
    held = Lock(Paths(str(path.parent / folder), "", "")).take()
    assert held is not None
    try:
        flags = ["--set", f"state={folder}"] if how == "flag" else []
        monkeypatch.setattr(appliance, "picture", no_picture)
        status = CliRunner().invoke(app, ["status", str(path), *flags])
    finally:
        os.close(held)
    assert status.exit_code == 4
    assert "does not answer: it may be starting or stopping" in status.stdout
    assert "error" in status.stderr and f"looking for what runs in {path.parent / folder}" in status.stderr


@pytest.mark.parametrize("command", ["up", "status", "down", "logs"])
def test_what_runs_is_found_after_its_state_was_edited(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("TANDEM_STATE", raising=False)
    prepare(plan)
    write_plan(plan)
    document = Path(plan.appliance)
    document.write_text(document.read_text() + "state: elsewhere\n")
    line = [sys.executable, "-c", "input()", appliance.SUPERVISORD]
    supervisord = subprocess.Popen(line, env={"TANDEM_RUN": plan.paths.run}, stdin=subprocess.PIPE)
    arguments = ["--appliance", plan.appliance] if command == "logs" else [plan.appliance]
    try:
        found = CliRunner().invoke(app, [command, *arguments])
        said = CliRunner().invoke(app, ["status", plan.appliance, "--json"])
        monkeypatch.setenv("TANDEM_STATE", "elsewhere")  # whoever names the folder means it
        assert "not running" in CliRunner().invoke(app, ["status", plan.appliance]).output
    finally:
        supervisord.communicate(b"\n")
    assert found.exit_code == (4 if command == "status" else 1)  # `main` turns the exception into its own status
    error = found.exception
    words = f"{error}, {error.help}" if isinstance(error, CannotStart) else found.stderr
    assert str(tmp_path / "elsewhere") in words and f"runs with {plan.paths.state}, at http://" in words
    assert f"`tandem {'down' if command == 'up' else command} --set state={plan.paths.state}`" in words
    assert (said.exit_code, json.loads(said.stdout)["state"]) == (4, plan.paths.state)
    assert not (tmp_path / "elsewhere").exists()


async def no_picture(_: Paths) -> None:
    return None


def test_a_flag_that_is_no_key_brings_nothing_down(plan: Plan) -> None:
    down = CliRunner().invoke(app, ["down", plan.appliance, "--set", "sate=/elsewhere"])
    assert isinstance(down.exception, DocumentError)


@pytest.mark.parametrize("command", ["up", "status", "down", "logs"])
def test_a_state_that_can_be_none_is_one_sentence(plan: Plan, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    document = ["--appliance", plan.appliance] if command == "logs" else [plan.appliance]
    found = CliRunner().invoke(app, [command, *document, "--set", f"state={tmp_path}/file"])
    assert isinstance(found.exception, CannotStart)
    assert str(tmp_path / "file") in str(found.exception) and "`state`" in str(found.exception.help)


@pytest.mark.parametrize("state", ["/proc/x", "/dev/null/x"])
def test_a_lock_that_cannot_be_made_is_one_sentence(state: str) -> None:
    with pytest.raises(CannotStart, match=f"{state} cannot be written: "):
        Lock(Paths(state, f"{state}/run", f"{state}/logs")).take()


# --- what is printed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["schema"], ["plan"], ["logs"]])
def test_a_reader_that_goes_is_no_error(plan: Plan, command: list[str]) -> None:
    logs = Path(plan.paths.logs)
    logs.mkdir(parents=True)
    (logs / "engine.log").write_text("a line\n" * 9000)
    reading, writing = os.pipe()
    os.close(reading)
    tandem = [sys.executable, "-c", "from tandem.cli import main; main()", *command]
    folder = Path(plan.appliance).parent
    done = subprocess.run(tandem, cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["schema"], ["plan"]])
def test_a_full_disk_under_stdout_is_one_sentence(plan: Plan, command: list[str]) -> None:
    tandem = [sys.executable, "-c", "from tandem.cli import main; main()", *command]
    folder = Path(plan.appliance).parent
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(tandem, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: what was to be printed cannot be written: No space left on device\n"


# --- supervisord is asked at once -------------------------------------------------------------------------------


def test_supervisord_is_asked_as_soon_as_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone it would sleep for a second before it starts the director."""
    answers = iter([SupervisordGone("no socket"), SupervisordGone("no answer"), 7])
    asked: list[Path] = []

    class Waking:
        def __init__(self, path: Path) -> None:
            asked.append(path)

        def pid(self) -> int:
            answer = next(answers)
            if isinstance(answer, SupervisordGone):
                raise answer
            return answer

    monkeypatch.setattr("tandem.cli.appliance.Supervisord", Waking)
    monkeypatch.setattr("tandem.cli.appliance.SOCKET_AGAIN", 0.0)
    asyncio.run(rouse(Paths("/state", "/run", "/logs")))
    assert asked == [Path("/run/supervisord.sock")] * 3


def test_one_that_does_not_listen_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.cli.appliance.SLEEPS", 0.05)
    asyncio.run(rouse(Paths(str(tmp_path), str(tmp_path), str(tmp_path))))
