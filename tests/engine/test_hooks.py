"""Hooks are called in order after a trace is stored, and cannot harm calls or each other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest

from routewright import (
    BudgetExceeded,
    Caller,
    Event,
    MemoryStorage,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    Trace,
    ValidationFailed,
)
from routewright._engine import hooks as event_module
from routewright.errors import ContentRefused
from routewright.testing import FakeClock, Pause
from routewright.testing.provider import Turn
from routewright.wire import BudgetRefused, Delta, FallbackTriggered, Finish, PutTrace, Write
from tests.tables import table

from .scripted_router import House, said
from .test_fork import pytestmark as needs_fork
from .test_fork import run_script
from .test_trace_log import Waits

pytestmark = pytest.mark.anyio


class Ear:
    """Hears plainly or async, and remembers what and where."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.events: list[Event] = []
        self.threads: set[str] = set()

    def plain(self, told: Trace | Event) -> None:
        if isinstance(told, Trace):
            self.traces.append(told)
        else:
            self.events.append(told)
        self.threads.add(threading.current_thread().name)

    async def waits(self, told: Trace | Event) -> None:
        await anyio.lowlevel.checkpoint()
        self.plain(told)

    @property
    def ids(self) -> list[str]:
        return [trace.id for trace in self.traces]


def virtual(**given: Any) -> Router:
    return Router.sandbox(settings=Settings(clock=FakeClock()), **given)


@pytest.mark.parametrize("hook", ["plain", "waits"])
async def test_hooks_are_called_for_every_outcome_of_a_call(hook: str) -> None:
    ear = Ear()
    broken = said(Delta("x"), Pause(1.0), Finish("stop"))
    good: list[Turn] = ["one", ProviderFault("request"), ProviderFault("refused"), broken, "five"]
    house = House(good, [ProviderFault("request")])
    house.router.on_trace(getattr(ear, hook))
    await house.router.route("hi", goal="quality")
    for _ in range(2):
        with pytest.raises(RouterError):
            await house.router.route("hi", goal="quality")
    with pytest.raises(BudgetExceeded):
        await house.router.route("hi", budget={"maxCostUsd": 0})
    async with house.router.stream("hi", goal="quality") as stream:
        await anext(stream)
        await anext(stream)
    async with house.router.stream("hi", goal="quality") as stream:
        async for _ in stream:
            pass
    await house.router.flush()
    statuses = ["completed", "failed", "failed", "budget_exceeded", "cancelled", "completed"]
    assert [trace.status for trace in ear.traces] == statuses
    assert ear.ids == sorted(ear.ids)
    assert ear.traces == [await house.router.trace(trace_id) for trace_id in ear.ids]
    assert ear.threads == {threading.current_thread().name}


async def test_a_fallback_is_an_event() -> None:
    ear, house = Ear(), House([ProviderFault("request")], ["two"])
    house.router.on_event(ear.plain)
    answer = await house.router.route("hi", goal="quality", metadata={"a": 1}, caller=Caller("anna"))
    await house.router.flush()
    (event,) = ear.events
    assert event.id.startswith("evt_")
    assert event.created_at == "2026-01-01T00:00:00.000Z"
    assert (event.type, event.api_version) == ("router.fallback_triggered", "v1")
    assert (event.account, event.environment) == ("anna", "production")
    assert event.data == FallbackTriggered(answer.trace_id, "good/one", "spare/two", "upstream_5xx", 0.0, {"a": 1})


async def test_a_refusal_by_a_budget_is_an_event_and_other_refusals_are_not() -> None:
    ear, router = Ear(), virtual()
    router.on_event(ear.waits)
    with pytest.raises(BudgetExceeded) as refused:
        await router.route("hi", budget={"maxTokens": 1}, metadata={"a": 1})
    with pytest.raises(ValidationFailed):
        await router.route("hi", models=["nobody/none"])
    await router.route("hi")
    await router.flush()
    (event,) = ear.events
    assert isinstance(event.data, BudgetRefused)
    assert (event.type, event.data.trace_id) == ("router.budget_exceeded", refused.value.trace_id)
    assert event.data.rejected_candidates == refused.value.detail["rejected_candidates"]
    assert event.data.budget is not None
    assert event.data.budget.max_tokens == 1


