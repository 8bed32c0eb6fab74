from __future__ import annotations

from typing import Any, cast

import pytest

from tandem.gateway.asgi import client_of, name_list


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"curl/8.5.0", "curl"),
        (b"AsyncOpenAI/Python 3.57.0", "AsyncOpenAI-Python"),
        (b"OpenAI/JS 6.1.0", "OpenAI-JS"),
        (b"opencode/1.18.33 (linux)", "opencode"),
        (b"python-httpx/0.28", "python-httpx"),
        (b"Mozilla/5.0 (X11; Linux x86_64)", "Mozilla"),
        (b"", ""),
        (b"a secret: please/ignore", ""),
        (b"<script>/1", ""),
        (b"x" * 500, ""),
    ],
)
def test_a_client_is_known_by_its_programs_name(agent: bytes, name: str) -> None:
    scope = cast(Any, {"headers": [(b"user-agent", agent)]})
    assert client_of(scope) == name


def test_only_plain_names_reach_a_header() -> None:
    assert name_list(("num_ctx", "a b", "x\r\ny", "é")) == b"num_ctx, and 3 more"
    assert name_list(tuple(f"f{n}" for n in range(50))).endswith(b"f19, and 30 more")
