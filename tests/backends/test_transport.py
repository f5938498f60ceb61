"""The HTTP transports: aiohttp on asyncio, httpx2 on trio, against a real server on loopback."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from routewright.backends.transport import AutoTransport, TransportLimits
from routewright.backends.transport.aiohttp import AiohttpTransport
from routewright.backends.transport.connections import Body, LoopPools, failure_of
from routewright.errors import ProviderFault
from routewright.protocols import Transport
from routewright.testing import FaultyServer
from routewright.testing.faulty.steps import Break
from tests.tables import table
from tests.upstream import Answer, Cut, Gate, Upstream

pytestmark = pytest.mark.anyio
LIMIT = 1 << 20


@pytest.fixture
def server() -> Iterator[Upstream]:
    with Upstream(lambda request: text(request.raw or b"hello")) as running:
        yield running


@pytest.fixture
async def transport(anyio_backend: str) -> AsyncIterator[AutoTransport]:
    made = AutoTransport(TransportLimits(answer_bytes=LIMIT))
    yield made
    await made.aclose()


def text(*pieces: bytes | Gate | Cut, status: int = 200, chunked: bool = False, **headers: str) -> Answer:
    return Answer(pieces, status, {name.replace("_", "-"): value for name, value in headers.items()}, chunked)


async def fetch(transport: Transport, url: str, body: bytes | None = None) -> bytes:
    async with transport.request("POST", url, headers={"x-test": "1"}, body=body) as response:
        return await response.read(LIMIT)


async def fault_of(transport: Transport, url: str) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        await fetch(transport, url)
    return caught.value


async def test_request_and_answer_are_transmitted(server: Upstream, transport: Transport) -> None:
    server.answers = [text(b"one", b"two", status=418, X_Answer="Yes", chunked=True)]
    async with transport.request("PUT", f"{server.url}/a?b=c", headers={"X-Test": "1"}, body=b"body") as response:
        assert response.status == 418
        assert response.headers["x-answer"] == "Yes"
        assert b"".join([piece async for piece in response.chunks()]) == b"onetwo"
    (request,) = server.requests
    assert (request.method, request.path, request.raw) == ("PUT", "/v1/a?b=c", b"body")
    assert request.headers["x-test"] == "1"
    assert request.headers["user-agent"] == "routewright"
    assert request.headers["accept-encoding"] == "gzip"


def error_of(number: int) -> ConnectionError:
    error = ConnectionError("no connection")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@table(
    ("number", "remedy"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "on this machine"), (errno.ENOMEM, "short of memory")],
)
def test_a_shortage_of_this_process_is_a_local_fault_with_a_remedy(number: int, remedy: str) -> None:
    fault = failure_of("x.example", "no", error_of(number))
    assert fault.kind == "local"
    assert remedy in fault.message


def test_a_refused_connection_is_not_a_local_fault() -> None:
    error = error_of(errno.ECONNREFUSED)
    assert error.__cause__ is not None
    error.__cause__.__context__ = OSError(errno.EMFILE, "what the host was about")
    assert failure_of("x.example", "no", error).kind == "connect"


# --- what goes wrong


async def test_refused_connection_is_a_connect_fault(transport: Transport) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    fault = await fault_of(transport, f"http://127.0.0.1:{port}/")
    assert fault.kind == "connect"
    assert "127.0.0.1" in str(fault)
    assert "ssl" not in str(fault)


async def test_an_untrusted_certificate_is_named_as_the_reason(transport: Transport) -> None:
    with FaultyServer("bad_certificate") as server:
        assert "certificate verify failed: self-signed" in (await fault_of(transport, server.url)).message


@pytest.mark.parametrize(
    "answer",
    [
        Answer([Cut()], raw=True),
        Answer([b""], raw=True),
        Answer([b"HTTP/1.1 200 OK\r\nconte", Cut()], raw=True),
        Answer([b"this is not HTTP\r\n\r\n"], raw=True),
        Answer([b"part", Cut()], chunked=True),
        Answer([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart"], raw=True),
        Answer([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n"], raw=True),
        Answer([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\npart\r\n"], raw=True),
    ],
    ids=["cut", "closed", "cut in headers", "not HTTP", "cut in body", "short body", "no last chunk", "bad chunk"],
)
async def test_broken_connection_is_a_reset_fault(server: Upstream, transport: Transport, answer: Answer) -> None:
    server.answers = [answer]
    assert (await fault_of(transport, server.url)).kind == "reset"
    assert await fetch(transport, server.url) == b"hello"


ended = pytest.mark.parametrize("end", [Break.CLOSE, Break.RESET])


def broken_off(*pieces: bytes | Break) -> Answer:
    """An answer of these bytes, after which the connection ends."""
    return Answer(pieces, raw=True)


@ended
@pytest.mark.parametrize("size", [1, 3 << 20])
async def test_a_connection_closed_while_idle_is_no_attempt(
    server: Upstream, transport: Transport, end: Break, size: int
) -> None:
    server.answers = [text(b"hi"), broken_off(end), text(b"hi"), text(b"hi")]
    for number in range(3):
        assert await fetch(transport, server.url, b"%d" % number * size) == b"hi"
    sent = [(request.raw[:1], len(request.raw)) for request in server.requests]
    assert sent == [(b"0", size), (b"1", size), (b"1", size), (b"2", size)]
    assert server.opened == 2


@ended
async def test_what_may_have_been_answered_is_not_sent_again(
    server: Upstream, transport: Transport, end: Break
) -> None:
    server.answers = [broken_off(end)]  # on a new connection
    assert (await fault_of(transport, server.url)).kind == "reset"
    assert len(server.requests) == 1
    for parting in (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh", b"no HTTP\r\n\r\n"):  # an answer has begun
        server.requests.clear()
        server.answers = [text(b"hi"), broken_off(parting, end)]
        await fetch(transport, server.url)
        assert (await fault_of(transport, server.url)).kind in ("reset", "malformed")
        assert len(server.requests) == 2


async def test_a_request_is_sent_once_more_at_most(server: Upstream, transport: Transport) -> None:
    server.answers = [text(b"hi"), text(b"hi"), broken_off(Break.CLOSE), broken_off(Break.CLOSE)]
    async with anyio.create_task_group() as group:  # at a time, so on two connections
        group.start_soon(fetch, transport, server.url)
        group.start_soon(fetch, transport, server.url)
    assert (await fault_of(transport, server.url)).kind == "reset"
    assert (server.opened, len(server.requests)) == (3, 4)


async def test_a_fault_and_its_causes_show_nothing_of_the_request(server: Upstream, transport: Transport) -> None:
    server.answers = [Answer([b"this is not HTTP\r\n\r\n"], raw=True)]
    with pytest.raises(ProviderFault) as caught:
        await transport.request("POST", server.url, headers={"authorization": "canary"}, body=b"canary").__aenter__()
    error: BaseException | None = caught.value
    while error is not None:
        assert "canary" not in f"{error!r} {error} {error.args}"
        error = error.__cause__ or error.__context__


async def test_redirect_is_not_followed(server: Upstream, transport: Transport) -> None:
    server.answers = [text(b"", status=307, location=f"{server.url}/elsewhere")]
    async with transport.request("POST", server.url, headers={}) as response:
        assert response.status == 307
    assert len(server.requests) == 1


async def test_cookies_are_not_kept(server: Upstream, transport: Transport) -> None:
    server.answers = [text(b"", set_cookie="whose=mine; Path=/")]
    await fetch(transport, server.url)
    await fetch(transport, server.url)
    assert "cookie" not in server.requests[1].headers


# --- length and compression


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip"])
async def test_compressed_answer_is_decompressed(server: Upstream, transport: Transport, encoding: str) -> None:
    said = bytes(range(256)) * 1000
    packed = gzip.compress(said)
    pieces = [packed[at : at + 100] for at in range(0, len(packed), 100)]
    server.answers = [text(*pieces, chunked=True, content_encoding=encoding), text(packed, content_encoding=encoding)]
    assert await fetch(transport, server.url) == said
    assert await fetch(transport, server.url) == said
    assert server.opened == 1


async def test_gzip_with_several_members_is_decompressed(server: Upstream, transport: Transport) -> None:
    server.answers = [text(gzip.compress(b"one") + gzip.compress(b"two"), content_encoding="gzip")]
    assert await fetch(transport, server.url) == b"onetwo"


async def test_a_decompression_bomb_is_read_in_bounded_pieces(server: Upstream, transport: Transport) -> None:
    server.answers = [text(gzip.compress(bytes(100 * LIMIT)), content_encoding="gzip")]
    lengths: list[int] = []
    with suppress(ProviderFault):
        async with transport.request("POST", server.url, headers={}) as response:
            async for piece in response.chunks():
                lengths.append(len(piece))
    assert max(lengths) <= 1 << 16
    assert sum(lengths) <= LIMIT


async def test_plain_answer_stops_at_the_limit_too(server: Upstream, transport: Transport) -> None:
    server.answers = [text(bytes(LIMIT)), text(bytes(LIMIT + 1)), text(*(bytes(LIMIT // 2) for _ in range(3)))]
    assert len(await fetch(transport, server.url)) == LIMIT
    assert (await fault_of(transport, server.url)).kind == "malformed"
    assert (await fault_of(transport, server.url)).kind == "malformed"
    async with transport.request("POST", server.url, headers={}) as response:
        with pytest.raises(ProviderFault, match="over 4 bytes"):
            await response.read(4)


@pytest.mark.parametrize(
    "answer",
    [
        text(b"not gzip", content_encoding="gzip"),
        text(gzip.compress(b"hello" * 100)[:-9], content_encoding="gzip"),
        text(b"hello", content_encoding="br"),
    ],
    ids=["not compressed", "cut short", "unasked for"],
)
async def test_answer_that_cannot_be_decompressed_is_malformed(
    server: Upstream, transport: Transport, answer: Answer
) -> None:
    server.answers = [answer]
    assert (await fault_of(transport, server.url)).kind == "malformed"


# --- leaving early


async def test_cancel_closes_the_connection_and_leaves_the_pool_usable(server: Upstream, transport: Transport) -> None:
    for pieces in ([b"first", Gate()], [Gate()]):
        server.answers = [text(*pieces, chunked=True)]
        async with anyio.create_task_group() as group:
            group.start_soon(fetch, transport, server.url)
            gate = pieces[-1]
            assert isinstance(gate, Gate)
            await anyio.to_thread.run_sync(gate.reached.wait)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    for _ in range(100):
        assert await fetch(transport, server.url) == b"hello"
    assert server.connected == 1


async def test_cancelled_requests_never_give_their_answers_to_others(
    server: Upstream, transport: Transport, full: bool
) -> None:
    async def one(number: int) -> None:
        with anyio.CancelScope() as scope:
            if number % 5 == 0:
                asking.append(scope)
            assert await fetch(transport, server.url, b"%d" % number) == b"%d" % number

    for start in range(0, 100_000 if full else 200, 50):
        asking: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as group:
            for number in range(start, start + 50):
                group.start_soon(one, number)
            for _ in range(start // 50 % 7):
                await anyio.lowlevel.checkpoint()
            for scope in asking:
                scope.cancel()


# --- loops, threads, processes


async def test_closing_is_idempotent_and_a_later_request_reopens(server: Upstream, transport: Transport) -> None:
    await transport.aclose()
    assert await fetch(transport, server.url) == b"hello"
    await transport.aclose()
    await transport.aclose()
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    assert await fetch(transport, server.url) == b"hello"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_transport_of_both_kinds_of_loop_can_be_closed_in_either(server: Upstream, backend: str) -> None:
    transport = AutoTransport()
    for each in ("asyncio", "trio"):
        anyio.run(fetch, transport, server.url, backend=each)
    anyio.run(transport.aclose, backend=backend)
    assert server.wait_connected(0)


def test_ten_loops_one_after_another_share_a_transport(server: Upstream) -> None:
    transport = AutoTransport()
    for number in range(10):
        backend = "trio" if number % 2 else "asyncio"
        assert anyio.run(fetch, transport, server.url, backend=backend) == b"hello"
        assert server.wait_connected(0)
    for pools in (transport._asyncio, transport._trio):
        assert pools is not None
        assert not pools._pools._pools  # type: ignore[attr-defined]  # what it keeps must not grow with the loops


def test_two_threads_may_remove_one_stale_pool() -> None:
    class Pool:
        ends = 0

        def __init__(self, loop: str) -> None: ...

        def keep(self, forget: object) -> None: ...

        @property
        def is_stale(self) -> bool:
            pools._pools.pop("over", None)  # as another thread does at this moment
            return True

        def end(self) -> None:
            self.ends += 1

    here = ["first", "over"]
    pools = LoopPools[Any](Pool, lambda: here.pop())
    over = pools.get()
    pools.get()
    assert (over.ends, [*pools._pools]) == (0, ["first"])


def test_dropped_transport_closes_its_connections_while_the_loop_runs_on(server: Upstream) -> None:
    async def use_and_drop() -> None:
        transport = AutoTransport()
        await fetch(transport, server.url)
        del transport
        gc.collect()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)

    anyio.run(use_and_drop, backend="asyncio")
    anyio.run(use_and_drop, backend="trio")


async def test_closing_from_another_loop_closes_the_pool_of_a_running_one(
    server: Upstream, transport: Transport
) -> None:
    await fetch(transport, server.url)
    closing = threading.Thread(target=asyncio.run, args=(transport.aclose(),))
    closing.start()
    await anyio.to_thread.run_sync(closing.join)
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    assert await fetch(transport, server.url) == b"hello"


def test_closing_from_another_loop_abandons_pools_of_stopped_loops(server: Upstream) -> None:
    transport, still, closed = AiohttpTransport(), asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (still, closed):
        loop.run_until_complete(fetch(transport, server.url))
    closed.close()
    asyncio.run(transport.aclose())
    still.run_until_complete(asyncio.sleep(0))
    assert server.wait_connected(0)
    still.run_until_complete(fetch(transport, server.url))
    asyncio.run(transport.aclose())
    still.close()
    assert server.wait_connected(0)


def test_it_works_on_uvloop_without_leaks(server: Upstream) -> None:
    uvloop = pytest.importorskip("uvloop")
    shared = AutoTransport()

    async def use_and_drop() -> None:
        await fetch(AutoTransport(), server.url)
        gc.collect()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)

    uvloop.run(fetch(shared, server.url))
    uvloop.run(use_and_drop())
    assert server.wait_connected(0)


PRELUDE = """
import asyncio, atexit, gc, logging, os, sys
import anyio, trio
from routewright.backends.transport import AutoTransport

