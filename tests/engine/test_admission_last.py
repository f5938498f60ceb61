"""A call's last writes are kept or reported: after close, in a fork, and with unusual storages. Nothing spins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import Ledger, ProviderFault, RouterError
from routewright._core.timestamps import timestamp
from routewright._engine import trace_queue
from routewright.errors import QuotaExhausted, RouterTimeoutError, StorageUnavailable, UnsupportedWrite
from routewright.protocols import Facts
from routewright.testing.provider import Pause
from routewright.wire import Ask, Caller, OutputDelta, Purse, PutAccount, PutEvent, Short, Stands, TraceById, Write

from .behind import Behind, Look
from .test_admission import ACME, ANSWER, CAP, COST, Bank, account

pytestmark = pytest.mark.anyio
LIMIT = 10**9
TERMS = [account(monthly_nanos=LIMIT)]
SLOW = [Pause(5.0), *ANSWER]


async def odd(*script: Any, terms: Sequence[Write] = (), **options: Any) -> tuple[Bank, Behind]:
    bank = await Bank(*script, terms=terms or TERMS, **options).open()
    return bank, bank.behind()


async def began(bank: Bank) -> Any:
    """A stream that has brought its first words."""
    stream = bank.router.stream("hi", caller=ACME, params=CAP)
    async for event in stream:
        if isinstance(event, OutputDelta):
            break
    return stream


# --- after the close


async def test_a_stream_dropped_after_the_close_is_logged_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    bank, _ = await odd(ANSWER)
    stream = await began(bank)
    await bank.router.aclose()
    with caplog.at_level(logging.ERROR):
        del stream
    assert "money is lost: call tr_" in caplog.text
    assert "of account acme" in caplog.text
    assert bank.router.trace_counts.unbilled == 1


async def test_a_stream_dropped_after_the_close_is_billed_by_an_immediate_storage() -> None:
    bank = await Bank(ANSWER, terms=TERMS).open()
    stream = await began(bank)
    await bank.router.aclose()
    del stream
    _, spent, reserved = await bank.purse()
    assert (spent > 0, reserved) == (True, 0)


async def test_a_bill_that_cannot_be_written_after_the_close_is_logged_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank, storage = await odd(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.away = (Facts,)
    assert "money is lost: call tr_" in caplog.text
    assert (bank.router.trace_counts.unbilled, bank.router.trace_counts.waiting) == (1, 0)


async def test_after_the_close_a_hanging_storage_delays_no_answer_past_its_deadline() -> None:
    bank, storage = await odd(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, timeout_ms=10_000))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.still = (Facts,)
    assert bank.clock.monotonic() < 11.0


async def test_a_call_that_times_out_after_the_close_is_billed() -> None:
    bank, storage = await odd(SLOW)

    async def call() -> None:
        with pytest.raises(RouterTimeoutError):
            await bank.route(timeout_ms=2_000)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.takes_s = 0.1
    (row,) = await bank.rows()
    assert row.cost_range_nanos is not None
    assert (await bank.purse())[2] == 0
    assert bank.router.trace_counts.unbilled == 0


async def test_a_call_waiting_for_a_key_goes_on_when_its_bill_is_given_up_at_the_close() -> None:
    bank, storage = await odd([Pause(1.0), *ANSWER], ANSWER)
    storage.away = (Facts,)
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
        storage.away = ()
    assert took[0] < 10.0


# --- what is kept of a call goes on, whatever fails


async def test_a_dropped_call_releases_its_hold_even_if_its_trace_is_refused() -> None:
    bank = await Bank(ANSWER, terms=TERMS).open()
    stream = await began(bank)
    records = bank.router._parts.engine.records

    def fails(*_: Any, **__: Any) -> Any:
        raise IndexError("while it is concluded")

    setattr(records, "conclude", fails)  # noqa: B010
    del stream
    with pytest.raises(IndexError):
        records.keep_dropped()
    await bank.clock.sleep(1.0)
    assert (await bank.purse())[2] == 0


async def test_a_storage_without_events_still_books_bills_and_keeps_traces() -> None:
    bank, storage = await odd([ProviderFault("auth")], spare=[ANSWER, ANSWER])
    storage.refuse(PutEvent, error=UnsupportedWrite("no events here"))
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
async def test_an_answer_is_replayed_even_if_its_trace_cannot_be_read(fault: str) -> None:
    bank, storage = await odd(ANSWER)
    first = await bank.route(idempotency_key="k")
    if fault == "still":
        storage.still = (TraceById,)
    else:
        storage.refuse(TraceById, error=OSError("driver") if fault == "odd" else StorageUnavailable("away"))
    began_at = bank.clock.monotonic()
    again = await bank.route(idempotency_key="k")
    assert (again.output, again.trace_id) == (first.output, first.trace_id)
    assert bank.clock.monotonic() - began_at < 1.0


@pytest.mark.parametrize("error", [OSError("driver"), StorageUnavailable("away")])
async def test_callers_without_an_account_are_served_whatever_the_storage_raises(error: Exception) -> None:
    bank, storage = await odd(ANSWER, ANSWER)
    await bank.route(caller=Caller("guest"))
    storage.refuse(Look, error=error)
    storage.forgets = True
    await bank.clock.sleep(5.0)
    assert (await bank.route(caller=Caller("guest"))).output == "an answer"


# --- what waits has an end


async def test_no_call_is_admitted_while_the_settlement_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_queue, "QUEUE", 3)
    bank, storage = await odd(*[ANSWER] * 6, terms=[account()])
    storage.away = (Facts,)
    for _ in range(3):
        await bank.route()
    with pytest.raises(StorageUnavailable, match="too many calls wait"):
        await bank.route()
    storage.away = ()
    await bank.router.flush()
    assert (await bank.route()).output == "an answer"


async def test_a_storage_that_contradicts_itself_is_asked_a_bounded_number_of_times() -> None:
    bank, storage = await odd(ANSWER)
    full = Short(Purse("month", f"month:{bank.month[:7]}", LIMIT), waits=False)
    storage.before = lambda thing: full if isinstance(thing, Ask) and thing.nanos else None
    with pytest.raises(RouterError):
        await bank.route()
    assert len(storage.asked) < 20


# --- a part that never answers


async def test_a_hanging_settlement_is_retried_and_delays_no_others_for_long() -> None:
    bank, storage = await odd(*[ANSWER] * 9)
    await bank.storage.apply("other", [PutAccount(replace(account(monthly_nanos=LIMIT).account, name="other"))])

    async def hang(thing: object) -> None:
        if isinstance(thing, Facts):
            storage.before = lambda _: None
            await bank.clock.sleep(100_000)

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


async def test_the_late_answer_of_a_slow_storage_about_an_account_is_used() -> None:
    bank, storage = await odd(*[ANSWER] * 9)
    guest = Caller("guest")
    await bank.route(caller=guest)
    await bank.storage.apply("guest", [PutAccount(replace(account(monthly_nanos=1).account, name="guest"))])
    storage.before, storage.forgets = (lambda _: bank.clock.sleep(0.4)), True
    await bank.clock.sleep(3.0)
    await bank.route(caller=guest)
    await bank.clock.sleep(0.5)
    with pytest.raises(QuotaExhausted):
        await bank.route(caller=guest)


# --- a month


async def test_a_call_belongs_to_the_month_of_its_admission() -> None:
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
