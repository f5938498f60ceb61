"""The response cache in a call: hits, waiting calls, what is stored, and the cost of a hit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from msgspec.structs import replace

from routewright import (
    Catalogue,
    MemoryStorage,
    PatternGuardrail,
    Policy,
    ProviderFault,
    RateLimited,
    Router,
    Settings,
    ValidationFailed,
)
from routewright.cache import CacheSettings, MemoryCache
from routewright.errors import NotFound, QuotaExhausted, UpstreamFailed
from routewright.router import StepDone
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import (
    CacheEntry,
    CacheMatch,
    CacheOpts,
    CacheSelection,
    CacheSpan,
    CacheStats,
    Caller,
    Delta,
    Events,
    Fallback,
    Finish,
    FunctionSpec,
    Observation,
    OutputDelta,
    Params,
    RateLimits,
    RouteCompleted,
    RouteRequest,
    RouteStarted,
    Tool,
    ToolDelta,
    UpstreamCall,
    Usage,
)
from tests.tables import table

from .account_router import ACME, ANSWER, CAP, COST, Bank, account
from .scripted_router import GOOD as PLAIN
from .scripted_router import SPARE
from .test_cancellation_points import CancelAt

pytestmark = pytest.mark.anyio
GOOD = replace(PLAIN, modalities=("text", "image", "tool"), structured_output=True)
EXACT = CacheOpts(mode="exact")
NEAR = CacheOpts(threshold=0.9, explore=0.02)
WHOLE = [Usage(100, 50), Finish("stop")]
LOG_IN, SIMILAR = "How do I log in?", "How can I log in?"


class Places:
    """An embedder that puts two questions near each other, or each text where a test says."""

    name = "places"

    def __init__(self, at: dict[str, float] | None = None, *, failing: bool = False) -> None:
        self.at = at or {LOG_IN: 0.0, SIMILAR: 0.1}
        self.asked = 0
        self.failing = failing

    def embed(self, text: str) -> Any:
        self.asked += 1
        if self.failing:
            raise OSError("no model")
        angle = self.at.get(text, 1.5)
        return np.array([np.cos(angle), np.sin(angle)])


class Chance:
    """Draws what a test says."""

    def __init__(self) -> None:
        self.next = 0.5

    def random(self) -> float:
        return self.next

    def getrandbits(self, bits: int) -> int:
        return 7


@dataclass
class Shop:
    """A Router whose provider numbers its answers."""

    router: Router
    provider: ScriptedProvider
    clock: FakeClock
    chance: Chance
    answers: list[Any] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.provider.calls)

    async def ask(self, text: Any = "Why?", cache: Any = EXACT, **options: Any) -> Any:
        self.answers.append(await self.router.route(text, cache=cache, **options))
        return self.answers[-1]

    async def explore(self) -> Any:
        """Ask so that the second question is answered live, though it has a hit."""
        await self.ask(LOG_IN, NEAR)
        self.chance.next = 0.99
        return await self.ask(SIMILAR, NEAR)


def shop(answer: Any = None, *, cache: Any = None, settings: dict[str, Any] | None = None, **router: Any) -> Shop:
    """``settings``: of the cache."""
    clock, chance, count = FakeClock(), Chance(), iter(range(1, 10**6))

    def numbered(call: UpstreamCall) -> Any:
        if answer is None:
            return [Delta(f"answer {next(count)}"), *WHOLE]
        return answer(call) if callable(answer) else answer

    for part in (cache, *(settings or {}).values()):
        if isinstance(part, Faulty | Dawdling | Hanging):
            part.clock = clock
    provider = ScriptedProvider(numbered, models=[GOOD], clock=clock)
    made = Settings(clock=clock, rng=chance, cache=CacheSettings(**{"judge_usd_a_day": 0, **(settings or {})}))
    return Shop(
        Router(providers=[provider], catalogue=Catalogue(()), cache=cache, settings=made, **router),
        provider,
        clock,
        chance,
    )


def span_of(answer: Any) -> CacheSpan:
    (span,) = [each for each in answer.trace.spans if isinstance(each, CacheSpan)]
    return span


async def test_the_same_request_again_is_answered_without_a_call_and_costs_nothing() -> None:
    at = shop()
    first = await at.ask()
    await at.clock.sleep(12.0)
    again = await at.ask()
    assert (again.output, at.calls) == (first.output, 1)
    assert (first.routing.cache_hit, again.routing.cache_hit, again.response.cache_hit) == (False, True, True)
    assert (again.routing.cost_usd, again.routing.tokens.input, again.routing.selected_model) == (0, 0, "good/one")
    assert again.routing.decision_reason.startswith("from the cache (exact, 12 s old); else goal=cost")
    assert (first.headers["X-Routewright-Cache"], again.headers["X-Routewright-Cache"]) == (
        "miss",
        "hit; mode=exact; age=12",
    )
    span = span_of(again)
    assert (span.hit, span.mode, span.age_s, span.entry_trace_id) == (True, "exact", 12.0, first.trace_id)
    assert span.saved_usd == first.routing.cost_usd > 0
    assert span_of(first).hit is False


async def test_the_cache_is_used_only_on_request() -> None:
    at = shop()
    await at.ask(cache=None)
    await at.ask(cache=False)
    await at.ask()
    assert at.calls == 3
    assert "X-Routewright-Cache" not in (await at.ask(cache=None)).headers


async def test_reports_count_hits_misses_and_what_was_saved() -> None:
    at = shop()
    first = await at.ask()
    await at.ask()
    await at.ask("Other?")
    report = await at.router.traces.cache_report()
    assert (report.hits, report.misses, report.saved_usd) == (1, 2, first.routing.cost_usd)
    usage = await at.router.traces.usage()
    assert (usage.totals.requests, usage.totals.tokens.input) == (3, 200)
    hits = await at.router.traces.query(filter="cache_hit=true")
    assert [item.cache_hit for item in hits.data] == [True]


TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
CHANGES: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be long."}, TURNS[1]]},
    {"messages": [TURNS[0], {"role": "user", "content": "Before"}, {"role": "assistant", "content": "x"}, TURNS[1]]},
    {"goal": "quality"},
    {"strategy": "latency-optimized"},
    {"models": ["good/one"]},
    {"prefer": "good/one"},
    {"fallback": Fallback(models=[])},
    {"policy_id": "mine"},
    {"policy_id": "other"},
    {"params": Params(temperature=0.1)},
    {"params": Params(response_format={"type": "json_object"})},
    {"tools": [Tool(function=FunctionSpec("f"))]},
    {"tools": [Tool(function=FunctionSpec("f"))], "tool_choice": "none"},
    {"cache": CacheOpts(namespace="other")},
    {"caller": Caller("other")},
    {"caller": Caller(environment="sandbox")},
]


@table("change", CHANGES, ids=str)
@table("mode", ["exact", "semantic"])
async def test_any_other_difference_is_another_partition(change: dict[str, Any], mode: Any) -> None:
    policies = [Policy(name="mine", goal="cost"), Policy(name="other", goal="cost")]
    at = shop(policies=policies)
    plain = {"messages": TURNS, "cache": CacheOpts(mode=mode, threshold=0.0, explore=0.0)}
    await at.router.route(plain)
    options = {**plain, **change}
    caller, cache = options.pop("caller", None), options.pop("cache")
    answer = await at.router.route(options.pop("messages"), cache=replace(cache, mode=mode), caller=caller, **options)
    assert not answer.routing.cache_hit


async def test_fields_that_do_not_shape_the_answer_make_no_difference() -> None:
    at = shop()
    await at.ask(metadata={"team": "a"}, timeout_ms=1000)
    assert (await at.ask(metadata={"team": "b"}, timeout_ms=2000, budget={"maxCostUsd": 1})).routing.cache_hit


async def test_a_newly_published_policy_starts_a_new_partition() -> None:
    at = shop(policies=[Policy(name="mine", goal="cost")])
    await at.ask(policy_id="mine")
    assert (await at.ask(policy_id="mine")).routing.cache_hit
    at.router.reload_policies([Policy(name="mine", goal="quality")])
    assert not (await at.ask(policy_id="mine")).routing.cache_hit


async def test_other_providers_make_another_partition() -> None:
    cache, clock = MemoryCache(), FakeClock()
    for models in ([GOOD], [GOOD, SPARE]):
        providers = [ScriptedProvider(["an answer"], models=[model], clock=clock) for model in models]
        router = Router(providers=providers, catalogue=Catalogue(()), cache=cache, settings=Settings(clock=clock))
        assert not (await router.route("Why?", cache=EXACT)).routing.cache_hit


async def test_the_request_says_how_old_an_entry_may_be() -> None:
    at = shop()
    await at.ask(cache=CacheOpts(mode="exact", ttl_seconds=100))
    await at.clock.sleep(50.0)
    assert (await at.ask(cache=CacheOpts(mode="exact", ttl_seconds=51))).routing.cache_hit
    assert not (await at.ask(cache=CacheOpts(mode="exact", ttl_seconds=50))).routing.cache_hit
    await at.clock.sleep(49.0)
    assert (await at.ask(cache=CacheOpts(mode="exact", ttl_seconds=100))).routing.cache_hit, "of the second answer"
    await at.clock.sleep(1.0)
    assert not (await at.ask(cache=CacheOpts(mode="exact", ttl_seconds=1000))).routing.cache_hit, "its own time is over"


@pytest.mark.parametrize(
    "answer",
    [
        [Delta("cut"), Usage(1, 1), Finish("length")],
        [ToolDelta(0, "{}", "call_1", "f"), Usage(1, 1), Finish("tool_calls")],
        [Usage(1, 0), Finish("stop")],
        [Delta("odd"), Usage(1, 1), Finish("something")],
    ],
    ids=["cut", "tools", "empty", "unknown"],
)
async def test_only_whole_answers_are_kept(answer: Any) -> None:
    at = shop(answer)
    for _ in range(2):
        answered = await at.ask(cache=True, tools=[Tool(function=FunctionSpec("f"))])
        assert not answered.routing.cache_hit
    assert (await at.router.cache.stats()).entries == 0


async def test_a_stream_is_kept_and_served_again_with_the_same_events() -> None:
    at = shop([Delta("an "), Delta("answer"), *WHOLE])

    async def events() -> list[Any]:
        async with at.router.stream("Why?", cache=EXACT) as stream:
            return [event async for event in stream]

    live, again = await events(), await events()
    assert at.calls == 1
    for told in (live, again):
        assert isinstance(told[0], RouteStarted)
        assert "".join(event.data.text for event in told if isinstance(event, OutputDelta)) == "an answer"
        assert isinstance(told[-1], RouteCompleted)
        assert [event.id for event in told] == [*range(1, len(told) + 1)]
    assert [told[-1].data.cache_hit for told in (live, again)] == [False, True]
    assert (await at.ask()).routing.cache_hit, "a plain call gets what a stream left"


async def test_a_stream_that_was_left_keeps_nothing_and_one_from_the_cache_may_be_left() -> None:
    at = shop([Delta("an "), Pause(1.0), Delta("answer"), *WHOLE])
    async with at.router.stream("Why?", cache=EXACT) as stream:
        async for _ in stream.text():
            break
    assert (await at.router.cache.stats()).entries == 0
    await at.ask()
    async with at.router.stream("Why?", cache=EXACT) as stream:
        await anext(stream)
    (item, *_) = (await at.router.traces.query()).data
    assert (item.status, item.cache_hit, item.cost_usd) == ("completed", True, 0)


SLOW = [Delta("slow"), Pause(5.0), *WHOLE]


async def test_the_same_misses_at_once_make_one_call() -> None:
    at = shop(SLOW)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(at.ask)
    assert at.calls == 1
    assert sorted(answer.routing.cache_hit for answer in at.answers) == [False] + [True] * 19


async def test_a_waiting_call_makes_the_answer_if_the_first_is_cancelled() -> None:
    at = shop(SLOW)
    async with anyio.create_task_group() as group, anyio.create_task_group() as first:
        first.start_soon(at.ask)
        await at.clock.sleep(1.0)
        for _ in range(5):
            group.start_soon(at.ask)
        await at.clock.sleep(1.0)
        first.cancel_scope.cancel()
    assert at.calls == 2
    assert len(at.answers) == 5


async def test_calls_that_waited_for_a_failed_one_all_call_at_once() -> None:
    at = shop([Pause(5.0), ProviderFault("request")])
    ends: list[float] = []

    async def ask() -> None:
        with pytest.raises(UpstreamFailed):
            await at.ask()
        ends.append(at.clock.monotonic())

    began = at.clock.monotonic()
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask)
    assert [round(end - began) for end in ends] == [5, 10, 10, 10]


async def test_no_call_waits_longer_than_half_of_its_time() -> None:
    slow = [each for _ in range(6) for each in (Delta("slow"), Pause(8.0))]
    answers = iter([[*slow, *WHOLE], "quick"])
    at = shop(lambda call: next(answers))
    ends: list[float] = []

    async def ask(timeout_ms: int) -> None:
        await at.ask(timeout_ms=timeout_ms)
        ends.append(at.clock.monotonic())

    began = at.clock.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(ask, 60_000)
        await at.clock.sleep(1.0)
        group.start_soon(ask, 10_000)
    assert [round(end - began) for end in ends] == [6, 48]


async def test_a_hit_needs_no_money_and_counts_against_the_limits() -> None:
    limits = RateLimits(requests_per_min=3)
    bank = await Bank([*ANSWER], [*ANSWER], terms=[account(monthly_nanos=10**9, limits=limits)]).open()
    bank.use(bank.storage)
    first = await bank.route(cache=EXACT)
    await bank.storage.apply("acme", [account(monthly_nanos=COST + 1, limits=limits)])
    await bank.clock.sleep(3.0)  # so that it is known here
    hit = await bank.route(cache=EXACT)
    assert (hit.routing.cache_hit, hit.output, len(bank.good.calls)) == (True, first.output, 1)
    assert await bank.charged() == COST
    assert len(await bank.rows()) == 1
    assert hit.usage.rate_limit_remaining == 1
    await bank.route(cache=EXACT)
    with pytest.raises(RateLimited):
        await bank.route(cache=EXACT)
    assert await bank.purse() == (COST + 1, COST, 0)


async def test_an_idempotency_key_replays_a_hit() -> None:
    bank = await Bank([*ANSWER], terms=[account()]).open()
    await bank.route(cache=EXACT)
    one, two = [await bank.route(cache=EXACT, idempotency_key="k") for _ in range(2)]
    assert (one.replayed, two.replayed, one.trace_id == two.trace_id) == (False, True, True)
    assert len(bank.good.calls) == 1


async def test_a_replayed_call_frees_the_cache_key_of_its_miss() -> None:
    bank = await Bank([*ANSWER], [*ANSWER], terms=[account()]).open()
    await bank.route("one", cache=EXACT, idempotency_key="k")
    await bank.router.cache.invalidate(everything=True)
    await bank.router.as_caller(ACME).cache.invalidate(everything=True)
    assert (await bank.route("one", cache=EXACT, idempotency_key="k")).replayed
    with anyio.fail_after(1):
        assert not (await bank.route("one", cache=EXACT)).routing.cache_hit


class Faulty:
    """A cache that fails, or takes its time."""

    def __init__(self, clock: FakeClock, *, slow_s: float = 0.0) -> None:
        self.clock, self.slow_s, self.asked = clock, slow_s, 0

    async def _fail(self, *_: Any) -> Any:
        self.asked += 1
        if self.slow_s:
            await self.clock.sleep(self.slow_s)
        raise OSError("away")

    get = nearest = put = remove = _fail

    async def stats(self, account: str | None, now: float) -> CacheStats:
        return CacheStats()

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("slow_s", [0.0, 10.0])
async def test_a_failing_cache_costs_a_moment_and_then_rests(slow_s: float, caplog: pytest.LogCaptureFixture) -> None:
    cache = Faulty(FakeClock(), slow_s=slow_s)
    at = shop("fine", cache=cache)
    async with at.router:
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                began = at.clock.monotonic()
                assert (await at.ask()).output == "fine"
                assert at.clock.monotonic() - began <= 0.051
                await at.clock.sleep(0.2)
        assert cache.asked <= 5
        assert "the response cache failed 3 times in a row and is tried every 10 s" in caplog.text
        asked = cache.asked
        await at.clock.sleep(20.0)
        await at.ask()
        assert cache.asked > asked, "it is asked again after a while"


async def test_a_similar_question_is_a_hit_and_its_span_says_why() -> None:
    places = Places({LOG_IN: 0.0, SIMILAR: 0.1, "How do I sign in?": 1.0, "How do I log in to 2?": 0.1})
    at = shop(settings={"embedder": places})
    first = await at.ask(LOG_IN, NEAR)
    hit = await at.ask(SIMILAR, NEAR)
    assert (hit.output, hit.routing.cache_hit, at.calls) == (first.output, True, 1)
    span = span_of(hit)
    assert (span.mode, span.similarity, span.entry_trace_id) == (
        "semantic",
        round(float(np.cos(0.1)), 4),
        first.trace_id,
    )
    assert "similarity=0.995" in hit.headers["X-Routewright-Cache"]
    far = await at.ask("How do I sign in?", NEAR)
    assert (far.routing.cache_hit, span_of(far).similarity, span_of(far).refused_by) == (False, 0.5403, None)
    guarded = await at.ask("How do I log in to 2?", NEAR)
    assert (guarded.routing.cache_hit, span_of(guarded).refused_by) == (False, "numbers")


async def test_images_and_tools_are_only_found_by_the_same_request() -> None:
    places = Places()
    at = shop(settings={"embedder": places})
    await at.ask("One?", NEAR, tools=[Tool(function=FunctionSpec("f"))])
    await at.ask("Two?", NEAR, tools=[Tool(function=FunctionSpec("f"))])
    assert (places.asked, at.calls) == (0, 2)


async def test_an_embedder_that_fails_makes_misses_and_rests() -> None:
    places = Places(failing=True)
    at = shop(settings={"embedder": places})
    for number in range(10):
        await at.ask(f"Question {number}?", NEAR)
    assert (places.asked, at.calls) == (3, 10)
    assert (await at.ask("Question 1?", NEAR)).routing.cache_hit, "the exact tier still works"


class Judged:
    """A comparator that has to be awaited."""

    def __init__(self, said: bool | None) -> None:
        self.said, self.asked = said, list[tuple[str, str, str]]()

    async def compare(self, question: str, cached: str, live: str) -> bool | None:
        self.asked.append((question, cached, live))
        return self.said


async def test_the_judge_is_a_call_of_the_same_caller_within_its_budget() -> None:
    at = shop(settings={"embedder": Places(), "judge_usd_a_day": 1.0})
    async with at.router:
        await at.explore()
        await at.clock.sleep(1.0)
        assert at.calls == 3
        assert "answer 1" in str(at.provider.calls[2].messages[-1].content)
        tagged = await at.router.traces.query(filter="metadata.routewright=cache_judge")
        assert len(tagged.data) == 1


async def test_poor_feedback_removes_the_entry_that_was_served_and_the_one_that_was_made() -> None:
    at = shop()
    await at.ask()
    hit = await at.ask()
    await at.router.feedback(hit.trace_id, 0.9)
    assert (await at.ask()).routing.cache_hit
    await at.router.feedback((await at.ask()).trace_id, 0.1)
    made = await at.ask()
    assert not made.routing.cache_hit
    await at.router.feedback(made.trace_id, 0.0)
    assert not (await at.ask()).routing.cache_hit


async def test_deleting_everything_of_an_account_deletes_its_answers() -> None:
    at = shop()
    await at.ask(caller=Caller("a"))
    await at.ask(caller=Caller("b"))
    await at.router.traces.delete(everything=True, account="a")
    assert not (await at.ask(caller=Caller("a"))).routing.cache_hit
    assert (await at.ask(caller=Caller("b"))).routing.cache_hit


async def test_entries_are_removed_by_what_they_have_in_common() -> None:
    at = shop()
    first = await at.ask("One?", metadata={"team": "a"})
    await at.ask("Two?", CacheOpts(mode="exact", namespace="n"))
    await at.clock.sleep(10.0)
    await at.ask("Three?")
    assert await at.router.as_caller(Caller("other")).cache.invalidate(everything=True) == 0
    assert await at.router.cache.invalidate(metadata=("team", "b")) == 0
    assert await at.router.cache.invalidate(key=span_of(first).key) == 1
    assert await at.router.cache.invalidate(older_than_s=5.0) == 1
    explained = await at.router.cache.explain("Three?", cache=EXACT)
    assert await at.router.cache.invalidate(partition=explained.partition) == 1
    assert (await at.router.cache.stats()).entries == 0
    wrong: dict[str, dict[str, Any]] = {
        "nothing is selected; pass a selector, or everything=True": {},
        "cannot be combined with other selectors": {"everything": True, "namespace": "n"},
        "hexadecimal": {"key": "abc"},
    }
    for said, selection in wrong.items():
        with pytest.raises(ValidationFailed, match=said):
            await at.router.cache.invalidate(**selection)


async def test_explain_says_what_would_happen_and_changes_nothing() -> None:
    at = shop(settings={"embedder": Places()})
    assert (await at.router.cache.explain("Why?")).reason.startswith("a miss: no similar question")
    await at.ask(LOG_IN, NEAR)
    told = await at.router.cache.explain(SIMILAR, cache=NEAR)
    assert told.near[0].question == LOG_IN
    assert told.near[0].serve == 0.98
    assert told.reason.startswith("a hit in 98% of cases")
    assert (await at.router.cache.explain(LOG_IN, cache=NEAR)).exact_age_s == 0.0
    assert at.calls == 1


async def test_a_young_cache_explains_that_it_still_learns() -> None:
    at = shop(settings={"embedder": Places()})
    await at.ask(LOG_IN, NEAR)
    for options in (True, CacheOpts(max_error=0.5)):
        explained = await at.router.cache.explain(SIMILAR, cache=options)
        assert explained.near[0].serve == 0.0
        assert explained.reason.endswith(
            "cache has seen 1 requests, and until about 100 it answers nearly all live, to learn how "
            "often similar questions have other answers"
        )
    explained = await at.router.cache.explain(SIMILAR, cache=CacheOpts(max_error=0.0))
    assert explained.reason.endswith(": all such answers would exceed max_error=0")


@pytest.mark.parametrize(
    ("asked", "guard"),
    [
        ("How do I delete my password?", "opposites"),
        ("How do I not reset my password?", "negation"),
        ("How do I reset 2 passwords?", "numbers"),
        ("How do I reset the password of Anna?", "names"),
    ],
)
async def test_with_a_threshold_the_guards_apply_as_well(asked: str, guard: str) -> None:
    router = Router.sandbox()
    near = CacheOpts(threshold=0.0, explore=0)
    await router.route("How do I reset my password?", cache=near)
    assert (await router.cache.explain(asked, cache=near)).reason.endswith(f"is nearest, but differs in {guard}")
    assert not (await router.route(asked, cache=near)).routing.cache_hit
    assert (await router.route("How can I reset my password?", cache=near)).routing.cache_hit


async def test_too_few_hits_are_an_event_once_an_hour() -> None:
    storage = MemoryStorage()
    at = shop(storage=storage)
    for number in range(150):
        await at.ask(f"Question {number}?")
    await at.clock.sleep(3600.0)
    for number in range(150):
        await at.ask(f"Question {number}?")
    await at.router.flush()
    (event,) = await storage.scan("default", Events(), after=None, limit=10)
    assert event.type == "cache.evicted"
    assert event.data == {"window_seconds": 3600, "hit_rate": 0.0, "threshold": 0.05}
    assert event.environment == "production"


async def test_a_cached_answer_that_present_guardrails_change_is_not_served() -> None:
    cache = MemoryCache()
    one = shop("write to a@b.example", cache=cache)
    await one.ask()
    other = shop("nothing", cache=cache, guardrails=[PatternGuardrail("email", stages=["output"])])
    assert (await other.ask()).output == "nothing"


async def test_an_output_type_is_read_from_a_cached_answer() -> None:
    at = shop('{"a": 1}')
    for _ in range(2):
        answer: Any = await at.router.route("Give a", output_type=dict[str, int], cache=EXACT)
        assert answer.data == {"a": 1}
    assert at.calls == 1


async def test_steps_need_no_call_on_a_cache_hit() -> None:
    at = shop()
    await at.ask()
    with at.router.steps("Why?", cache=EXACT) as steps:
        assert isinstance(steps.next(), StepDone)
    assert steps.result.routing.cache_hit


async def test_a_trace_of_a_hit_replays_its_decision() -> None:
    at = shop()
    await at.ask()
    hit = await at.ask()
    assert at.router.replay(hit).model == "good/one"
    with pytest.raises(NotFound):
        await at.router.trace("tr_" + "0" * 26)
    stored = await at.router.trace(hit.trace_id)
    assert (stored.cache_hit, stored.spans) == (True, hit.trace.spans)


async def test_an_object_without_the_cache_protocol_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="is not a cache"):
        Router.sandbox(cache="memory:")  # type: ignore[arg-type]
    with pytest.raises(ValidationFailed, match="embedder"):
        CacheSettings(embedder="minilm")  # type: ignore[arg-type]
    assert RouteRequest([]).cache is None


class Dawdling:
    """A cache in memory that takes its time, and an embedder that does."""

    name = "dawdling"

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.kept, self.places = clock, MemoryCache(clock=clock), Places()

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        await self.clock.sleep(0.01)
        return await self.kept.get(key, now)

    async def nearest(self, partition: bytes, vector: Any, now: float, limit: int) -> Sequence[CacheMatch]:
        await self.clock.sleep(0.01)
        return await self.kept.nearest(partition, vector, now, limit)

    async def put(self, entry: CacheEntry) -> None:
        await self.clock.sleep(0.01)
        await self.kept.put(entry)

    async def remove(self, which: CacheSelection) -> int:
        return await self.kept.remove(which)

    async def stats(self, account: str | None, now: float) -> CacheStats:
        return await self.kept.stats(account, now)

    async def aclose(self) -> None: ...

    async def embed(self, text: str) -> Any:
        await self.clock.sleep(0.01)
        return self.places.embed(text)


@pytest.mark.parametrize("form", ["plain", "stream"])
@pytest.mark.parametrize("found", ["hit", "near", "miss", "waits"])
async def test_cancelled_at_any_await_a_look_up_holds_nothing(form: str, found: str) -> None:
    at, waited = 0, 1
    while waited >= at:
        at += 1
        bank = await Bank(*[[Pause(0.1), *ANSWER]] * 4, terms=[account(monthly_nanos=10**9, plan="free")]).open()
        slow = Dawdling(bank.clock)
        settings = Settings(clock=bank.clock, rng=Chance(), cache=CacheSettings(embedder=slow, judge_usd_a_day=0))
        router = Router(
            providers=[bank.good], catalogue=Catalogue(()), storage=bank.storage, cache=slow, settings=settings
        )
        kept = router.as_caller(ACME)
        question = SIMILAR if found == "near" else LOG_IN
        if found in ("hit", "near"):
            await kept.route(LOG_IN, cache=NEAR, params=CAP)
            await bank.clock.sleep(1.0)

        async def ask(router: Router = kept, question: str = question) -> None:
            if form == "plain":
                await router.route(question, cache=NEAR, params=CAP, idempotency_key="k")
                return
            async with router.stream(question, cache=NEAR, params=CAP, idempotency_key="k") as stream:
                async for _ in stream:
                    pass

        async with anyio.create_task_group() as group:
            if found == "waits":
                group.start_soon(partial(kept.route, question, cache=NEAR, params=CAP))
                await bank.clock.sleep(0.05)
            with anyio.CancelScope() as scope:
                awaited = CancelAt(ask(), at, scope)
                await awaited
            waited = awaited.waited
        await bank.clock.sleep(2.0)
        assert router.engine.caching._flights == {}, at
        assert (await bank.purse())[2] == 0, at
        again = await kept.route(question, cache=NEAR, params=CAP)
        assert again.output == "an answer", at
        assert (await bank.purse())[2] == 0, at
        await router.aclose()
    assert at >= 2, "it was cancelled, indeed"


class Odd:
    """A comparator that gives or raises what a test says."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def compare(self, question: str, cached: str, live: str) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize("given", [np.bool_(True), 1, "yes", [0], np.zeros(2)], ids=repr)
