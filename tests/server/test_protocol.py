"""HTTP/1.1 on the socket: any input gets one response per request, no internal errors, within limits."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from routewright.server.errors import Refusal, RefusedClient
from routewright.server.http_limits import ConnectionLimits
from routewright.server.http_protocol import ENDING, OBSERVERS, BoundedProtocol
from tests.tables import table

from .uvicorn_server import PATIENCE_S, Site, bearer

LIMITS = ConnectionLimits(header_s=0.3, keep_alive_s=0.6, pipelined=4, header_bytes=4096, headers=20, open=8)
_servers: list[uvicorn.Server] = []
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@contextmanager
def listening(app: Any, limits: ConnectionLimits = LIMITS, loop: str = "auto") -> Iterator[int]:
    """Serve within such limits. Gives the port."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]
        loop=loop,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    _servers.append(server)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        bound.close()
        assert not thread.is_alive()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with listening(Site().app, loop=request.param) as port:
        yield port


@pytest.fixture(scope="module")
def key_and_port() -> Iterator[tuple[str, int]]:
    site = Site()
    with listening(site.app) as port:
        yield site.key(environment="sandbox"), port


def said(port: int, *pieces: bytes, most: int = 1 << 20) -> bytes:
    """All that comes back until the connection is closed, which has to be soon."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        heard = b""
        try:
            for piece in pieces:
                client.sendall(piece)
            while more := client.recv(65_536):
                heard += more
                assert len(heard) < most
        except ConnectionError:
            pass
        return heard


def rest_of(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65_536), b""))


def statuses(heard: bytes) -> list[int]:
    return [int(found) for found in _STATUS.findall(heard)]


POST = b"POST /v1/route HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"

REFUSED = {
    "both Content-Length and Transfer-Encoding": POST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two Content-Lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a sign in Content-Length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a Transfer-Encoding after chunked": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two of Transfer-Encoding": POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: identity": POST + b"Transfer-Encoding: identity\r\n\r\nabc",
    "Transfer-Encoding in HTTP/1.0": b"POST /v1/route HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"X: a\r\n b\r\n\r\n",
    "a chunk that is longer than its size": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "a bare LF after a chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "a bare LF in the headers": b"GET /v1/models HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "NUL in a header": GET + b"X: a\x00b\r\n\r\n",
    "a space before the colon": GET + b"X : y\r\n\r\n",
    "no Host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two Hosts": GET + b"Host: b\r\n\r\n",
    "an authority as target": b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/0.9 by name": b"GET /v1/models HTTP/0.9\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "a huge method": b"A" * 100_000 + b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS to a plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a WebSocket": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@table("sent", REFUSED.values(), ids=REFUSED)
def test_an_invalid_request_gets_one_answer_and_the_connection_closes(port: int, sent: bytes) -> None:
    heard = said(port, sent + GET + b"\r\n")
    assert statuses(heard) == [400]
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"], error["detail"]) == ("malformed_request", "request_error", {})
    assert error["request_id"].encode() in head


def test_observers_are_called_for_refused_clients(port: int) -> None:
    told: list[RefusedClient] = []
    state = _servers[-1].lifespan.state
    state[OBSERVERS] = [told.append]
    try:
        heard = said(port, GET.replace(b"/1.1", b"/2.0") + b"\r\n")
    finally:
        del state[OBSERVERS]
    (refused,) = told
    assert refused.refusal is Refusal.VERSION
    assert refused.response == heard
    assert refused.request_id.encode() in heard
    assert refused.client == "127.0.0.1"


ANSWERED = {"HTTP/1.0": (b"GET /v1/models HTTP/1.0\r\n\r\n", [401]),
"an absolute target": (b"GET http://a/v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", [401]),
"empty lines before it": (b"\r\n\r\n" + GET + b"Connection: close\r\n\r\n", [401]),
"chunk extensions": (
        POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n", [401],
    ),
"nothing after Connection: close": (GET + b"Connection: close\r\n\r\n" + GET + b"\r\n", [401]),
"three in a row": ((GET + b"\r\n") * 2 + GET + b"Connection: close\r\n\r\n", [401, 401, 401]),
"one that is none after one that is": (GET + b"\r\n" + b"BAD\r\n\r\n", [401, 400]),
}  # fmt: skip


@table(("sent", "expected"), ANSWERED.values(), ids=ANSWERED)
def test_valid_requests_are_answered_in_order(port: int, sent: bytes, expected: list[int]) -> None:
    assert statuses(said(port, sent)) == expected


def test_trailers_are_not_headers(key_and_port: tuple[str, int]) -> None:
    key, port = key_and_port
    sent = (
        POST
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer %s\r\n\r\n"
    )
    assert statuses(said(port, sent % key.encode())) == [401]


@pytest.mark.parametrize("trailers", [b"X: a\r\n" * 30, b"X: " + b"a" * 5000 + b"\r\nX: b\r\n"])
@pytest.mark.parametrize("end", [b"\r\n", b"X: "])
def test_trailers_have_the_limits_of_headers(key_and_port: tuple[str, int], trailers: bytes, end: bytes) -> None:
    key, port = key_and_port
    head = POST + b"Authorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n" % key.encode()
    assert statuses(said(port, head + b"2\r\n{}\r\n0\r\n" + trailers + end)) == [431]


TOO_LARGE = {
    "a long target": b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target without an end": b"GET /" + b"a" * 50_000,
    "a long header": GET + b"X: " + b"a" * 5000 + b"\r\n\r\n",
    "a header without an end": GET + b"X: " + b"a" * 50_000,
    "many headers": GET + b"X: a\r\n" * 20 + b"\r\n",
    "many without an end behind another": GET + b"\r\n" + GET + b"X: a\r\n" * 30,
    "a long one behind another": GET + b"\r\n" + GET + b"X: " + b"a" * 5000 + b"\r\n\r\n",
}


@table("sent", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_head_over_its_limits_is_431(port: int, sent: bytes) -> None:
    assert statuses(said(port, sent))[-1:] == [431]


def test_unfinished_headers_are_408_and_a_silent_connection_is_closed(port: int) -> None:
    assert statuses(said(port, b"GET /v1/mo")) == [408]
    assert statuses(said(port, GET + b"\r\n", GET)) == [401, 408]
    assert said(port) == b""
    assert statuses(said(port, GET + b"\r\n")) == [401]


def test_slowly_dripping_headers_are_408(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.settimeout(0.1)
        heard, dripped = b"", 0
        client.sendall(GET)
        while not heard:
            client.sendall(b"X")
            dripped += 1
            try:
                heard = client.recv(65_536)
            except TimeoutError:
                assert dripped < 50
        assert statuses(heard) == [408]


def test_an_unread_body_does_not_keep_the_connection_open(port: int) -> None:
    heard = said(port, POST + b"Content-Length: 1000000\r\n\r\n" + b"{")
    assert statuses(heard) == [401]


def test_chunk_extensions_are_bounded(key_and_port: tuple[str, int]) -> None:
    key, port = key_and_port
    head = POST + b"Authorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n" % key.encode()
    assert statuses(said(port, head + b"1;" + b"a" * 400_000)) == [400]
    chunks = b"1\r\n \r\n" * 100_000 + b'2d\r\n{"messages":[{"role":"user","content":"Hi"}]}\r\n0\r\n\r\n'
    assert statuses(said(port, head.replace(b"Transfer", b"Connection: close\r\nTransfer") + chunks)) == [200]
    endless = b"1\r\n \r\n0\r\nX: " + b"a" * 400_000
    assert statuses(said(port, head + endless)) == [400]


class Held:
    """Answers once it is let go."""

    def __init__(self, *, begins: bool = False) -> None:
        self.let_go = threading.Event()
        self.asked = threading.Semaphore(0)
        self.begins = begins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import anyio.to_thread

        if scope["type"] != "http":
            raise RuntimeError("no lifespan here")
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
        if self.begins:
            await send(start)
            await send({"type": "http.response.body", "body": b"do", "more_body": True})
        self.asked.release()
        await anyio.to_thread.run_sync(self.let_go.wait, 10)
        if not self.begins:
            await send(start)
            await send({"type": "http.response.body", "body": b"do", "more_body": True})
        await send({"type": "http.response.body", "body": b"ne"})


@table("begins", [False, True])
def test_an_error_is_never_sent_inside_an_answer(begins: bool) -> None:
    app = Held(begins=begins)
    with listening(app) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(GET + b"\r\n")
        assert app.asked.acquire(timeout=10)
        client.sendall(b"NONSENSE\r\n\r\n")
        app.let_go.set()
        heard = rest_of(client)
    assert statuses(heard) == [200, 400]
    assert b"\r\n\r\ndoneHTTP/1.1 400" in heard


@table("begins", [False, True])
def test_an_invalid_body_gets_one_answer(begins: bool) -> None:
    app = Held(begins=begins)
    with listening(app) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        assert app.asked.acquire(timeout=10)
        client.sendall(b"zz\r\n")
        heard = b"" if begins else client.recv(65_536)
        app.let_go.set()
        heard += rest_of(client)
    assert statuses(heard) == ([200] if begins else [400])


def test_pipelined_requests_are_bounded() -> None:
    app = Held()
    with listening(app) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall((GET + b"\r\n") * 50)
        assert app.asked.acquire(timeout=10)
        app.let_go.set()
        heard = rest_of(client)
    assert statuses(heard) == [200] * 5 + [400]


class Long:
    """Answers with more than a socket holds, and says when it is through."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.ended = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(self.pieces):
            more = number < self.pieces - 1
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": more})
        self.ended.set()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such timeout")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_client_that_reads_nothing_is_disconnected(loop: str) -> None:
    app = Long(1_000)
    limits = ConnectionLimits(send_s=0.1)
    with listening(app, limits, loop) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(GET + b"\r\n")
        assert app.ended.wait(PATIENCE_S)


