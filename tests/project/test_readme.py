"""The README's claims that can be checked: its commands, links, snippets, routes, exit statuses and quoted errors."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import click
import pytest
import typer

from tandem.cli import app
from tandem.errors import ExitStatus
from tandem.gateway.routes import make_app
from tandem.gateway.service import Service

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()
PAGES = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]
TANDEM = Path(sys.executable).parent / "tandem"


def fences(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


# Everything that is set as code: what a reader will type.
CODE = "\n".join(re.findall(r"`([^`\n]+)`", README) + fences(""))
COMMANDS = re.findall(r"^tandem ([a-z-]+)(.*)", CODE, re.MULTILINE)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder with copies of the shipped documents; returns its appliance.yaml."""
    for name in ("profiles", "residency"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    return Path(shutil.copy(PROJECT / "appliance.yaml", tmp_path))


def tandem(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TANDEM, *words], cwd=folder, capture_output=True, text=True)


def test_every_make_target_named_exists_and_has_a_line_of_help() -> None:
    named = set(re.findall(r"^make ([a-z-]+)", CODE, re.MULTILINE))
    helped = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert {"up", "down", "test", "check", "fix", "bench"} <= named
    assert named <= set(re.findall(r"make ([a-z-]+)", helped))


def test_every_command_named_exists_and_every_command_is_named() -> None:
    group = cast(click.Group, typer.main.get_command(app))
    visible = {name for name, command in group.commands.items() if not command.hidden}
    assert {command for command, _ in COMMANDS} == visible


def test_every_option_named_is_one_of_its_command() -> None:
    group = cast(click.Group, typer.main.get_command(app))
    pairs = [(command, option) for command, rest in COMMANDS for option in re.findall(r"--[a-z-]+", rest)]
    assert pairs
    for command, option in pairs:
        known = {name for parameter in group.commands[command].params for name in parameter.opts}
        assert option in known, f"tandem {command} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_into_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("snippet", fences("yaml"))
def test_a_snippet_added_to_the_shipped_document_is_good(snippet: str, documents: Path) -> None:
    section = snippet.partition(":")[0]
    shipped = documents.read_text()
    without = re.sub(rf"^{section}:.*\n(?:[ #].*\n|\n)*", "", shipped, flags=re.MULTILINE)
    documents.write_text(f"{without}\n{snippet}")
    (documents.parent / "keys.txt").write_text("ann:a-key-for-this-test\n")
    checked = tandem(documents.parent, "check")
    assert checked.returncode == ExitStatus.GOOD, checked.stderr


def test_the_quoted_error_is_what_is_said(documents: Path) -> None:
    quoted = next(fence for fence in fences("") if fence.startswith("error["))
    line = int(re.findall(r"appliance.yaml:(\d+):", quoted)[0])
    wrong = re.findall(r"^\d+ \| (.*)$", quoted, re.MULTILINE)[0]
    shipped = documents.read_text()
    blank = "\n" * (line - shipped.count("\n") - 3)
    documents.write_text(f"{shipped}{blank}slots:\n  count: 2\n{wrong}\n")
    checked = tandem(documents.parent, "check")
    assert checked.stderr == quoted
    assert checked.returncode == ExitStatus.DOCUMENT_WRONG


def test_the_table_of_the_api_is_the_api() -> None:
    served = make_app(cast(Service, None))
    routes = {
        (method, re.sub(r"\{id:path\}", "{id}", route.path))
        for route in served.routes
        for method in cast(Any, route).methods
        if method in ("GET", "POST")
    }
    assert set(re.findall(r"`(GET|POST) (/[^`]*)`", README)) == routes


def test_every_exit_status_is_in_the_readme() -> None:
    sentence = README[README.index("Exit status:") :].partition("\n\n")[0]
    for status in ExitStatus:
        assert re.search(rf"\b{int(status)}\b", sentence), status


def test_the_variable_and_the_flag_named_override_the_same_key(documents: Path) -> None:
    variable, value = re.findall(r"`(TANDEM_\w+)=(\w+)`", README)[0]
    flag = re.findall(r"`tandem up --set ([\w.]+)=\w+`", README)[0]
    assert variable == "TANDEM_" + flag.upper().replace(".", "__")
    planned = tandem(documents.parent, "plan", "--set", f"{flag}={value}")
    assert planned.returncode == ExitStatus.GOOD, planned.stderr
    refused = tandem(documents.parent, "plan", "--set", f"{flag}x={value}")
    assert refused.returncode == ExitStatus.DOCUMENT_WRONG