async def test_calls_that_are_left_refused_or_blocked_make_no_burst() -> None:
    house, ear = House(lambda call: ProviderFault("refused")), Ear()
    house.router.on_event(ear.plain)
    for _ in range(30):
        with pytest.raises(ContentRefused):
            await house.router.route("hi", goal="quality")
    await house.router.flush()
    assert ear.events == []


async def test_each_hook_has_copies_of_its_own() -> None:
    ear, house = Ear(), House([ProviderFault("request")], ["two"])

    def spoil(told: Trace | Event) -> None:
        if isinstance(told, Trace):
            told.spans.clear()
        metadata_of(told)["a"].append("theirs")

    for hook in (spoil, ear.plain):
        house.router.on_trace(hook)
        house.router.on_event(hook)
    answer = await house.router.route("hi", goal="quality", metadata={"a": ["mine"]})
    await house.router.flush()
    ((trace,), (event,)) = ear.traces, ear.events
    assert trace == answer.trace
    assert trace.metadata == metadata_of(event) == answer.trace.metadata == {"a": ["mine"]}


def metadata_of(told: Trace | Event) -> dict[str, Any]:
    if isinstance(told, Trace):
        return told.metadata
    assert isinstance(told.data, FallbackTriggered | BudgetRefused)
    return told.data.metadata


async def test_hooks_are_called_once_the_trace_is_stored_and_not_if_it_is_refused() -> None:
    async def refuse(account: str, writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutTrace) and "bad" in write.trace.metadata for write in writes):
            raise TypeError("no")

    ear, storage = Ear(), Waits(refuse)
    router = virtual(storage=storage)
    found: list[Any] = []

    async def look(trace: Trace) -> None:
        ear.plain(trace)
        found.extend(await storage.ids())

    router.on_trace(look)
    storage.down = True
    answer = await router.route("hi")
    with pytest.raises(RouterError, match="1 wait"):
        await router.flush()
    assert ear.ids == []
    storage.down = False
    await router.route("hi", metadata={"bad": 1})
    with pytest.raises(RouterError, match="1 were refused"):
        await router.flush()
    assert ear.ids == found == [answer.trace_id]


async def test_a_failing_hook_is_counted_and_logged_and_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ear, clock = Ear(), FakeClock()
    router = Router.sandbox(settings=Settings(clock=clock))

    def fail(trace: Trace) -> NoReturn:
        raise ZeroDivisionError

    async def exit_(trace: Trace) -> NoReturn:
        raise SystemExit

    async def cancel_itself(trace: Trace) -> NoReturn:
        raise asyncio.CancelledError

    async def end_a_group(trace: Trace) -> NoReturn:
        raise BaseExceptionGroup("of tasks", [SystemExit()])

    for hook in (fail, exit_, cancel_itself, end_a_group, ear.plain):
        router.on_trace(hook)
    for _ in range(40):
        await router.route("hi")
        await clock.sleep(2.0)
    assert len(ear.traces) == 40
    assert router.hook_counts == (0, 160, 0)
    assert len(caplog.records) == 1
    assert "fail failed; it stays registered" in caplog.records[0].getMessage()
    assert caplog.records[0].exc_info is not None


async def test_a_plain_hook_that_returns_a_coroutine_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    ear, router = Ear(), virtual()
    router.on_trace(lambda trace: ear.waits(trace))
    await router.route("hi")
    await router.flush()
    assert (ear.traces, router.hook_counts.failed) == ([], 1)
    assert "define it with async def" in caplog.text