logging.getLogger("asyncio").setLevel(logging.ERROR)  # not: "importing took 0.1 s"
url, shared = sys.argv[1], AutoTransport()

async def use(transport=shared):
    async with transport.request("POST", url, headers={}) as response:
        assert await response.read(100) == b"hello"

async def use_own():
    await use(AutoTransport())

def plain(function):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(function())
    return loop

def leave():  # as an interpreter does, but without the parent's loop, which cannot be ended here
    atexit._run_exitfuncs(); gc.collect(); sys.stderr.flush(); os._exit(0)
"""
ENDINGS = {
    "loops ended in every way": """
asyncio.run(use()); asyncio.run(use_own()); asyncio.run(use())
anyio.run(use); anyio.run(use_own); anyio.run(use, backend="trio"); trio.run(use_own)
plain(use).close(); plain(use_own).close(); plain(use).close()
t = AutoTransport(); l = plain(lambda: use(t)); del t; l.close()  # dropped before its loop
t = AutoTransport(); t.me = t; plain(lambda: use(t)).close(); del t; gc.collect()  # in a cycle
""",
    "forked": """
loop = plain(use)
if (pid := os.fork()) == 0:
    asyncio.run(use()); anyio.run(use, backend="trio"); leave()
assert os.waitpid(pid, 0)[1] == 0
for _ in range(3):
    loop.run_until_complete(use())
