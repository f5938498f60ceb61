"""The webhook transport with receivers on loopback, and with names and addresses that lead elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import trustme

from routewright.backends.clock import SystemClock
from routewright.backends.transport import webhooks
from routewright.backends.transport.webhooks import AiohttpWebhooks
from routewright.protocols import WebhookTransport
from routewright.testing.faulty.steps import Break, Head, Repeat, Step
from tests.tables import table
from tests.upstream import Answer, Gate, Piece, Upstream

from .webhook_network import Lookup, Net, stand_between

pytestmark = pytest.mark.anyio

HEADERS = {"Content-Type": "application/json", "Service-Event-Id": "evt_1", "Service-Signature": "t=1,v1=0a"}
BODY = b'{"id":"evt_1"}'
NAME = "hooks.example"
URL = f"https://{NAME}/hook"
A, B, A6 = "93.184.216.34", "1.1.1.1", "2606:4700::1111"
CLOCK = SystemClock()
NOT_PUBLIC = UNRESOLVED = "the host has no public address"
CLOSED = "the connection was closed before an answer"
CLOSING = Answer(headers={"Connection": "close"})
ends = pytest.mark.parametrize("end", [Break.CLOSE, Break.RESET])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def tls_of(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.fixture(scope="module")
def serving(authority: trustme.CA) -> ssl.SSLContext:
    return tls_of(authority.issue_cert(NAME))


@pytest.fixture
async def transport(anyio_backend: str, trusting: ssl.SSLContext) -> AsyncIterator[AiohttpWebhooks]:
    """As in production, with another certificate authority."""
    made = AiohttpWebhooks(ssl_context=trusting)
    yield made
    await made.aclose()


@pytest.fixture
async def local(anyio_backend: str) -> AsyncIterator[AiohttpWebhooks]:
    """As in development."""
    made = AiohttpWebhooks(allow_loopback=True)
    yield made
    await made.aclose()


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    return stand_between(monkeypatch)


async def status(transport: WebhookTransport, url: str) -> int:
    return (await transport.post(url, HEADERS, BODY)).status


async def reason(transport: WebhookTransport, url: str) -> str:
    """The error message, checked for internal details."""
    with pytest.raises(OSError, match=r".") as caught:
        await transport.post(url, HEADERS, BODY)
    said = str(caught.value)
    assert type(caught.value) is OSError
    assert not re.search(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-f]*:[0-9a-f]*:[0-9a-f]*|errno", said, re.IGNORECASE)
    assert "secret" not in said
    return said


class Held(Answer):
    """An empty answer that comes once a gate is open."""

    @property
    def steps(self) -> list[Step]:
        return [*super().steps[1:], Head(200, {"content-length": "0"})]


def raw(*pieces: Piece) -> Answer:
    return Answer(pieces, raw=True)


@contextlib.contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Upstream]:
    with Upstream(lambda request: answer, tls) as receiver:
        yield receiver


async def left(receiver: Upstream, count: int = 0) -> None:
    """Wait until so many connections are open."""
    assert await asyncio.to_thread(receiver.wait_connected, count)


def within(seconds: float) -> Any:
    return CLOCK.deadline(CLOCK.monotonic() + seconds)


# --- what is sent, and what comes back


async def test_request_and_status_are_transmitted(local: AiohttpWebhooks) -> None:
    with answering(Answer([b"secret"], 418)) as receiver:
        answer = await local.post(f"{receiver.url}?a=b", HEADERS, BODY)
    assert (answer.status, answer.retry_after_s) == (418, None)
    (request,) = receiver.requests
    assert (request.method, request.path, request.raw) == ("POST", "/v1?a=b", BODY)
    assert request.headers == {name.lower(): value for name, value in HEADERS.items()} | {
        "host": receiver.place,
        "user-agent": "routewright",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
    }


@pytest.mark.parametrize("code", [200, 204, 299, 300, 301, 304, 400, 404, 408, 410, 429, 500, 503, 599])
async def test_every_status_is_an_answer(local: AiohttpWebhooks, code: int) -> None:
    with answering(Answer(status=code)) as receiver:
        assert await status(local, receiver.url) == code


async def test_retry_after_is_read_in_seconds(local: AiohttpWebhooks) -> None:
    times = {"Date": "Fri, 27 Nov 2026 12:00:00 GMT", "Retry-After": "Fri, 27 Nov 2026 12:00:40 GMT"}
    with answering(Answer(status=429, headers=times)) as receiver:
        assert (await local.post(receiver.url, HEADERS, BODY)).retry_after_s == 40.0


async def test_no_cookie_is_kept(net: Net, transport: AiohttpWebhooks, serving: ssl.SSLContext) -> None:
    net.script(NAME, [[A]])
    with answering(Answer(headers={"Set-Cookie": "a=b; Path=/"}), serving) as receiver:
        net.routes = {A: receiver.port}
        await status(transport, URL)
        await status(transport, URL)
    assert ["cookie" in request.headers for request in receiver.requests] == [False, False]


def test_works_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        transport = AiohttpWebhooks(allow_loopback=True)
        with answering(CLOSING) as receiver:
            assert await status(transport, receiver.url) == 200
        assert await reason(transport, receiver.url) == "the connection was refused"
        await transport.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- where it goes


BLOCKED: dict[str, list[Lookup]] = {
    "loopback": [["127.0.0.1"]],
    "loopback of IPv6": [["::1"]],
    "metadata": [["169.254.169.254"]],
    "private": [["10.0.0.1"]],
    "unspecified of IPv6": [["::"]],
    "carrier's": [["100.64.0.1"]],
    "multicast of IPv6": [["ff02::1"]],
    "host agent": [["168.63.129.16"]],
    "public, then private": [[A, "10.0.0.1"]],
    "A public, AAAA local": [[A, "fd00::1"]],
    "AAAA public, A private": [[A6, "192.168.0.1"]],
    "mapped": [["::ffff:127.0.0.1"]],
    "mapped, of a public one": [["::ffff:8.8.8.8"]],
    "NAT64": [["64:ff9b::7f00:1"]],
    "6to4": [["2002:7f00:1::"]],
    "Teredo": [["2001:0:4136:e378:8000:63bf:3fff:fdd2"]],
    "link-local": [["fe80::1"]],
    "link-local, with its scope as text": [["fe80::1%eth0"]],
    "link-local, with its scope as a number": [[(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 443, 0, 2))]],
    "unique local": [["fd00:ec2::254"]],
    "the last of 50": [[*[f"93.184.216.{number}" for number in range(1, 50)], "10.0.0.1"]],
    "in the middle of 200": [[*[f"93.184.216.{number}" for number in range(1, 101)], "fc00::1", *[B] * 99]],
    "at the end of a chain of names": [[(socket.AF_INET, socket.SOCK_STREAM, 6, "a.example", ("10.0.0.1", 443))]],
    "another spelling": [["127.1"]],
    "no address": [["localhost"]],
    "bytes for want of IPv6": [[(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (10, b"\0\0"))]],
    "in turns, with loopback": [["127.0.0.1"], ["10.0.0.1"], ["::1"]],
}
UNKNOWN: dict[str, list[Lookup]] = {
    "empty": [[]],
    "unknown": [socket.gaierror(socket.EAI_NONAME, "Name or service not known")],
    "no answer": [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")],
    "not encodable": [UnicodeError("label too long")],
    "no file left": [OSError(errno.EMFILE, "Too many open files")],
    "at first none, then an error": [[], socket.gaierror(socket.EAI_FAIL, "10.0.0.53 failed")],
}


@pytest.mark.parametrize("name", [*BLOCKED, *UNKNOWN])
async def test_blocked_target_sees_no_packet(net: Net, name: str) -> None:
    await assert_no_packet(net, name, AiohttpWebhooks())


@pytest.mark.parametrize("name", [name for name in [*BLOCKED, *UNKNOWN] if "loopback" not in name])
async def test_blocked_target_sees_no_packet_in_development(net: Net, name: str) -> None:
    await assert_no_packet(net, name, AiohttpWebhooks(allow_loopback=True))


async def assert_no_packet(net: Net, name: str, transport: AiohttpWebhooks) -> None:
    lookups = (BLOCKED | UNKNOWN)[name]
    net.script(NAME, lookups)
    for number in range(1, 1 + len(lookups)):
        assert await reason(transport, URL) == (NOT_PUBLIC if name in BLOCKED else UNRESOLVED)
        assert net.lookups == [NAME] * number
    await transport.aclose()
    assert (net.connects, net.sockets) == ([], 0)


async def test_next_address_is_tried(net: Net, transport: AiohttpWebhooks, serving: ssl.SSLContext) -> None:
    net.script(NAME, [[A6, B, A]])
    with answering(Answer(), serving) as receiver:
        net.routes = {A: receiver.port}
        assert await status(transport, URL) == 200
    assert set(net.connects) == {A6, B, A}
    assert receiver.requests[0].headers["host"] == NAME


REBINDINGS: dict[str, list[tuple[list[str], str | None]]] = {
    "on the second lookup": [([A], None), (["127.0.0.1"], NOT_PUBLIC)],
    "on the third": [([A], None), ([A], None), (["10.0.0.1"], NOT_PUBLIC)],
    "there and back": [([A], None), (["169.254.169.254"], NOT_PUBLIC), ([A], None)],
    "added to what was there": [([A], None), ([A, "10.0.0.1"], NOT_PUBLIC)],
    "by an address of IPv6": [([A], None), (["::ffff:127.0.0.1"], NOT_PUBLIC)],
    "to nothing": [([A], None), ([], UNRESOLVED)],
    "to another that is public": [([A], None), ([B], None), ([A], None)],
}


@pytest.mark.parametrize("name", REBINDINGS)
async def test_each_connection_resolves_again(
    net: Net, transport: AiohttpWebhooks, serving: ssl.SSLContext, name: str
) -> None:
    script = REBINDINGS[name]
    net.script(NAME, [found for found, _ in script])
    with answering(CLOSING, serving) as receiver:
        net.routes = {A: receiver.port, B: receiver.port}
        made = net.sockets
        for _, refusal in script:
            if refusal is None:
                assert await status(transport, URL) == 200
            else:
                assert await reason(transport, URL) == refusal
    assert net.connects == [found[0] for found, refusal in script if refusal is None]
    assert net.sockets - made == len(net.connects)
    assert len(net.lookups) == len(script)


async def test_slow_lookups_end_with_the_deadline_and_do_not_block_other_threads(
    net: Net, transport: AiohttpWebhooks
) -> None:
    ends = threading.Event()

    def slow() -> Sequence[str]:
        ends.wait(60)
        return [A]

    net.script("private.example", [["10.0.0.1"]] * 3)
    assert await reason(transport, "https://private.example/") == NOT_PUBLIC  # from now on it is a name that was found
    net.script(NAME, [slow] * 80)

    async def try_it() -> bool:
        with within(0.05) as deadline:
            await transport.post(URL, HEADERS, BODY)
        return bool(deadline.expired)

    try:
        assert await asyncio.gather(*[try_it() for _ in range(80)]) == [True] * 80
        assert await asyncio.gather(*[asyncio.to_thread(int, "1") for _ in range(40)]) == [1] * 40
        assert await reason(transport, "https://private.example/") == NOT_PUBLIC  # though all other names hang
    finally:
        ends.set()
    assert await reason(transport, "https://private.example/") == NOT_PUBLIC
    assert len(net.lookups) < 80  # no thread was begun for those that had left
    assert net.sockets == 0


LITERALS = r"""
http://127.0.0.1 https://127.0.0.1 https://[::1] https://10.0.0.1 https://169.254.169.254/latest https://[fd00:ec2::254]
https://[::ffff:10.0.0.1] https://[64:ff9b::a00:1] https://[2002:a00:1::] https://[fe80::1] https://0.0.0.0 https://[::]
https://224.0.0.1 https://192.168.0.1:8443/x https://100.100.100.200 https://168.63.129.16 http://93.184.216.34
https://u:p@93.184.216.34 https://127.1 https://2130706433 https://0x7f.1 https://[::1]@hooks.example https://localhost
https:\\127.0.0.1 https://hooks.example\@127.0.0.1 https://93.184.216.34#x https://127.0.0.1. https://[[::1]]
ftp://93.184.216.34 //127.0.0.1 file:///etc/passwd
""".split()


@table("url", LITERALS)
async def test_invalid_url_is_not_sent_to(net: Net, transport: AiohttpWebhooks, url: str) -> None:
    assert (await reason(transport, url)).startswith("url: ")
    assert (net.lookups, net.connects, net.sockets) == ([], [], 0)


UNSPELT = [url for url in LITERALS if re.match(r"https?://[\[\]0-9a-f.:]+(/|:[0-9]+/|$)", url) and A not in url]


@pytest.mark.parametrize("url", UNSPELT)
async def test_addresses_are_checked_when_the_socket_is_created(
    net: Net, transport: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(webhooks, "check_url", lambda url, **_: None)
    said = await reason(transport, url)
    assert said in (NOT_PUBLIC, "the answer is not HTTP", CLOSED)
    assert (net.connects, net.sockets) == ([], 0)


async def test_resolved_addresses_are_checked_when_the_socket_is_created(
    net: Net, transport: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(self: object, host: str, port: int = 0, family: int = 0) -> Any:
        return [
            {"hostname": host, "host": to, "port": port, "family": 2, "proto": 0, "flags": 0} for to in (B, "10.0.0.1")
        ]

    monkeypatch.setattr(webhooks._Guard, "resolve", resolve)
    await reason(transport, URL)
    assert set(net.connects) == {B}


async def test_development_allows_only_loopback_besides_public_addresses(net: Net, local: AiohttpWebhooks) -> None:
    net.script("localhost", [["::1", "127.0.0.1"], ["10.0.0.1"]])
    with answering(CLOSING) as receiver:
        net.routes = {"127.0.0.1": receiver.port}
        assert await status(local, f"http://localhost:{receiver.port}/") == 200
        assert set(net.connects) <= {"::1", "127.0.0.1"}
        net.connects.clear()
        assert await reason(local, f"http://localhost:{receiver.port}/") == NOT_PUBLIC
        assert (await reason(local, "https://10.0.0.1/")).startswith(
            "url: has a host that is not public; use a host on the public Internet"
        )
        assert (await reason(local, "http://93.184.216.34/")).startswith("url: is plain HTTP")
    assert net.connects == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(net: Net, local: AiohttpWebhooks, code: int) -> None:
    with answering(Answer()) as other:
        for place in (f"{other.root}/", "http://169.254.169.254/", "https://[::1]/", "//10.0.0.1/", "/again"):
            with answering(Answer(status=code, headers={"Location": place})) as receiver:
                net.routes = {"127.0.0.1": receiver.port}
                assert await status(local, receiver.url) == code
                assert len(receiver.requests) == 1
        assert other.opened == 0
    assert set(net.connects) == {"127.0.0.1"}


async def test_proxies_of_the_environment_are_ignored(
    net: Net, trusting: ssl.SSLContext, serving: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(Answer()) as proxy, answering(Answer(), serving) as receiver:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WSS_PROXY"):
            monkeypatch.setenv(name, f"http://10.9.9.9:{proxy.port}")
            monkeypatch.setenv(name.lower(), f"http://10.9.9.9:{proxy.port}")
        net.script(NAME, [[A]])
        net.routes = {A: receiver.port, "10.9.9.9": proxy.port}
        transport = AiohttpWebhooks(ssl_context=trusting)
        assert await status(transport, URL) == 200
        await transport.aclose()
        assert (proxy.opened, net.connects) == (0, [A])


# --- answers that do harm


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 1073741824", b"Transfer-Encoding: chunked", b"Connection: close", b"Content-Encoding: gzip"],
)
async def test_long_body_is_not_read_to_its_end(local: AiohttpWebhooks, head: bytes) -> None:
    endless = Repeat(b"10000\r\n" + b"s" * 65_536 + b"\r\n")
    with answering(raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n", endless)) as receiver:
        assert await status(local, receiver.url) == 200
        await left(receiver)
    assert not local._bodies


@pytest.mark.parametrize(("length", "connections"), [(65_536, 1), (1 << 20, 2)])
async def test_connection_of_a_body_up_to_64_kib_is_kept(local: AiohttpWebhooks, length: int, connections: int) -> None:
    gate = Gate()
    with answering(Answer([b"x" * 65_535, gate, b"x" * (length - 65_535)])) as receiver:
        for _ in range(2):
            assert await status(local, receiver.url) == 200
            gate.open()
            if local._bodies:
                await asyncio.wait(local._bodies)
        assert receiver.opened == connections


class LongBody:
    """An answer, and its content, without an end."""

    def __init__(self) -> None:
        self.content = self
        self.reads: list[int] = []
        self.is_closed = False

    async def read(self, most: int) -> bytes:
        self.reads.append(most)
        return bytes(min(most, 60_000))

    def close(self) -> None:
        self.is_closed = True


async def test_at_most_64_kib_of_a_body_are_read() -> None:
    response = LongBody()
    await webhooks._read_body(response)  # type: ignore[arg-type]
    assert (response.reads, response.is_closed) == ([65_536, 5_536], True)


async def test_missing_body_is_not_waited_for(local: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_BODY_S", 0.05)
    with answering(raw(b"HTTP/1.1 201 OK\r\nContent-Length: 10\r\n\r\nx", Gate())) as receiver:
        assert await status(local, receiver.url) == 201
        await left(receiver)


async def test_few_bodies_are_read_at_once(local: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_BODIES", 2)
    monkeypatch.setattr(webhooks, "_BODY_S", 60.0)
    with answering(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx", Gate())) as receiver:
        for _ in range(5):
            assert await status(local, receiver.url) == 200
        await left(receiver, 2)
        assert len(local._bodies) == 2
        await local.aclose()
        await left(receiver)
    assert not local._bodies


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 10\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
        b"Content-Encoding: br\r\nContent-Length: 6\r\n\r\nsecret",
        b"\r\n",
    ],
)
@ends
async def test_a_failure_after_the_status_does_not_change_it(local: AiohttpWebhooks, rest: bytes, end: Break) -> None:
    head = b"HTTP/1.1 204 X\r\n" if rest == b"\r\n" else b"HTTP/1.1 200 X\r\n"
    with answering(raw(head + rest, end)) as receiver:
        assert await status(local, receiver.url) in (200, 204)
        if local._bodies:
            await asyncio.wait(local._bodies)


GARBAGE = [
    b"secret\r\n\r\n",
    b"HTTP/1.1 2 secret\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nsecret\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: " + b"s" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 " + b"s" * 100_000 + b"\r\n\r\n",
    b"SSH-2.0-secret\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x02\x28",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_an_error_and_is_not_shown(local: AiohttpWebhooks, garbage: bytes) -> None:
    with answering(raw(garbage)) as receiver:
        assert await reason(local, receiver.url) in ("the answer is not HTTP", CLOSED)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nA: secre"])
@ends
async def test_connection_closed_before_an_answer_is_an_error(local: AiohttpWebhooks, head: bytes, end: Break) -> None:
    with answering(raw(head, end)) as receiver:
        assert await reason(local, receiver.url) == CLOSED


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_deadline_of_the_caller_ends_a_missing_answer(local: AiohttpWebhooks, head: bytes) -> None:
    with answering(raw(*(bytes([byte]) for byte in head), Gate())) as receiver:
        with within(0.1) as deadline:
            await local.post(receiver.url, HEADERS, BODY)
        assert deadline.expired
        await left(receiver)


@pytest.mark.parametrize("piece", [b"A: b\r\n", b"\r\nHTTP/1.1 103 Early Hints\r\n"], ids=["headers", "hints"])
async def test_endless_headers_are_cut_off(local: AiohttpWebhooks, piece: bytes) -> None:
    with answering(raw(b"HTTP/1.1 103 Early Hints\r\n", Repeat(piece))) as receiver:
        with contextlib.suppress(OSError), within(0.3):
            await local.post(receiver.url, HEADERS, BODY)
            pytest.fail("there is no answer")
        await left(receiver)


async def test_cancellation_closes_the_connection(local: AiohttpWebhooks) -> None:
    gate = Gate()
    with answering(raw(gate)) as receiver:
        post = asyncio.create_task(local.post(receiver.url, HEADERS, BODY))
        await asyncio.to_thread(gate.reached.wait)
        post.cancel()
        with pytest.raises(asyncio.CancelledError):
            await post
        await left(receiver)


async def test_closing_at_once_ends_an_answer_whose_body_nobody_has_begun_to_read(local: AiohttpWebhooks) -> None:
    with answering(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", Gate())) as receiver:
        await local.post(receiver.url, HEADERS, BODY)
        await local.aclose()
        gc.collect()  # an unclosed connection would warn
        await left(receiver)


# --- connections that cannot be made


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ECONNREFUSED, "the connection was refused"),
        (errno.EHOSTUNREACH, "the host cannot be reached"),
        (errno.ENETUNREACH, "the host cannot be reached"),
        (errno.ETIMEDOUT, "the connection failed"),
        (errno.ECONNRESET, CLOSED),
        (errno.EMFILE, "the connection failed"),
    ],
)
async def test_the_reason_for_a_failed_connection_is_reported(
    net: Net, transport: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def fail(address: Any) -> int:
        raise OSError(number, f"secret {address}")

    monkeypatch.setattr(net, "try_connect", fail)
    net.script(NAME, [[A]])
    assert await reason(transport, URL) == said


async def connect(transport: AiohttpWebhooks, net: Net, tls: ssl.SSLContext) -> str:
    net.script(NAME, [[A]])
    with answering(Answer(), tls) as receiver:
        net.routes = {A: receiver.port}
        said = await reason(transport, URL)
    assert receiver.requests == []
    return said


async def test_certificate_of_another_name_is_refused(
    net: Net, transport: AiohttpWebhooks, authority: trustme.CA
) -> None:
    said = await connect(transport, net, tls_of(authority.issue_cert("other.example")))
    assert said.startswith("TLS: certificate verify failed: Hostname mismatch")


async def test_plain_http_where_tls_is_expected_is_refused(net: Net, transport: AiohttpWebhooks) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()
        writer.close()

    net.script(NAME, [[A]])
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    net.routes = {A: server.sockets[0].getsockname()[1]}
    assert (await reason(transport, URL)).startswith("TLS: ")
    server.close()
    await server.wait_closed()


async def test_the_systems_certificates_are_used_by_default(net: Net, serving: ssl.SSLContext) -> None:
    transport = AiohttpWebhooks()
    assert (await connect(transport, net, serving)).startswith("TLS: certificate verify failed: ")
    await transport.aclose()


# --- its own connections


async def test_connections_are_limited(local: AiohttpWebhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_CONNECTIONS", 2)
    gate = Gate()
    with answering(Held([gate])) as receiver:
        posts = [asyncio.create_task(status(local, receiver.url)) for _ in range(6)]
        await left(receiver, 2)
        gate.open()
        assert await asyncio.gather(*posts) == [200] * 6
        assert receiver.opened == 2


async def test_closing_cancels_posts_and_closes_connections(local: AiohttpWebhooks) -> None:
    gate = Gate()
    with answering(raw(gate)) as receiver:
        post = asyncio.create_task(reason(local, receiver.url))
        await asyncio.to_thread(gate.reached.wait)
        await local.aclose()
        await local.aclose()
        assert await post == CLOSED
        await left(receiver)


async def test_an_unused_transport_can_be_closed() -> None:
    await AiohttpWebhooks().aclose()


async def test_a_post_after_closing_opens_a_new_session(local: AiohttpWebhooks) -> None:
    with answering(Answer()) as receiver:
        for _ in range(2):
            assert await status(local, receiver.url) == 200
            await local.aclose()
        assert receiver.opened == 2