async def test_no_result_of_a_comparator_fails_a_call(given: Any) -> None:
    places = Places({f"How do I log in {'really ' * place}?": 0.1 * place for place in range(6)})
    at = shop(settings={"embedder": places, "comparators": (Odd(given),)})
    for question in places.at:
        assert (await at.ask(question, CacheOpts(threshold=0.999))).output
    assert not at.router.engine.log.under_way


async def test_cached_tool_calls_are_served_only_in_mode_exact() -> None:
    at = shop([ToolDelta(0, '{"a": 1}', "call_1", "f"), Usage(1, 1), Finish("tool_calls")])
    tools = [Tool(function=FunctionSpec("f"))]
    first = await at.ask(tools=tools)
    assert not (await at.ask(cache=True, tools=tools)).routing.cache_hit
    again = await at.ask(tools=tools)
    assert again.routing.cache_hit
    assert again.tool_calls == first.tool_calls
    assert again.finish_reason == "tool_calls"


async def test_an_unread_stream_delays_no_call_past_its_own_deadline() -> None:
    at = shop()
    stream = at.router.stream("Why?", cache=EXACT, timeout_ms=1_000)
    await anext(stream)
    await at.clock.sleep(0.5)
    began = at.clock.monotonic()
    await at.ask(timeout_ms=10_000)
    assert at.clock.monotonic() - began <= 0.6
    assert (await at.ask()).routing.cache_hit
    await stream.aclose()