def test_a_slow_reader_is_not_disconnected() -> None:
    app, limits = Long(200), ConnectionLimits(send_s=0.1)
    with listening(app, limits) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(GET + b"Connection: close\r\n\r\n")
        heard, never = 0, threading.Event()
        while more := client.recv(262_144):
            heard += len(more)
            never.wait(0.005)
    assert heard > 200 * 65_536


def test_open_connections_are_bounded() -> None:
    with listening(Site().app, ConnectionLimits(open=2, header_s=20)) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(2)]
        heard = said(port, GET + b"\r\n")
        assert statuses(heard) == [503]
        assert b"retry-after: 1" in heard
        for each in held:
            each.close()
        while statuses(heard := said(port, GET + b"Connection: close\r\n\r\n")) == [503]:
            pass
        assert statuses(heard) == [401]


def test_a_kept_connection_is_answered_once_more_at_shutdown() -> None:
    site = Site()
    line = GET + f"Authorization: {bearer(site.key(environment='sandbox'))['Authorization']}\r\n\r\n".encode()
    with listening(site.app, ConnectionLimits()) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        client.sendall(line)
        assert b"200 OK" in client.recv(65_536)
        _servers[-1].should_exit = True
        while ENDING not in _servers[-1].lifespan.state:
            threading.Event().wait(0.01)
        client.sendall(line)
        heard = rest_of(client)
    assert statuses(heard)[-1] == 200
    assert b"connection: close" in heard


PIECES = [*REFUSED.values(), *TOO_LARGE.values(), GET, POST, b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"\x00",
          b"5\r\nhello\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.binary(max_size=20))
def test_no_input_causes_an_internal_error(sent: list[bytes], more: bytes) -> None:
    heard = said(_running[0], b"".join(sent) + more)
    assert all(status < 500 for status in statuses(heard))


_running: list[int] = []


@pytest.fixture(scope="module", autouse=True)
def _shared() -> Iterator[None]:
    with listening(Site().app, ConnectionLimits(header_s=0.05, keep_alive_s=0.05, header_bytes=4096)) as port:
        _running.append(port)
        yield
