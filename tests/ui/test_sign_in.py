"""Who may use the page: hosts, origins, sessions, the right to write, and the token of changes."""

from __future__ import annotations

import hmac
import logging
from functools import partial
from typing import Any

import msgspec
import pytest

from routewright import Console, MemoryStorage
from routewright.errors import AuthenticationFailed
from routewright.server.exchange import Scope
from routewright.testing import FakeClock
from routewright.ui import Operator
from routewright.ui.app import HEADERS
from routewright.ui.sessions import IDLE_S, LONGEST_S, RENEWED_S, Session, Sessions

from .browser import HOST, operator_key, page

pytestmark = pytest.mark.anyio
SECRET = "0123456789abcdef" * 4


async def test_a_foreign_host_is_refused(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, hosts=["ops.example.com"])
    for host in ("127.0.0.1:9000", "localhost", "[::1]:80", "ops.example.com", "OPS.example.com:8443"):
        assert (await browser.ask("GET", "/", host=host))[0] == 200, host
    foreign = "evil.example ops.example.com.evil.example 127.0.0.1.evil.example x@evil.example evil.example@127.0.0.1"
    for host in (*foreign.split(), "[::1", "127.0.0.1:x", "", "localhost.", "localhost\t", "2130706433"):
        for path in ("/", "/session", "/api/console.accounts", "/nothing"):
            assert await browser.status("GET", path, host=host) == 403, host


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", f"ftp://{HOST}", "http://127.0.0.1:9001", f"//{HOST}"]
)
async def test_a_foreign_origin_is_refused(console: Console, clock: FakeClock, origin: str) -> None:
    browser = page(console, clock, link_token="t")
    status, answer, _ = await browser.ask("POST", "/session", {"link": "t"}, origin=origin)
    assert status == 403
    assert f"not from '{HOST}'; open the page itself, or let the proxy pass on 'Host'" in answer["error"]["message"]
    await browser.sign_in(link="t")
    assert await browser.status("GET", "/api/console.accounts", origin=origin) == 403
    assert await browser.status("GET", "/session", origin=origin) == 403
    assert await browser.status("DELETE", "/session", origin=origin) == 403
    assert await browser.status("POST", "/api/console.create_account", {"name": "acme"}, origin=origin) == 403


