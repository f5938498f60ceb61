"""No account can read, or detect, another account's cached answers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from routewright import Catalogue, Router, Settings
from routewright.cache import CacheSettings, MemoryCache
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import CacheOpts, CacheSpan, Caller, UpstreamCall

from .scripted_router import GOOD

pytestmark = pytest.mark.anyio
A, B, A_IN_SANDBOX = Caller("a"), Caller("b"), Caller("a", environment="sandbox")
WORDS = "how do i can you reset change my the password card account login email number today please".split()


def prompts(seed: int, count: int) -> list[str]:
    """Questions that are often near to each other, and sometimes the same."""
    rng = Random(seed)
    return [" ".join(rng.choices(WORDS, k=6)) + "?" for _ in range(count)]


def a_router(cache: Any) -> Router:
    def answered(call: UpstreamCall) -> str:
        return f"answer to {call.messages[-1].content}"

    clock = FakeClock()
    settings = Settings(clock=clock, rng=Random(3), cache=CacheSettings(judge_usd_a_day=0))
    provider = ScriptedProvider(answered, models=[GOOD], clock=clock)
    return Router(providers=[provider], catalogue=Catalogue(()), cache=cache, settings=settings)


async def told_to_b(router: Router, count: int, *, poisoned: bool) -> list[Any]:
    """All that one account is told, asking after another that asks the same, or whatever is near."""
    told = []
    for number, prompt in enumerate(prompts(1, count)):
        cache = CacheOpts(threshold=0.8, explore=0.0, mode="exact" if number % 3 == 0 else "semantic")
        if poisoned:
            for other in (A, A_IN_SANDBOX):
                await router.route(prompt, cache=cache, caller=other)
        answer = await router.route(prompt, cache=cache, caller=B)
        spans = [
            (span.hit, span.similarity, span.refused_by) for span in answer.trace.spans if isinstance(span, CacheSpan)
        ]
        told.append((answer.output, answer.routing.cache_hit, answer.headers, spans))
    return told


@pytest.mark.timeout(600)
async def test_cache_results_of_an_account_do_not_depend_on_another(full: bool) -> None:
    count = 10_000 if full else 120
    alone = await told_to_b(a_router(MemoryCache()), count, poisoned=False)
    beside = await told_to_b(a_router(MemoryCache()), count, poisoned=True)
    assert sum(hit for _, hit, _, _ in alone) > count / 50, "the cache is at work"
    assert alone == beside


@pytest.mark.timeout(600)
async def test_equal_prompts_of_two_accounts_never_share_an_answer(full: bool) -> None:
    router, crossed = a_router(MemoryCache()), 0
    for prompt in dict.fromkeys(prompts(2, 10_000 if full else 200)):
        made = {}
        for caller in (A, B, A_IN_SANDBOX):
            answer = await router.route(prompt, cache=CacheOpts(mode="exact"), caller=caller)
            made[caller] = answer.trace_id
            crossed += answer.routing.cache_hit
        for caller in (A, B, A_IN_SANDBOX):
            again = await router.route(prompt, cache=CacheOpts(mode="exact"), caller=caller)
            (span,) = [span for span in again.trace.spans if isinstance(span, CacheSpan)]
            crossed += span.entry_trace_id != made[caller]
    assert crossed == 0
