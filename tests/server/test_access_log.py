"""The access log: one line per request, with no secrets and no line that a client can forge."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from routewright import Caller, Router
from routewright.server import AccessLog, create_app
from routewright.server.access_log import LONGEST_ADDRESS
from routewright.server.errors import Refusal, refuse
from routewright.server.routes import ENDPOINTS

from .asgi_request import ask
from .uvicorn_server import HELLO, Site

pytestmark = pytest.mark.anyio

FIELDS = "time method endpoint status code duration_ms bytes request_id trace_id account key_id environment".split()
CANARY = "CANARY"


class Lines:
    """What was logged."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.text.getvalue().splitlines())

    @property
    def last(self) -> dict[str, Any]:
        *_, last = self
        return last


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, found = logging.getLogger("routewright.access"), Lines()
    writer, before = logging.StreamHandler(found.text), logger.level
    logger.addHandler(writer)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield found
    logger.propagate = True
    logger.setLevel(before)
    logger.removeHandler(writer)


def logged(**options: Any) -> Site:
    site = Site()
    site.app = create_app(site.router, site.console, observers=[AccessLog(**options)])
    return site


def test_a_request_is_a_line_of_json(lines: Lines) -> None:
    site = logged()
    key = site.key(environment="sandbox")
    with site.client(key) as client:
        answer = client.post("/v1/route", json=HELLO)
    (line,) = lines
    assert [*line] == FIELDS
    told = answer.json()
    assert line["time"].endswith("Z")
    assert {name: line[name] for name in FIELDS[1:4]} == {"method": "POST", "endpoint": "/v1/route", "status": 200}
    assert 0 < line["duration_ms"] < 20_000
    assert line["bytes"] == len(answer.content)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["trace_id"] == told["trace_id"]
    assert (line["account"], line["environment"]) == ("acme", "sandbox")
    assert line["key_id"].startswith("key_")


def test_a_stream_is_logged_when_it_ends(lines: Lines) -> None:
    site = logged()
    with site.client(site.key(environment="sandbox")) as client:
        answer = client.post("/v1/route", json={**HELLO, "stream": True})
    assert (lines.last["status"], lines.last["code"]) == (200, None)
    assert lines.last["bytes"] == len(answer.content)
    assert lines.last["trace_id"] in answer.text


async def test_a_disconnected_client_is_a_499(lines: Lines) -> None:
    site = logged()
    headers = {"authorization": f"Bearer {site.key(environment='sandbox')}"}
    await ask(site.app, "/v1/route", "POST", body=HELLO, headers=headers, leaves=True)
    assert (lines.last["status"], lines.last["bytes"]) == (499, 0)


async def test_an_unknown_key_is_logged_without_an_account(lines: Lines) -> None:
    await ask(logged().app, "/v1/models", headers={"authorization": "Bearer sk_live_CANARY"})
    assert (lines.last["status"], lines.last["code"]) == (401, "authentication_failed")
    assert [lines.last[name] for name in ("account", "key_id", "environment", "trace_id")] == [None] * 4


@pytest.mark.parametrize(
    ("endpoint", "method"),
    [*product(["/v1/route", "/nothing"], ["GET", "DELETE", f"{CANARY}\r\n{{}}"]), *product(ENDPOINTS, ["POST"])],
)
async def test_no_secret_query_header_or_body_is_logged(lines: Lines, endpoint: str, method: str) -> None:
    site = logged()
    key = site.key(environment="sandbox")
    path = endpoint.replace("{trace_id}", f"{CANARY}\r\n{{}}\u2028")
    body = {"messages": [{"role": "user", "content": CANARY}], "metadata": {CANARY: CANARY}, CANARY: 1}
    for authorization in (f"Bearer {key}", f"Bearer sk_live_{CANARY}"):
        headers = {"authorization": authorization, "x-canary": CANARY, "traceparent": CANARY, "cookie": CANARY}
        await ask(site.app, path, method, body=body, headers=headers, query=f"a={CANARY}".encode(), client=(CANARY, 1))
    assert len([*lines]) == len(lines.text.getvalue().split("\n")) - 1 == 2
    assert CANARY not in lines.text.getvalue()
    assert key not in lines.text.getvalue()
    assert {each["endpoint"] for each in lines} <= {endpoint, None}


async def test_no_path_breaks_the_line(lines: Lines) -> None:
    app = logged().app
    for path in ("/\n{}", "/\r", "/\u2028", "/\u0085", "/\x00", '/"', "/\x1b[31m", "/%0a{}", "/v1/traces/\n"):
        await ask(app, path)
    assert len([*lines]) == 9
    assert all(each["endpoint"] in (None, "/v1/traces/{trace_id}") for each in lines)


async def test_an_odd_account_name_breaks_no_line_and_shows_no_key(lines: Lines) -> None:
    key = "sk_live_" + "A" * 32
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller(f"é{key}"), observers=[AccessLog()])
    await ask(app, "/v1/models")
    assert lines.last["account"].startswith("é")
    assert lines.text.getvalue().isascii()
    assert key not in lines.text.getvalue()


async def test_the_clients_address_is_logged_on_request(lines: Lines) -> None:
    for site, expected in ((logged(client=True), "192.0.2.7"), (logged(), None)):
        await ask(site.app, "/v1/models", client=("192.0.2.7", 4711))
        assert lines.last.get("client") == expected
    await ask(logged(client=True).app, "/v1/models", client=None)
    assert lines.last["client"] is None


def test_a_refused_connection_is_a_line_with_the_same_fields(lines: Lines) -> None:
    told = refuse(Refusal.TOO_LARGE, "192.0.2.7", [])
    for log, more in ((AccessLog(), []), (AccessLog(client=True), ["client"])):
        log.on_refusal(told)
        line = lines.last
        assert [*line] == [*FIELDS, *more]
        assert (line["status"], line["code"], line["bytes"]) == (431, "headers_too_large", len(told.response))
        assert (line["request_id"], line.get("client", "192.0.2.7")) == (told.request_id, "192.0.2.7")
        assert line["time"].endswith("Z")


async def test_an_address_from_a_proxy_is_cut_to_the_longest_valid_one(lines: Lines) -> None:
    await ask(logged(client=True).app, "/v1/models", client=("a" * 20_000, 1))
    assert lines.last["client"] == "a" * LONGEST_ADDRESS


async def test_no_line_is_built_if_the_logger_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessLog, "_write", lambda self, told, client: pytest.fail("somebody made a line"))
    monkeypatch.setattr(logging.getLogger("routewright.access"), "level", logging.WARNING)
    assert (await ask(logged().app, "/v1/models")).status == 401