async def test_a_request_of_another_site_is_refused(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    for site, status in {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}.items():
        assert await browser.status("GET", "/api/console.accounts", sec_fetch_site=site) == status
    assert await browser.status("GET", "/", sec_fetch_site="cross-site") == 200  # a link to the page


async def test_a_page_in_plain_text_is_no_origin_of_one_behind_tls(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    browser.scope = {"scheme": "https"}
    assert await browser.status("POST", "/session", {"link": "t"}) == 403  # from http://
    status, _, headers = await browser.ask("POST", "/session", {"link": "t"}, origin=f"https://{HOST}")
    assert status == 200
    assert headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


async def test_a_proxy_that_ends_tls_need_not_say_so(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    status, _, headers = await browser.ask("POST", "/session", {"link": "t"}, origin=f"https://{HOST}")
    assert status == 200
    assert headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict")


async def test_a_link_signs_in_once(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="one-time")
    assert await browser.sign_in(link="another") == 401
    assert await browser.sign_in(link="one-time") == 200
    assert await browser.sign_in(link="one-time") == 401


async def test_a_change_needs_the_token_the_origin_and_the_right(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    assert (await browser.ask("POST", "/api/console.create_account", {"name": "acme"}))[0] == 401
    await browser.sign_in(link="t")
    name = {"name": "acme"}
    assert await browser.status("POST", "/api/console.create_account", name, x_session_token="wrong") == 401
    assert await browser.status("POST", "/api/console.create_account", name, origin="http://evil.example") == 403
    assert await browser.status("POST", "/api/console.create_account", name, origin="") == 403
    assert (await browser.ask("GET", "/api/console.accounts", sec_fetch_site="same-site"))[0] == 403
    assert await console.accounts() == []
    assert (await browser.ask("POST", "/api/console.create_account", {"name": "acme"}))[0] == 200
    assert [account.name for account in await console.accounts()] == ["acme"]

    looking = page(console, clock, link_token="t", owner=Operator(name="eve"))
    await looking.sign_in(link="t")
    assert (await looking.ask("POST", "/api/console.create_account", {"name": "globex"}))[0] == 403
    assert (await looking.ask("GET", "/api/console.accounts"))[0] == 200


async def test_a_session_ends_when_it_is_idle_or_old(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    began = clock.time()
    while clock.time() < began + LONGEST_S - 1:
        assert await browser.status("GET", "/session") == 200
        await clock.advance(min(IDLE_S - 1, began + LONGEST_S - 1 - clock.time()))
    assert await browser.status("GET", "/session") == 200
    await clock.advance(1)
    assert await browser.status("GET", "/session") == 401

    idle = page(console, clock, link_token="t")
    await idle.sign_in(link="t")
    for _ in range(int(IDLE_S / RENEWED_S)):
        assert (await idle.ask("GET", "/api/console.accounts", x_polling="1"))[0] == 200
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
    assert sessions.read([cookie], 1001.0) == session
    forged = Sessions(lambda: (b"other",)).cookie(Session(Operator(name="eve", writes=True), "x", 1000.0, 1000.0))
    for text in (forged, cookie[:-1], "", ".", cookie.replace(".", "x.")):
        with pytest.raises(AuthenticationFailed):
            sessions.read([text], 1001.0)
    assert Sessions(lambda: (b"new", b"key")).read([cookie], 1001.0) == session  # after a rotation


async def test_an_operator_signs_in_with_a_key_and_rights_follow_it(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    new = await operator_key(console)
    await console.create_account("acme")
    other = (await console.create_key("acme", name="website")).secret.reveal()
    refused = {"": 401, "sk_live_x": 401, other: 403, f"{new.secret.reveal()}\n": 401, "\u0000é": 401}
    for key, status in refused.items():
        assert await browser.sign_in(key=key) == status
        assert browser.cookie == ""
    assert await browser.sign_in(key=new.secret.reveal()) == 200
    assert await browser.status("POST", "/api/console.create_account", {"name": "globex"}) == 200
    await console.change_key("_system", new.key.id, name="ada b", scopes=["console:read"])
    assert (await browser.ask("GET", "/session"))[1] | {"token": ""} == {
        "operator": "ada b", "writes": False, "signs_out": True, "token": "", "key_id": new.key.id,
    }  # fmt: skip
    assert await browser.status("POST", "/api/console.create_account", {"name": "initech"}) == 403


async def test_a_page_of_a_link_takes_keys_too(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    new = await operator_key(console, "console:read")
    assert await browser.sign_in(key=new.secret.reveal()) == 200
    assert await browser.status("GET", "/api/console.accounts") == 200
    await console.revoke_key("_system", new.key.id)
    assert await browser.status("GET", "/api/console.accounts") == 401


async def test_revoking_the_key_ends_its_sessions_in_every_worker(console: Console, clock: FakeClock) -> None:
    worker = Console(console._storage, clock=clock, secret=SECRET)
    here, there = page(console, clock), page(worker, clock)
    new = await operator_key(console)
    await here.sign_in(key=new.secret.reveal())
    there.cookie = here.cookie
    there.token = here.token
    assert await there.status("GET", "/api/console.accounts") == 200
    await console.revoke_key("_system", new.key.id)
    for browser in (here, there):
        status, answer, _ = await browser.ask("GET", "/api/console.accounts")
        assert (status, answer["error"]["code"]) == (401, "authentication_failed")
        assert await browser.sign_in(key=new.secret.reveal()) == 401
        await clock.advance(2)  # by then no worker trusts what it read before
        assert await browser.sign_in(key=new.secret.reveal()) == 401


async def test_signing_out_ends_the_sessions_of_the_key_in_every_worker(console: Console, clock: FakeClock) -> None:
    here, there = page(console, clock), page(Console(console._storage, clock=clock, secret=SECRET), clock)
    new = await operator_key(console)
    other = await operator_key(console, name="eve")
    await here.sign_in(key=new.secret.reveal())
    stolen = there.cookie = here.cookie
    eve = page(console, clock)
    await eve.sign_in(key=other.secret.reveal())
    await clock.advance(1)
    status, _, headers = await here.ask("DELETE", "/session")
    assert status == 200
    assert headers["set-cookie"].startswith("routewright_session_9000=; Path=/; Max-Age=0;")
    assert await there.status("GET", "/api/console.accounts") == 401
    here.cookie = stolen
    assert await here.status("GET", "/api/console.accounts") == 401
    assert await here.status("DELETE", "/session") == 200  # once more does no harm
    assert await eve.status("GET", "/api/console.accounts") == 200
    await clock.advance(1)
    assert await here.sign_in(key=new.secret.reveal()) == 200
    assert await here.status("GET", "/api/console.accounts") == 200


async def test_signing_out_ends_the_session_of_a_link(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    stolen = browser.cookie
    await browser.ask("DELETE", "/session")
    browser.cookie = stolen
    assert await browser.status("GET", "/session") == 401


async def test_the_session_of_a_link_is_worth_nothing_elsewhere(console: Console, clock: FakeClock) -> None:
    own, server = page(console, clock, link_token="t"), page(console, clock)
    another = page(console, clock, link_token="t2")
    await own.sign_in(link="t")
    for browser in (server, another):
        browser.cookie = own.cookie
        assert await browser.status("GET", "/session") == 401
        assert await browser.sign_in(link="t") == 401
    new = await operator_key(console)
    await server.sign_in(key=new.secret.reveal())
    own.cookie = server.cookie
    assert await own.status("GET", "/session") == 401


async def test_a_cookie_from_before_the_sign_in_is_not_the_session_after(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    key = (await operator_key(console)).secret.reveal()
    await browser.sign_in(key=key)
    first = browser.cookie
    token = browser.token
    await browser.sign_in(key=key)  # with the first cookie
    assert browser.cookie != first
    assert browser.token != token
    planted = page(console, clock)
    planted.cookie = "routewright_session_9000=known"
    await planted.sign_in(key=key)
    assert "known" not in planted.cookie


async def test_the_token_of_another_session_changes_nothing(console: Console, clock: FakeClock) -> None:
    ada, eve = page(console, clock), page(console, clock)
    await ada.sign_in(key=(await operator_key(console)).secret.reveal())
    await eve.sign_in(key=(await operator_key(console, name="eve")).secret.reveal())
    for token in (eve.token, "", ada.token[:-1], ada.token.upper(), f"{ada.token} ", "é"):
        body = {"name": "acme"}
        assert await ada.status("POST", "/api/console.create_account", body, x_session_token=token) == 401, token
    assert await ada.status("POST", "/api/console.create_account", {"name": "acme"}) == 200


async def test_a_cookie_alone_is_worth_nothing(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    await browser.sign_in(key=(await operator_key(console)).secret.reveal())
    thief = page(console, clock)
    thief.cookie = browser.cookie
    for path in ("/session", "/api/console.accounts"):
        assert await thief.status("GET", path) == 401
        assert await browser.status("GET", path) == 200


async def test_a_change_that_arrives_after_the_revocation_is_refused(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    new = await operator_key(console)
    await browser.sign_in(key=new.secret.reveal())
    browser.before_body = partial(console.revoke_key, "_system", new.key.id)
    assert await browser.status("POST", "/api/console.create_account", {"name": "acme"}) == 401
    assert await console.accounts() == []


@pytest.mark.parametrize("identity", [None, "ada", {"name": "ada"}, Operator(name="ada", writes="no")])  # type: ignore[arg-type]
async def test_what_is_no_operator_may_nothing(console: Console, clock: FakeClock, identity: Any) -> None:
    browser = page(console, clock, authorize=lambda scope: identity)
    assert await browser.status("GET", "/api/console.accounts") == 500


async def test_other_cookies_do_not_matter(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    own = browser.cookie
    for cookie in (
        f'other="x y; a@b={{}}; {own}',
        f"{own}; other=1; =; ;;",
        f"routewright_session_9000=stale; {own}",
        f"{own}; routewright_session_9000=stale.0",
        f"routewright_session=x; routewright_session_9001=x; {own}; x={'x' * 60_000}",
    ):
        assert await browser.status("GET", "/session", cookie=cookie) == 200, cookie[:50]
    for cookie in ("", "x=1", own.partition("=")[2], f"x{own}", f"{own}x", own.replace("9000", "9001"), "é" * 9):
        assert await browser.status("GET", "/session", cookie=cookie) == 401, cookie


def test_a_cookie_of_another_version_is_no_session() -> None:
    sessions = Sessions(lambda: (b"key",))
    body = "eyJub3QiOiJvdXJzIn0="
    cookie = f"{body}.{hmac.new(b'key', f'session.{body}'.encode(), 'sha256').hexdigest()}"
    with pytest.raises(AuthenticationFailed, match="sign in again"):
        sessions.read([cookie], 0.0)


async def test_secrets_are_compared_in_constant_time(
    console: Console, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append(first)
        return first == second

    monkeypatch.setattr("routewright.ui.sessions.hmac.compare_digest", compare)
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    await browser.ask("POST", "/api/console.create_account", {"name": "acme"})
    assert compared == [b"t", browser.cookie.rpartition(".")[2].encode(), browser.token.encode()]


async def test_secrets_are_in_no_log(console: Console, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    browser = page(console, clock, link_token="one-time-link")
    key = (await operator_key(console)).secret.reveal()
    assert await browser.sign_in(key=key) == 200
    signed_in = [key, browser.cookie.partition("=")[2], browser.token]
    await browser.ask("POST", "/api/console.create_account", {"name": 1, "key": key})
    await browser.ask("GET", f'/api/traces.get?{{"trace_id":"{key}"}}')
    await browser.ask("POST", "/session", {"key": f"{key}x"})
    await browser.ask("POST", "/session", {"link": "one-time-link", "more": key})
    await browser.ask("GET", "/api/nothing", x_session_token=browser.token)
    for secret in (*signed_in, "one-time-link", browser.cookie.partition("=")[2]):
        assert secret not in caplog.text


async def test_no_answer_shows_a_key(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    key = (await operator_key(console)).secret.reveal()
    await browser.sign_in(key=key)
    for method, path, body in (
        ("POST", "/session", {"key": f"{key}\n"}),
        ("POST", "/session", {"keys": key}),
        ("POST", "/api/console.create_account", {"name": key}),
        ("POST", f"/api/{key}", {}),
        ("GET", f"/{key}", None),
        ("GET", '/api/console.keys?{"account":"_system"}', None),
    ):
        answer = msgspec.json.encode((await browser.ask(method, path, body))[1]).decode()
        assert key not in answer
        assert "digest" not in answer


async def test_every_answer_has_the_headers_and_none_lets_other_origins_in(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock, link_token="t")
    tag = (await browser.ask("GET", "/"))[2]["etag"]
    answers = [
        await browser.ask(method, path, origin=f"http://{HOST}", **headers)
        for method, path, headers in (
            ("GET", "/", {}),
            ("GET", "/", {"if_none_match": tag}),
            ("HEAD", "/page.js", {}),
            ("GET", "/nothing", {}),
            ("OPTIONS", "/api/console.accounts", {"access_control_request_method": "POST"}),
            ("PUT", "/session", {}),
            ("GET", "/api/console.accounts", {}),
            ("GET", "/api/nothing", {}),
            ("GET", "/", {"host": "evil.example"}),
            ("POST", "/session", {"content_type": "text/plain"}),
        )
    ]
    assert [status for status, _, _ in answers] == [200, 304, 200, 404, 405, 405, 401, 404, 403, 415]
    for _, _, headers in answers:
        assert HEADERS.items() <= {name.title(): value for name, value in headers.items()}.items()
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["cache-control"] == ("no-cache" if "etag" in headers else "no-store")
    await browser.sign_in(link="t")
    assert (await browser.ask("GET", "/api/console.accounts"))[2]["cache-control"] == "no-store"


async def test_a_store_that_cannot_be_read_signs_nobody_in(clock: FakeClock) -> None:
    class Broken(MemoryStorage):
        async def read(self, *arguments: Any) -> Any:
            raise OSError("disk /secret/path")

    browser = page(Console(Broken(clock=clock), clock=clock, secret=SECRET), clock)
    status, answer, _ = await browser.ask("POST", "/session", {"key": f"sk_live_{'0' * 33}"})
    assert (status, browser.cookie) == (500, "")
    assert "/secret/path" not in str(answer)