async def test_an_entry_removed_while_it_is_made_is_not_kept() -> None:
    at = shop(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(at.ask)
        await at.clock.sleep(1.0)
        await at.router.cache.invalidate(everything=True)
    assert (await at.router.cache.stats()).entries == 0


async def test_feedback_may_change_its_mind() -> None:
    at = shop()
    await at.ask()
    hit = await at.ask()
    await at.router.feedback(hit.trace_id, 1.0)
    await at.router.feedback(hit.trace_id, 0.0)
    assert not (await at.ask()).routing.cache_hit


@pytest.mark.parametrize("form", ["plain", "stream"])
async def test_cancelled_at_any_await_a_refusal_delays_no_call(form: str) -> None:
    at, waited = 0, 1
    while waited >= at:
        at += 1
        bank = await Bank([*ANSWER], terms=[account(monthly_nanos=10)]).open()
        slow = Dawdling(bank.clock)
        settings = Settings(clock=bank.clock, rng=Chance(), cache=CacheSettings(embedder=slow, judge_usd_a_day=0))
        router = Router(
            providers=[bank.good], catalogue=Catalogue(()), storage=bank.storage, cache=slow, settings=settings
        ).as_caller(ACME)

        async def begin(router: Router = router) -> None:
            if form == "plain":
                await router.route("Why?", cache=EXACT)
            else:
                async with router.stream("Why?", cache=EXACT) as stream:
                    await anext(stream)

        async def ask(begin: Any = begin) -> None:
            with pytest.raises(QuotaExhausted):
                await begin()

        with anyio.CancelScope() as scope:
            awaited = CancelAt(ask(), at, scope)
            await awaited
        waited = awaited.waited
        assert router.engine.caching._flights == {}, at
        await router.aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        {"older_than_s": -1},
        {"older_than_s": "x"},
        {"older_than_s": float("nan")},
        {"everything": "no"},
        {"metadata": {"team": "a"}},
        {"metadata": ("a",)},
        {"namespace": 5},
    ],
    ids=str,
)
async def test_an_odd_selection_is_refused_and_removes_nothing(wrong: dict[str, Any]) -> None:
    at = shop()
    await at.ask()
    with pytest.raises(ValidationFailed):
        await at.router.cache.invalidate(**wrong)
    assert (await at.router.cache.stats()).entries == 1


