from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest
from boxes import LAPTOP, plan
from supervisor.options import ServerOptions

from tandem.contract.plan import Program
from tandem.planner.programs import supervisord_programs


def read_back(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What supervisord itself makes of the text."""
    monkeypatch.setenv("TANDEM_LOGS", str(folder / "logs"))
    (folder / "logs").mkdir()
    path = folder / "supervisord.conf"
    path.write_text(f"[supervisord]\nidentifier=test\n{text}")
    options = ServerOptions()
    options.realize(["-c", str(path)])
    return {config.name: config for group in options.process_group_configs for config in group.process_configs}


def test_supervisord_reads_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(f"state={tmp_path}", box=LAPTOP)
    found = read_back(supervisord_programs(made), tmp_path, monkeypatch)
    assert list(found) == ["director", "gateway", "engine"]
    for program in made.programs:
        config = found[program.name]
        assert config.command.split() == list(program.command)  # type: ignore[attr-defined]
        assert config.environment == dict(program.environment)  # type: ignore[attr-defined]
        assert config.stopwaitsecs == round(program.stop_timeout)  # type: ignore[attr-defined]
        assert config.stdout_logfile == f"{made.paths.logs}/{program.name}.log"  # type: ignore[attr-defined]
        assert config.redirect_stderr  # type: ignore[attr-defined]


def test_logs_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "an ;odd #name"
    folder.mkdir()
    found = read_back(supervisord_programs(plan(box=LAPTOP)), folder, monkeypatch)
    assert found["engine"].stdout_logfile == f"{folder}/logs/engine.log"  # type: ignore[attr-defined]


def test_only_the_director_starts_and_comes_back_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(f"state={tmp_path}", box=LAPTOP)
    found = read_back(supervisord_programs(made), tmp_path, monkeypatch)
    assert [name for name, config in found.items() if config.autostart] == ["director"]  # type: ignore[attr-defined]
    for name in ("gateway", "engine"):
        config = found[name]
        assert config.autorestart is False  # type: ignore[attr-defined]
        assert config.startsecs == 0  # type: ignore[attr-defined]
        assert config.stopasgroup  # type: ignore[attr-defined]
        assert config.killasgroup  # type: ignore[attr-defined]
    assert found["director"].startsecs >= 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "word", ["a b", "100%", "semi ;colon", "quote'", 'quote"', "back\\slash", "#hash", " ; x", "käse", "$HOME", "%(x)s"]
)
def test_odd_words_arrive_as_they_are(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("engine", "engine", (word, "-m", word), (), None, 1, 1, "")
    base = plan(box=LAPTOP)
    made = msgspec.structs.replace(base, programs=(program,))
    config = read_back(supervisord_programs(made), tmp_path, monkeypatch)["engine"]
    assert shlex.split(config.command) == [word, "-m", word]  # type: ignore[attr-defined]
