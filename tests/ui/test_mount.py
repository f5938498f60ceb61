"""The page mounted in applications of a framework, and in any ASGI application."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from routewright import Console
from routewright.errors import AuthenticationFailed
from routewright.testing import FakeClock
from routewright.ui import Operator, Ui

from .browser import HOST, Browser, operator_key, page

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])]
Application = Callable[[Any, Any, Any], Awaitable[None]]


def in_starlette(ui: Ui) -> Application:
    return Starlette(routes=[Mount("/ops", ui)])


def in_fastapi(ui: Ui) -> Application:
    app = FastAPI()
    app.mount("/ops", ui)
    return app


def in_plain_asgi(ui: Ui) -> Application:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/ops")
        await ui({**scope, "root_path": "/ops"}, receive, send)

    return app


def in_asgi_of_old(ui: Ui) -> Application:
    """Before ASGI said that the path includes the mount point."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/ops")
        await ui({**scope, "path": path, "root_path": "/ops"}, receive, send)

    return app


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_plain_asgi, in_asgi_of_old])
async def test_the_page_works_at_any_mount_point(
    console: Console, clock: FakeClock, mount: Callable[[Ui], Application]
) -> None:
    ui = page(console, clock).app
    assert isinstance(ui, Ui)
    browser = Browser(mount(ui))
    status, _, headers = await browser.ask("GET", "/ops")
    assert status == 307
    assert urljoin(f"http://{HOST}/ops", headers["location"]) == f"http://{HOST}/ops/"
    status, html, _ = await browser.ask("GET", "/ops/")
    assert status == 200
    for name in re.findall(r"(?:src|href)=\"([^\"]+)\"", html.decode()):
        address = urljoin(f"http://{HOST}/ops/", name).removeprefix(f"http://{HOST}")
        assert address.startswith("/ops/")
        assert await browser.status("GET", address) == 200, address
    key = (await operator_key(console)).secret.reveal()
    status, session, headers = await browser.ask("POST", "/ops/session", {"key": key})
    assert status == 200
    assert "; Path=/ops/; " in headers["set-cookie"]
    browser.token = session["token"]
    assert await browser.status("POST", "/ops/api/console.create_account", {"name": "acme"}) == 200
    assert [account["name"] for account in (await browser.ask("GET", "/ops/api/console.accounts"))[1]] == ["acme"]


async def test_an_operator_of_the_host_application_changes_under_the_own_name(
    console: Console, clock: FakeClock
) -> None:
    def authorize(scope: Any) -> Operator:
        if scope.get("user") is None:
            raise AuthenticationFailed("sign in at the front page")
        return Operator(name=scope["user"], writes=True)

    browser = page(console, clock, authorize=authorize)
    assert await browser.status("POST", "/api/policies.draft", {"policy": {"name": "desk"}}) == 401
    browser.scope = {"user": "ada"}
    browser.token = (await browser.ask("GET", "/session"))[1]["token"]
    assert browser.cookie == ""
    assert (await browser.ask("POST", "/api/policies.draft", {"policy": {"name": "desk"}}))[1]["drafted_by"] == "ada"
    browser.scope = {"user": "eve"}
    assert await browser.status("POST", "/api/policies.discard", {"name": "desk"}) == 401  # with the token of ada
    assert await browser.status("DELETE", "/session") == 200
    assert (await browser.ask("GET", "/session"))[1]["operator"] == "eve"


async def test_a_mount_point_cannot_add_to_the_cookie(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    browser.scope = {"root_path": "/a; Domain=example.com"}
    _, _, headers = await browser.ask("POST", "/session", {"link": "t"})
    assert "; Path=/a%3B%20Domain%3Dexample.com/; " in headers["set-cookie"]
