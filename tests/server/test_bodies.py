"""Limits on request bodies: number of values, buffered bytes, and one long body parsed at a time."""

from __future__ import annotations

import gc
import json
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Caller, RateLimited, Router, Settings
from routewright.backends.clock import SystemClock
from routewright.server import HttpLimits, create_app
from routewright.server.app import App
from routewright.server.bodies import UNCOUNTED_BYTES, Bodies, _holds_more
from routewright.server.exchange import Exchange
from routewright.testing import FakeClock
from tests.tables import table

from .asgi_client import Client, ask, scope_of

pytestmark = pytest.mark.anyio

TREES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a",[]{}:\\é\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a",\\'), max_size=3), inner),
)


def app_of(**limits: Any) -> App:
    settings = Settings(clock=FakeClock())
    return create_app(
        Router.sandbox(settings=settings), authenticate=lambda scope: Caller(), limits=HttpLimits(**limits)
    )


def asking(text: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


PART = UNCOUNTED_BYTES + 600
LONG = asking("x" * (PART + 100))


def values_in(tree: object) -> int:
    """Members of arrays and objects, and those that have none."""
    if not isinstance(tree, (list, dict)):
        return 0
    inner = [*tree.values()] if isinstance(tree, dict) else tree
    return (len(inner) or 1) + sum(map(values_in, inner))


@given(tree=TREES, ascii=st.booleans(), spaced=st.booleans())
def test_values_are_counted_exactly_whatever_strings_contain(tree: object, ascii: bool, spaced: bool) -> None:
    body = json.dumps(tree, ensure_ascii=ascii, indent=1 if spaced else None).encode()
    assert not _holds_more(body, values_in(tree))
    assert _holds_more(body, values_in(tree) - 1)


@table("path", ["/v1/route", "/v1/decide", "/openai/v1/chat/completions", "/anthropic/v1/messages"])
@table("metadata", ["[" + "0," * 300 + "0]", "{" + '"a": 1, ' * 300 + '"b": 1}', "[" + "{}," * 150 + "{}]", "[" * 301])
async def test_a_body_with_too_many_values_is_413_before_it_is_parsed(path: str, metadata: str) -> None:
    body = asking("Hello", model="auto", max_tokens=9).removesuffix(b"}") + b', "metadata": ' + metadata.encode() + b"}"
    client = await ask(app_of(body_values=300), scope_of(path=path), body)
    assert client.status == 413
    assert "the body has more than 300 values" in client.json["error"]["message"]


async def test_buffered_bytes_are_bounded_until_parsed_or_disconnected() -> None:
    limits = HttpLimits(bodies_bytes=1_000)
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller(), limits=limits)
    slow, refused, read, again = Client(LONG[:PART], ends=False), *(Client(LONG[:PART], LONG[PART:]) for _ in "123")
    async with anyio.create_task_group() as group:
        group.start_soon(app, scope_of(), slow.receive, slow.send)
        await anyio.wait_all_tasks_blocked()
        await app(scope_of(), refused.receive, refused.send)
        slow.leave()
    for client in (read, again):
        await app(scope_of(), client.receive, client.send)
    assert (refused.status, refused.json["error"]["code"]) == (429, "RATE_LIMITED")
    assert refused.headers["retry-after"] == "1"
    assert refused.json["error"]["detail"]["limit_of"] == "bodies"
    assert (slow.status, read.status, again.status) == (499, 200, 200)


async def test_one_account_leaves_room_for_others_and_short_bodies_always_fit() -> None:
    limits = HttpLimits(bodies_bytes=1_700)
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller(account=scope["account"]), limits=limits)
    mine, theirs, third = (scope_of(account=name) for name in ("mine", "theirs", "third"))
    short = asking("x" * 60_000)
    slow = [Client(LONG[:PART], ends=False) for _ in "12"]
    more, other, late, brief = *(Client(LONG[:PART], LONG[PART:]) for _ in "123"), Client(short[:9], short[9:])
    async with anyio.create_task_group() as group:
        group.start_soon(app, mine, slow[0].receive, slow[0].send)
        await anyio.wait_all_tasks_blocked()
        await app(mine, more.receive, more.send)
        await app(theirs, other.receive, other.send)
        group.start_soon(app, theirs, slow[1].receive, slow[1].send)
        await anyio.wait_all_tasks_blocked()
        await app(third, late.receive, late.send)
        await app(mine, brief.receive, brief.send)
        for client in slow:
            client.leave()
    assert (more.status, other.status, late.status, brief.status) == (429, 200, 429, 200)
    assert [client.json["error"]["detail"]["level"] for client in (more, late)] == ["account", "server"]
    assert app._service.bodies.waiting == {}


