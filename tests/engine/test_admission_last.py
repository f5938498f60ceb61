"""What a call leaves last is kept, or said aloud: after the close, in a child, beside odd storages; and none spins."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    Ledger,
    PreconditionFailed,
    ProviderFault,
    QuotaExhausted,
    RateLimits,
    RouterError,
    RouterTimeoutError,
    StorageUnavailable,
    UnsupportedWrite,
)
from routewright._core.moment import timestamp
from routewright._engine import retry_queue as retry_queues
from routewright._engine import trace_queue
from routewright.testing.provider import Pause
from routewright.wire import (
    Caller,
    ClaimByKey,
    ClaimKey,
    EndClaim,
    KeepLease,
    OutputDelta,
    PutAccount,
    PutEvent,
    Reserve,
    Settle,
    Stands,
    Take,
    TraceById,
    Write,
    Written,
)

from .test_admission import ACME, ANSWER, CAP, COST, Bank, account

pytestmark = pytest.mark.anyio
LIMIT = 10**9
TERMS = [account(monthly_nanos=LIMIT)]
SLOW = [Pause(5.0), *ANSWER]


class Odd:
    """A storage that makes one wait, and does ``before`` each batch and query."""

    def __init__(self, bank: Bank) -> None:
        self.kept, self.clock = bank.storage, bank.clock
        self.before: Callable[[Sequence[object]], Any] = lambda _: None
        self.stills: tuple[type, ...] = ()
        self.asked = 0
        bank.use(self)

    async def _pass(self, things: Sequence[object]) -> None:
        self.asked += 1
        self.before(things)
        if any(isinstance(each, self.stills) for each in things):
            await self.clock.sleep(100_000)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        await self._pass(writes)
        return await self.kept.apply(account, writes)

    async def read(self, account: str, query: Any) -> Any:
        await self._pass([query])
        return await self.kept.read(account, query)

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        return await self.kept.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        return await self.kept.sweep(now)

    async def aclose(self) -> None:
        pass


def refusing(error: Exception, *kinds: type) -> Callable[[Sequence[object]], None]:
    """Raise it where any of these is."""

    def refuse(things: Sequence[object]) -> None:
        if any(isinstance(each, kinds) for each in things):
            raise error

    return refuse


AWAY = refusing(StorageUnavailable("away"), Settle, EndClaim)


async def odd(*script: Any, terms: Sequence[Write] = (), **options: Any) -> tuple[Bank, Odd]:
    bank = await Bank(*script, terms=terms or TERMS, **options).open()
    return bank, Odd(bank)


async def began(bank: Bank) -> Any:
    """A stream that has brought its first words."""
    stream = bank.router.stream("hi", caller=ACME, params=CAP)
    async for event in stream:
        if isinstance(event, OutputDelta):
            break
    return stream


# --- after the close


async def test_a_stream_that_is_dropped_after_the_close_is_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    bank, _ = await odd(ANSWER)
    stream = await began(bank)
    await bank.router.aclose()
    with caplog.at_level(logging.ERROR):
        del stream
        gc.collect()
    assert "money is lost: call tr_" in caplog.text
    assert "of account acme" in caplog.text
    assert bank.router.trace_counts.unbilled == 1


async def test_a_stream_that_is_dropped_after_the_close_is_billed_where_nobody_has_to_wait() -> None:
    bank = await Bank(ANSWER, terms=TERMS).open()
    stream = await began(bank)
    await bank.router.aclose()
    del stream
    gc.collect()
    _, spent, reserved = await bank.purse()
    assert (spent > 0, reserved) == (True, 0)


async def test_a_bill_that_cannot_be_written_after_the_close_is_said_to_be_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank, storage = await odd(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.before = AWAY
    assert "money is lost: call tr_" in caplog.text
    assert (bank.router.trace_counts.unbilled, bank.router.trace_counts.waiting) == (1, 0)


async def test_after_the_close_a_storage_that_stands_still_holds_no_answer_longer_than_its_time() -> None:
    bank, storage = await odd(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, timeout_ms=10_000))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.stills = (Settle,)
    assert bank.clock.monotonic() < 11.0


async def test_a_call_whose_time_ends_after_the_close_leaves_its_bill_all_the_same() -> None:
    bank, storage = await odd(SLOW)
    apply = storage.apply

    async def slow(account: str, writes: Sequence[Write]) -> list[Written]:
        await bank.clock.sleep(0.1)
        return await apply(account, writes)

    async def call() -> None:
        with pytest.raises(RouterTimeoutError):
            await bank.route(timeout_ms=2_000)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.apply = slow  # type: ignore[method-assign]
    (row,) = await bank.rows()
    assert row.cost_range_nanos is not None
    assert (await bank.purse())[2] == 0
    assert bank.router.trace_counts.unbilled == 0


async def test_who_waits_for_a_key_whose_bill_is_given_up_at_the_close_may_go_on() -> None:
    bank, storage = await odd([Pause(1.0), *ANSWER], ANSWER)
    storage.before = AWAY
    took: list[float] = []

    async def call() -> None:
        with pytest.raises(RouterError):
            await bank.route(idempotency_key="k", timeout_ms=60_000)
        took.append(bank.clock.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k", timeout_ms=3_000))
        await bank.clock.sleep(0.5)
        group.start_soon(call)
        await bank.clock.sleep(5.0)
        await bank.router.aclose()
        storage.before = lambda _: None
    assert took[0] < 10.0


# --- what is kept of a call goes on, whatever fails


@pytest.mark.parametrize("plain", [True, False])
async def test_an_odd_fault_of_any_part_ends_no_renewing(plain: bool) -> None:
    bank, storage = await odd([Pause(100.0), *ANSWER])
    renewed: list[float] = []

    def apply(account: str, writes: Sequence[Write]) -> Any:
        if isinstance(writes[0], KeepLease):
            renewed.append(bank.clock.monotonic())
            if len(renewed) == 1:
                raise OSError("driver")
        return storage.kept.apply(account, writes)

    storage.apply = apply  # type: ignore[method-assign]
    owner = bank.router._parts.engine.admissions.leases
    if not plain:
        owner._keep_dropped = lambda: 1 / 0
    assert (await bank.route(timeout_ms=120_000)).output == "an answer"
    assert len(renewed) > 8


async def test_a_dropped_call_gives_back_what_it_held_whatever_becomes_of_its_trace() -> None:
    bank = await Bank(ANSWER, terms=TERMS).open()
    stream = await began(bank)
    records = bank.router._parts.engine.records

    def fails(*_: Any, **__: Any) -> Any:
        raise IndexError("while it is concluded")

    setattr(records, "conclude", fails)  # noqa: B010
    del stream
    gc.collect()
    with pytest.raises(IndexError):
        records.keep_dropped()
    await bank.clock.sleep(1.0)
    assert (await bank.purse())[2] == 0


async def test_a_storage_without_events_books_bills_and_keeps_traces_all_the_same() -> None:
    bank, storage = await odd([ProviderFault("auth")], spare=[ANSWER, ANSWER])
    storage.before = refusing(UnsupportedWrite("no events here"), PutEvent)
    with pytest.raises(RouterError):
        await bank.router.route("hi", budget={"maxCostUsd": 1e-9})  # of nobody, with an event
    await bank.router.flush()
    answer = await bank.route()
    assert answer.routing.selected_model == "spare/two"
    _, spent, reserved = await bank.purse()
    assert (spent, reserved) == (2 * COST, 0)
    found = await bank.storage.read("acme", TraceById(answer.trace_id, "production"))
    assert found is not None


@pytest.mark.parametrize("fault", ["odd", "away", "still"])
async def test_an_answer_is_told_again_though_its_trace_cannot_be_read(fault: str) -> None:
    bank, storage = await odd(ANSWER)
    first = await bank.route(idempotency_key="k")
    if fault == "still":
        storage.stills = (TraceById,)
    else:
        storage.before = refusing(OSError("driver") if fault == "odd" else StorageUnavailable("away"), TraceById)
    began_at = bank.clock.monotonic()
    again = await bank.route(idempotency_key="k")
    assert (again.output, again.trace_id) == (first.output, first.trace_id)
    assert bank.clock.monotonic() - began_at < 1.0


@pytest.mark.parametrize("error", [OSError("driver"), StorageUnavailable("away")])
async def test_who_has_no_account_goes_on_whatever_the_storage_raises(error: Exception) -> None:
    bank, storage = await odd(ANSWER, ANSWER)
    await bank.route(caller=Caller("guest"))
    storage.before = refusing(error, Stands)
    await bank.clock.sleep(5.0)
    assert (await bank.route(caller=Caller("guest"))).output == "an answer"


# --- what waits has an end


async def test_no_call_is_let_in_whose_bill_would_be_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_queue, "QUEUE", 3)
    bank, storage = await odd(*[ANSWER] * 6, terms=[account()])
    storage.before = AWAY
    for _ in range(3):
        await bank.route()
    with pytest.raises(StorageUnavailable, match="too many calls wait"):
        await bank.route()
    storage.before = lambda _: None
    await bank.router.flush()
    assert (await bank.route()).output == "an answer"


async def test_what_is_owed_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_queues, "MOST", 5)
    bank, storage = await odd(ANSWER)
    storage.before = refusing(StorageUnavailable("away"), Reserve, Settle)
    for _ in range(20):
        with pytest.raises(StorageUnavailable):
            await bank.route()
    assert len(bank.router._parts.engine.admissions.retry_queue._queue) <= 5
    storage.before = lambda _: None
    await bank.clock.sleep(10.0)
    assert (await bank.route()).output == "an answer"


async def test_a_storage_that_contradicts_itself_of_a_key_is_asked_within_the_time_of_a_call() -> None:
    bank, storage = await odd(ANSWER)

    async def apply(account: str, writes: Sequence[Write]) -> list[Written]:
        if isinstance(writes[0], ClaimKey):
            storage.asked += 1
            return [Written(created=False)]
        return await storage.kept.apply(account, writes)

    async def read(account: str, query: Any) -> Any:
        return None if isinstance(query, ClaimByKey) else await storage.kept.read(account, query)

    storage.apply, storage.read = apply, read  # type: ignore[method-assign]
    with pytest.raises(RouterError):
        await bank.route(idempotency_key="k", timeout_ms=1_000)
    assert bank.clock.monotonic() <= 1.001
    assert storage.asked < 1_100


async def test_a_storage_that_contradicts_itself_of_a_purse_is_asked_but_twice() -> None:
    bank, storage = await odd(ANSWER)
    month = {"level": "month", "name": f"month:{bank.month[:7]}", "limit_nanos": LIMIT, "spent_nanos": 0}
    full = PreconditionFailed("no room", detail={**month, "reserved_nanos": 0, "waits": False})
    storage.before = refusing(full, Reserve)
    with pytest.raises(RouterError):
        await bank.route()
    assert storage.asked < 20


# --- a part that never answers


async def test_a_settlement_that_is_never_answered_is_done_again_and_holds_no_others_up_for_long() -> None:
    bank, storage = await odd(*[ANSWER] * 9)
    await bank.storage.apply("other", [PutAccount(replace(account(monthly_nanos=LIMIT).account, name="other"))])

    def hang(things: Sequence[object]) -> None:
        settles = any(isinstance(each, Settle) and each.rows for each in things)
        storage.stills = (Settle,) if settles else ()
        storage.before = (lambda _: setattr(storage, "stills", ())) if settles else hang

    storage.before = hang
    await bank.route(timeout_ms=2_000)
    began_at, took = bank.clock.monotonic(), []
    for _ in range(5):
        before = bank.clock.monotonic()
        await bank.route(caller=Caller("other"))
        took.append(bank.clock.monotonic() - before)
    assert sum(took) < 11.0, "the first waits until the other is given up"
    assert bank.clock.monotonic() - began_at < 11.0
    await bank.clock.sleep(5.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert bank.router.trace_counts.waiting == 0


async def test_what_is_owed_and_never_answered_is_done_again_and_holds_no_others_up_for_long() -> None:
    bank, storage = await odd([ProviderFault("connect")], ANSWER, terms=[account(monthly_nanos=LIMIT)])
    retry_queue = bank.router._parts.engine.admissions.retry_queue
    held = [("acme", "a"), ("acme", "b"), ("other", "c")]
    await bank.storage.apply("other", [PutAccount(replace(account(monthly_nanos=LIMIT).account, name="other"))])
    for name, call in held:
        asked = Reserve(id=call, nanos=9, owner="o", lease_s=600, clock_s=bank.clock.monotonic(), at=bank.month)
        await bank.storage.apply(name, [asked])

    def hang_once(things: Sequence[object]) -> None:
        if isinstance(things[0], Settle):
            storage.stills, storage.before = (Settle,), lambda _: setattr(storage, "stills", ())

    assert (await bank.storage.read("other", Stands(bank.month))).purses[-1].reserved_nanos == 9
    storage.before = hang_once
    for name, call in held:
        retry_queue.put(name, [Settle(id=call, at=bank.month)])
    await bank.clock.sleep(11.0)
    other = await bank.storage.read("other", Stands(bank.month))
    assert other.purses[-1].reserved_nanos == 0
    await bank.clock.sleep(30.0)
    assert (await bank.purse())[2] == 0


@pytest.mark.parametrize("which", ["storage", "coordination"])
async def test_a_renewal_that_is_never_answered_is_not_the_last(which: str) -> None:
    bank, storage = await odd([Pause(100.0), *ANSWER])
    asked: list[float] = []

    async def renew(owner: str) -> None:
        asked.append(bank.clock.monotonic())
        await bank.clock.sleep(100_000)

    def count(things: Sequence[object]) -> None:
        if isinstance(things[0], KeepLease):
            asked.append(bank.clock.monotonic())

    if which == "coordination":
        setattr(bank.coordination, "renew", renew)  # noqa: B010
    else:
        storage.before, storage.stills = count, (KeepLease,)
    await bank.route(timeout_ms=120_000)
    assert len(asked) > 5
    assert asked[1] - asked[0] < 20.0, "both are over, and the pause, before a lease is"


async def test_a_slow_storage_is_believed_of_an_account_that_was_set_up() -> None:
    bank, storage = await odd(*[ANSWER] * 9)
    guest = Caller("guest")
    await bank.route(caller=guest)
    await bank.storage.apply("guest", [PutAccount(replace(account(monthly_nanos=1).account, name="guest"))])
    read = storage.read

    async def slow(account: str, query: Any) -> Any:
        await bank.clock.sleep(0.4)
        return await read(account, query)

    storage.read = slow  # type: ignore[method-assign]
    await bank.clock.sleep(3.0)
    await bank.route(caller=guest)
    await bank.clock.sleep(0.5)
    with pytest.raises(QuotaExhausted):
        await bank.route(caller=guest)


class Slow:
    """A coordination that takes its time."""

    def __init__(self, bank: Bank, take_s: float, end_s: float) -> None:
        self._inner, self._clock = bank.coordination, bank.clock
        self._take_s, self._end_s = take_s, end_s

    async def take(self, takes: Sequence[Take], owner: str) -> Any:
        await self._clock.sleep(self._take_s)
        return await self._inner.take(takes, owner)

    async def end(self, taken: Any, tokens: int | None = None) -> None:
        await self._clock.sleep(self._end_s)
        await self._inner.end(taken, tokens)

    async def renew(self, owner: str) -> None:
        await self._inner.renew(owner)

    async def announce(self, notice: Any) -> None:
        pass

    async def hear(self, after: int | None) -> Any:
        return None  # no news of any kind

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(("take_s", "end_s"), [(0.2, 0.0), (100.0, 0.0), (0.0, 0.2), (0.0, 100.0), (0.04, 100.0)])
async def test_a_slow_coordination_holds_a_call_no_longer_than_its_time(take_s: float, end_s: float) -> None:
    bank = await Bank(ANSWER, terms=[account(limits=RateLimits(concurrency=1))]).open()
    bank.use(bank.storage, coordination=Slow(bank, take_s, end_s))
    with suppress(RouterTimeoutError):
        await bank.route(timeout_ms=50)
    assert bank.clock.monotonic() <= 0.0501


# --- a month


async def test_a_call_is_of_the_month_in_which_it_was_let_in_whatever_it_needs_later() -> None:
    cheap = [Pause(5.0), ProviderFault("server")]
    bank = await Bank(cheap, cheap, spare=[ANSWER], terms=[account(monthly_nanos=LIMIT)]).open()
    ends = datetime(2026, 2, 1, tzinfo=UTC).timestamp() - bank.clock.time()
    await bank.clock.sleep(ends - 1.0)
    await bank.route(fallback={"maxRetries": 0})
    assert timestamp(bank.clock.time()).startswith("2026-02")
    ledger = Ledger(bank.storage, clock=bank.clock).as_account("acme")
    for month, charged in (("2026-01", 2 * COST), ("2026-02", 0)):
        found = await bank.storage.read("acme", Stands(f"{month}-15T00:00:00.000Z"))
        assert found.purses[-1].spent_nanos == charged
        assert (await ledger.statement(month)).totals.charged_nanos == charged
    (row,) = [row for row in await bank.rows() if row.cost_nanos]
    assert row.at.startswith("2026-01")
