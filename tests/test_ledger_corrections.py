"""Corrections: the ledger, the traces and the analytics say the same after them, whoever makes them, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routewright import (
    Caller,
    Ledger,
    MemoryStorage,
    Router,
    Settings,
    SqliteStorage,
    TraceStore,
    Usage,
    ValidationFailed,
)
from routewright._core.money import nanos_of
from routewright.errors import NotFound, PreconditionFailed, StorageUnavailable
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.testing.provider import Turn
from routewright.wire import (
    Correct,
    DeleteTraces,
    Delta,
    Events,
    Finish,
    LedgerRow,
    LedgerRows,
    PutTrace,
    Tokens,
    Trace,
    Write,
    Written,
)
from tests.contracts.storage.samples import make_trace, model_span

from .billing import (
    BROKEN,
    COST,
    FAILS,
    NOON,
    SILENT,
    TOLD,
    Firm,
    attempts,
    check_identity,
    key,
    make_storage,
    skip_days,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    return make_storage(request.param, tmp_path, clock)


@pytest.fixture
async def firm(storage: Storage, clock: FakeClock) -> AsyncIterator[Firm]:
    firm = Firm(storage, clock)
    await firm.set_up(10**9, prepaid=True, monthly_nanos=10**9)
    yield firm
    await firm.close()


async def rows_of(firm: Firm, trace: Trace) -> list[LedgerRow]:
    return [row async for row in firm.ledger.rows(trace_id=trace.id)]


# What follows


async def test_a_correction_updates_ledger_trace_analytics_and_purses(firm: Firm) -> None:
    trace = await firm.call()
    row = await firm.ledger.correct(trace.id, 1, cost_usd=0.001, note="invoice of November")
    assert row is not None
    assert (row.kind, row.attempt, row.cost_nanos, row.charge_nanos) == ("correction", -1, 10**6 - COST, 10**6 - COST)
    first, second = await rows_of(firm, trace)
    assert (first.attempt, second) == (1, row)
    mended = await firm.traces.get(trace.id)
    assert (mended.cost_usd, mended.charged_usd, attempts(mended)[0].cost_usd) == (0.001, 0.001, 0.001)
    assert (await firm.traces.usage()).totals.cost_usd == 0.001
    assert await firm.purses() == {"account": 10**6, "month:2026-11": 10**6}
    assert (await firm.ledger.statement()).closing_nanos == 10**9 - 10**6
    await check_identity(firm)


async def test_a_correction_changes_nothing_else_in_the_trace(firm: Firm) -> None:
    trace = await firm.call(metadata={"team": "search"})
    await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    mended = await firm.traces.get(trace.id)
    changed = {name for name in Trace.__struct_fields__ if getattr(mended, name) != getattr(trace, name)}
    assert changed == {"cost_usd", "charged_usd", "spans"}


async def test_correcting_a_failed_call_adds_cost_but_no_charge(storage: Storage, clock: FakeClock) -> None:
    firm = await Firm(storage, clock, [BROKEN, FAILS], [FAILS, FAILS]).set_up(10**9, prepaid=True)
    trace = await firm.call()
    assert trace.status == "failed"
    row = await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert row is not None
    assert row.charge_nanos == 0
    assert (await firm.purses())["account"] == 0
    await check_identity(firm)
    await firm.close()


async def test_a_correction_counts_in_the_month_of_the_call(firm: Firm, clock: FakeClock) -> None:
    trace = await firm.call()
    skip_days(clock, 40)
    await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert await firm.purses() == {"account": 10**6, "month:2026-12": 0}
    clock._start -= 40 * 24 * 3600
    assert await firm.purses() == {"account": 10**6, "month:2026-11": 10**6}
    assert (await firm.ledger.statement("2026-11")).totals.charged_nanos == 10**6
    assert (await firm.ledger.statement("2026-12")).totals.charged_nanos == 0


async def test_a_correction_updates_the_purses_of_the_key(firm: Firm) -> None:
    await firm.storage.apply("acme", [key(monthly_nanos=10**9)])
    trace = await firm.call(Caller("acme", key_id="key_1"))
    row = await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert row is not None
    assert row.key_id == "key_1"
    assert set((await firm.purses(key_id="key_1")).values()) == {10**6}


async def test_a_correction_may_cross_a_threshold_of_the_month(storage: Storage, clock: FakeClock) -> None:
    firm = await Firm(storage, clock).set_up(monthly_nanos=2 * COST)
    trace = await firm.call()
    await firm.ledger.correct(trace.id, 1, cost_usd=1.7 * COST / 1e9)
    told = await storage.scan("acme", Events(), after=None, limit=9)
    assert sorted(event.data["threshold_percent"] for event in told) == [50, 80]
    await firm.close()


async def test_usage_is_priced_as_of_the_call(storage: Storage, clock: FakeClock) -> None:
    firm = await Firm(storage, clock, [SILENT]).set_up(10**9, prepaid=True)
    trace = await firm.call()
    (before,) = attempts(trace)
    assert before.usage_estimated
    assert trace.cost_range_usd is not None
    row = await firm.ledger.correct(trace.id, 1, usage=Usage(200, 30, cached=100))
    mended = await firm.traces.get(trace.id)
    (span,) = attempts(mended)
    cost = 100 * 1_000 + 100 * 100 + 30 * 4_000
    assert row is not None
    assert (nanos_of(span.cost_usd), span.tokens, mended.tokens) == (cost, *[Tokens(200, 30, 100)] * 2)
    assert (span.usage_estimated, span.cost_range_usd, mended.cost_range_usd) == (False, None, None)
    assert (await firm.traces.usage()).totals.tokens == Tokens(200, 30, 100)
    assert (await firm.ledger.statement()).uncertain == []
    await check_identity(firm)
    await firm.close()


async def test_a_given_cost_overrides_the_usage(firm: Firm) -> None:
    trace = await firm.call()
    row = await firm.ledger.correct(trace.id, 1, usage=Usage(99, 50), cost_usd=0.0003)
    assert row is not None
    assert (row.cost_nanos, row.tokens) == (0, Tokens(-1, 0, 0))


async def test_a_correction_keeps_the_rollup_keys(storage: Storage, clock: FakeClock) -> None:
    traces = TraceStore(storage, rollup_keys=["team"], clock=clock).as_account("acme")
    spans: list[Any] = [model_span("a/one", cost_usd=0.01)]
    given: dict[str, Any] = {"account": "acme", "selected_model": "a/one", "cost_usd": 0.01, "charged_usd": 0.01}
    await traces.record(make_trace(1, spans=spans, metadata={"team": "search", "tenant": "t"}, **given))
    await Ledger(storage, clock=clock).as_account("acme").correct(make_trace(1).id, 1, cost_usd=0.02)
    for group, value in (("metadata.team", "search"), ("tenant", "t"), ("model", "a/one")):
        report = await traces.usage("2026-11-21", "2026-11-21", group_by=group)
        assert [(row.group, row.cost_usd) for row in report.data] == [(value, 0.02)]
    await storage.aclose()


# Refused


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cost_usd": None}, r"^cost_usd: is missing, and so is usage; pass one of them, or both$"),
        ({"cost_usd": -0.01}, r"^cost_usd: must be a number from 0 to 1000000.0, got -0.01; give US dollars$"),
        ({"cost_usd": float("nan")}, "^cost_usd: must be a number"),
        ({"cost_usd": 2e6}, "^cost_usd: must be a number"),
        ({"cost_usd": True}, "^cost_usd: must be a number"),
        ({"cost_usd": "0.1"}, "^cost_usd: must be a number"),
        ({"usage": Usage(1, 1, cached=2)}, "^usage: does not add up"),
        ({"usage": Usage(100_000_001, 1)}, "^usage: has 100,000,001 tokens; no call has more than 100,000,000"),
        ({"usage": 7}, "^usage: must be"),
        ({"cost_usd": 1.0, "note": "x" * 501}, "^note: must be a string of at most 500 characters"),
        ({"cost_usd": 1.0, "note": "\ud800"}, "^note: must be a string"),
        ({"cost_usd": 1.0, "attempt": 0}, "^attempt: must be a whole number from 1 to 1000, got 0; as in its span$"),
        ({"cost_usd": 1.0, "attempt": True}, "^attempt: must be"),
        ({"cost_usd": 1.0, "attempt": "1"}, "^attempt: must be"),
        ({"cost_usd": 1.0, "account": "_system"}, "^account: "),
        ({"cost_usd": 1.0, "trace_id": 7}, "^trace_id: "),
    ],
)
async def test_invalid_corrections_are_refused(firm: Firm, asked: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"trace_id": "tr_1", "attempt": 1} | asked
    with pytest.raises(ValidationFailed, match=said):
        await firm.ledger.correct(**given)


async def test_a_missing_trace_or_attempt_is_refused(firm: Firm) -> None:
    trace = await firm.call()
    with pytest.raises(NotFound, match=f"the trace '{trace.id}' has no attempt 2; it has: 1"):
        await firm.ledger.correct(trace.id, 2, cost_usd=1.0)
    with pytest.raises(NotFound, match=f"^no trace '{trace.id}'$"):
        await firm.ledger.correct(trace.id, 1, cost_usd=1.0, account="other")
    await firm.traces.delete(trace_id=trace.id)
    with pytest.raises(NotFound, match=f"^no trace '{trace.id}'$"):
        await firm.ledger.correct(trace.id, 1, cost_usd=1.0)
    (row,) = await rows_of(firm, trace)
    assert row.kind == "attempt", "the ledger never changes alone"


async def test_a_sandbox_call_is_refused(clock: FakeClock) -> None:
    storage = MemoryStorage()
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock, rng=Random(7)))
    answer = await router.route("hi")
    with pytest.raises(
        ValidationFailed, match=r"^trace_id: '.*' is a sandbox call, which is not billed; pass a production call$"
    ):
        await Ledger(storage, clock=clock).correct(answer.trace_id, 1, cost_usd=1.0)
    await router.aclose()


async def test_usage_without_a_known_price_is_refused(storage: Storage, clock: FakeClock) -> None:
    ledger, spans = Ledger(storage, clock=clock), [model_span("a/one")]
    for decision_input in (None, make_trace(1).decision_input):
        await storage.apply("default", [PutTrace(make_trace(1, spans=spans, decision_input=decision_input))])
        with pytest.raises(
            ValidationFailed, match=r"^usage: cannot be priced: the price of 'a/one' on 2026-11-21 is no longer"
        ):
            await ledger.correct(make_trace(1).id, 1, usage=Usage(1, 1))
    await storage.aclose()


# Twice, and at the same time


async def test_repeating_a_correction_has_no_effect(firm: Firm) -> None:
    trace = await firm.call()
    assert await firm.ledger.correct(trace.id, 1, cost_usd=0.001, usage=Usage(90, 50)) is not None
    assert await firm.ledger.correct(trace.id, 1, cost_usd=0.001, usage=Usage(90, 50)) is None
    assert await firm.ledger.correct(trace.id, 1, cost_usd=0.001, note="again") is None
    assert len(await rows_of(firm, trace)) == 2


async def test_a_correction_can_be_corrected_and_reverted(firm: Firm) -> None:
    trace = await firm.call()
    for cost in (0.001, 0.0002, COST / 1e9):
        await firm.ledger.correct(trace.id, 1, cost_usd=cost)
        await check_identity(firm)
    rows = await rows_of(firm, trace)
    assert sorted(row.attempt for row in rows) == [-3, -2, -1, 1]
    assert sum(row.cost_nanos for row in rows) == COST
    assert await firm.traces.get(trace.id) == trace


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_concurrent_corrections_each_count_once(kind: str, tmp_path: Path, full: bool) -> None:
    path = tmp_path / "calls.db"
    storage: Any = MemoryStorage() if kind == "memory" else SqliteStorage(path)
    given: dict[str, Any] = {"account": "acme", "selected_model": "a/one", "cost_usd": 0.02, "charged_usd": 0.02}
    spans: list[Any] = [model_span("a/one", attempt=number, cost_usd=0.01) for number in (1, 2)]
    await storage.apply("acme", [PutTrace(make_trace(1, spans=spans, decision_input=None, **given))])
    others = [storage if kind == "memory" else SqliteStorage(path) for _ in range(4)]
    many = 40 if full else 4

    async def correct(number: int) -> None:
        ledger = Ledger(others[number % 4]).as_account("acme")
        await ledger.correct(make_trace(1).id, 1 + number % 2, cost_usd=0.02 + number / 1_000)

    async with anyio.create_task_group() as group:
        for number in range(many):
            group.start_soon(correct, number)
    trace = await TraceStore(storage).get(make_trace(1).id, account="acme")
    rows = await storage.scan("acme", LedgerRows(), after=None, limit=1_000)
    assert sorted(row.attempt for row in rows) == [*range(-many, 0)]
    assert 20_000_000 + sum(row.cost_nanos for row in rows) == nanos_of(trace.cost_usd)
    assert sum(nanos_of(span.cost_usd) for span in attempts(trace)) == nanos_of(trace.cost_usd)
    usage = await TraceStore(storage).usage("2026-11-21", "2026-11-21", account="acme")
    assert usage.totals.cost_usd == trace.cost_usd
    for each in {storage, *others}:
        await each.aclose()


class Between(MemoryStorage):
    """Does something before the batch of a correction."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Sequence[Write] = ()

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if len(writes) > 1 and self.before:
            before, self.before = self.before, ()
            await super().apply(account, before)
        return await super().apply(account, writes)