async def test_long_complete_bodies_waiting_to_be_parsed_are_bounded() -> None:
    long, go_on, read = b" " * 300_000, threading.Event(), list[int]()
    bodies = Bodies(4 * len(long))  # of which one account has half

    def reading(body: bytes) -> None:
        go_on.wait(20)
        read.append(len(body))

    async def one(refused: list[RateLimited]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": long}

        exchange: Any = SimpleNamespace(
            check_media_type=lambda: None,
            limits=HttpLimits(),
            clock=SystemClock(),
            sent={},
            receive=receive,
            caller=Caller(),
        )
        try:
            await bodies.read(exchange, reading)
        except RateLimited as error:
            refused.append(error)
            go_on.set()

    refused: list[RateLimited] = []
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one, refused)
    assert (len(read), len(refused)) == (2, 1)
    async with anyio.create_task_group() as group:
        group.start_soon(one, refused)
    assert (len(read), len(refused)) == (3, 1)


@pytest.mark.parametrize(("pieces", "status"), [((LONG[:PART],), 408), ((LONG, LONG), 413)])
async def test_a_late_or_too_long_body_frees_its_bytes(pieces: tuple[bytes, ...], status: int) -> None:
    app = app_of(bodies_bytes=1_000, body_bytes=UNCOUNTED_BYTES + 1_000)
    first, second = Client(*pieces, ends=False), Client(LONG[:PART], LONG[PART:])
    for client in (first, second):
        await app(scope_of(), client.receive, client.send)
    assert (first.status, second.status) == (status, 200)


async def test_a_single_body_is_accepted_whatever_the_limit() -> None:
    client = Client(LONG[:PART], LONG[PART:])
    await app_of(bodies_bytes=500)(scope_of(), client.receive, client.send)
    assert client.status == 200


@pytest.fixture(scope="module")
def frozen() -> None:
    """Keep the garbage collector from going through the objects of all earlier tests each time."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("path", ["/v1/route", "/openai/v1/chat/completions", "/anthropic/v1/messages"])
@pytest.mark.parametrize("length", [1_000, 400_000])
@pytest.mark.parametrize("end", ["}", ', "goal": 1}', ', "messages": []}', ', "metadata": {"a": "\\ud800"}}', ""])
async def test_a_body_is_freed_without_the_garbage_collector(path: str, length: int, end: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    fields = {} if path == "/v1/route" else {"model": "auto", "max_tokens": 9}
    body = asking("x" * length, **fields).removesuffix(b"}") + end.encode()
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(body)
        for _ in range(3):
            client = await ask(app, scope_of(path=path), body)
            assert client.status == (200 if end == "}" else 400)
            del client
        await anyio.to_thread.run_sync(str)  # an idle thread keeps what it did last until it does the next thing
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


def test_long_bodies_are_parsed_one_at_a_time() -> None:
    told: list[str] = []
    go_on = threading.Event()

    def reading(body: bytes) -> None:
        told.append("begun")
        assert go_on.wait(20.0)
        told.append("done")

    async def one(bodies: Bodies) -> None:
        client = Client(b"x" * 300_000)
        router = Router.sandbox()
        exchange = Exchange(scope_of(), client.receive, client.send, "req_1", router.clock, HttpLimits())
        await bodies.read(exchange, reading)

    async def serve() -> None:
        bodies = Bodies(1 << 21)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one, bodies)
            await anyio.wait_all_tasks_blocked()
            for _ in range(10):  # so long the others have to begin
                await anyio.to_thread.run_sync(partial(str, "a turn"))
            go_on.set()

    anyio.run(serve)
    assert told == ["begun", "done"] * 3
