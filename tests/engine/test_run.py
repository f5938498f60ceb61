"""``Router.run``: the calls in a block have one purse, one slot and one trace, whoever makes them."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import routewright._engine.context as context_module
from routewright import (
    Agent,
    BudgetExceeded,
    Caller,
    Catalogue,
    Console,
    MemoryStorage,
    Pricing,
    ProviderFault,
    RateLimited,
    Router,
    RouterError,
    Settings,
    ValidationFailed,
    open_storage,
)
from routewright.errors import InsufficientBalance, PermissionDenied, QuotaExhausted, UpstreamFailed
from routewright.protocols import ToolContext
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Pause
from routewright.wire import (
    Account,
    Delta,
    Finish,
    LedgerRows,
    PutAccount,
    RateLimits,
    SubTraceSpan,
    ToolDelta,
    Trace,
    UpstreamCall,
    Usage,
)

from .scripted_router import on_one_loop, to_close
from .test_nested_calls import ACME, CAP, ONE, STEP, WAYS, many, route, router_of, stream, to_thread

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]


on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def slow_router(**options: Any) -> tuple[Router, FakeClock]:
    """Its calls take ten seconds of virtual time; those that say "bad" break off after one."""
    clock = FakeClock()

    def script(call: UpstreamCall) -> list[Any]:
        if call.messages[-1].content == "bad":
            return [Pause(1.0), Delta("do"), ProviderFault("server")]
        return [Pause(10.0), Delta("done"), Usage(5, 100), Finish("stop")]

    provider = ScriptedProvider(script, models=[ONE], clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(clock=clock), **options)
    to_close.append(router)
    return router, clock


async def trace_of(router: Router, run: Any) -> Trace:
    """The trace of a run, whose sum is that of its children."""
    trace = await router.trace(run.trace_id)
    children = [await router.trace(child) for child in trace.children]
    assert nanos(trace.cost_usd) == nanos(run.cost_usd) == sum(nanos(child.cost_usd) for child in children)
    return trace


def nanos(cost_usd: float) -> int:
    return round(cost_usd * 1e9)


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_call_in_the_block_is_in_its_budget_sum_and_tree(way: Any, limited: bool) -> None:
    storage = MemoryStorage()
    router = router_of(storage)
    if limited:
        terms = Account(name="acme", created_at="2026-01-01T00:00:00.000Z", limits=RateLimits(concurrency=1))
        await storage.apply("acme", [PutAccount(terms)])
        router = router.as_caller(ACME)
    async with router.run(total_budget_usd=1.0 if limited else None, metadata={"team": "x"}) as run:
        await way(router)
        left_usd = run.left_usd
    trace = await trace_of(router, run)
    assert (trace.kind, trace.status, trace.metadata) == ("agent", "completed", {"team": "x"})
    assert len(trace.children) == 1
    assert (await router.trace(trace.children[0])).metadata == {"team": "x"}
    assert nanos(run.cost_usd) == STEP
    assert left_usd == (1.0 - STEP / 1e9 if limited else None)
    if limited:
        rows = await storage.scan("acme", LedgerRows(), after=None, limit=10)
        assert sum(row.charge_nanos for row in rows) == STEP


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@on_one_loop
async def test_runs_of_every_storage_keep_within_their_budgets(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    storage = open_storage(urls.get(kind) or request.getfixturevalue("postgres"))
    async with router_of(storage) as router:
        with suppress(QuotaExhausted):
            async with router.run(total_budget_usd=0.0005) as run:
                await router.route("hi", params=CAP)
                with suppress(RouterError):
                    async with router.run(total_budget_usd=0.00025) as inner:
                        for _ in range(4):
                            await router.route("hi", params=CAP)
                for _ in range(4):
                    await router.route("hi", params=CAP)
        trace = await trace_of(router, run)
        assert (trace.status, nanos(trace.cost_usd)) == ("budget_exceeded", 4 * STEP)
        assert nanos((await trace_of(router, inner)).cost_usd) == 2 * STEP
        usage = await router.traces.usage()
        assert nanos(usage.totals.cost_usd) == 4 * STEP


@pytest.mark.parametrize("kind", ["production", "sandbox", "within"])
@pytest.mark.parametrize("way", [route, stream, many, to_thread], ids=lambda way: way.__name__)
async def test_calls_at_once_share_the_budget_and_never_exceed_it(kind: str, way: Any) -> None:
    router = router_of()
    if kind == "sandbox":
        router = Router.sandbox(settings=Settings(clock=FakeClock()))
        to_close.append(router)
    refused: list[str] = []

    async def call() -> None:
        try:
            await way(router)
        except (RouterError, AssertionError) as error:  # an assertion of ``many``
            refused.append(str(error))

    cap_usd = 0.00012 if kind == "sandbox" else 0.0015
    outer_usd = 0.5 if kind == "within" else cap_usd
    async with (
        router.run(total_budget_usd=outer_usd) as outer,
        router.run(total_budget_usd=cap_usd) as run,
        anyio.create_task_group() as group,
    ):
        for _ in range(50 if way is route else 10):
            group.start_soon(call)
    assert 0 < run.cost_usd <= cap_usd
    assert any("the run has " in message for message in refused), refused
    assert outer.cost_usd == run.cost_usd
    assert len((await trace_of(router, run)).children) >= 1


@on_both_loops
async def test_branches_share_a_budget_run_at_once_and_use_it_up() -> None:
    router, clock = slow_router()
    refused: list[RouterError] = []

    async def call() -> None:
        try:
            await router.route("hi", params=CAP)
        except RouterError as error:
            refused.append(error)

    async def branch() -> None:
        async with router.run(total_budget_usd=1.0), anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(call)

    async with (
        router.run(total_budget_usd=1.0),
        router.run(total_budget_usd=6.9 * STEP / 1e9) as run,
        anyio.create_task_group() as group,
    ):
        group.start_soon(branch)
        group.start_soon(branch)
    assert nanos(run.cost_usd) == 6 * STEP
    assert clock.monotonic() < 21, "at most two rounds"
    assert [(type(error), error.detail["level"]) for error in refused] == [(QuotaExhausted, "agent_run")] * 4


async def test_a_retry_does_not_spend_what_another_call_has_reserved() -> None:
    router, _ = slow_router()

    async def fail() -> None:
        with pytest.raises(UpstreamFailed):
            await router.route("bad", params=CAP)

    cap = int(3.5 * STEP)
    async with router.run(), router.run(total_budget_usd=cap / 1e9) as run, anyio.create_task_group() as group:
        group.start_soon(fail)
        group.start_soon(fail)
    assert 0 <= nanos(run.left_usd or 0.0) < cap - 3 * STEP


async def test_a_call_that_is_replayed_or_refused_holds_nothing() -> None:
    storage = MemoryStorage()
    terms = Account(name="acme", created_at="2026-01-01T00:00:00.000Z", monthly_nanos=STEP + 200_000)
    await storage.apply("acme", [PutAccount(terms)])
    router = router_of(storage).as_caller(ACME)
    async with router.run(), router.run(total_budget_usd=(STEP + 215_000) / 1e9) as run:
        for _ in range(3):
            await router.route("hi", params=CAP, idempotency_key="k")
            async with router.stream("hi", params=CAP, idempotency_key="k") as pieces:
                await anext(pieces)
        with pytest.raises(QuotaExhausted, match="this month"):
            await router.route("hi", params={"max_output_tokens": 200})
        await router.route("hi", params=CAP, timeout_ms=1_000)
    assert nanos(run.cost_usd) == 2 * STEP


async def test_calls_that_do_not_fit_are_refused_as_those_of_an_agent() -> None:
    router = router_of()
    refused: list[RouterError] = []
    async with router.run(total_budget_usd=0.0003):
        for _ in range(4):
            try:
                await router.route("hi", params=CAP)
            except RouterError as error:
                refused.append(error)
    assert [type(error) for error in refused] == [QuotaExhausted] * 2
    assert {error.detail["level"] for error in refused} == {"agent_run"}


async def test_an_agent_spends_at_most_what_the_run_around_it_has_left() -> None:
    router = router_of()
    async with router.run(total_budget_usd=0.0004) as run:
        await router.route("hi", params=CAP)
        agent = Agent(router, total_budget_usd=1.0, params=CAP)
        statuses = [(await agent.run("go")).status for _ in range(2)]
    assert statuses == ["completed", "budget_exceeded"]
    assert nanos(run.cost_usd) == 2 * STEP
    assert len((await trace_of(router, run)).children) == 3


class Wrong(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "completed", None),
        (Wrong(), "failed", "internal_error"),
        (RateLimited("slower"), "failed", "RATE_LIMITED"),
        (QuotaExhausted("spent"), "budget_exceeded", "quota_exhausted"),
        (ExceptionGroup("tasks", [Wrong(), InsufficientBalance("empty")]), "budget_exceeded", "internal_error"),
        (KeyboardInterrupt(), "cancelled", None),
    ],
    ids=repr,
)
async def test_what_leaves_the_block_is_the_status_of_the_run(error: Any, status: str, code: str | None) -> None:
    router = router_of()
    events: list[Any] = []
    router.on_event(events.append)
    with suppress(BaseException):
        async with router.run(metadata={"team": "x"}) as run:
            await route(router)
            if error is not None:
                raise error
    trace = await trace_of(router, run)
    assert (trace.status, trace.error, nanos(trace.cost_usd)) == (status, code, STEP)
    await router.flush()
    (event,) = [event.data for event in events if event.type == "agent.run_completed"]
    assert (event.trace_id, event.status) == (run.trace_id, "failed" if status == "cancelled" else status)
    assert (event.summary.total_steps, event.metadata) == (1, {"team": "x"})


@on_both_loops
async def test_a_cancelled_block_has_the_calls_that_were_cancelled_in_it() -> None:
    router, clock = slow_router()
    with anyio.CancelScope() as scope:
        async with router.run() as run, anyio.create_task_group() as group:
            group.start_soon(route, router)
            await clock.sleep(1.0)
            scope.cancel()
    trace = await trace_of(router, run)
    assert trace.status == "cancelled"
    (child,) = trace.children
    assert (await router.trace(child)).status == "cancelled"


async def test_a_stream_left_half_way_is_a_child_with_its_cost() -> None:
    router = router_of()
    async with router.run(total_budget_usd=0.1) as run, router.stream("hi", params=CAP) as pieces:
        await anext(pieces)
    assert len((await trace_of(router, run)).children) == 1
    assert run.cost_usd > 0


@on_both_loops
async def test_a_call_that_runs_on_is_charged_and_traced_but_no_child() -> None:
    router, clock = slow_router()
    answers: list[Any] = []

    async def late() -> None:
        answers.append(await router.route("hi"))

    async with anyio.create_task_group() as group, router.run(total_budget_usd=0.1) as outer:
        async with router.run(total_budget_usd=0.05) as inner:
            group.start_soon(late)
            await clock.sleep(1.0)
        await clock.sleep(20.0)
        group.start_soon(late)
        await clock.sleep(1.0)
    assert (await trace_of(router, inner)).children == []
    children = (await trace_of(router, outer)).children
    assert children == sorted([inner.trace_id, answers[0].trace_id]), "the run around has what the inner one left"
    assert nanos((await router.trace(answers[1].trace_id)).cost_usd) == STEP


async def test_a_call_after_the_block_is_a_call_of_its_own() -> None:
    router = router_of()
    async with router.run(total_budget_usd=0.0001) as run:
        context = contextvars.copy_context()
    await context.run(router.prepare, "hi").run()
    assert run.cost_usd == 0
    await router.route("hi")
    assert (await trace_of(router, run)).children == []


def test_plain_code_has_runs_too() -> None:
    router = router_of()

    def work() -> str:
        return router.blocking.route("hi").output

    with router.blocking.run(total_budget_usd=1.0, metadata={"team": "x"}) as run:
        router.blocking.route("hi")
        Agent(router, tools=[work]).blocking.run("go")
        threads = [threading.Thread(target=router.blocking.route, args=("hi",))]
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(router.blocking.route, "hi")))
        for thread in threads:
            thread.start()
            thread.join()
    trace = router.blocking.trace(run.trace_id)
    assert len(trace.children) == 3, "a thread without the context is not part of it"
    assert nanos(trace.cost_usd) == nanos(run.cost_usd) == 5 * STEP
    with pytest.raises(Wrong), router.blocking.run() as run:
        raise Wrong
    assert router.blocking.trace(run.trace_id).status == "failed"


async def test_calls_of_other_routers_and_accounts_are_not_part_of_it() -> None:
    router, other = router_of(), router_of()
    async with router.run(caller=ACME) as run:
        await other.route("hi")
        await router.route("hi", caller=Caller("other"))
        await router.as_caller(Caller("other")).route("hi")
        mine = await router.route("hi")
    assert mine.trace.account == "acme", "the run's caller is that of its calls"
    assert (await router.trace(run.trace_id, caller=ACME)).children == [mine.trace_id]


async def test_a_run_holds_one_slot_and_its_calls_none() -> None:
    storage = MemoryStorage()
    terms = Account(name="acme", created_at="2026-01-01T00:00:00.000Z", limits=RateLimits(concurrency=1))
    await storage.apply("acme", [PutAccount(terms)])
    router = router_of(storage).as_caller(ACME)

    def run_elsewhere() -> None:
        with router.blocking.run():
            pass

    async with router.run(), router.run(), anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(router.route, "hi")
        with pytest.raises(RateLimited):
            contextvars.Context().run(run_elsewhere)
    contextvars.Context().run(run_elsewhere)


async def test_a_key_needs_the_right_to_route_for_a_run_and_its_calls() -> None:
    storage = MemoryStorage()
    router = router_of(storage)
    console = Console(storage, secret="a secret that is long enough for one")
    await console.create_account("acme", plan="pro")
    routing, reading = [
        await console.authenticate(
            f"Bearer {(await console.create_key('acme', name='k', scopes=[scope])).secret.reveal()}"
        )
        for scope in ("route", "models:read")
    ]
    async with router.run(caller=routing) as run:
        await router.route("hi")
    assert nanos(run.cost_usd) == STEP
    with pytest.raises(PermissionDenied):
        async with router.run(caller=reading):
            pass


@on_both_loops
async def test_a_call_waits_for_money_that_others_hold_until_its_time_is_up() -> None:
    router, clock = slow_router()
    async with (
        router.run(total_budget_usd=1.0),
        router.run(total_budget_usd=0.0001 + STEP / 1e9) as run,
        anyio.create_task_group() as group,
    ):
        group.start_soon(partial(router.route, "hi", params=CAP))
        await clock.sleep(1.0)
        with pytest.raises(RateLimited) as refused:
            await router.route("hi", params=CAP, timeout_ms=2000)
        assert refused.value.detail["level"] == "agent_run"
        assert clock.monotonic() == pytest.approx(3.0, abs=0.5)
        with pytest.raises(RateLimited, match="does not wait"):
            router.steps("hi", params=CAP)
    assert nanos(run.cost_usd) == STEP


@pytest.mark.parametrize("outer_usd", [0.0009, 1.0])
async def test_the_tools_of_an_agent_within_it_count(outer_usd: float) -> None:
    router = router_of()

    async def work(context: Any) -> str:
        context.spent_usd = 0.0002
        return "worked"

    work.__annotations__["context"] = ToolContext
    with suppress(QuotaExhausted, BudgetExceeded):
        async with router.run(total_budget_usd=outer_usd), router.run(total_budget_usd=0.0009) as run:
            await Agent(router, tools=[work], params=CAP).run("go")
            assert nanos(run.cost_usd) == 2 * STEP + 200_000
            while True:
                await router.route("hi", params=CAP)
    assert nanos(run.cost_usd) == 6 * STEP + 200_000
    assert nanos(run.left_usd or 0) == 900_000 - 6 * STEP - 200_000
    await trace_of(router, run)


@pytest.mark.parametrize("is_within", [False, True])
async def test_tools_end_a_run_whose_models_cost_nothing(is_within: bool) -> None:
    free = replace(ONE, pricing_per_1m=Pricing(0.0, 0.0))
    provider = ScriptedProvider(
        lambda call: [ToolDelta(0, "{}", "call_1", "work"), Finish("tool_calls")], models=[free]
    )
    router = Router(providers=[provider], catalogue=Catalogue(()))
    to_close.append(router)

    async def work(context: Any) -> str:
        context.spent_usd = 0.0002
        return "worked"

    work.__annotations__["context"] = ToolContext
    async with router.run(total_budget_usd=0.0006 if is_within else None):
        agent = Agent(router, tools=[work], total_budget_usd=1.0 if is_within else 0.0006, max_steps=20)
        result = await agent.run("go")
    assert result.status == "budget_exceeded"
    assert nanos(result.summary.total_cost_usd) == 600_000
    assert result.error is not None
    assert result.error["message"].startswith(
        "the run has $0 left of its total_budget_usd of $0.0006; raise that limit"
    )


async def test_its_trace_lists_a_bounded_number_of_calls_and_sums_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "MOST_CALLS", 2)
    router = router_of()
    async with router.run() as run:
        for _ in range(3):
            await router.route("hi")
    trace = await router.trace(run.trace_id)
    assert (len(trace.children), nanos(trace.cost_usd)) == (2, 3 * STEP)


async def test_a_run_is_one_block_with_a_budget_that_is_a_number() -> None:
    router = router_of()
    async with router.run() as run:
        spans = [await router.route("hi") for _ in range(2)]
    trace = await router.trace(run.trace_id)
    starts = [span.start_ms for span in trace.spans if isinstance(span, SubTraceSpan)]
    assert starts == sorted(starts)
    assert trace.tokens.output == sum(answer.routing.tokens.output for answer in spans)
    with pytest.raises(RuntimeError, match="begun before"):
        async with run:
            pass
    with pytest.raises(ValidationFailed, match="total_budget_usd"):
        router.run(total_budget_usd=-1.0)
    with pytest.raises(ValidationFailed):
        router.run(metadata={"big": "x" * 20_000})


Node = tuple[str, int | None, list[Any]]
CAPS = st.none() | st.integers(0, 8 * STEP)
CALLS: st.SearchStrategy[Node] = st.tuples(st.just("call"), st.integers(1, 100), st.just([]))
AGENTS: st.SearchStrategy[Node] = st.tuples(st.just("agent"), CAPS, st.just([]))
NESTS: st.SearchStrategy[Node] = st.recursive(
    CALLS | AGENTS,
    lambda nodes: st.tuples(st.sampled_from(["run", "at once"]), CAPS, st.lists(nodes, max_size=5)),
    max_leaves=14,
)


@settings(max_examples=60)
@given(nests=st.lists(NESTS, min_size=1, max_size=4), cap=CAPS, sandbox=st.booleans())
@on_one_loop
async def test_no_nest_of_runs_agents_and_calls_exceeds_a_budget(
    nests: list[Node], cap: int | None, sandbox: bool
) -> None:
    def script(call: UpstreamCall) -> list[Any]:
        output = min(int(str(call.messages[-1].content)), 100)
        if output % 9 == 0:
            return [Pause(1.0), Delta("do"), ProviderFault("server")]
        return [Pause(output / 100), Delta("done"), Usage(5, output), Finish("stop")]

    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    provider = ScriptedProvider(script, models=[ONE], clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()), storage=storage, settings=Settings(clock=clock))
    terms = Account(name="acme", created_at="2026-01-01T00:00:00.000Z", limits=RateLimits(concurrency=1))
    await storage.apply("acme", [PutAccount(terms)])
    router = router.as_caller(Caller("acme", "sandbox" if sandbox else "production"))
    runs: list[tuple[Any, int | None]] = []

    async def perform(node: Node) -> None:
        kind, most, children = node
        cap_usd = None if most is None else most / 1e9
        with suppress(QuotaExhausted, BudgetExceeded, UpstreamFailed):
            if kind == "call":
                await router.route(str(most), params=CAP)
            elif kind == "agent":
                await Agent(router, params=CAP, total_budget_usd=cap_usd).run("50")
            else:
                async with router.run(total_budget_usd=cap_usd) as run:
                    runs.append((run, most))
                    async with anyio.create_task_group() as group:
                        for child in children:
                            if kind == "at once":
                                group.start_soon(perform, child)
                            else:
                                await perform(child)

    await perform(("run", cap, nests))
    for run, most in runs:
        assert most is None or nanos(run.cost_usd) <= most - nanos(run.left_usd or 0.0) <= most
        await trace_of(router, run)
    rows = await storage.scan("acme", LedgerRows(), after=None, limit=200)
    if not sandbox:
        assert sum(row.cost_nanos for row in rows) == nanos(runs[0][0].cost_usd)
    async with router.run():  # nothing holds the slot
        pass
    await router.aclose()


async def test_a_generator_that_is_dropped_in_a_run_leaves_nothing_behind() -> None:
    router = router_of()

    async def pieces() -> AsyncGenerator[str]:
        async with router.run(metadata={"customer": "acme"}):
            yield (await router.route("hi")).output
            yield "more"

    with suppress(StopAsyncIteration):
        await anext(pieces())  # dropped at once: the loop closes it in a task of its own
    await anyio.wait_all_tasks_blocked()
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert (await router.route("hi")).trace.metadata == {}


async def test_generators_that_are_dropped_do_not_pile_up() -> None:
    router = router_of()

    async def pieces() -> AsyncGenerator[None]:
        async with router.run(metadata={"a": 1}):
            yield

    for _ in range(50):
        await anext(pieces())
        await anyio.lowlevel.checkpoint()
    block = context_module.current_run()
    count = 0
    while block is not None:
        count += 1
        block = block.outer
    assert count < 25


async def test_a_run_stays_open_if_one_that_began_before_ends_first() -> None:
    router = router_of()
    runs: dict[str, Any] = {}

    async def branch(name: str) -> AsyncGenerator[None]:
        async with router.run(metadata={name: name}) as runs[name]:
            while True:
                yield
                await router.route("hi")

    first, second = branch("a"), branch("b")
    await anext(first)
    await anext(second)
    await first.aclose()
    await anext(second)
    await second.aclose()
    assert len((await trace_of(router, runs["b"])).children) == 1
    last = await router.route("hi")
    assert last.trace.metadata == {}
    assert nanos(runs["b"].cost_usd) == STEP


def test_a_run_that_is_entered_elsewhere_than_its_calls_are_made_warns(caplog: pytest.LogCaptureFixture) -> None:
    router = router_of()
    empty = router.blocking.run()
    with empty:
        pass
    assert caplog.records == []
    run = router.blocking.run()
    contextvars.copy_context().run(run.__enter__)  # as FastAPI does with plain generators
    router.blocking.route("hi")
    contextvars.copy_context().run(run.__exit__, None, None, None)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"no call was part of the run {run.trace_id}; ")


async def test_a_view_keeps_its_caller_inside_a_run_of_another() -> None:
    router = router_of()
    async with router.run(caller=ACME):
        mine = await router.as_caller(Caller()).route("hi")
        theirs = await router.route("hi")
    assert [mine.trace.account, theirs.trace.account] == [Caller().account, "acme"]


@pytest.mark.parametrize("is_within", [False, True])
async def test_a_call_fits_beside_a_stream_that_holds_money(is_within: bool) -> None:
    router, clock = slow_router()
    async with (
        router.run(),
        router.run(total_budget_usd=2.5 * STEP / 1e9) if is_within else router.run(total_budget_usd=0.01),
        router.stream("hi", params=CAP) as pieces,
    ):
        await anext(pieces)
        await router.route("hi", params=CAP)
    assert clock.monotonic() < 30


class OfFramework(Exception):
    """Raised by a framework, without a cause."""


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_run_that_a_framework_ends_for_a_refusal_has_exceeded_its_budget(goes_on: bool) -> None:
    router = router_of()
    with suppress(OfFramework):
        async with router.run(), router.run(total_budget_usd=0.00015) as run:
            await router.route("hi", params=CAP)
            with suppress(QuotaExhausted):
                await router.route("hi", params=CAP)
            if goes_on:
                await router.route("hi", params={"max_output_tokens": 10})
            raise OfFramework
    assert (await router.trace(run.trace_id)).status == ("failed" if goes_on else "budget_exceeded")


@pytest.mark.parametrize("kind", ["cache", "idempotency_key"])
async def test_an_answer_that_costs_nothing_needs_no_budget(kind: str) -> None:
    router = router_of()
    options: Any = {"cache": True} if kind == "cache" else {"idempotency_key": "k"}
    async with router.run(), router.run(total_budget_usd=0.00011) as run:
        first = await router.route("hi", params=CAP, **options)
        again = await router.route("hi", params=CAP, **options)
        with pytest.raises(QuotaExhausted):
            await router.route("other", params=CAP)
    assert again.output == first.output
    assert nanos(run.cost_usd) == STEP