async def test_a_number_of_any_size_makes_a_key() -> None:
    at = shop()
    for number in (2**70, 2**70 + 1, -(2**70)):
        params = Params(
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"max": number}}}
        )
        assert not (await at.ask(params=params)).routing.cache_hit
        assert (await at.ask(params=params)).routing.cache_hit


async def test_the_same_words_are_a_hit_at_once() -> None:
    at = shop()
    await at.ask(LOG_IN, True)
    hit = await at.ask("how do I log in", True)
    assert (hit.routing.cache_hit, span_of(hit).mode, span_of(hit).risk) == (True, "semantic", 0.0)
    assert "same words" in span_of(hit).compared
    assert not (await at.ask("how do I log in", CacheOpts(max_error=0.0))).routing.cache_hit
    assert not (await at.ask("how do i log in", True)).routing.cache_hit
    assert not (await at.ask("How do I log out?", True)).routing.cache_hit


async def test_the_judge_is_not_asked_in_the_sandbox() -> None:
    places = Places()
    asked = list[Any]()
    clock = FakeClock()
    settings = Settings(clock=clock, rng=Chance(), cache=CacheSettings(embedder=places))

    def answer(call: Any) -> str:
        asked.append(call)
        return "words"

    router = Router.sandbox(answers=answer, settings=settings)
    async with router:
        for question in places.at:
            await router.route(question, cache=True)
        await clock.sleep(1.0)
    assert len(asked) == 2


