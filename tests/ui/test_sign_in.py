"""Who may use the page: hosts, origins, sessions, the right to write, and the token of changes."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from routewright import Console, MemoryStorage, Router
from routewright.errors import AuthenticationFailed
from routewright.server.exchange import Scope
from routewright.testing import FakeClock
from routewright.ui import Operator, Ui, create_ui
from routewright.ui.sessions import IDLE_S, LONGEST_S, RENEWED_S, Session, Sessions

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1:9000"


class Browser:
    """Sends requests as a browser at the page would, with its cookie and token."""

    def __init__(self, app: Ui) -> None:
        self.app = app
        self.cookie = ""
        self.token = ""

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        sent = {"host": HOST, "content-type": "application/json", "cookie": self.cookie, "x-change-token": self.token}
        if method != "GET":
            sent["origin"] = f"http://{HOST}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        address, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": address,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
        }
        messages: list[Any] = []

        requests = [{"type": "http.request", "body": b"" if body is None else msgspec.json.encode(body)}]

        async def receive() -> Any:
            if not requests:
                await anyio.sleep_forever()
            return requests.pop()

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        answer = b"".join(message.get("body", b"") for message in messages)
        answered = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.cookie = answered.get("set-cookie", self.cookie).partition(";")[0]
        return messages[0]["status"], msgspec.json.decode(answer) if answer[:1] == b"{" else answer, answered

    async def sign_in(self, **credentials: str) -> int:
        status, session, _ = await self.ask("POST", "/session", credentials)
        self.token = session.get("token", "")
        return status


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def console(clock: FakeClock) -> Console:
    return Console(MemoryStorage(clock=clock), clock=clock, secret="0123456789abcdef" * 4)


def page(console: Console, clock: FakeClock, **options: Any) -> Browser:
    from routewright import Settings

    router = Router(providers=[], storage=console._storage, settings=Settings(clock=clock))
    return Browser(create_ui(router, console, **options))


async def test_a_foreign_host_is_refused(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, hosts=["ops.example.com"])
    for host in ("127.0.0.1:9000", "localhost", "[::1]:80", "ops.example.com", "OPS.example.com:8443"):
        assert (await browser.ask("GET", "/", host=host))[0] == 200, host
    for host in ("evil.example", "ops.example.com.evil.example", "127.0.0.1.evil.example", "x@evil.example"):
        assert (await browser.ask("GET", "/", host=host))[0] == 403, host


async def test_a_link_signs_in_once(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="one-time")
    assert await browser.sign_in(link="another") == 401
    assert await browser.sign_in(link="one-time") == 200
    assert await browser.sign_in(link="one-time") == 401


async def test_a_change_needs_the_token_the_origin_and_the_right(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    assert (await browser.ask("POST", "/api/account-create", {"name": "acme"}))[0] == 401
    await browser.sign_in(link="t")
    assert (await browser.ask("POST", "/api/account-create", {"name": "acme"}, x_change_token="wrong"))[0] == 403
    assert (await browser.ask("POST", "/api/account-create", {"name": "acme"}, origin="http://evil.example"))[0] == 403
    assert (await browser.ask("POST", "/api/account-create", {"name": "acme"}, origin=""))[0] == 403
    assert (await browser.ask("GET", "/api/accounts", sec_fetch_site="same-site"))[0] == 403
    assert await console.accounts() == []
    assert (await browser.ask("POST", "/api/account-create", {"name": "acme"}))[0] == 200
    assert [account.name for account in await console.accounts()] == ["acme"]

    looking = page(console, clock, link_token="t", owner=Operator(name="eve"))
    await looking.sign_in(link="t")
    assert (await looking.ask("POST", "/api/account-create", {"name": "globex"}))[0] == 403
    assert (await looking.ask("GET", "/api/accounts"))[0] == 200


async def test_a_session_ends_when_it_is_idle_or_old(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    began = clock.time()
    while clock.time() < began + LONGEST_S - RENEWED_S:
        assert (await browser.ask("GET", "/session"))[0] == 200
        await clock.advance(IDLE_S - 1)
    await clock.advance(began + LONGEST_S - clock.time())
    assert (await browser.ask("GET", "/session"))[0] == 401

    idle = page(console, clock, link_token="t")
    await idle.sign_in(link="t")
    for _ in range(int(IDLE_S / RENEWED_S)):
        assert (await idle.ask("GET", "/api/accounts", x_polling="1"))[0] == 200
        await clock.advance(RENEWED_S)
    assert (await idle.ask("GET", "/session"))[0] == 401


async def test_a_host_application_says_who_it_is(console: Console, clock: FakeClock) -> None:
    async def authorize(scope: Scope) -> Operator:
        if not any(name == b"x-user" for name, _ in scope["headers"]):
            raise AuthenticationFailed("sign in at the front page")
        return Operator(name="ada")

    browser = page(console, clock, authorize=authorize)
    assert (await browser.ask("GET", "/session"))[1]["error"]["message"] == "sign in at the front page"
    assert (await browser.ask("GET", "/session", x_user="ada"))[1]["operator"] == "ada"
    assert await browser.sign_in(key="sk_live_x") == 401


def test_only_our_own_cookies_are_read() -> None:
    sessions = Sessions(lambda: (b"key", b"before"))
    session = sessions.begin(Operator(name="ada", writes=True), 1000.0)
    cookie = sessions.cookie(session)
    assert sessions.read(cookie, 1001.0) == session
    forged = Sessions(lambda: (b"other",)).cookie(Session(Operator(name="eve", writes=True), "x", 1000.0, 1000.0))
    for text in (forged, cookie[:-1], "", ".", cookie.replace(".", "x.")):
        with pytest.raises(AuthenticationFailed):
            sessions.read(text, 1001.0)
    assert Sessions(lambda: (b"new", b"key")).read(cookie, 1001.0) == session  # after a rotation
