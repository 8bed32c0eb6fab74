"""Bad and good input made from the OpenAPI document itself, against the gateway as a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from gateway_process import GatewayProcess, gateway_process
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable

from tandem.gateway.auth import ROUTES
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, weights: Path, tokenizer: Tokenizer) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("run")
    with gateway_process(directory, weights, tokenizer.encode("Hello, world!")) as running:
        running.until("/readyz", 200)
        yield running
        assert "Traceback" not in (directory / "gateway.log").read_text()


CHECKS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.parametrize("examples", [6, pytest.param(80, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_input_breaks_the_gateway_and_every_answer_is_as_described(
    gateway: GatewayProcess, mode: schemathesis.GenerationMode, examples: int
) -> None:
    """Bodies that keep to the document, and bodies that break it, for every operation."""
    described: Any = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    schemathesis.checks.load_all_checks()
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    seen: set[int] = set()
    for operation in (result.ok() for result in described.get_all_operations()):

        @settings(max_examples=examples if operation.method == "post" else 3, deadline=None, database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def holds(case: Any) -> None:
            status = case.call_and_validate(checks=checks, timeout=20).status_code
            assert status < 500 or (status, case.operation.path) == (503, "/v1/systemone")  # no decider is loaded
            seen.add(status)

        try:
            holds()
        except Unsatisfiable:
            assert operation.method == "get"  # without parameters there is nothing to break
    assert seen >= ({200} if mode is schemathesis.GenerationMode.POSITIVE else {400})


def test_the_document_names_every_route(gateway: GatewayProcess) -> None:
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    described = {path.replace("{id}", "{id:path}") for path in document["paths"]}
    assert described == set(ROUTES) - {"/openapi.json"}