async def test_feedback_in_another_process_lowers_the_confidence_in_an_entry() -> None:
    places, storage, cache = Places(), MemoryStorage(), MemoryCache()
    one, other = (shop(storage=storage, cache=cache, settings={"embedder": places}) for _ in range(2))
    await one.ask(LOG_IN, NEAR)
    hit = await one.ask(SIMILAR, NEAR)
    assert hit.routing.cache_hit
    await one.router.flush()
    await other.router.feedback(hit.trace_id, 0.0)
    assert (await cache.stats("default", one.clock.time())).entries == 0
    (space,) = other.router._parts.caching.calibrations._spaces.values()
    assert [(seen.right, seen.weight) for seen in space.calibration._observations] == [(False, 1.0)]


def test_code_without_await_reaches_the_cache_through_the_blocking_router() -> None:
    with Router.sandbox().blocking as router:
        router.route("Why?", cache=True)
        assert router.cache.stats().entries == 1
        assert router.cache.invalidate(everything=True) == 1


def slow_shop(answer: Any = None, **settings: Any) -> Shop:
    """With a cache that takes ten milliseconds."""
    return shop(answer, cache=Dawdling(FakeClock()), settings=settings)


async def test_an_entry_removed_by_trace_id_before_it_is_kept_is_never_served() -> None:
    at = slow_shop()
    async with at.router:
        made = await at.ask()
        await at.router.cache.invalidate(trace_id=made.trace_id)
        assert not (await at.ask()).routing.cache_hit
        await at.clock.sleep(1.0)
        poor = await at.ask("Else?")
        await at.router.feedback(poor.trace_id, 0.0)
        await at.clock.sleep(1.0)
        assert not (await at.ask("Else?")).routing.cache_hit


