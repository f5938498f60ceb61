"""A client disconnects: its call is cancelled and settled; with an idempotency key it finishes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from msgspec.structs import replace

from routewright import Caller, Catalogue, Model, Router, Settings
from routewright.backends.clock import SystemClock
from routewright.errors import ProviderFault
from routewright.protocols import Clock
from routewright.server import HttpLimits, create_app
from routewright.server.app import App
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import Delta, Finish, Pricing, UpstreamCall, Usage
from tests.tables import table

from .asgi_client import Client, scope_of

pytestmark = pytest.mark.anyio

MODEL = Model(id="one/model", quality=0.5, pricing_per_1m=Pricing(input_usd=1.0, output_usd=2.0), context_window=9_000)
LONG: list[Line] = [Delta("one "), Pause(8.0), Delta("two "), Pause(8.0), Delta("three"), Usage(3, 3), Finish("stop")]
LIMITS = HttpLimits(heartbeat_s=15.0, send_s=20.0)


class Counted(ScriptedProvider):
    """Counts the pieces that were asked for."""

    given = 0

    def turn(self, call: UpstreamCall) -> Any:
        for line in super().turn(call):
            self.given += 1
            yield line


class House:
    """A Router whose answers take sixteen seconds, and its application."""

    def __init__(self, *script: Any, clock: Clock | None = None, limits: HttpLimits = LIMITS) -> None:
        self.clock = clock or FakeClock()
        self.provider = Counted(list(script) or [LONG], models=[MODEL], clock=self.clock)
        self.router = Router(providers=[self.provider], catalogue=Catalogue(()), settings=Settings(clock=self.clock))
        self.app: App = create_app(self.router, authenticate=lambda scope: Caller(), limits=limits)

    async def serve(self, client: Client) -> None:
        await self.app(scope_of(), client.receive, client.send)

    async def only_trace(self) -> Any:
        page = await self.router.traces.query()
        assert len(page.data) == 1
        return page.data[0]


def client_of(**fields: Any) -> Client:
    request = {"messages": [{"role": "user", "content": "Hello"}], "fallback": {"models": []}, **fields}
    return Client(msgspec.json.encode(request))


async def leave_after(seconds: float, house: House, client: Client) -> None:
    await house.clock.sleep(seconds)
    client.leave()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_cancels_and_settles_the_call(stream: bool) -> None:
    house, client = House(), client_of(stream=stream)
    async with anyio.create_task_group() as group:
        group.start_soon(leave_after, 5.0, house, client)
        await house.serve(client)
    assert house.clock.monotonic() == 5.0
    assert house.provider.open_calls == 0
    trace = await house.only_trace()
    assert trace.status == "cancelled"
    assert trace.cost_usd > 0  # what was produced is paid for,
    assert (trace.charged_usd > 0) == stream  # and billed, if he had some of it


@pytest.mark.parametrize("stream", [False, True])
async def test_with_an_idempotency_key_it_finishes_and_is_replayed(stream: bool) -> None:
    house = House()
    first, again = (client_of(stream=stream, idempotency_key="k") for _ in "12")
    async with anyio.create_task_group() as group:
        group.start_soon(leave_after, 5.0, house, first)
        await house.serve(first)
    assert house.clock.monotonic() == 16.0
    assert (await house.only_trace()).status == "completed"
    await house.serve(again)
    assert b"one two three" in again.body
    assert len(house.provider.calls) == 1


@pytest.mark.parametrize(("key", "stays"), [(None, True), ("k", True), ("k", False)])
async def test_a_stream_cut_off_by_shutdown_is_not_charged(key: str | None, stays: bool) -> None:
    house = House(LONG, LONG)
    first, again = (client_of(stream=True, **({} if key is None else {"idempotency_key": key})) for _ in "12")
    with anyio.CancelScope() as life:

        async def end() -> None:
            if not stays:  # it goes on for who asks again
                await leave_after(4.0, house, first)
            await house.clock.sleep(5.0)
            life.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(end)
            await house.serve(first)
    assert (b"the server was stopped" in first.body) == stays
    trace = await house.only_trace()
    assert (trace.status, trace.error, trace.charged_usd) == ("failed", "internal_error", 0.0)
    assert trace.cost_usd > 0
    await house.serve(again)
    assert b"one two three" in again.body
    assert len(house.provider.calls) == 2  # the retry, which is the only bill
    assert [trace.charged_usd > 0 for trace in (await house.router.traces.query()).data] == [True, False]


async def test_a_plain_call_cut_off_by_shutdown_gets_an_error() -> None:
    house, client = House(), client_of()

    async def end() -> None:
        await house.clock.sleep(5.0)
        life.cancel()

    with anyio.CancelScope() as life:
        async with anyio.create_task_group() as group:
            group.start_soon(end)
            await house.serve(client)
    assert (client.status, b"the server was stopped" in client.body) == (500, True)


async def test_a_client_that_returns_joins_the_call() -> None:
    house = House()
    first, again = (client_of(stream=True, idempotency_key="k") for _ in "12")
    async with anyio.create_task_group() as group:
        group.start_soon(house.serve, first)
        await house.clock.sleep(5.0)
        first.leave()
        await house.serve(again)
    assert (len(house.provider.calls), again.status, again.is_whole) == (1, 200, True)


async def test_the_status_is_held_back_until_there_is_content() -> None:
    house = House([Pause(4.0), *LONG])
    client = client_of(stream=True)
    async with anyio.create_task_group() as group:
        group.start_soon(house.serve, client)
        await house.clock.sleep(3.9)
        assert client.sent == []
        await client.until(lambda it: it.status == 200)
        assert house.clock.monotonic() == 4.0


async def test_the_status_is_held_back_for_fifteen_seconds_at_most() -> None:
    house = House([Delta(""), *[each for _ in range(4) for each in (Pause(8.0), Delta(""))], *LONG])
    client = client_of(stream=True)
    async with anyio.create_task_group() as group:
        group.start_soon(house.serve, client)
        await client.until(lambda it: it.status == 200)
        assert house.clock.monotonic() == 15.0
        assert client.body == b": keep-alive\n\n"
        await client.until(lambda it: it.is_whole)
    assert client.body.replace(b": keep-alive\n\n", b"").startswith(b"event: route.started")


async def test_a_silent_stream_is_kept_open_by_a_comment_every_fifteen_seconds() -> None:
    silence = [each for _ in range(7) for each in (Pause(8.0), Delta(""))]  # signs of life, of which no client is told
    house = House([Delta("one "), *silence, Delta("two"), Usage(3, 2), Finish("stop")])
    client = client_of(stream=True)
    await house.serve(client)
    assert client.body.count(b": keep-alive\n\n") == 3
    assert client.is_whole


async def test_a_fault_after_content_is_an_error_event() -> None:
    house = House([Delta("one "), Pause(1.0), ProviderFault("server")])
    client = client_of(stream=True, fallback={"models": [], "maxRetries": 0, "on_partial": "error"})
    await house.serve(client)
    last = client.body.strip().split(b"\n\n")[-1]
    assert client.status == 200
    assert last.startswith(b"event: error\nid: ")
    envelope = msgspec.json.decode(last.split(b"data: ")[1])
    assert envelope["error"]["code"] == "router.upstream_failed"
    assert envelope["error"]["request_id"] == client.headers["x-request-id"]
    assert client.body.count(b"event: error") == 1
    assert b"route.completed" not in client.body


async def test_a_slow_reader_pauses_the_model_and_fills_no_memory() -> None:
    house = House([*[Delta("x" * 1_000) for _ in range(10_000)], Usage(3, 9), Finish("stop")])
    client = client_of(stream=True)
    client.reads = False
    async with anyio.create_task_group() as group:
        group.start_soon(house.serve, client)
        await house.clock.sleep(1.0)
        assert house.provider.given < 200
        client.read_on()
        await client.until(lambda it: it.is_whole)
    assert house.provider.given > 10_000
    assert client.body.count(b"x" * 1_000) >= 10_000


async def test_a_complete_stream_is_not_reported_as_a_disconnect() -> None:
    told: list[tuple[int, bool]] = []
    house, client = House(), client_of(stream=True)
    house.app = create_app(
        house.router,
        authenticate=lambda scope: Caller(),
        observers=[lambda exchange: told.append((exchange.final_status, exchange.left))],
    )
    await house.serve(client)
    assert client.is_whole
    assert told == [(200, False)]


@pytest.mark.parametrize(("key", "status"), [(None, "cancelled"), ("k", "completed")])
@pytest.mark.parametrize("breaks_after", [0, 2])
async def test_a_disconnect_may_be_noticed_when_sending(
    key: str | None, status: str, breaks_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
    client = client_of(stream=True, **({} if key is None else {"idempotency_key": key}))
    client.breaks_after = breaks_after
    await house.serve(client)
    assert (await house.only_trace()).status == status
    assert house.provider.open_calls == 0
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/v1/decide", "/anthropic/v1/messages/count_tokens"])
async def test_a_disconnect_ends_decisions_and_token_counts(path: str) -> None:
    counting, go_on = threading.Event(), threading.Event()

    class Slow:
        def count(self, text: str, encoding: str) -> int:
            counting.set()
            assert go_on.wait(10)
            return 1

    provider = ScriptedProvider([], models=[replace(MODEL, context_window=1_500)])
    app = create_app(
        Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(tokens=Slow())),
        authenticate=lambda _: Caller(),
    )
    asked = {"model": MODEL.id} if path.startswith("/anthropic") else {}
    client = Client(msgspec.json.encode({"messages": [{"role": "user", "content": "word " * 800}], **asked}))
    async with anyio.create_task_group() as group:
        group.start_soon(app, scope_of(path=path), client.receive, client.send)
        assert await anyio.to_thread.run_sync(counting.wait, 10)
        client.leave()
    go_on.set()
    assert client.status == 499


@pytest.mark.parametrize("error", [OSError, RuntimeError, anyio.ClosedResourceError, anyio.EndOfStream])
async def test_errors_of_sending_to_a_disconnected_client_are_ignored(error: type[Exception]) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise error

    await House().app(scope_of(), receive, send)


async def test_a_slow_reader_has_no_more_time_than_the_call() -> None:
    house = House([*[Delta("x" * 1_000) for _ in range(1_000)], Usage(3, 9), Finish("stop")])
    client = client_of(stream=True, timeout_ms=2_000)
    client.reads = False
    async with anyio.create_task_group() as group:
        group.start_soon(house.serve, client)
        await house.clock.sleep(2.1)
        assert house.provider.open_calls == 0
        trace = await house.only_trace()
        assert (trace.status, trace.error) == ("failed", "RouterTimeoutError")
        client.read_on()
        await client.until(lambda it: it.is_whole)
    assert b"RouterTimeoutError" in client.body


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    many = [Delta("x" * 1_000) for _ in range(1_000)]
    house = House([*many, Usage(3, 9), Finish("stop")])
    client = client_of(stream=True)
    client.reads = False
    await house.serve(client)
    assert house.clock.monotonic() == LIMITS.send_s
    assert (await house.only_trace()).status == "cancelled"
    assert house.provider.open_calls == 0


async def alone_in_its_loop() -> bool:
    """Whether this task is, once those that were cancelled have ended."""
    for _ in range(5):
        await asyncio.sleep(0)
    return asyncio.all_tasks() == {asyncio.current_task()}


@table("leaves", [False, True])
def test_on_asyncio_no_task_outlives_a_stream(leaves: bool) -> None:
    async def serve() -> None:
        house = House([Delta("one "), Pause(3_600.0 if leaves else 0.0), *LONG[-3:]], clock=SystemClock())
        client = client_of(stream=True)
        async with anyio.create_task_group() as group:
            group.start_soon(house.serve, client)
            await client.until(lambda it: it.status == 200)
            if leaves:
                client.leave()
        assert client.is_whole != leaves
        assert house.provider.open_calls == 0
        assert (await house.only_trace()).status == ("cancelled" if leaves else "completed")
        assert await alone_in_its_loop()

    asyncio.run(serve())


def test_on_asyncio_a_silent_stream_is_kept_open_and_a_stuck_reader_disconnected() -> None:
    async def serve() -> None:
        limits = HttpLimits(heartbeat_s=0.01, send_s=0.01)
        house, client = (
            House([Delta("one "), Pause(3_600.0)], clock=SystemClock(), limits=limits),
            client_of(stream=True),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(house.serve, client)
            await client.until(lambda it: b": keep-alive\n\n" in it.body)
            client.reads = False
        assert (await house.only_trace()).status == "cancelled"
        assert await alone_in_its_loop()

    asyncio.run(serve())