async def test_async_hooks_are_recognized() -> None:
    class Callee(Ear):
        async def __call__(self, told: Trace) -> None:
            await self.waits(told)

    ear, callee, router = Ear(), Callee(), virtual()
    router.on_trace(partial(ear.waits))
    router.on_trace(callee)
    await router.route("hi")
    await router.flush()
    assert len(ear.traces) == len(callee.traces) == 1


@table("wrong", [None, "print", 3])
def test_an_object_that_is_not_callable_is_refused_as_a_hook(wrong: Any) -> None:
    for subscribe in (Router.sandbox().on_trace, Router.sandbox().on_event):
        with pytest.raises(ValidationFailed, match=r"hook: .* cannot be called; pass a function"):
            subscribe(wrong)


async def test_an_unregistered_hook_is_not_called_for_queued_calls() -> None:
    ear, router = Ear(), virtual()
    with router.on_trace(ear.plain):
        heard = await router.route("hi")
        await router.flush()
        await router.route("hi")
    leave = router.on_trace(ear.waits)
    await router.route("hi")
    leave()
    leave()
    await router.route("hi")
    await router.flush()
    assert ear.ids == [heard.trace_id]
    assert router.hook_counts == (0, 0, 0)


async def test_plain_and_async_hooks_are_called_in_order() -> None:
    heard: list[tuple[int, str]] = []
    router = Router.sandbox()

    def hook(number: int) -> Callable[[Trace], object]:
        async def waits(trace: Trace) -> None:
            await anyio.lowlevel.checkpoint()
            heard.append((number, trace.id))

        return waits if number % 2 else lambda trace: heard.append((number, trace.id))

    for number in (0, 2, 1, 3, 4):
        router.on_trace(hook(number))
    ids = [(await router.route("hi")).trace_id for _ in range(300)]
    await router.flush()
    assert heard == [(number, trace_id) for trace_id in ids for number in (0, 2, 1, 3, 4)]
    await router.aclose()


async def test_a_blocking_hook_delays_no_call_and_no_trace() -> None:
    ear, go_on, began = Ear(), threading.Event(), threading.Event()
    storage = Waits()
    router = Router.sandbox(storage=storage)

    def block(trace: Trace) -> None:
        began.set()
        assert go_on.wait(10)

    router.on_trace(block)
    router.on_trace(ear.plain)
    router.blocking.route("hi")
    assert began.wait(10)
    answer = router.blocking.route("hi")
    await router._parts.log.writer.flush()
    assert answer.trace_id in await storage.ids()
    assert ear.traces == []
    assert router.hook_counts.waiting == 2
    go_on.set()
    await router.flush()
    assert len(ear.traces) == 2
    assert ear.threads == {"routewright-hooks"}
    await router.aclose()


async def test_calls_dropped_for_slow_hooks_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_module, "QUEUE", 3)
    ear, router = Ear(), virtual()
    router.on_trace(ear.plain)
    for _ in range(5):
        await router.route("hi")
    assert router.hook_counts == (3, 0, 2)
    await router.flush()
    assert (len(ear.traces), router.hook_counts) == (3, (0, 0, 2))
    assert [record.getMessage() for record in caplog.records] == [
        "hooks are too slow: 3 calls are queued, and further ones are dropped"
    ]


async def test_flush_waits_for_earlier_calls_and_may_be_called_in_a_hook() -> None:
    ear, clock = Ear(), FakeClock()
    router = Router.sandbox(settings=Settings(clock=clock))

    async def slow(trace: Trace) -> None:
        await router.flush()
        await clock.sleep(5.0)
        ear.plain(trace)

    router.on_trace(slow)
    await router.route("hi")
    await router.route("hi")
    await router.flush()
    assert len(ear.traces) == 2
    assert clock.monotonic() == pytest.approx(10.0, abs=0.1)