async def test_a_removal_of_others_spares_entries_that_are_being_kept() -> None:
    at = slow_shop()
    async with at.router:
        made = await at.ask(metadata={"team": "a"})
        for others in ({"namespace": "n"}, {"metadata": ("team", "b")}, {"older_than_s": 60.0}):
            await at.router.cache.invalidate(**others)
        await at.router.as_caller(Caller(environment="sandbox")).cache.invalidate(everything=True)
        await at.clock.sleep(1.0)
        assert (await at.ask()).output == made.output


class Hanging:
    """An embedder that never answers."""

    name = "hanging"

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.asked = clock, 0

    async def embed(self, text: str) -> Any:
        self.asked += 1
        await self.clock.sleep(1e9)


async def test_an_embedder_takes_at_most_half_of_a_calls_time() -> None:
    embedder = Hanging(FakeClock())
    at = shop(settings={"embedder": embedder})
    for number in range(4):
        began = at.clock.monotonic()
        assert (await at.ask(f"Question {number}?", True, timeout_ms=200)).output
        assert at.clock.monotonic() - began == pytest.approx(0.1)
    for number in range(4):
        await at.ask(f"Other question {number}?", True)
    assert embedder.asked == 4 + 3, "only those that gave it its own second count as its faults"


async def test_a_cache_takes_at_most_half_of_a_calls_time() -> None:
    cache = Faulty(FakeClock(), slow_s=10.0)
    at = shop(cache=cache)
    began = at.clock.monotonic()
    assert (await at.ask(timeout_ms=40)).output
    assert at.clock.monotonic() - began == pytest.approx(0.02)


