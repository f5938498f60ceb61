"""What the page answers to requests: each operation by right, and malformed, huge and misdirected ones."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from routewright import Console, MemoryStorage, Router
from routewright.testing import FakeClock
from routewright.ui import Operator, create_ui
from routewright.ui.api import operations
from routewright.ui.app import HEADERS

from .browser import Browser, page

pytestmark = pytest.mark.anyio
OPERATIONS = operations(Router(providers=[], storage=MemoryStorage()), Console(MemoryStorage()))


@pytest.fixture
async def browser(console: Console, clock: FakeClock) -> Browser:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    return browser


@pytest.mark.parametrize("name", [*OPERATIONS, "try"])
async def test_an_operation_needs_a_session_and_the_right_to_it(console: Console, clock: FakeClock, name: str) -> None:
    changes = name == "try" or OPERATIONS[name].changes
    method = "POST" if changes else "GET"
    nobody = page(console, clock, link_token="t")
    assert await nobody.status(method, f"/api/{name}", {}) == 401
    reader, writer = page(console, clock, link_token="t", owner=Operator(name="eve")), nobody
    for browser in (reader, writer):
        await browser.sign_in(link="t")
    assert (await reader.status(method, f"/api/{name}", {}) == 403) == changes
    assert await writer.status(method, f"/api/{name}", {"nothing": 1}) in (200, 400)
    if changes:
        assert await writer.status("GET", f"/api/{name}") == 405
        assert await writer.status("HEAD", f"/api/{name}") == 405
        assert await writer.status("POST", f"/api/{name}", {}, x_session_token="") == 401
    for browser in (reader, writer):
        status, _, headers = await browser.ask("PUT", f"/api/{name}", {})
        assert (status, headers["allow"]) == (405, "POST" if changes else "GET, HEAD, POST")


@pytest.mark.parametrize(
    ("body", "status"),
    {
        b"": 400,
        b"{": 400,
        b'{"name": "a", "name": "b"}': 400,
        b'{"name": NaN}': 400,
        b'\xef\xbb\xbf{"name": "acme"}': 400,
        b'{"name": "\xff"}': 400,
        b'{"name": ["acme"]}': 400,
        b'{"by": "eve", "name": {}}': 400,
        b"[" * 100_000: 400,
        b'{"name": "' + b"x" * (1 << 20) + b'"}': 413,
        b"[" + b"0," * 250_000 + b"0]": 413,
    }.items(),
)
async def test_a_malformed_body_is_refused(browser: Browser, console: Console, body: bytes, status: int) -> None:
    answers = [
        await browser.ask("POST", path, body) for path in ("/api/console.create_account", "/api/try", "/session")
    ]
    assert [answer[0] for answer in answers] == [status] * 3
    assert len(msgspec.json.encode(answers[0][1])) < 2000
    assert await console.accounts() == []


async def test_arguments_come_in_the_address_or_in_the_body(browser: Browser, console: Console) -> None:
    await console.create_account("é?&=%#+ /")
    arguments: dict[str, Any] = {"account": "é?&=%#+ /"}
    query = quote(msgspec.json.encode(arguments))
    in_address = await browser.ask("GET", f"/api/console.standing?{query}")
    in_body = await browser.ask("POST", "/api/console.standing", arguments)
    assert in_address[0] == 200
    assert in_address[1] == in_body[1]
    assert await browser.status("POST", "/api/console.standing", arguments, origin="http://evil.example") == 403
    long = {"filter": f'metadata.team="{"é" * 4000}"', "environment": "sandbox"}
    query = quote(msgspec.json.encode(long))
    assert len(query) > 24_000
    in_address = await browser.ask("GET", f"/api/traces.query?{query}")
    in_body = await browser.ask("POST", "/api/traces.query", long)
    assert (in_address[0], in_address[1]) == (in_body[0], in_body[1])
    assert in_address[0] == 200


@pytest.mark.parametrize("query", ["%", "%ff", "{", "null", "account=acme", '{"account": NaN}', '{"a":1,"a":2}', "%00"])
async def test_a_malformed_query_is_refused(browser: Browser, query: str) -> None:
    assert await browser.status("GET", f"/api/console.accounts?{query}") == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py", "/..%2fapp.py", "/%2e%2e/app.py", "//etc/passwd", "/\\..\\app.py", "/views/../page.js",
        "/./page.js", "/views", "/views/", "/static/page.js", "//", "//page.js", "/page.js/", "/page.js\0", "/PAGE.JS",
        "/__init__.py", "/api", "/api/", "/api//accounts", "/api/../session", "/api/console.accounts/", "/session/",
        "/index.html/..", "/é",
    ],
)  # fmt: skip
async def test_only_the_files_of_the_page_are_served(browser: Browser, path: str) -> None:
    assert await browser.status("GET", path) == 404


async def test_a_stream_has_the_headers_of_every_answer(clock: FakeClock) -> None:
    browser = Browser(create_ui(Router.sandbox(), link_token="t"))
    await browser.sign_in(link="t")
    request = {"messages": [{"role": "user", "content": "Hello"}], "environment": "sandbox"}
    status, events, headers = await browser.ask("POST", "/api/try", request)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert b"event: route.completed" in events
    assert HEADERS.items() <= {name.title(): value for name, value in headers.items()}.items()
    assert headers["cache-control"] == "no-store"


async def test_a_request_is_tried_in_a_known_environment_only() -> None:
    browser = Browser(create_ui(Router.sandbox(), link_token="t"))
    await browser.sign_in(link="t")
    environments: list[object] = ["staging", None, ["sandbox"], {}]
    for environment in environments:
        request = {"messages": [{"role": "user", "content": "Hello"}], "environment": environment}
        status, answer, _ = await browser.ask("POST", "/api/try", request)
        assert (status, "must be 'production' or 'sandbox'" in answer["error"]["message"]) == (400, True)


async def test_nobody_signs_for_another(browser: Browser, console: Console) -> None:
    draft = {"policy": {"name": "desk"}}
    assert (await browser.ask("POST", "/api/policies.draft", draft))[1]["drafted_by"] == "owner"
    assert (await browser.ask("POST", "/api/policies.draft", draft | {"by": "eve"}))[0] == 400


async def test_methods_that_an_address_does_not_take_are_refused(browser: Browser) -> None:
    allowed = {"/": "GET HEAD", "/page.js": "GET HEAD", "/session": "GET HEAD POST DELETE"}
    for path, methods in allowed.items():
        for method in "POST PUT PATCH DELETE OPTIONS TRACE CONNECT get PROPFIND".split():
            if method not in methods.split():
                status, _, headers = await browser.ask(method, path)
                assert (status, headers["allow"]) == (405, methods.replace(" ", ", ")), (method, path)
    for path in ("/", "/page.js", "/session", "/api/console.accounts"):
        status, answer, _ = await browser.ask("HEAD", path)
        assert (status, answer) == (200, b"")


async def test_a_web_socket_is_closed(browser: Browser) -> None:
    messages: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        messages.append(message)

    await browser.app({"type": "websocket", "path": "/api/console.accounts"}, receive, send)
    assert messages == [{"type": "websocket.close", "code": 1000}]