async def test_a_correction_that_lost_a_race_is_tried_again(clock: FakeClock) -> None:
    storage = Between()
    firm = await Firm(storage, clock).set_up(10**9, prepaid=True)
    trace = await firm.call()
    other = LedgerRow(request_id=trace.id, attempt=-1, kind="correction", at=trace.created_at, cost_nanos=5)
    storage.before = [Correct(row=other, after=1)]
    row = await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert row is not None
    assert row.attempt == -2
    await firm.close()


async def test_a_correction_that_always_loses_gives_up_and_changes_nothing(clock: FakeClock) -> None:
    class Busy(Between):
        async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
            if any(isinstance(write, Correct) for write in writes):
                raise PreconditionFailed("others were faster")
            return await super().apply(account, writes)

    firm = await Firm(Busy(), clock).set_up(10**9, prepaid=True)
    trace = await firm.call()
    with pytest.raises(StorageUnavailable, match=f"the call '{trace.id}' was not changed"):
        await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert await firm.traces.get(trace.id) == trace
    assert len(await rows_of(firm, trace)) == 1
    await check_identity(firm)
    await firm.close()


async def test_a_trace_deleted_meanwhile_stays_deleted(clock: FakeClock) -> None:
    storage = Between()
    firm = await Firm(storage, clock).set_up(10**9, prepaid=True)
    trace = await firm.call()
    storage.before = [DeleteTraces(id=trace.id)]
    with pytest.raises(NotFound):
        await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert len(await rows_of(firm, trace)) == 1
    await firm.close()


