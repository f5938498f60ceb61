"""The cache under any order of events: no stale or removed answers, no duplicate concurrent calls, no endless waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import ProviderFault, Router, RouterError, Settings
from routewright.cache import MemoryCache
from routewright.testing import FakeClock
from routewright.wire import CacheOpts, Delta, Finish, UpstreamCall, Usage

from .scripted_router import GOOD

pytestmark = pytest.mark.anyio
QUESTIONS = "abc"
question = st.sampled_from(QUESTIONS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), question, st.sampled_from([5.0, 20.0])),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 3.0, 9.0])),
        st.tuples(st.just("cancel"), st.integers(0, 3)),
        st.tuples(st.just("remove"), question),
        st.tuples(st.just("fail"), st.just(0)),
    ),
    max_size=25,
)


class Slow:
    """A provider that takes two seconds, says when it answered, and fails when it is told to."""

    name = "good"

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.failing = 0

    def models(self) -> Any:
        return [GOOD]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[Any]:
        text = str(call.messages[-1].content)
        self.running[text] += 1
        self.most[text] = max(self.most[text], self.running[text])
        try:
            yield self._answer()
        finally:
            self.running[text] -= 1

    async def _answer(self) -> AsyncIterator[Any]:
        fails = self.failing > 0
        self.failing -= fails
        await self.clock.sleep(2.0)
        if fails:
            raise ProviderFault("request")
        yield Delta(str(self.clock.time()))
        yield Usage(1, 1)
        yield Finish("stop")

    async def aclose(self) -> None: ...


@given(steps)
async def test_the_cache_agrees_with_its_model_in_any_order_of_events(plan: list[tuple[Any, ...]]) -> None:
    clock = FakeClock()
    provider, cache = Slow(clock), MemoryCache(clock=clock)
    router = Router(providers=[provider], cache=cache, settings=Settings(clock=clock, rng=Random(1)))
    removed: dict[str, float] = dict.fromkeys(QUESTIONS, 0.0)
    asking: list[anyio.CancelScope] = []
    ended, failed = 0, any(step[0] == "fail" for step in plan)

    async def ask(text: str, ttl_s: float, scope: anyio.CancelScope) -> None:
        nonlocal ended
        began, gone = clock.time(), removed[text]
        with scope:
            try:
                answer = await router.route(text, cache=CacheOpts(mode="exact", ttl_seconds=ttl_s))
            except RouterError:
                pass
            else:
                made = float(answer.output)
                assert made > gone, "it was removed before it was asked for"
                assert clock.time() - made < ttl_s or made >= began
        ended += 1

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for step in plan:
                match step:
                    case "ask", text, ttl_s:
                        asking.append(anyio.CancelScope())
                        group.start_soon(ask, text, ttl_s, asking[-1])
                    case "wait", seconds:
                        await clock.sleep(seconds)
                    case "cancel", place if place < len(asking):
                        asking[-1 - place].cancel()
                    case "remove", text:
                        key = (await router.cache.explain(text, cache=CacheOpts(mode="exact"))).key
                        await router.cache.invalidate(key=key)
                        removed[text] = clock.time()
                    case "fail", _:
                        provider.failing += 1
    assert ended == len(asking)
    if not failed:  # who asks after a removal does not wait for a call from before it
        removals = Counter(step[1] for step in plan if step[0] == "remove")
        assert all(most <= 1 + removals[text] for text, most in provider.most.items())
    assert router.engine.caching._flights == {}
    await router.aclose()
