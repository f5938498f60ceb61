"""Traces on their way into a storage that makes one wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from routewright import Caller, MemoryStorage, NotFound, Router, StorageUnavailable, TraceStore
from routewright.wire import PutTrace, Write, Written

pytestmark = pytest.mark.anyio


class Waits(MemoryStorage):
    """Lets others run before each write, and fails when told to."""

    immediate = False

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise StorageUnavailable("down")
        assert not any(isinstance(write, PutTrace) and not hasattr(write.trace, "spans") for write in writes)
        return await super().apply(account, writes)


async def test_a_trace_can_be_read_and_rated_before_it_is_written() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage)
    answer = await router.route("hi")
    assert (await router.trace(answer.trace_id)).id == answer.trace_id
    await router.feedback(answer.trace_id, 1.0)
    with pytest.raises(NotFound):
        await router.trace(answer.trace_id, caller=Caller("other"))
    await router.aclose()
    assert [trace.id for trace in await TraceStore(storage).newest()] == [answer.trace_id]


async def test_many_writers_and_flushes_at_once_lose_and_double_nothing() -> None:
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
    assert sorted(trace.id for trace in await TraceStore(storage).newest(1_000)) == sorted(ids)


async def test_what_could_not_be_written_waits_for_the_next_time() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage)
    storage.down = True
    answer = await router.route("hi")
    with pytest.raises(StorageUnavailable):
        await router.flush()
    assert (await router.trace(answer.trace_id)).id == answer.trace_id
    storage.down = False
    await router.aclose()
    assert [trace.id for trace in await TraceStore(storage).newest()] == [answer.trace_id]


async def test_a_slow_or_dead_storage_never_fails_a_call() -> None:
    class Broken(MemoryStorage):
        async def apply(self, account: str, writes: Sequence[Write]) -> Any:
            raise OSError("disk")

    router = Router.sandbox(storage=Broken())
    assert (await router.route("hi")).output
    assert router._parts.log.lost == 1


async def test_everything_is_closed_even_where_closing_fails() -> None:
    storage = Waits()
    router = Router.sandbox(storage=storage)
    await router.route("hi")
    storage.down = True
    with pytest.raises(StorageUnavailable):
        await router.aclose()
    await router.aclose()
