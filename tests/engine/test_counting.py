"""A call that ends during token counting, cancelled or with a failing counter, still has a trace."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace

from routewright import (
    CallableProvider,
    MemoryStorage,
    Model,
    Pricing,
    Router,
    Settings,
)
from routewright._core.tokens.estimate import MESSAGE_TOKENS, PRIMING_TOKENS
from routewright.errors import InternalError

from .scripted_router import only_trace

pytestmark = pytest.mark.anyio

Call = Callable[[Router], Coroutine[Any, Any, None]]

LONG = "word " * 400  # its bounds lie on both sides of the window
TIGHT = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=1_500, tokenizer="o200k_base")


class Counter:
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def count(self, text: str, encoding: str) -> int:
        return self._count()


def router_with(count: Callable[[], int], storage: MemoryStorage) -> Router:
    provider = CallableProvider(lambda call: "x", models=[TIGHT])
    return Router(providers=[provider], storage=storage, settings=Settings(tokens=Counter(count)))


async def route(router: Router) -> None:
    await router.route(LONG)


async def stream(router: Router) -> None:
    async with router.stream(LONG) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("call", [route, stream])
async def test_a_call_that_is_cancelled_while_its_tokens_are_counted_leaves_its_trace(call: Call) -> None:
    counting, go_on, storage = threading.Event(), threading.Event(), MemoryStorage()

    def wait() -> int:
        counting.set()
        go_on.wait(10)
        return 1

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(call, router_with(wait, storage))
            assert await anyio.to_thread.run_sync(counting.wait, 10)
            group.cancel_scope.cancel()
    finally:
        go_on.set()
    trace = await only_trace(storage)
    assert (trace.status, trace.error, trace.spans) == ("cancelled", None, [])
    assert trace.decision_input is not None


async def test_long_prompts_are_counted_one_at_a_time_and_take_no_thread_of_anything_else() -> None:
    counting, go_on, at_once = threading.Event(), threading.Event(), list[int]()
    under_way: list[None] = []

    def wait() -> int:
        under_way.append(None)
        at_once.append(len(under_way))
        counting.set()
        assert go_on.wait(10)
        under_way.pop()
        return 1

    router = router_with(wait, MemoryStorage())
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(route, router)
        await anyio.wait_all_tasks_blocked()
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert await anyio.to_thread.run_sync(counting.wait, 10)
        go_on.set()
    assert set(at_once) == {1}


async def test_a_prompt_of_middle_length_passes_long_ones() -> None:
    go_on = threading.Event()

    class Slow:
        def count(self, text: str, encoding: str) -> int:
            assert len(text) <= len(LONG) or go_on.wait(10)
            return 1

    wide = replace(TIGHT, id="a/wide", context_window=200_000)
    provider = CallableProvider(lambda call: "x", models=[TIGHT, wide])
    router = Router(providers=[provider], settings=Settings(tokens=Slow()))
    async with anyio.create_task_group() as group:
        group.start_soon(router.route, "word " * 70_000)
        await anyio.wait_all_tasks_blocked()
        await router.route(LONG)
        go_on.set()


async def test_unreported_input_is_never_counted_above_its_bound() -> None:
    class Counts:
        def count(self, text: str, encoding: str) -> int:
            return 400 if encoding == "cl100k_base" else 500

    provider = CallableProvider(lambda call: "x", models=[replace(TIGHT, tokenizer="cl100k_base")])
    answer = await Router(providers=[provider], settings=Settings(tokens=Counts())).route(LONG)
    assert answer.routing.tokens.input == 400 + PRIMING_TOKENS + MESSAGE_TOKENS


@pytest.mark.parametrize("call", [route, stream])
async def test_a_counter_that_fails_is_an_internal_error_with_a_trace(call: Call) -> None:
    broken, storage = ZeroDivisionError("of canary"), MemoryStorage()

    def fail() -> int:
        raise broken

    with pytest.raises(InternalError, match="token counter failed with ZeroDivisionError") as caught:
        await call(router_with(fail, storage))
    error, trace = caught.value, await only_trace(storage)
    assert error.__cause__ is broken
    assert "canary" not in str(error)  # a counter's words may be the prompt's
    assert (error.trace_id, (error.request_id or "")[:4]) == (trace.id, "req_")
    assert (trace.status, trace.error) == ("failed", "internal_error")
    assert pickle.loads(pickle.dumps(error)).trace_id == trace.id