class SlowSearch(Dawdling):
    """A cache whose searches take a minute."""

    is_starting = False
    searches = 0

    async def nearest(self, partition: bytes, vector: Any, now: float, limit: int) -> Sequence[CacheMatch]:
        self.searches += 1
        await self.clock.sleep(60.0)
        return []


@pytest.mark.parametrize("is_starting", [False, True])
async def test_slow_searches_rest_while_equal_requests_are_found(is_starting: bool) -> None:
    cache = SlowSearch(FakeClock())
    cache.is_starting = is_starting
    at = shop(cache=cache)
    async with at.router:
        for number in range(5):
            await at.ask(f"Question {number}?", True)
        await at.clock.sleep(1.0)
        assert (await at.ask("Question 0?", True)).routing.cache_hit
    assert cache.searches == (5 if is_starting else 3)


async def test_behind_an_unread_stream_one_call_is_made_and_the_next_are_hits() -> None:
    at: Shop = shop(lambda call: SLOW if len(at.provider.calls) > 1 else ["one ", "two ", *WHOLE])
    began, ends = 0.0, list[tuple[float, bool]]()

    async def ask() -> None:
        answer = await at.ask(timeout_ms=20_000)
        ends.append((round(at.clock.monotonic() - began), answer.routing.cache_hit))

    async with at.router.stream("Why?", cache=EXACT, timeout_ms=600_000) as stream:
        assert [type(await anext(stream)) for _ in "12"] == [RouteStarted, OutputDelta]
        began = at.clock.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await at.clock.sleep(12.0)  # after 10 s the first makes its own call, which takes 5 s
            group.start_soon(ask)
        await ask()
    assert ends == [(15, False), (15, True), (15, True)]
    assert at.router.engine.caching._overtaken == set()


