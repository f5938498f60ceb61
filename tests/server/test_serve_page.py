"""The page for operators beside a server, with real processes."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from routewright import Console

from .serve_process import PATIENCE_S, Server, free_ports, serving

pytestmark = pytest.mark.xdist_group("real_time")


class Page(NamedTuple):
    """The page of a server, as its operator asks it. Any worker answers, since every request takes a new connection."""

    server: Server
    console: Console
    port: int

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"} | sent
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        answer = response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
        connection.close()
        return answer

    def statuses(self, path: str, **headers: str) -> set[int]:
        """Of many requests."""
        return {self.ask("GET", path, **headers)[0] for _ in range(12)}

    def key(self) -> Any:
        return self.console.blocking.create_key("_system", name="ada", scopes=["console:write"])

    def sign_in(self, key: str) -> dict[str, str]:
        """Signs in. Returns what the requests of the session carry."""
        status, session, headers = self.ask("POST", "/ui/session", {"key": key})
        assert status == 200
        assert "; Path=/ui/; " in headers["set-cookie"]
        return {"cookie": headers["set-cookie"].partition(";")[0], "x_session_token": json.loads(session)["token"]}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    port = free_ports(1)
    options = ("--workers", "2", "--admin-port", str(port), "--ui", "--log-level", "debug")
    with serving(folder, *options, ROUTEWRIGHT_TRUSTED_PROXIES="127.0.0.1") as server:
        server.until(lambda: len(server.children) == 2)
        console = Console(f"sqlite:///{folder}/routewright.db")
        yield Page(server, console, port)
        console.blocking.close()


def test_the_start_says_where_the_page_is_and_how_to_get_a_key(page: Page) -> None:
    assert f"http://127.0.0.1:{page.port}/ui/\n" in page.server.page
    assert (
        "routewright keys create _system --name NAME --scope console:write --store routewright.db\n" in page.server.page
    )


def test_the_page_is_beside_the_health_checks_and_not_at_the_port_for_requests(page: Page) -> None:
    status, _, headers = page.ask("GET", "/ui")
    assert (status, headers["location"]) == (307, "ui/")
    status, _, headers = page.ask("GET", "/")
    assert (status, headers["location"]) == (307, "ui/")
    status, html, _ = page.ask("GET", "/ui/")
    assert (status, html[:15]) == (200, b"<!doctype html>")
    for name in re.findall(rb"(?:src|href)=\"([^\"]+)\"", html):
        assert page.ask("GET", f"/ui/{name.decode()}")[0] == 200
    assert page.ask("GET", "/healthz")[0] == 200
    assert page.ask("GET", "/uix")[0] == page.ask("GET", "/api/console.accounts")[0] == 404
    connection = page.server.connect()
    connection.request("GET", "/ui/", headers={"Authorization": f"Bearer {page.server.keys['live']}"})
    assert connection.getresponse().status == 404


def test_a_session_holds_in_all_workers_until_its_key_is_revoked(page: Page) -> None:
    new = page.key()
    assert page.statuses("/ui/api/console.accounts") == {401}
    session = page.sign_in(new.secret.reveal())
    assert page.statuses("/ui/api/console.accounts", **session) == {200}
    page.console.blocking.revoke_key("_system", new.key.id)
    assert page.statuses("/ui/api/console.accounts", **session) == {401}
    logs = page.server.log + page.server.out.read_text("utf-8").partition("ui/")[2]
    assert new.secret.reveal() not in logs
    assert session["cookie"].partition("=")[2] not in logs
    assert session["x_session_token"] not in logs


def test_a_proxy_that_ends_tls_makes_the_cookie_secure(page: Page) -> None:
    host = f"127.0.0.1:{page.port}"
    headers = {"X_Forwarded_Proto": "https", "Origin": f"https://{host}"}
    status, _, answered = page.ask("POST", "/ui/session", {"key": page.key().secret.reveal()}, **headers)
    assert status == 200
    assert answered["set-cookie"].endswith("; SameSite=Strict; Secure")


def test_sessions_outlast_the_workers(page: Page) -> None:
    session = page.sign_in(page.key().secret.reveal())
    before = set(page.server.children)
    page.server.signal(signal.SIGHUP)
    page.server.until(lambda: len(page.server.children) == 2 and not before & set(page.server.children))
    assert page.statuses("/ui/api/console.accounts", **session) == {200}


def test_a_name_of_the_configuration_is_served(tmp_path: Path) -> None:
    port = free_ports(1)
    (tmp_path / "serve.toml").write_text(f'[admin]\nport = {port}\nui = true\nhosts = ["ops.example.com"]\n')
    with serving(tmp_path, "--config", "serve.toml") as server:
        assert f"http://127.0.0.1:{port}/ui/" in server.page
        for name, status in {b"ops.example.com": b"200", b"ops.example.org": b"403"}.items():
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
                client.sendall(b"GET /ui/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name)
                assert client.recv(100).startswith(b"HTTP/1.1 %s " % status)