async def test_a_plain_hook_may_use_the_blocking_door() -> None:
    router, read = Router.sandbox(), list[str]()

    def read_back(trace: Trace) -> None:
        router.blocking.flush()
        read.append(router.blocking.trace(trace.id).id)

    router.on_trace(read_back)
    answer = await router.route("hi")
    await router.flush()
    assert read == [answer.trace_id]
    await router.aclose()


@pytest.mark.parametrize("fake", [True, False])
async def test_closing_calls_the_hooks_of_ended_calls(fake: bool) -> None:
    ear, storage = Ear(), Waits()
    router = virtual(storage=storage) if fake else Router.sandbox(storage=storage)
    router.on_trace(ear.plain)
    router.on_trace(ear.waits)
    for _ in range(3):
        await router.route("hi")
    await router.aclose()
    assert len(ear.traces) == 6


async def test_an_endless_hook_does_not_block_closing_and_dropped_calls_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    router = Router.sandbox(settings=Settings(clock=clock))

    async def hang(trace: Trace) -> None:
        await anyio.sleep_forever()

    ear = Ear()
    router.on_trace(hang)
    router.on_trace(ear.plain)
    for _ in range(3):
        await router.route("hi")
    await router.aclose()
    assert clock.monotonic() < 2.0
    assert (ear.traces, router.hook_counts) == ([], (0, 0, 3))


def test_an_endless_plain_hook_does_not_block_closing() -> None:
    ear, go_on = Ear(), threading.Event()
    router = Router.sandbox()
    router.on_trace(lambda trace: go_on.wait(20))
    router.on_trace(ear.plain)
    router.blocking.route("hi")
    began = time.monotonic()
    router.blocking.close()
    assert time.monotonic() - began < 5.0
    assert router.hook_counts == (0, 0, 1)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "routewright-hooks":
            thread.join(10)
    assert ear.traces == []


async def test_a_call_that_ends_after_the_router_was_closed_is_counted_as_lost() -> None:
    ear, house = Ear(), House([said(Pause(5.0), Delta("x"), Finish("stop"))])
    house.router.on_trace(ear.plain)

    async with anyio.create_task_group() as group:
        group.start_soon(partial(house.router.route, "hi", goal="quality"))
        await house.clock.sleep(1.0)
        await house.router.aclose()
    assert (ear.traces, house.router.hook_counts) == ([], (0, 0, 1))


@pytest.mark.skipif(needs_fork.args[0], reason="no fork here")
def test_a_forked_child_keeps_hooks_and_not_the_queue() -> None:
    code = """
        heard = []
        router = Router.sandbox()
        router.on_trace(lambda trace: heard.append(trace.id))
        for _ in range(3):
            router.blocking.route("hi")

        def child():
            before = len(heard)
            assert router.hook_counts.waiting == 0
            answer = router.blocking.route("hi")
            router.blocking.flush()
            assert heard[before:] == [answer.trace_id]
            router.blocking.close()

        assert in_child(child) == 0
        router.blocking.flush()
        assert len(heard) == 3
        router.blocking.close()
        print("done")
    """
    assert run_script(code) == "done"


def test_hooks_are_called_before_the_interpreter_exits() -> None:
    code = """
        router = Router.sandbox()
        router.on_trace(lambda trace: print(trace.status, flush=True))
        router.blocking.route("hi")
    """
    assert run_script(code) == "completed"


async def test_events_are_kept_with_their_data_whatever_the_caller_does_to_the_error() -> None:
    ear, router = Ear(), virtual(storage=MemoryStorage())
    router.on_event(ear.plain)
    with pytest.raises(BudgetExceeded) as refused:
        await router.route("hi", budget={"maxCostUsd": 0}, models=["openai/gpt-4.1"])
    refused.value.detail["rejected_candidates"].clear()
    await router.flush()
    (event,) = ear.events
    assert isinstance(event.data, BudgetRefused)
    assert [each["model"] for each in event.data.rejected_candidates] == ["openai/gpt-4.1"]