async def test_a_removed_entry_is_not_kept_by_an_overtaken_call() -> None:
    pauses = iter([2, 1])
    at: Shop = shop(lambda call: [*[Delta("slow"), Pause(6.0)] * next(pauses), *WHOLE])
    async with anyio.create_task_group() as group:
        group.start_soon(at.ask)
        await at.clock.sleep(1.0)
        await at.ask(timeout_ms=18_000)  # until the tenth second the first call is waited for
        await at.router.cache.invalidate(everything=True)
    assert (at.calls, (await at.router.cache.stats()).entries) == (2, 0)


async def test_a_kept_entry_is_served_without_waiting_for_a_call_that_wants_a_younger_one() -> None:
    at: Shop = shop(lambda call: SLOW if len(at.provider.calls) > 1 else ["old", *WHOLE])
    await at.ask()
    await at.clock.sleep(60.0)
    async with anyio.create_task_group() as group:
        group.start_soon(at.ask, "Why?", CacheOpts(mode="exact", ttl_seconds=10))
        await at.clock.sleep(1.0)
        began = at.clock.monotonic()
        assert (await at.ask()).output == "old"
        assert at.clock.monotonic() == began


class Late:
    """A lock, before which something happens once."""

    def __init__(self, lock: Any, action: Any) -> None:
        self.lock, self._inner, self._action = self, lock, action

    def __enter__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


async def test_a_call_that_ends_as_another_starts_to_wait_is_not_waited_for() -> None:
    at = shop(SLOW)
    began, caching = at.clock.monotonic(), at.router.engine.caching
    async with anyio.create_task_group() as group:
        group.start_soon(at.ask)
        await at.clock.sleep(1.0)
        (flight,) = caching._flights.values()
        inner = caching.guard
        caching.guard = Late(inner.lock, lambda: flight.publish(None))  # type: ignore[assignment]
        await at.ask()
        assert at.clock.monotonic() - began == 6.0, "it made its own call at once"


@pytest.mark.parametrize("first", [Judged(None), Odd(None)], ids=["waits", "plain"])
async def test_if_a_comparator_has_no_verdict_the_next_is_asked(first: Any) -> None:
    last = Judged(True)
    at = shop(settings={"embedder": Places(), "comparators": (first, last)})
    async with at.router:
        await at.explore()
        await at.clock.sleep(1.0)
        assert len(last.asked) == 1
        (space,) = at.router.engine.caching.calibrations._spaces.values()
        assert [(seen.right, round(seen.weight)) for seen in space.calibration._observations] == [(True, 50)]


class Sharing(Dawdling):
    """A cache that shares observations, slowly, or fails to."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.rows, self.failing, self.closed = list[Observation](), False, False

    async def learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]:
        others = self.rows[after:]
        if self.failing:
            raise OSError("locked")
        self.rows += new
        await self.clock.sleep(0.5)
        return others, len(self.rows)

    async def aclose(self) -> None:
        self.closed = True


async def sharing_shop() -> tuple[Shop, Sharing]:
    """With three observations, of which none was shared."""
    cache = Sharing()
    places = Places({f"How do I log in {'really ' * place}?": 0.01 * place for place in range(4)})
    at = shop("the same", cache=cache, settings={"embedder": places})
    at.chance.next = 0.99
    for question in places.at:
        await at.ask(question, NEAR)
        await at.clock.sleep(1.0)
    return at, cache


async def test_observations_are_shared_once_despite_failures_and_delays() -> None:
    at, cache = await sharing_shop()
    async with at.router:
        caching = at.router.engine.caching
        (space,) = caching.calibrations._spaces.values()
        cache.failing = True
        await caching.calibrations._exchange(space)
        cache.failing = False
        async with anyio.create_task_group() as group:
            group.start_soon(caching.calibrations._exchange, space)
            group.start_soon(caching.calibrations._exchange, space)
        await caching.calibrations._exchange(space)
        assert len(cache.rows) == len(space.calibration._observations) == 3


async def test_observations_are_shared_before_the_cache_is_closed() -> None:
    at, cache = await sharing_shop()
    await at.router.aclose()
    assert (len(cache.rows), cache.closed) == (3, True)


async def test_a_comparator_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    places = Places({f"How do I log in {'really ' * place}?": 0.1 * place for place in range(6)})
    at = shop(settings={"embedder": places, "comparators": (Odd(OSError("no model")),)})
    with caplog.at_level(logging.WARNING):
        for question in places.at:
            await at.ask(question, CacheOpts(threshold=0.999))
            await at.clock.sleep(15.0)
    assert caplog.text.count("a comparator of answers failed") == 1
