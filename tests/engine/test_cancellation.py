"""Cancellation by the caller ends a call, whatever the provider does; nothing else does."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from routewright import Catalogue, MemoryStorage, Model, ProviderFault, Router, Settings
from routewright.backends.clock import SystemClock
from routewright.testing import Pause, ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, Usage

from .scripted_router import Ask, House, both_ways, plain, said, traces_in

pytestmark = pytest.mark.anyio

ANSWER = said(Pause(1.0), Delta("Blue."), Usage(10, 5), Finish("stop"))
STUCK = said(Pause(100.0))


class Converting(ScriptedProvider):
    """Makes its own fault of a cancellation, as SDKs do."""

    async def pause(self, seconds: float) -> None:
        try:
            await super().pause(seconds)
        except anyio.get_cancelled_exc_class():
            raise ProviderFault("reset", "the connection was closed") from None


class Crying(ScriptedProvider):
    """Raises a cancellation that nobody asked for, such as that of a task of its own."""

    async def pause(self, seconds: float) -> None:
        raise asyncio.CancelledError


@both_ways
async def test_a_provider_that_converts_its_time_limit_does_not_take_the_fallback_along(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Converting)
    assert await ask(house.router) == "Blue."
    assert house.clock.monotonic() == (21.0 if ask is plain else 11.0)
    assert house.left_open == 0


@both_ways
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_task_ends_though_the_provider_converts_it(ask: Ask) -> None:
    storage = MemoryStorage()
    house = House([STUCK], [ANSWER], kind=Converting, storage=storage)
    task = asyncio.ensure_future(ask(house.router))
    await house.clock.advance(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.spare.calls == []
    assert house.left_open == 0
    assert [trace.status for trace in await traces_in(storage)] == ["cancelled"]


@both_ways
async def test_a_cancelled_scope_ends_the_call_though_the_provider_converts_it(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Converting)
    ended = []

    async def call() -> None:
        try:
            await ask(house.router)
        except BaseException as error:
            ended.append(type(error))
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await house.clock.advance(1.0)
        group.cancel_scope.cancel()
    assert ended == [anyio.get_cancelled_exc_class()]
    assert house.spare.calls == []
    assert house.left_open == 0


@both_ways
async def test_a_stray_cancellation_is_a_provider_fault(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Crying)
    assert await ask(house.router) == "Blue."
    assert house.left_open == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_was_cancelled_before_still_has_its_fallbacks() -> None:
    house = House([ProviderFault("auth")], [ANSWER])

    async def clean_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await plain(house.router)
        return ""

    task = asyncio.ensure_future(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "Blue."


@both_ways
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_was_cancelled_just_before_ends(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Converting)

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await ask(house.router)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(call())
    assert house.good.calls == house.spare.calls == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", [ScriptedProvider, Converting])
async def test_a_task_cancelled_between_two_pieces_ends_and_closes_the_call(kind: type[ScriptedProvider]) -> None:
    house = House([said(Delta("half"), *STUCK)], [ANSWER], kind=kind)

    async def read(*, on: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        async with house.router.stream("hi", goal="quality") as stream:
            text = stream.text()
            await anext(text)
            task.cancel()
            if on:
                await anext(text)
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(read(on=True))
    assert house.left_open == 0
    house.good._turns = iter([said(Delta("half"), *STUCK)])
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(read(on=False))
    assert house.left_open == 0
    assert house.spare.calls == []


class Grouping(ScriptedProvider):
    """Raises a cancellation together with what came of it, as task groups do."""

    async def pause(self, seconds: float) -> None:
        try:
            await super().pause(seconds)
        except anyio.get_cancelled_exc_class() as cancelled:
            raise BaseExceptionGroup("two", [cancelled, ZeroDivisionError()]) from None


@both_ways
async def test_a_cancellation_in_an_exception_group_counts(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Grouping)
    assert await ask(house.router) == "Blue."
    house = House([STUCK], [ANSWER], kind=Grouping)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, house.router)
        await house.clock.advance(1.0)
        group.cancel_scope.cancel()
    assert house.spare.calls == []
    assert house.left_open == 0


class Swallowing(ScriptedProvider):
    """Makes nothing of a cancellation."""

    async def pause(self, seconds: float) -> None:
        with suppress(asyncio.CancelledError):
            await super().pause(seconds)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("rest", [[Delta("more"), *STUCK], [Finish("stop")]])
async def test_a_cancelled_reader_ends_though_the_provider_swallows_it(rest: list[Chunk]) -> None:
    house = House([said(Delta("half"), *STUCK, *rest)], [ANSWER], kind=Swallowing)
    read: list[str] = []

    async def reading() -> None:
        async with house.router.stream("hi", goal="quality") as stream:
            async for text in stream.text():
                read.append(text)

    task = asyncio.ensure_future(reading())
    await house.clock.advance(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert read == ["half"]
    assert house.left_open == 0
    assert house.clock.monotonic() == 1.0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_scope_takes_a_cancellation_that_the_provider_of_a_stream_swallows() -> None:
    house = House([said(Delta("half"), *STUCK, Delta("more"), *STUCK)], [ANSWER], kind=Swallowing)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group, house.router.stream("hi", goal="quality") as stream:

            async def cancel() -> None:
                await house.clock.sleep(1.0)
                scope.cancel()

            group.start_soon(cancel)
            async for _ in stream.text():
                pass
    assert scope.cancelled_caught
    assert house.left_open == 0


class Leaving(ScriptedProvider):
    """Fails in the turn of the event loop in which the scope around its call is cancelled."""

    scope: anyio.CancelScope

    async def pause(self, seconds: float) -> None:
        self.scope.cancel()
        raise ProviderFault("auth", "the key is refused")


@both_ways
async def test_a_scope_cancelled_in_the_turn_of_a_fault_ends_the_call(ask: Ask) -> None:
    house = House([STUCK], [ANSWER], kind=Leaving)
    with anyio.CancelScope() as Leaving.scope:
        await ask(house.router)
    assert Leaving.scope.cancelled_caught
    assert house.spare.calls == []
    assert house.left_open == 0


class CancellingAgain(ScriptedProvider):
    """Sends its task the cancellation that it met once more, as task groups of Python 3.13 do."""

    async def pause(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            task.cancel()
            raise


@both_ways
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancelled_before", [False, True])
async def test_a_cancellation_that_a_provider_sends_again_does_not_take_the_fallback_along(
    ask: Ask, cancelled_before: bool
) -> None:
    clock = SystemClock()  # whose deadlines cancel the task itself
    models = [
        Model(id=name, quality=quality, ttft_s=0.001) for name, quality in (("good/one", 0.9), ("spare/two", 0.5))
    ]
    good = CancellingAgain([STUCK], models=models[:1], clock=clock)
    spare = ScriptedProvider([said(Delta("Blue."), Finish("stop"))], models=models[1:], clock=clock)
    router = Router(providers=[good, spare], catalogue=Catalogue(()), settings=Settings(clock=clock))

    async def clean_up() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60 if cancelled_before else 0)
        return await ask(router, timeout_ms=500)

    task = asyncio.ensure_future(clean_up())
    await asyncio.sleep(0)
    if cancelled_before:
        task.cancel()
    assert await task == "Blue."
    await router.aclose()
