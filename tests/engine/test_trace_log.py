"""Writing traces to a storage that is slow, refuses, hangs or is down; and closing the Router."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from routewright import Caller, MemoryStorage, Model, ProviderFault, Router, Settings
from routewright._engine import trace_log as trace_module
from routewright._engine import trace_writer
from routewright._runtime import fork
from routewright._runtime.loop import Signal
from routewright.errors import (
    InternalError,
    NotFound,
    PreconditionFailed,
    RouterClosed,
    StorageUnavailable,
    UnsupportedWrite,
)
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import (
    Chunk,
    Delta,
    Finish,
    LedgerRows,
    PutTrace,
    Query,
    Scan,
    Trace,
    UpstreamCall,
    Usage,
    Write,
    Written,
)
from tests.tables import table

from .scripted_router import Ask, House, both_ways, said, traces_in

pytestmark = pytest.mark.anyio


class Waits:
    """Lets others run before each write, and does what a test says before it keeps anything."""

    def __init__(self, before: Callable[[str, Sequence[Write]], Awaitable[None]] | None = None) -> None:
        self.kept = MemoryStorage()
        self.before = before
        self.down = False
        self.applies = 0
        self.closed = 0

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        self.applies += 1
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise StorageUnavailable("down")
        if self.before is not None:
            await self.before(account, writes)
        assert all(isinstance(write.trace, Trace) for write in writes if isinstance(write, PutTrace))
        return await self.kept.apply(account, writes)

    async def read(self, account: str, query: Query) -> Any:
        return await self.kept.read(account, query)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        return 0

    async def aclose(self) -> None:
        self.closed += 1

    async def ids(self, account: str = "default") -> list[str]:
        return [trace.id for trace in await traces_in(self, account)]


def sandbox(storage: Waits) -> Router:
    """On virtual time."""
    return Router.sandbox(storage=storage, settings=Settings(clock=FakeClock()))


async def hang(account: str, writes: Sequence[Write]) -> None:
    await anyio.sleep_forever()


async def test_a_trace_can_be_read_and_rated_before_it_is_written() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage)
    answer = await router.route("hi")
    assert (await router.trace(answer.trace_id)).id == answer.trace_id
    await router.feedback(answer.trace_id, 1.0)
    with pytest.raises(NotFound):
        await router.trace(answer.trace_id, caller=Caller("other"))
    await router.aclose()
    assert [trace.id for trace in await traces_in(storage)] == [answer.trace_id]


@pytest.mark.parametrize("down", [True, False])
async def test_a_call_yields_to_a_lagging_writer_but_not_to_a_failing_one(
    down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "CROWD", 3)
    rests: list[float] = []
    monkeypatch.setattr("routewright._engine.trace_log.time.sleep", rests.append)
    storage = Waits(hang)
    storage.down = down
    router = Router.sandbox(storage=storage)
    await router.route("hi")
    if down:
        with pytest.raises(StorageUnavailable):
            await router.flush()
    for _ in range(10):
        await router.route("hi")
    assert router.trace_counts.waiting == 11
    assert len(rests) == (0 if down else 5)
    await router.aclose()


async def test_a_crowd_of_traces_is_written_without_waiting_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "CROWD", 3)
    storage, clock = Waits(), FakeClock(autojump=False)
    async with Router.sandbox(storage=storage, settings=Settings(clock=clock)) as router:
        for number in range(4):
            await router.route("hi")
            await clock.advance(0)
            assert len(await storage.ids()) == (4 if number == 3 else 0)


async def test_a_queued_trace_is_shown_to_its_own_account_and_environment_only() -> None:
    storage = Waits()
    storage.down = True
    router = House([said(Delta("x"), Finish("stop"))], storage=storage).router
    answer = await router.route("hi", goal="quality")
    assert router.trace_counts.waiting == 1
    assert (await router.trace(answer.trace_id)).environment == "production"
    for other in (Caller("other"), Caller(environment="sandbox")):
        with pytest.raises(NotFound):
            await router.trace(answer.trace_id, caller=other)
    await router.aclose()


@pytest.mark.parametrize("immediate", [True, False])
async def test_a_reader_cannot_change_a_trace_for_others(immediate: bool) -> None:
    storage = MemoryStorage() if immediate else Waits()
    router = Router.sandbox(storage=storage)
    answer = await router.route("hi", metadata={"tags": ["mine"]})
    for _ in range(2):
        for trace in (answer.trace, await router.trace(answer.trace_id)):
            assert trace.metadata == {"tags": ["mine"]}
            assert [span.type for span in trace.spans] == ["decision", "model"]
            trace.metadata["tags"].append("theirs")
            trace.spans.clear()
    await router.flush()
    (kept,) = await traces_in(storage)
    assert (kept.metadata, len(kept.spans)) == ({"tags": ["mine"]}, 2)
    await router.aclose()


async def test_concurrent_writers_and_flushes_lose_and_repeat_nothing() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage)
    ids: list[str] = []

    async def work() -> None:
        for _ in range(20):
            ids.append((await router.route("hi")).trace_id)
            await router.flush()

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(work)
    await router.aclose()
    assert sorted(trace.id for trace in await traces_in(storage)) == sorted(ids)


async def test_the_background_retries_with_growing_delay_and_logs_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage, clock = Waits(), FakeClock()
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock))
    storage.down = True
    ids = []
    for _ in range(60):
        ids.append((await router.route("hi")).trace_id)
        await clock.sleep(1.0)
    assert 10 < storage.applies < 30
    assert [record.getMessage() for record in caplog.records] == ["traces cannot be written: StorageUnavailable: down"]
    storage.down = False
    await clock.sleep(5.0)
    assert sorted(await storage.ids()) == ids
    assert router.trace_counts == (0, 0, 0, 0, 0)
    await router.flush()
    await router.aclose()


@pytest.mark.parametrize("error", [PreconditionFailed("no"), UnsupportedWrite("no"), TypeError("no")])
async def test_a_refused_trace_is_dropped_counted_and_logged_and_the_rest_is_written(error: Exception) -> None:
    async def refuse(account: str, writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutTrace) and write.trace.metadata.get("bad") for write in writes):
            raise error

    storage = Waits(refuse)
    router = sandbox(storage)
    callers = [Caller("a"), Caller("a"), Caller("b")]
    answers = [
        await router.route("hi", caller=caller, metadata={"bad": place == 0}) for place, caller in enumerate(callers)
    ]
    with pytest.raises(InternalError, match="0 wait, 1 were refused, 0 are lost") as told:
        await router.flush()
    assert told.value.__cause__ is error
    assert (await storage.ids("a"), await storage.ids("b")) == ([answers[1].trace_id], [answers[2].trace_id])
    assert router.trace_counts == (0, 1, 0, 0, 0)
    await router.flush()  # it was told
    await router.aclose()


async def test_a_storage_that_cancels_itself_counts_as_unavailable() -> None:
    async def cancel_once(account: str, writes: Sequence[Write]) -> None:
        storage.before = None
        raise asyncio.CancelledError

    storage, clock = Waits(cancel_once), FakeClock()
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock))
    answer = await router.route("hi")
    await clock.sleep(0.03)
    assert router.trace_counts == (1, 0, 0, 0, 0)
    await clock.sleep(1.0)
    assert await storage.ids() == [answer.trace_id]
    storage.before = cancel_once
    await router.route("hi")
    with pytest.raises(StorageUnavailable, match="Waits cancelled itself"):
        await router.flush()
    await router.aclose()


async def test_a_flush_that_is_cancelled_ends() -> None:
    async def hang_once(account: str, writes: Sequence[Write]) -> None:
        storage.before = None  # what goes on behind may have its turn before the test has
        await anyio.sleep_forever()

    storage = Waits(hang_once)
    router = Router.sandbox(storage=storage, settings=Settings(clock=FakeClock(autojump=False)))
    await router.route("hi")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(router.flush)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    await router.flush()
    await router.aclose()


async def test_if_the_first_accounts_all_fail_the_rest_wait_for_the_next_pass() -> None:
    async def away(account: str, writes: Sequence[Write]) -> None:
        if account != "_system":
            tried.append(account)
            raise StorageUnavailable("down")

    storage, tried = Waits(away), list[str]()
    router = sandbox(storage)
    for account in "abcde":
        await router.route("hi", caller=Caller(account))
    with pytest.raises(StorageUnavailable, match="5 wait"):
        await router.flush()
    assert tried == ["a", "b", "c"]
    storage.before = None
    await router.flush()
    await router.aclose()


@pytest.mark.parametrize(("failing", "accounts"), [("a", "ab"), ("bcd", "abcde")])
async def test_if_one_account_can_be_written_failing_ones_delay_no_other(failing: str, accounts: str) -> None:
    async def away(account: str, writes: Sequence[Write]) -> None:
        if account in failing:
            raise StorageUnavailable("their disk is full")

    storage = Waits(away)
    router = sandbox(storage)
    answers = {account: await router.route("hi", caller=Caller(account)) for account in accounts}
    with pytest.raises(StorageUnavailable, match=f"{len(failing)} wait"):
        await router.flush()
    for account, answer in answers.items():
        assert await storage.ids(account) == ([] if account in failing else [answer.trace_id])
    storage.before = None
    await router.flush()
    for account, answer in answers.items():
        assert await storage.ids(account) == [answer.trace_id]
    await router.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_remembered_fault_keeps_no_objects_of_the_storage_alive() -> None:
    class Rows:
        """What a storage is about to write."""

    held: list[weakref.ref[Rows]] = []

    async def fail(account: str, writes: Sequence[Write]) -> None:
        rows = Rows()
        held.append(weakref.ref(rows))
        raise StorageUnavailable("down")

    storage = Waits(fail)
    router = Router.sandbox(storage=storage, settings=still())
    await router.route("hi")
    with pytest.raises(StorageUnavailable, match="down") as told:
        await router.flush()
    del told
    gc.collect()
    assert [rows() for rows in held] == [None] * len(held)
    storage.before = None
    await router.aclose()


async def test_a_hanging_storage_delays_no_call_and_dropped_traces_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_writer, "QUEUE", 5)
    storage, clock = Waits(hang), FakeClock()
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock))
    for _ in range(8):
        assert (await router.route("hi")).output
        await clock.sleep(1.0)
    assert router.trace_counts == (5, 0, 3, 0, 0)
    assert clock.monotonic() == 8.0
    assert [record.getMessage() for record in caplog.records] == [
        "traces cannot be written: InternalError: 5 traces wait already"
    ]
    await router.aclose()
    assert router.trace_counts == (0, 0, 8, 0, 0)


async def test_a_flush_waits_for_the_pass_of_another_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def hold(account: str, writes: Sequence[Write]) -> None:
        begun.set()
        await anyio.to_thread.run_sync(go_on.wait, 10)

    storage = Waits(hold)
    router = Router.sandbox(storage=storage)
    answer = await router.route("hi")
    assert await anyio.to_thread.run_sync(begun.wait, 10)  # in the background thread
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(router.flush)
        await anyio.lowlevel.checkpoint()
        assert router.trace_counts.waiting == 1
        go_on.set()
    assert await storage.ids() == [answer.trace_id]
    assert storage.applies == 2  # snapshots, and once the trace
    await router.aclose()


def left_midway(router: Router, storage: Waits) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]:
    """A flush that writes in a loop that stands still, and the trace of one call behind it."""
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[None]:
        await router.route("hi")
        writes = asyncio.Event()

        async def hold(account: str, writes_: Sequence[Write]) -> None:
            writes.set()
            await asyncio.Event().wait()

        storage.before = hold
        flush = loop.create_task(router.flush())
        await writes.wait()
        storage.before = None
        return flush

    return loop, loop.run_until_complete(begin())


def still() -> Settings:
    """Time that stands still, so that nothing is written in the background."""
    return Settings(clock=FakeClock(autojump=False))


@table("backend", ["asyncio", "trio"])
def test_a_flush_takes_over_from_one_whose_loop_was_closed_under_it(backend: str) -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage, settings=still())
    loop, lost = left_midway(router, storage)
    loop.close()
    at_once: list[int] = []

    async def count(account: str, writes: Sequence[Write]) -> None:
        at_once.append(1)
        await anyio.wait_all_tasks_blocked()
        at_once.append(-1)

    async def flush_again() -> None:
        storage.before = count
        async with anyio.create_task_group() as group:
            group.start_soon(router.flush)
            await anyio.wait_all_tasks_blocked()
            assert at_once
            collect(lost)  # which ends the lost one: it must not make way for a third
            group.start_soon(router.flush)

    anyio.run(flush_again, backend=backend)
    assert at_once == [1, -1] * 2  # snapshots, and the trace
    assert router.trace_counts == (0, 0, 0, 0, 0)


@table("backend", ["asyncio", "trio"])
def test_a_wait_for_a_flush_whose_loop_was_closed_ends_with_the_next_trace(backend: str) -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage, settings=still())
    loop, lost = left_midway(router, storage)

    async def wait_for_it() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(router.flush)
            await anyio.wait_all_tasks_blocked()
            loop.close()
            await router.route("hi")

    anyio.run(wait_for_it, backend=backend)
    assert len(asyncio.run(storage.ids())) == 2
    collect(lost)


def collect(task: Any) -> None:
    """Do what the garbage collector does to the coroutine of a task that nobody knows any more."""
    task._log_destroy_pending = False
    with suppress(RuntimeError):  # of a scope that misses its loop; the collector would only print it
        task.get_coro().close()


def test_the_collector_may_end_a_call_or_a_flush_inside_any_lock() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage, settings=still())
    loop, flush = left_midway(router, storage)
    loop.close()
    kept = MemoryStorage()
    house = House([said(Pause(1.0))], storage=kept)
    loop = asyncio.new_event_loop()
    call = loop.create_task(house.router.route("hi", goal="quality"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    def end_both() -> None:
        with ExitStack() as held:
            for thing in list(fork._renewables):
                if isinstance(thing, fork.Guard):
                    held.enter_context(thing.lock)
            collect(flush)
            collect(call)

    thread = threading.Thread(target=end_both, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    asyncio.run(router.flush())
    assert [trace.status for trace in asyncio.run(traces_in(kept))] == ["cancelled"]


async def test_a_storage_that_fails_at_once_never_fails_a_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStorage):
        def keep(self, *args: Any) -> None:
            raise OSError("disk")

    router = Router.sandbox(storage=Broken())
    for _ in range(3):
        assert (await router.route("hi")).output
    assert router.trace_counts == (0, 3, 0, 0, 0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_closing_ends_within_two_seconds_whatever_hangs_and_logs_losses_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hangs(Waits):
        async def aclose(self) -> None:
            self.closed += 1
            await anyio.sleep_forever()

    storage = Hangs(hang)
    house = House([said(Delta("x"), Finish("stop")), ProviderFault("auth")], storage=storage)
    closed: list[str] = []

    async def never() -> None:
        closed.append("provider")
        await anyio.sleep_forever()

    house.good.aclose = house.spare.aclose = never  # type: ignore[method-assign]
    await house.router.route("hi", goal="quality")
    await house.router.aclose()
    assert house.clock.monotonic() <= 2.0
    assert (closed, storage.closed) == (["provider"] * 2, 1)
    assert house.router.trace_counts == (0, 0, 1, 0, 1)
    lost = [record.getMessage() for record in caplog.records if record.getMessage().startswith("the router")]
    assert lost == ["the router was closed before 1 of its traces could be written: these are lost"]
    await house.router.aclose()
    assert storage.closed == 1


@both_ways
async def test_closing_waits_for_running_calls_and_records_their_cost(ask: Ask) -> None:
    storage = Waits()
    house = House([said(Delta("x"), Pause(1.5), Usage(10, 5), Finish("stop"))], storage=storage)
    router, said_by = house.router, list[str]()

    async def call() -> None:
        said_by.append(await ask(router))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await house.clock.advance(1.0)
        await router.aclose()
    assert said_by == ["x"]
    assert house.clock.monotonic() <= 1.6
    assert router.trace_counts == (0, 0, 0, 0, 0)
    assert len(await storage.ids()) == 1
    rows = await storage.scan("default", LedgerRows(), after=None, limit=10)
    assert [row.cost_nanos for row in rows] == [30_000]


async def test_the_trace_of_a_call_that_outlives_the_router_is_lost_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Waits()
    house = House([said(Pause(5.0), Delta("x"), Finish("stop"))], storage=storage)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(house.router.route, "hi", goal="quality"))
        await house.clock.advance(1.0)
        await house.router.aclose()
        assert house.clock.monotonic() <= 3.0
        assert house.router.trace_counts == (0, 0, 0, 0, 0)
        assert "closing continues without waiting for TraceLog.all_ended" in caplog.text
    assert house.router.trace_counts == (0, 0, 1, 0, 1)
    assert "money is lost: call tr_" in caplog.text
    assert storage.applies == 0


doors = pytest.mark.parametrize("door", ["async", "blocking", "blocking in a loop"])


async def close(router: Router, door: str) -> None:
    if door == "async":
        await router.aclose()
    elif door == "blocking":
        await anyio.to_thread.run_sync(router.blocking.close)
    else:
        router.blocking.close()


class Watched(ScriptedProvider):
    """Puts down when it is closed, and does first what a test says."""

    def __init__(self, order: list[str], before: Callable[[UpstreamCall | None], Awaitable[object]]) -> None:
        super().__init__(["x"], models=[Model(id="a/one")])
        self.order = order
        self.before = before

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:  # type: ignore[override]
        await self.before(call)
        async with super().open(call) as chunks:
            yield chunks

    async def aclose(self) -> None:
        await self.before(None)
        self.order.append("provider")


def asking_behind(router: Router) -> tuple[threading.Thread, list[str]]:
    """A thread that asks, and what it is answered."""
    outputs: list[str] = []
    asking = threading.Thread(target=lambda: outputs.append(router.blocking.route("hi").output))
    asking.start()
    return asking, outputs


@doors
async def test_every_way_to_close_has_one_order_and_waits_for_background_calls(door: str) -> None:
    order: list[str] = []
    begun = threading.Event()

    class Last(Waits):
        async def aclose(self) -> None:
            order.append("storage")

    async def write(account: str, writes: Sequence[Write]) -> None:
        order.append(account)

    async def end_a_while_after_closing_began(call: UpstreamCall | None) -> None:
        begun.set()
        while not router._parts._closed:
            await anyio.lowlevel.checkpoint()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()

    storage = Last(write)
    router = Router(providers=[Watched(order, end_a_while_after_closing_began)], storage=storage)
    asking, outputs = asking_behind(router)
    assert await anyio.to_thread.run_sync(begun.wait, 10)
    await close(router, door)
    asking.join(10)
    assert outputs == ["x"]
    assert order == ["_system", "default", "provider", "storage"]
    assert [trace.status for trace in await traces_in(storage)] == ["completed"]


@doors
async def test_closing_does_not_wait_for_a_provider_that_blocks_the_background(
    door: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on, order = threading.Event(), threading.Event(), list[str]()

    async def block(call: UpstreamCall | None) -> None:
        if call is not None:
            begun.set()
            go_on.wait(10)

    storage = Waits()
    router = Router(providers=[Watched(order, block)], storage=storage)
    asking, outputs = asking_behind(router)
    assert await anyio.to_thread.run_sync(begun.wait, 10)
    await close(router, door)
    assert asking.is_alive(), "closing has waited for the provider"
    assert (order, storage.closed) == (["provider"], 1)
    assert "background" in caplog.text
    go_on.set()
    await anyio.to_thread.run_sync(asking.join, 10)
    assert outputs == ["x"]


@pytest.mark.parametrize("first", ["async", "blocking"])
@pytest.mark.parametrize("second", ["async", "blocking"])
async def test_a_second_close_waits_for_the_first(first: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    begun, waits = threading.Event(), threading.Event()

    class Told(Signal):
        """Says when somebody begins to wait."""

        async def wait(self) -> None:
            waits.set()
            await super().wait()

        def block(self, timeout: float) -> None:
            waits.set()
            super().block(timeout)

    async def until_somebody_waits(call: UpstreamCall | None) -> None:
        if call is None:
            begun.set()
            await anyio.to_thread.run_sync(waits.wait, 1)

    monkeypatch.setattr("routewright._assembly.Signal", Told)
    router = Router(providers=[Watched(order, until_somebody_waits)])
    await router.route("hi")
    async with anyio.create_task_group() as group:
        group.start_soon(close, router, first)
        assert await anyio.to_thread.run_sync(begun.wait, 10)
        await close(router, second)
        order.append("second")
    assert order == ["provider", "second"]


async def test_a_close_that_would_wait_for_itself_is_refused_and_changes_nothing() -> None:
    house = House([said(Delta("x"), Finish("stop"))])
    with pytest.raises(RuntimeError, match="use aclose"):
        house.router.blocking.close()
    assert (await house.router.route("hi", goal="quality")).output == "x"
    await house.router.aclose()
    assert house.good.closed == 1

    async def close_from_inside(call: UpstreamCall | None) -> None:
        if call is not None:
            with pytest.raises(RuntimeError, match="would wait for itself"):
                router.blocking.close()

    order: list[str] = []
    router = Router(providers=[Watched(order, close_from_inside)])
    assert await anyio.to_thread.run_sync(lambda: router.blocking.route("hi").output) == "x"
    await router.aclose()
    assert order == ["provider"]


async def test_everything_is_closed_even_where_closing_fails(caplog: pytest.LogCaptureFixture) -> None:
    storage = Waits()
    house = House([said(Delta("x"), Finish("stop"))], storage=storage)

    async def fail() -> None:
        raise OSError("canary")

    house.good.aclose = fail  # type: ignore[method-assign]
    async with house.router as router:
        answer = await router.route("hi", goal="quality")
        storage.down = True
    assert answer.output  # which an error at the end would have taken along
    assert (house.spare.closed, storage.closed) == (1, 1)
    assert "closing continues after" in caplog.text
    assert "OSError in test_trace_log.py, line " in caplog.text
    assert "canary" not in caplog.text


async def test_closing_that_is_cancelled_still_frees_everything() -> None:
    storage = Waits(hang)
    house = House([said(Delta("x"), Finish("stop"))], storage=storage)
    await house.router.route("hi", goal="quality")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await house.router.aclose()
    assert (house.good.closed, house.spare.closed, storage.closed) == (1, 1, 1)


CALLS: dict[str, Callable[[Router], Any]] = {
    "decide": lambda router: router.decide("hi"),
    "stream": lambda router: router.stream("hi"),
    "models": lambda router: router.models(),
    "policies": lambda router: router.policies(),
    "blocking.route": lambda router: router.blocking.route("hi"),
    "blocking.stream": lambda router: router.blocking.stream("hi"),
    "blocking.trace": lambda router: router.blocking.trace("tr_1"),
    "blocking.flush": lambda router: router.blocking.flush(),
}
AWAITED: dict[str, Callable[[Router], Awaitable[Any]]] = {
    "route": lambda router: router.route("hi"),
    "trace": lambda router: router.trace("tr_1"),
    "feedback": lambda router: router.feedback("tr_1", 1.0),
    "flush": lambda router: router.flush(),
    "enter": lambda router: router.__aenter__(),
}


@table("name", [*CALLS, *AWAITED])
@table("used", [True, False])
async def test_every_call_of_a_closed_router_says_that_it_is_closed(name: str, used: bool) -> None:
    router = Router.sandbox()
    if used:
        await router.route("hi")
    await router.aclose()

    async def call() -> None:
        if name in CALLS:
            CALLS[name](router)
        else:
            await AWAITED[name](router)

    with pytest.raises(RouterClosed, match="the router is closed; make a new one"):
        await call()
    await router.aclose()


async def test_answers_can_be_read_after_closing_but_streams_cannot_begin() -> None:
    router = Router.sandbox()
    answer, stream = await router.route("hi"), router.stream("hi")
    await router.aclose()
    assert answer.output
    assert answer.trace.status == "completed"
    assert answer.decision.model in router.explain(answer)
    with pytest.raises(RouterClosed):
        await anext(stream)
