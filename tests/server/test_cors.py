"""CORS: pages of listed origins may call from a browser. Nothing changes for others, or without a list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from routewright import Router, ValidationFailed
from routewright.server import create_app
from routewright.server.app import EXPOSED
from tests.tables import table

from .asgi_request import Told, ask

pytestmark = pytest.mark.anyio

PAGE, OTHER = "https://app.example.com", "https://evil.example"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = BODY | {"model": "auto"}
DOORS = [
    ("/v1/route", BODY),
    ("/v1/decide", BODY),
    ("/openai/v1/chat/completions", CHAT),
    ("/anthropic/v1/messages", CHAT | {"max_tokens": 9}),
]
SRC = Path(__file__).parent.parent.parent / "src" / "routewright" / "server"


def app_of(*origins: str) -> Any:
    router = Router.sandbox()
    return create_app(router, authenticate=lambda scope: router.caller, cors_origins=origins)


async def asked(app: Any, path: str, method: str = "GET", origin: str | None = None, **more: Any) -> Told:
    headers = {} if origin is None else {"origin": origin}
    return await ask(app, path, method, headers=headers | more.pop("headers", {}), **more)


def cors_of(told: Told) -> dict[str, str]:
    return {name: value for name, value in told.headers.items() if name.startswith("access-control") or name == "vary"}


READABLE = {
    "access-control-allow-origin": PAGE,
    "access-control-allow-credentials": "true",
    "access-control-expose-headers": EXPOSED,
    "vary": "Origin",
}


@pytest.mark.parametrize(("path", "body"), DOORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_and_streams_of_every_api_can_be_read(path: str, body: Any, stream: bool) -> None:
    if stream and path == "/v1/decide":
        return
    told = await asked(app_of(PAGE), path, "POST", PAGE, body=body | ({"stream": True} if stream else {}))
    assert told.status == 200
    assert ("event-stream" in told.headers["content-type"]) is stream
    assert cors_of(told) == READABLE


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [("/v1/route", "POST", {}, 400), ("/nothing", "GET", None, 404), ("/v1/route", "GET", None, 405)],
)
async def test_errors_can_be_read(path: str, method: str, body: Any, status: int) -> None:
    told = await asked(app_of(PAGE), path, method, PAGE, body=body)
    assert (told.status, cors_of(told)) == (status, READABLE)


@pytest.mark.parametrize("path", [*(path for path, _ in DOORS), "/v1/models", "/v1/traces/tr_x"])
async def test_preflight_requests_are_answered(path: str) -> None:
    question = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    told = await asked(app_of(PAGE), path, "OPTIONS", PAGE, headers=question)
    assert (told.status, told.body) == (200, b"")
    assert cors_of(told) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization,content-type,x-stainless-os",
        "access-control-max-age": "600",
        "vary": "Origin",
    }


@pytest.mark.parametrize(
    "origin", [OTHER, PAGE + ":8443", "http://app.example.com", "null", "https://app.example.com."]
)
async def test_other_origins_cannot_read_anything(origin: str) -> None:
    question = {"access-control-request-method": "POST"}
    told = await asked(app_of(PAGE), "/v1/route", "OPTIONS", origin, headers=question)
    assert (told.status, cors_of(told)) == (405, {"vary": "Origin"})
    told = await asked(app_of(PAGE), "/v1/route", "POST", origin, body=BODY)
    assert (told.status, cors_of(told)) == (200, {"vary": "Origin"})


async def test_a_wildcard_allows_no_credentials() -> None:
    told = await asked(app_of("*"), "/v1/models", "GET", OTHER)
    assert cors_of(told) == {"access-control-allow-origin": "*", "access-control-expose-headers": EXPOSED}


async def test_without_origins_there_are_no_cors_headers() -> None:
    told = await asked(app_of(), "/v1/models", "GET", PAGE)
    assert cors_of(told) == {}
    question = {"access-control-request-method": "POST"}
    assert (await asked(app_of(), "/v1/route", "OPTIONS", PAGE, headers=question)).status == 405


@table(
    "origin",
    ["https://app.example.com/", "app.example.com", "https://App.example.com", "https://u@x.de", "https://", "null"],
)
def test_an_invalid_origin_is_refused_at_its_index(origin: str) -> None:
    with pytest.raises(ValidationFailed, match=r"cors_origins\[1\]: .* is not an origin"):
        app_of(PAGE, origin)


def test_every_header_of_ours_is_exposed() -> None:
    text = "".join(path.read_text("utf-8") for path in SRC.rglob("*.py"))
    ours = set(re.findall(r'"(X-(?:Routewright|RateLimit|Request)-[A-Za-z-]*[a-z])"', text))
    assert len(ours) > 8
    assert ours <= {*EXPOSED.split(", ")}


def test_a_string_is_not_a_list_of_origins() -> None:
    wrong: Any = PAGE
    with pytest.raises(ValidationFailed, match=r"cors_origins: is 'https://app\.example\.com'; give a list"):
        create_app(Router.sandbox(), cors_origins=wrong)