async def test_a_refused_or_abandoned_correction_blocks_nothing(firm: Firm, clock: FakeClock) -> None:
    trace = await firm.call()
    started = clock.monotonic()
    with pytest.raises(NotFound):
        await firm.ledger.correct(trace.id, 9, cost_usd=0.001)
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await firm.ledger.correct(trace.id, 1, cost_usd=0.001)
    assert await firm.ledger.correct(trace.id, 1, cost_usd=0.002) is not None
    assert clock.monotonic() == started


class Slow:
    """Waits before and after whatever it writes."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        await checkpoint()
        written: list[Written] = await self._storage.apply(account, writes)
        await checkpoint()
        return written


async def test_a_cancelled_correction_is_done_completely_or_not_at_all(clock: FakeClock) -> None:
    firm = await Firm(MemoryStorage(), clock).set_up(10**9, prepaid=True)
    slow: Any = Slow(firm.storage)
    ledger, trace, booked = Ledger(slow, clock=clock).as_account("acme"), await firm.call(), set()
    for passes in range(12):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_after, passes, scope)
                await ledger.correct(trace.id, 1, cost_usd=(passes + 1) / 1_000)
        started = clock.monotonic()
        await firm.ledger.correct(trace.id, 1, cost_usd=0.5)
        assert clock.monotonic() == started, "the next need not wait"
        booked.add(len(await rows_of(firm, trace)))
        await check_identity(firm)
    assert len(booked) > 1, "some came to something"
    await firm.close()


async def _cancel_after(passes: int, scope: anyio.CancelScope) -> None:
    for _ in range(passes):
        await checkpoint()
    scope.cancel()


# Any history

TURNS: tuple[Turn, ...] = (TOLD, SILENT, BROKEN, FAILS, [Delta("cut")], [Delta("x" * 50), Finish("stop")])
COSTS = (0.0, 1e-9, 0.000123457, 0.0003, 0.25, 3.1)
USAGES = (None, None, Usage(1, 1), Usage(100, 50), Usage(500, 90, cached=300))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_after_any_history_all_books_agree_to_the_nano_dollar(kind: str, tmp_path: Path, full: bool) -> None:
    number = iter(range(10**9))

    @settings(max_examples=1_000 if full else 6, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(rng: Random) -> None:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        anyio.run(partial(_history, kind, folder, rng), backend=rng.choice(("asyncio", "trio")))

    check()


async def _history(kind: str, folder: Path, rng: Random) -> None:
    clock = FakeClock(NOON)
    skip_days(clock, rng.choice((0, 9.5 - 0.1 / (24 * 3600))))  # a tenth of a second before December
    storage = make_storage(kind, folder, clock)
    firm = Firm(storage, clock, lambda _: rng.choice(TURNS), lambda _: rng.choice(TURNS))
    await firm.set_up(10**11, prepaid=rng.random() < 0.5)
    traces: list[Trace] = []
    for _ in range(rng.randrange(2, 10)):
        if not traces or rng.random() < 0.5:
            traces.append(await firm.call())
            skip_days(clock, rng.choice((0, 0.4, 9)))
        else:
            await _correct_one(firm, rng, rng.choice(traces))
    await check_identity(firm)
    standing = await firm.purses()
    charged = sum([row.charge_nanos async for row in firm.ledger.rows()])
    assert standing["account"] == charged
    await firm.close()


async def _correct_one(firm: Firm, rng: Random, trace: Trace) -> None:
    spans = attempts(trace)
    if not spans:
        return
    usage, cost = rng.choice(USAGES), rng.choice((None, *COSTS))
    if usage is None and cost is None:
        cost = 0.5
    attempt = rng.choice(spans).attempt
    booked = await firm.ledger.correct(trace.id, attempt, cost_usd=cost, usage=usage)
    again = await firm.ledger.correct(trace.id, attempt, cost_usd=cost, usage=usage)
    assert again is None, f"twice is once: {booked}"
