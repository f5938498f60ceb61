"""HTTP requests and responses: bodies, timeouts, headers, queries and error responses."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from routewright import Caller, MemoryStorage, Router, Settings, ValidationFailed
from routewright.errors import AuthenticationFailed
from routewright.server import HttpLimits, create_app
from routewright.server.app import App
from routewright.testing import FakeClock

from .asgi_client import Client, ask, scope_of
from .uvicorn_server import HELLO

pytestmark = pytest.mark.anyio

BODY = msgspec.json.encode(HELLO)
CANARY = "CANARY-7f3a"


def app_of(clock: FakeClock | None = None, limits: HttpLimits | None = None, caller: Any = None, **parts: Any) -> App:
    settings = Settings() if clock is None else Settings(clock=clock)
    return create_app(
        Router.sandbox(settings=settings, **parts), authenticate=caller or (lambda scope: Caller()), limits=limits
    )


@pytest.mark.parametrize("declared", [True, False])
async def test_a_long_body_is_413(declared: bool) -> None:
    client = Client(BODY, b" " * 1_000, BODY)
    headers = {"content-length": "2000"} if declared else {}
    await app_of(limits=HttpLimits(body_bytes=1_000))(scope_of(headers=headers), client.receive, client.send)
    assert (client.status, client.json["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("limit", "status"), [(10, 413), (len(BODY) - 1, 413), (len(BODY), 200)])
async def test_a_body_in_one_piece_may_have_exactly_the_limit(limit: int, status: int) -> None:
    assert (await ask(app_of(limits=HttpLimits(body_bytes=limit)), scope_of(), BODY)).status == status


async def test_a_body_that_does_not_arrive_is_408() -> None:
    clock = FakeClock()
    client = Client(BODY[:10], ends=False)
    await app_of(clock, HttpLimits(body_s=5.0))(scope_of(), client.receive, client.send)
    assert (client.status, client.json["error"]["code"]) == (408, "request_timeout")
    assert clock.monotonic() == 5.0


async def test_a_disconnect_within_the_body_is_499() -> None:
    client = Client(BODY[:10], ends=False)
    client.leave()
    await app_of()(scope_of(), client.receive, client.send)
    assert (client.status, client.body, client.is_whole) == (499, b"", True)


@pytest.mark.parametrize("name", ["authorization", "idempotency-key", "content-type", "x-api-key"])
async def test_identifying_headers_must_not_be_repeated(name: str) -> None:
    scope = scope_of()
    scope["headers"] += [(name.encode(), b"application/json"), (name.encode(), b"b")]
    client = await ask(app_of(), scope, BODY)
    assert (client.status, client.json["error"]["code"]) == (400, "validation_failed")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
async def test_a_compressed_body_is_415(coding: str) -> None:
    assert (await ask(app_of(), scope_of(headers={"content-encoding": coding}), BODY)).status == 415


@pytest.mark.parametrize(
    ("path", "root", "status"),
    [
        ("/v1/models", "", 200),
        ("/llm/v1/models", "/llm", 200),
        ("/v1/models", "/llm", 200),
        ("/llm/v1/models", "/llm/", 200),
        ("/llmv1/models", "/llm", 404),
        ("/v1/models/", "", 404),
        ("//v1/models", "", 404),
        ("", "", 404),
        ("/v1/traces/a/b", "", 404),
    ],
)
async def test_paths_are_found_below_a_mount_point(path: str, root: str, status: int) -> None:
    client = await ask(app_of(), scope_of("GET", path, root_path=root))
    assert client.status == status


async def test_head_is_answered_as_get() -> None:
    client = await ask(app_of(), scope_of("HEAD", "/v1/models"))
    assert (client.status, client.body) == (200, b"")
    assert int(client.headers["content-length"]) > 1_000


@pytest.mark.parametrize("query", ["a" * 9_000, "limit=%ff", "&".join("abc") * 40, "x=1", "limit=1&limit=1"])
async def test_an_invalid_query_is_400(query: str) -> None:
    client = await ask(app_of(), scope_of("GET", "/v1/traces", query=query))
    assert (client.status, client.json["error"]["code"]) == (400, "validation_failed")


async def test_an_internal_error_is_logged_and_hidden_from_the_client(caplog: pytest.LogCaptureFixture) -> None:
    def broken(scope: object) -> Caller:
        raise RuntimeError(CANARY)

    with caplog.at_level(logging.ERROR):
        client = await ask(app_of(caller=broken), scope_of(), BODY)
    assert (client.status, client.json["error"]["code"]) == (500, "internal_error")
    assert CANARY not in client.body.decode()
    assert client.headers["x-request-id"] in caplog.text
    assert CANARY in caplog.text


@pytest.mark.parametrize("returned", [None, "acme", {"account": "acme"}])
async def test_a_wrong_return_value_of_authenticate_is_an_error(returned: Any) -> None:
    client = await ask(app_of(caller=lambda scope: returned), scope_of(), BODY)
    assert client.status in (400, 500)


async def test_authenticate_may_be_async_and_may_refuse() -> None:
    async def theirs(scope: Any) -> Caller:
        if dict(scope["headers"]).get(b"x-user") != b"ann":
            raise AuthenticationFailed("nobody that we know")
        return Caller("ann")

    app = app_of(caller=theirs)
    assert (await ask(app, scope_of(), BODY)).status == 401
    assert (await ask(app, scope_of(headers={"x-user": "ann"}), BODY)).status == 200


async def test_a_key_in_a_wrong_place_is_not_repeated() -> None:
    key = "sk_live_" + "A" * 33
    for scope, body in (
        (scope_of("GET", f"/v1/traces/{key}"), b""),
        (scope_of("GET", "/v1/traces", query=f"filter={key}"), b""),
        (scope_of("GET", "/v1/traces", query=f"{key}=1"), b""),
        (scope_of(), msgspec.json.encode({**HELLO, "policy_id": key})),
        (scope_of(), msgspec.json.encode({**HELLO, key: 1})),
        (scope_of(headers={"content-type": key}), b""),
    ):
        client = await ask(app_of(), scope, body)
        assert client.status in (400, 404, 415)
        assert key not in client.body.decode(), scope["path"]


@pytest.mark.parametrize(
    ("path", "fields", "hint"),
    [
        ("/v1/route", {"models": ["zzz"]}, "GET /v1/models lists the known ids"),
        ("/v1/route", {"policy_id": "p"}, "this server has no policies: ask its operator"),
        ("/anthropic/v1/messages", {"model": "policy:p", "max_tokens": 9}, "this server has no policies"),
        ("/openai/v1/chat/completions", {"model": "policy:p"}, "this server has no policies"),
    ],
)
async def test_hints_use_the_words_of_http(path: str, fields: dict[str, Any], hint: str) -> None:
    client = await ask(app_of(), scope_of(path=path), {**HELLO, **fields})
    assert client.status == 400
    assert hint in client.body.decode()
    assert "Router" not in client.body.decode()


async def test_hints_say_what_the_operator_can_do() -> None:
    headers = {"authorization": f"Bearer sk_live_{'A' * 33}"}
    client = await ask(create_app(Router.sandbox(storage=MemoryStorage())), scope_of(headers=headers), BODY)
    assert (client.status, "with 'routewright keys create'" in client.body.decode()) == (401, True)
    client = await ask(app_of(), scope_of("GET", "/v1/analytics/usage", query="group_by=metadata.team"))
    assert (client.status, "ROUTEWRIGHT_SETTINGS_ROLLUP_KEYS" in client.body.decode()) == (400, True)
    assert "Settings(" not in client.body.decode()


async def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app_of()({"type": "websocket"}, Client().receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_traces_are_written_at_shutdown() -> None:
    storage = MemoryStorage()
    app = app_of(storage=storage)
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        if len(messages) == 1:
            await ask(app, scope_of(), BODY)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize(
    "limits", [{"body_bytes": 0}, {"body_bytes": 1.5}, {"body_s": 0}, {"send_s": True}, {"heartbeat_s": "15"}]
)
async def test_invalid_limits_are_refused(limits: Any) -> None:
    with pytest.raises(ValidationFailed, match="HttpLimits"):
        HttpLimits(**limits)


async def test_an_address_of_one_environment_refuses_callers_of_the_other() -> None:
    app = create_app(
        Router(providers=[]), authenticate=lambda _: Caller(environment="sandbox"), environment="production"
    )
    client = await ask(app, scope_of("GET", "/v1/models"))
    assert (client.status, client.json["error"]["code"]) == (401, "authentication_failed")


async def test_an_idempotency_key_is_utf_8() -> None:
    client = await ask(app_of(), scope_of(headers={"idempotency-key": "\xff"}), BODY)
    assert (client.status, client.json["error"]["detail"]["problems"][0]["problem"]) == (400, "is not UTF-8")
