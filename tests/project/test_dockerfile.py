"""The image, as far as it can be tried without a Docker engine: linted, then carried out step by step and run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from compose_spec import PyCompose
from overlay_build import Build, Stage, is_healthy, parse, running, stop
from ports import free_port

from tandem.config.documents import Appliance

PROJECT = Path(__file__).parents[2]
DOCKERFILE = PROJECT / "Dockerfile"


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_everything_that_is_copied_exists_and_is_sent_to_the_engine() -> None:
    ignored, *sent = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line[:1] in "*!"]
    assert ignored == "*"
    copied = [step.rest.split()[:-1] for step in parse(DOCKERFILE.read_text()) if step.name == "COPY"]
    for source in (name for names in copied if not names[0].startswith("--from") for name in names):
        assert (PROJECT / source).exists(), source
        assert f"!{source}" in sent


def test_the_port_of_the_image_is_the_default_of_the_documents() -> None:
    port = str(Appliance().listen.port)
    steps = {step.name: step.rest for step in parse(DOCKERFILE.read_text())}
    assert steps["EXPOSE"] == port
    assert f":{port}/readyz" in steps["HEALTHCHECK"]


def test_compose_gives_running_requests_longer_than_the_drain() -> None:
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    grace = services["tandem"]["stop_grace_period"]
    assert grace.endswith("s")
    assert float(grace[:-1]) > float(Appliance().limits.drain_timeout)


def test_compose_publishes_on_this_machine_only() -> None:
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert services["webui"]["environment"]["OPENAI_API_BASE_URL"] == f"http://tandem:{Appliance().listen.port}/v1"


def test_compose_follows_its_specification_and_names_only_volumes_it_declares() -> None:
    text = (PROJECT / "compose.yaml").read_text()
    PyCompose.from_yaml(text).validate()
    document = yaml.safe_load(text)
    named = {volume.partition(":")[0] for service in document["services"].values() for volume in service["volumes"]}
    assert named - {"."} == set(document["volumes"])


def test_the_stop_signal_is_one_that_tandem_up_drains_on() -> None:
    assert [step.rest for step in parse(DOCKERFILE.read_text()) if step.name == "STOPSIGNAL"] == [signal.SIGTERM.name]


def can_overlay() -> bool:
    """Root, and a file system under the temporary folder that takes an overlay of `/`."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "apt-get"))):
        return False
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        return subprocess.run(stage.command(["true"], {}), capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def image() -> Iterator[Stage]:
    """The last stage of our Dockerfile, every step carried out in an overlay of this machine."""
    if not can_overlay():
        pytest.skip("carrying a Dockerfile out needs root, overlayfs and apt")
    scratch = Path(tempfile.mkdtemp(prefix="tandem-image-"))
    try:
        yield Build(PROJECT, scratch, {}).carry_out(parse(DOCKERFILE.read_text()))
    finally:
        subprocess.run(["rm", "-rf", scratch], check=True)  # a hundred thousand files: shutil takes minutes


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_builds_serves_as_its_user_and_stops_with_status_0(image: Stage, tmp_path: Path) -> None:
    assert image.user != "root"
    port = free_port()  # the overlay shares this machine's network
    image.environment["TANDEM_LISTEN__PORT"] = str(port)
    image.healthcheck = [word.replace(":8080/", f":{port}/") for word in image.healthcheck]
    said = tmp_path / "said.log"
    with running(image, {}, said) as process:
        until = time.monotonic() + 180
        while not is_healthy(process, image):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < until, said.read_text()
            time.sleep(1)
        question = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        answered = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=question, timeout=60)
        assert answered.status_code == 200, answered.text
        assert answered.json()["choices"][0]["message"]["content"]
        assert stop(process, image, patience=60) == 0, said.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_document_that_is_wrong_ends_the_image_with_status_2(image: Stage, tmp_path: Path) -> None:
    said = tmp_path / "said.log"
    with running(image, {"TANDEM_SLOTS__COUNT": "many"}, said) as process:
        assert process.wait(timeout=60) == 2
    assert "TANDEM_SLOTS__COUNT" in said.read_text()