loop.close()
""",
    "forked from a thread": """
def fork():
    if (pid := os.fork()) == 0:
        asyncio.run(use()); leave()
    assert os.waitpid(pid, 0)[1] == 0
async def use_and_fork():
    await use(); await anyio.to_thread.run_sync(fork); await use()
anyio.run(use_and_fork); anyio.run(use_and_fork, backend="trio")
""",
}


def run_python(script: str, *arguments: str) -> str:
    """The standard error of a new interpreter with all warnings."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr}"


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_an_unclosed_transport_leaks_nothing(server: Upstream, ending: str) -> None:
    assert run_python(PRELUDE + ENDINGS[ending], server.url) == ""
    assert server.wait_connected(0)


def test_drivers_are_imported_at_first_use() -> None:
    script = """
import sys
from routewright.backends.transport import AutoTransport
AutoTransport()
assert not {"aiohttp", "httpcore2", "httpx2", "trio"} & set(sys.modules)
"""
    assert run_python(script) == ""


def test_on_trio_a_missing_extra_fails_the_call() -> None:
    script = """
import sys
sys.modules["httpcore2"] = None
import trio
from routewright import Catalogue, Model, OpenAIProvider, Router
from routewright.errors import UpstreamFailed
provider = OpenAIProvider("k", name="mine", base_url="http://127.0.0.1:9/v1", models=[Model(id="mine/x")])
try:
    trio.run(Router(providers=[provider], catalogue=Catalogue(())).route, "hi")
except UpstreamFailed as error:
    print(len(error.detail["attempts"]), error, file=sys.stderr)
"""
    said = run_python(script)
    assert said.startswith("1 every attempt failed: mine/x (request: ")
    assert "needs the extra 'trio' (httpcore2 is missing): pip install 'routewright[trio]')" in said


@table(("encoding", "shown"), [("br", "br"), ("sk-Canary/" * 5, "not shown")])
def test_an_unknown_content_encoding_is_shown_only_if_short(encoding: str, shown: str) -> None:
    async def receive() -> bytes:
        return b""

    with pytest.raises(ProviderFault) as caught:
        Body(receive, encoding, 100)
    assert caught.value.message == f"the answer has an unsupported content-encoding ({shown})"
