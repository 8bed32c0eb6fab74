"""Who is let in: keys by route, hosts, pages; and what every wrong request hears."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from gateway_appliance import MODEL, Appliance, Start, make_live

from tandem.contract.plan import KeySource
from tandem.gateway.auth import ROUTES, Access

pytestmark = pytest.mark.anyio
BODY = {"messages": [{"role": "user", "content": "hi"}]}
ANY_REQUEST = BODY | {"model": MODEL, "prompt": "hi", "input": "hi", "content": "hi", "tokens": [5], "max_tokens": 9}


@pytest.fixture
def keys(tmp_path: Path) -> KeySource:
    (tmp_path / "keys").write_text("anna:right-key\n")
    return KeySource(file=str(tmp_path / "keys"))


SHOWN = {"nothing": {}, "a wrong one": {"x-api-key": "right-keys"}} | {
    name: {"authorization": f"Bearer {name}-key"} for name in ("user", "metrics", "admin")
}
OPENS: dict[Access, dict[str, int | None]] = {  # the status without a right to it; None: it is opened
    Access.OPEN: dict.fromkeys(SHOWN),
    Access.SUMMARY: dict.fromkeys(SHOWN),
    Access.USER: {"nothing": 401, "a wrong one": 401, "user": None, "metrics": 403, "admin": None},
    Access.METRICS: {"nothing": 401, "a wrong one": 401, "user": None, "metrics": None, "admin": None},
    Access.ADMIN: {"nothing": 401, "a wrong one": 401, "user": 403, "metrics": 403, "admin": None},
}


async def test_every_route_is_closed_unless_the_table_opens_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("anna:user-key\nprometheus:metrics-key\nhost:admin-key\n")
    source = KeySource(file=str(tmp_path / "keys"), admin=("host",), metrics_only=("prometheus",))
    async with start(make_live(source)) as appliance:
        await appliance.until(lambda: appliance.service.engine.status.state == "ready")
        from tandem.gateway.routes import make_app

        served = {route.path: route for route in make_app(appliance.service).routes}
        assert set(served) == set(ROUTES)
        for path in [*served, "/nothing", "/v1", "/", "/v1/models/", "//metrics", "/health/x", "/slots/0", "/api/x"]:
            method = "POST" if path in served and "POST" in served[path].methods else "GET"  # type: ignore[union-attr]
            url = appliance.url + path.replace("{id:path}", MODEL)
            for shown, refused in OPENS[ROUTES.get(path, Access.USER)].items():
                response = await appliance.http.request(method, url, headers=SHOWN[shown], json=ANY_REQUEST)
                if refused is None:
                    assert response.status_code in (200, 400 if path in served else 404), (path, shown, response.text)
                else:
                    code = {401: "invalid_api_key", 403: "key_not_allowed"}[refused]
                    assert (response.status_code, code in response.text) == (refused, True), (path, shown)
                    assert ("www-authenticate" in response.headers) == (refused == 401)


async def test_health_tells_a_stranger_one_word(start: Start, keys: KeySource) -> None:
    async with start(make_live(keys)) as appliance:
        stranger = (await appliance.http.get("/health")).json()
        known = (await appliance.http.get("/health", headers={"x-api-key": "right-key"})).json()
    assert set(stranger) == {"status", "ready", "sentence", "progress", "error"}
    assert stranger["status"] == known["status"] == "ok"
    assert known["engine"]["slots"]


async def test_a_key_separates_caches_and_names_the_row(start: Start, keys: KeySource, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("anna:one\nben:two\n")
    async with start(make_live(keys)) as appliance:
        for key in ("one", "two", "one"):
            await appliance.http.post("/v1/chat/completions", json=BODY, headers={"x-api-key": key})
        a, b, again = (request.scope for request in appliance.engine.requests)
    assert a == again != b
    assert a and "one" not in a


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example"])
async def test_a_foreign_host_name_is_kept_out_of_loopback(start: Start, host: str) -> None:
    async with start() as appliance:
        for path in ("/livez", "/v1/models", "/nothing"):
            response = await appliance.http.get(path, headers={"host": host})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


async def test_no_page_of_another_site_may_call_unless_declared(start: Start) -> None:
    evil, friend = {"origin": "https://evil.example"}, {"origin": "https://chat.example"}
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,x-stainless-os"}
    async with start(cors_origins=("https://chat.example",)) as appliance:
        for path in ("/v1/chat/completions", "/health", "/metrics"):
            for response in (
                await appliance.http.options(path, headers=evil | ask),
                await appliance.http.post(
                    path, headers=evil | {"content-type": "text/plain"}, content=json.dumps(BODY)
                ),
            ):
                assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_not_allowed")
                assert "access-control-allow-origin" not in response.headers
        assert appliance.engine.requests == []
        allowed = await appliance.http.options("/v1/chat/completions", headers=friend | ask)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
        answer = await appliance.http.post("/v1/chat/completions", json=BODY, headers=friend)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "access-control-allow-credentials" not in {**allowed.headers, **answer.headers}
        own = await appliance.http.get("/health", headers={"origin": appliance.url})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers


async def test_declared_for_every_origin_still_never_allows_credentials(start: Start) -> None:
    async with start(cors_origins=("*",)) as appliance:
        answer = await appliance.http.get("/v1/models", headers={"origin": "https://any.example", "cookie": "a=b"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


CHAT = "/v1/chat/completions"
GZIP: dict[str, Any] = {"json": BODY, "headers": {"content-encoding": "gzip"}}
TEN_MEGABYTES: dict[str, Any] = {"json": {"messages": [{"role": "user", "content": "x" * (10 << 20)}]}}
WRONG: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/nothing", {}, 404, "not_found"),
    ("GET", CHAT, {}, 405, "method_not_allowed"),
    ("DELETE", "/health", {}, 405, "method_not_allowed"),
    ("POST", CHAT, {"content": b"{"}, 400, "invalid_json"),
    ("POST", CHAT, {"json": {}}, 400, "invalid_value"),
    ("POST", CHAT, {"json": BODY | {"model": "gpt-9"}}, 404, "model_not_found"),
    ("GET", "/v1/models/gpt-9", {}, 404, "model_not_found"),
    ("POST", CHAT, {"data": {"a": "b"}}, 415, "unsupported_media_type"),
    ("POST", CHAT, GZIP, 415, "unsupported_media_type"),
    ("POST", CHAT, TEN_MEGABYTES, 413, "request_too_large"),
]


@pytest.mark.parametrize(("method", "path", "fields", "status", "code"), WRONG, ids=lambda value: str(value)[:24])
async def test_what_is_wrong_is_said_in_the_envelope(
    start: Start, method: str, path: str, fields: dict[str, Any], status: int, code: str
) -> None:
    async with start() as appliance:
        response = await appliance.http.request(method, path, **fields)
        assert response.status_code == status
        error = response.json()["error"]
        assert (error["code"], error["source"]) == (code, "gateway")
        assert set(error) == {"message", "type", "param", "code", "source"}
        assert (await appliance.chat()).status_code == 200  # the connection and the appliance are unharmed


async def test_a_body_without_a_length_is_measured_as_it_comes(start: Start) -> None:
    async def endless() -> Any:
        for _ in range(40):
            yield b"x" * 65536

    async with start() as appliance:
        response = await appliance.http.post("/v1/completions", content=endless())
        assert response.status_code == 413


async def test_unknown_fields_are_listed(start: Start) -> None:
    async with start() as appliance:
        fields = {"num_ctx": 4096, "keep_alive": "low", "a\r\nSet-Cookie: x": 1, "ü": 2}
        for stream in (False, True):
            response = await appliance.http.post("/v1/chat/completions", json=BODY | fields | {"stream": stream})
            assert response.headers["x-tandem-ignored"] == "num_ctx, keep_alive, and 2 more"
            assert "set-cookie" not in response.headers
        assert "x-tandem-ignored" not in (await appliance.chat()).headers


async def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(start: Start) -> None:
    async with start(make_live(max_body=64 << 20)) as appliance:
        long = await appliance.chat("hello " * 9000)
        hopeless = await appliance.chat("x" * 20_000_000)  # not tokenized at all
    for response, count in (long, "9"), (hopeless, "at least"):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "8192 tokens" in error["message"] and f"the prompt has {count}" in error["message"]


async def test_messages_that_the_template_refuses_are_a_400_in_its_words(start: Start) -> None:
    from tandem.text.template import TemplateRefused

    def refuses(*_: object) -> None:
        raise TemplateRefused("Roles must alternate")

    async with start() as appliance:
        appliance.service.prompts._template.prompt = refuses  # type: ignore[method-assign, assignment]
        response = await appliance.chat()
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["source"]) == (400, "messages", "model")
    assert "Roles must alternate" in error["message"]


def booked(appliance: Appliance) -> list[tuple[int, str]]:
    """Status and end of each request, as the ledger has them."""
    try:
        with sqlite3.connect(appliance.service.plan.gateway.ledger) as connection:
            return connection.execute("SELECT status, finish FROM requests").fetchall()
    except sqlite3.OperationalError:  # its writer has not begun
        return []


async def test_our_own_fault_is_a_500_in_the_envelope(start: Start) -> None:
    def breaks(_: object) -> None:
        raise KeyError("our bug")

    async with start() as appliance:
        appliance.service.prompts._template.prompt = breaks  # type: ignore[method-assign, assignment]
        response = await appliance.chat()
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "our bug" not in response.text
        await appliance.until(lambda: booked(appliance) == [(500, "internal_error")])
        assert (await appliance.http.get("/livez")).status_code == 200


async def test_head_is_get_without_its_body(start: Start, keys: KeySource) -> None:
    shown = {"x-api-key": "right-key"}
    async with start(make_live(keys)) as appliance:
        await appliance.until(lambda: appliance.service.engine.status.state == "ready")
        for path in ("/health", "/v1/health", "/livez", "/readyz", "/v1/models", "/metrics"):
            stranger = await appliance.http.head(path)
            assert stranger.status_code == (401 if ROUTES[path] in (Access.USER, Access.METRICS) else 200), path
            known = await appliance.http.head(path, headers=shown)
            got = await appliance.http.get(path, headers=shown)
            assert (known.status_code, known.content) == (200, b""), path
            assert known.headers["content-type"] == got.headers["content-type"]
        assert (await appliance.http.head("/v1/completions", headers=shown)).status_code == 405
        appliance.engine.die()
        await appliance.until(lambda: appliance.service.engine.status.state != "ready")
        down = await appliance.http.head("/readyz")
        assert (down.status_code, down.content) == (503, b"")
