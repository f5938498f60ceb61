"""A call's last writes are booked or reported, whatever the storage does. Nothing waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import Pricing, ProviderFault, RouterError, SqliteStorage
from routewright._core.money import MOST_TOKENS
from routewright._engine import trace_writer
from routewright.errors import (
    InternalError,
    QuotaExhausted,
    RouterTimeoutError,
    StorageUnavailable,
    UnsupportedWrite,
    UpstreamFailed,
)
from routewright.protocols import Facts
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Pause
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Ask,
    Caller,
    OutputDelta,
    Purse,
    PutAccount,
    PutEvent,
    RateLimits,
    Replay,
    Short,
    SnapshotById,
    Stands,
    Tokens,
    TraceById,
    UpstreamCall,
    Usage,
    Write,
)

from .account_router import ACME, ANSWER, CAP, COST, ONE, Bank, account
from .faulty_storage import NOTHING, Behind, Look, Widen
from .scripted_router import traces_in

pytestmark = pytest.mark.anyio

LIMIT = 10**9
ODD = [ValueError("odd"), KeyError("odd"), InternalError("odd"), asyncio.CancelledError("odd")]


Odd = Callable[..., Awaitable[tuple[Bank, Behind]]]


@pytest.fixture(params=["memory", "sqlite"])
async def odd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Odd]:
    """Makes a bank whose storage turns odd when it is told to. Its router is closed at the end of the test."""
    banks: list[Bank] = []

    async def made(*script: Any) -> tuple[Bank, Behind]:
        bank = Bank(*(script or [ANSWER] * 5), terms=[account(monthly_nanos=LIMIT)])
        banks.append(bank)
        if request.param == "sqlite":
            bank.storage = SqliteStorage(tmp_path / "s.db", clock=bank.clock)  # type: ignore[assignment]
        storage = bank.behind()
        return await bank.open(), storage

    yield made
    for bank in banks:
        await bank.router.aclose()


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_a_settlement_refused_once_is_booked_and_its_answer_kept(odd: Odd, error: BaseException) -> None:
    bank, storage = await odd()
    await bank.storage.apply("acme", [account(monthly_nanos=LIMIT, limits=RateLimits(concurrency=1))])
    storage.refuse(Facts, error=error, times=1)
    answer = await bank.route(idempotency_key="k")
    assert answer.output == "an answer"
    await bank.clock.sleep(1.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).trace_id == answer.trace_id
    assert len(bank.good.calls) == 1
    assert (await bank.route()).output == "an answer", "its slot is free"


async def test_a_delayed_settlement_keeps_its_hold_and_is_booked_in_full(odd: Odd) -> None:
    bank, storage = await odd()
    storage.away = (Facts,)
    answer = await bank.route(idempotency_key="k")
    await bank.clock.sleep(20.0)
    assert (await bank.purse())[2] > COST
    storage.away = ()
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).trace_id == answer.trace_id
    assert [trace.id for trace in await traces_in(bank.storage, "acme")] == [answer.trace_id]
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)


async def test_a_settled_call_can_be_replayed() -> None:
    bank = await Bank(terms=[account(monthly_nanos=LIMIT)]).open()
    decision_input = (await bank.route()).decision.input
    for snapshot_id in (decision_input.catalogue, decision_input.health):
        assert await bank.storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id)) is not None


async def test_a_refused_trace_loses_neither_bill_nor_kept_answer(odd: Odd) -> None:
    bank, storage = await odd()

    def refuse(thing: Any) -> None:
        if isinstance(thing, Facts) and thing.trace is not None:
            raise ValueError("odd")

    storage.before = refuse
    answer = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert (await bank.route(idempotency_key="k")).output == answer.output
    assert bank.router.trace_counts.refused == 1


def detailed(thing: Any) -> None:
    """Refuse bills that say what was used."""
    if isinstance(thing, Facts) and any(row.tokens != Tokens() for row in thing.rows):
        raise ValueError("odd")


async def test_a_refused_settlement_is_booked_without_detail_and_frees_its_key(odd: Odd) -> None:
    bank, storage = await odd()
    storage.before = detailed
    first = await bank.route(idempotency_key="k")
    assert await bank.purse() == (LIMIT, COST, 0)
    (row,) = await bank.rows()
    assert (row.request_id, row.attempt, row.charge_nanos, row.note) == (
        first.trace_id, 1, COST, "the storage refused to book it as it was",
    )  # fmt: skip
    storage.before = lambda _: None
    assert (await bank.route(idempotency_key="k")).trace_id != first.trace_id


async def test_a_settlement_booked_without_detail_charges_at_most_the_reservation(odd: Odd) -> None:
    overrun = [*ANSWER[:1], replace(ANSWER[1], output=10_000), *ANSWER[2:]]  # type: ignore[type-var]
    bank, storage = await odd(overrun)
    storage.before = detailed
    await bank.route(idempotency_key="k")
    (ask,) = storage.of(Ask)
    assert await bank.purse() == (LIMIT, ask.nanos, 0)
    assert 0 < ask.nanos < 100 * 1_000 + 10_000 * 4_000


async def test_a_shortened_settlement_without_limits_charges_its_cost(odd: Odd) -> None:
    bank, storage = await odd()
    await bank.storage.apply("acme", [account()])
    storage.before = detailed
    await bank.route(idempotency_key="k")
    assert await bank.charged() == COST


@pytest.mark.parametrize("error", [ValueError("CANARY"), UnsupportedWrite("no ledger")], ids=repr)
async def test_a_settlement_refused_for_good_is_counted_and_logged(
    odd: Odd, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bank, storage = await odd()
    storage.refuse(Facts, error=error)
    answer = await bank.route(idempotency_key="k")
    assert bank.router.trace_counts == (0, 1, 0, 0, 1)
    with pytest.raises(InternalError, match="1 were refused") as told:
        await bank.router.flush()
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert said.getMessage().startswith(
        f"money is lost: call {answer.trace_id} of account acme (cost $0.0003, charge $0.0003) is not in the ledger: "
    )
    assert "CANARY" not in caplog.text + str(told.value)
    assert len(storage.of(Facts)) == (1 if isinstance(error, UnsupportedWrite) else 3)


async def test_a_failing_settlement_delays_no_other(odd: Odd) -> None:
    bank, storage = await odd()
    first: list[str] = []

    def refuse(thing: Any) -> None:
        if isinstance(thing, Facts) and thing.id == (first or [thing.id])[0]:
            first.append(thing.id)
            raise StorageUnavailable("away")

    storage.before = refuse
    await bank.route()
    assert (await bank.purse())[1] == 0
    for count in (1, 2, 3):
        await bank.route()
        assert (await bank.purse())[1] == count * COST
    assert bank.router.trace_counts.waiting == 1


async def test_closing_names_what_could_not_be_booked(odd: Odd, caplog: pytest.LogCaptureFixture) -> None:
    bank, storage = await odd()
    storage.away = (Facts,)
    answer = await bank.route(idempotency_key="k")
    await bank.router.aclose()
    assert (await bank.purse())[1] == 0
    assert f"money is lost: call {answer.trace_id} of account acme" in caplog.text


@pytest.mark.parametrize("gives", [NOTHING, 5, "garbage", [None]], ids=lambda gives: type(gives).__name__)
async def test_a_wrong_result_of_settle_does_not_count_as_booked(odd: Odd, gives: Any) -> None:
    bank, storage = await odd()
    garbled = [gives] * 2
    storage.before = lambda thing: garbled.pop() if isinstance(thing, Facts) and garbled else None
    await bank.route(idempotency_key="l")
    assert await bank.purse() == (LIMIT, COST, 0)
    assert len(storage.of(Facts)) == 3


@pytest.mark.parametrize(
    "gives", [NOTHING, 5, [], "garbage", [None], {"fingerprint": "x"}], ids=lambda gives: type(gives).__name__
)
@pytest.mark.parametrize("asked", [Look, Ask])
async def test_a_wrong_result_of_look_or_admit_fails_before_a_call_is_made(odd: Odd, asked: type, gives: Any) -> None:
    bank, storage = await odd()
    storage.before = lambda thing: gives if isinstance(thing, asked) else None
    given = "NoneType" if gives is NOTHING else type(gives).__name__
    with pytest.raises(InternalError, match=rf"^AccountsBehind\.\w+ must return .*, got {given}$"):
        await bank.route(idempotency_key="k")
    assert bank.good.calls == []
    storage.before = lambda _: None
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)


@pytest.mark.parametrize("error", [ValueError("CANARY"), KeyError("CANARY"), OSError(5, "CANARY")], ids=repr)
@pytest.mark.parametrize("asked", [Look, Ask])
async def test_an_exception_of_a_storage_becomes_a_router_error_without_its_message(
    odd: Odd, asked: type, error: Exception
) -> None:
    bank, storage = await odd()
    storage.refuse(asked, error=error, times=1)
    with pytest.raises(InternalError, match=f"^the storage failed with {type(error).__name__}$"):
        await bank.route(idempotency_key="k")
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert await bank.purse() == (LIMIT, COST, 0)


@pytest.mark.parametrize("asked", [Look, Ask])
async def test_a_storage_that_cancels_itself_cancels_no_call(odd: Odd, asked: type) -> None:
    bank, storage = await odd()
    storage.refuse(asked, error=asyncio.CancelledError(), times=1)
    with pytest.raises(StorageUnavailable, match=r"^the storage cancelled itself$"):
        await bank.route(idempotency_key="k")
    assert (await bank.route(idempotency_key="k")).output == "an answer"


@pytest.mark.parametrize("gives", [False, *ODD], ids=lambda gives: type(gives).__name__)
async def test_a_fallback_that_cannot_widen_its_reservation_uses_what_it_has(odd: Odd, gives: Any) -> None:
    bank, storage = await odd()

    def fails(call: UpstreamCall) -> ProviderFault:
        if gives is False:
            storage.before = lambda thing: False if isinstance(thing, Widen) else None
        else:
            storage.refuse(Widen, error=gives)
        return ProviderFault("auth")

    dear = replace(ONE, pricing_per_1m=Pricing(4.0, 16.0))
    spare = ScriptedProvider(
        [ANSWER], models=[replace(ONE, id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0))], clock=bank.clock
    )
    bank.use(storage, providers=[ScriptedProvider(fails, models=[dear], clock=bank.clock), spare])
    answer = await bank.route(goal="quality")
    assert answer.routing.selected_model == "spare/two", "its worst case is the smaller one"
    assert (await bank.purse())[2] == 0


async def test_the_dearest_call_that_can_be_is_booked_alike_in_all_storages(odd: Odd) -> None:
    most = replace(ANSWER[1], input=MOST_TOKENS, output=MOST_TOKENS)  # type: ignore[type-var]
    bank, storage = await odd([ANSWER[0], most, ANSWER[2]])
    dearest = replace(ONE, pricing_per_1m=Pricing(10_000.0, 10_000.0))
    await bank.storage.apply("acme", [account(monthly_nanos=2**62)])
    provider = ScriptedProvider([[ANSWER[0], most, ANSWER[2]]] * 3, models=[dearest], clock=bank.clock)
    bank.use(storage, providers=[provider])
    for _ in range(3):
        await bank.route()
    assert await bank.purse() == (2**62, 3 * 2 * 10**15, 0)
    assert (await bank.rows())[-1].overrun_nanos > 10**15
    assert bank.router.trace_counts == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("usage", [Usage(5, 2**52), Usage(MOST_TOKENS + 1, 5)], ids=repr)
async def test_impossible_usage_is_ignored_and_never_billed(odd: Odd, usage: Usage) -> None:
    bank, _ = await odd(*[[ANSWER[0], usage, ANSWER[2]]] * 9)
    with pytest.raises(UpstreamFailed):
        await bank.route(fallback={"maxRetries": 0})
    assert await bank.purse() == (LIMIT, 0, 0)
    assert all(row.cost_nanos < LIMIT for row in await bank.rows())


async def test_an_invalid_kept_answer_is_a_storage_fault(odd: Odd) -> None:
    bank, storage = await odd()
    storage.before = lambda thing: Replay(b"CANARY") if isinstance(thing, Ask) else None
    with pytest.raises(InternalError, match=r"^the storage failed with \w+$"):
        await bank.route(idempotency_key="k")


async def test_a_booked_settlement_is_never_booked_twice(odd: Odd) -> None:
    """Each part is taken, and then refused all the same."""
    bank, storage = await odd(ProviderFault("server"), ANSWER)
    settle = storage.accounts.settle

    async def forgets(*asked: Any) -> Any:
        await settle(*asked)
        raise ValueError("odd") if len(storage.of(Facts)) < 3 else StorageUnavailable("away")

    storage.accounts.settle = forgets  # type: ignore[assignment, method-assign]
    await bank.route(idempotency_key="k")
    await bank.clock.sleep(60.0)
    storage.accounts.settle = settle  # type: ignore[method-assign]
    await bank.clock.sleep(10.0)
    assert await bank.purse() == (LIMIT, COST, 0)
    assert bank.router.trace_counts.waiting == 0


@pytest.mark.parametrize("then", [StorageUnavailable("no sync"), ValueError("odd")], ids=["away", "refused"])
async def test_no_bill_is_called_lost_that_is_in_the_ledger(
    odd: Odd, then: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Booked by hand it would count twice."""
    bank, storage = await odd()
    settle = storage.accounts.settle

    async def books_and_fails(*asked: Any) -> Any:
        await settle(*asked)
        raise then

    storage.accounts.settle = books_and_fails  # type: ignore[assignment, method-assign]
    await bank.route(idempotency_key="k")
    await bank.router.aclose()
    assert await bank.purse() == (LIMIT, COST, 0)
    assert "lost" not in caplog.text
    assert bank.router.trace_counts.unbilled == 0


async def test_a_bill_that_nobody_can_look_for_may_be_lost(odd: Odd, caplog: pytest.LogCaptureFixture) -> None:
    bank, storage = await odd()
    storage.away = (Facts,)

    async def scan(*asked: Any, **more: Any) -> Any:
        raise StorageUnavailable("away")

    answer = await bank.route(idempotency_key="k")
    storage.scan = scan  # type: ignore[method-assign]
    await bank.router.aclose()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.startswith(f"money may be lost: look in the ledger for call {answer.trace_id} of account acme (cost ")


async def test_a_call_that_runs_out_of_time_says_nothing_about_the_storage(
    odd: Odd, caplog: pytest.LogCaptureFixture
) -> None:
    bank, storage = await odd([Pause(5.0), *ANSWER])
    storage.takes_s = 0.5
    with pytest.raises(RouterTimeoutError):
        await bank.route(timeout_ms=2_000)
    await bank.clock.sleep(5.0)
    assert caplog.messages == []
    (row,) = await bank.rows()
    assert row.cost_range_nanos is not None


# The same of one storage that is not immediate

TERMS = [account(monthly_nanos=LIMIT)]
SLOW = [Pause(5.0), *ANSWER]


async def opened(*script: Any, terms: Sequence[Write] = (), **options: Any) -> tuple[Bank, Behind]:
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
    bank, _ = await opened(ANSWER)
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
    bank, storage = await opened(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.away = (Facts,)
    assert "money is lost: call tr_" in caplog.text
    assert (bank.router.trace_counts.unbilled, bank.router.trace_counts.waiting) == (1, 0)


async def test_after_the_close_a_hanging_storage_delays_no_answer_past_its_deadline() -> None:
    bank, storage = await opened(SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, timeout_ms=10_000))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        storage.still = (Facts,)
    assert bank.clock.monotonic() < 11.0


async def test_a_call_that_times_out_after_the_close_is_billed() -> None:
    bank, storage = await opened(SLOW)

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
    bank, storage = await opened([Pause(1.0), *ANSWER], ANSWER)
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
    log = bank.router._parts.engine.log

    def fails(*_: Any, **__: Any) -> Any:
        raise IndexError("while it is concluded")

    setattr(log, "conclude", fails)  # noqa: B010
    del stream
    with pytest.raises(IndexError):
        log.keep_dropped()
    await bank.clock.sleep(1.0)
    assert (await bank.purse())[2] == 0


async def test_a_storage_without_events_still_books_bills_and_keeps_traces() -> None:
    bank, storage = await opened([ProviderFault("auth")], spare=[ANSWER, ANSWER])
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
    bank, storage = await opened(ANSWER)
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
    bank, storage = await opened(ANSWER, ANSWER)
    await bank.route(caller=Caller("guest"))
    storage.refuse(Look, error=error)
    storage.forgets = True
    await bank.clock.sleep(5.0)
    assert (await bank.route(caller=Caller("guest"))).output == "an answer"


# --- what waits has an end


async def test_no_call_is_admitted_while_the_settlement_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "QUEUE", 3)
    bank, storage = await opened(*[ANSWER] * 6, terms=[account()])
    storage.away = (Facts,)
    for _ in range(3):
        await bank.route()
    with pytest.raises(StorageUnavailable, match="too many calls wait"):
        await bank.route()
    storage.away = ()
    await bank.router.flush()
    assert (await bank.route()).output == "an answer"


async def test_a_storage_that_contradicts_itself_is_asked_a_bounded_number_of_times() -> None:
    bank, storage = await opened(ANSWER)
    full = Short(Purse("month", f"month:{bank.month[:7]}", LIMIT), waits=False)
    storage.before = lambda thing: full if isinstance(thing, Ask) and thing.nanos else None
    with pytest.raises(RouterError):
        await bank.route()
    assert len(storage.asked) < 20


# --- a part that never answers


async def test_a_hanging_settlement_is_retried_and_delays_no_others_for_long() -> None:
    bank, storage = await opened(*[ANSWER] * 9)
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
    bank, storage = await opened(*[ANSWER] * 9)
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
    bank = await Bank(SLOW, terms=TERMS).open()
    ends = datetime(2026, 2, 1, tzinfo=UTC).timestamp() - bank.clock.time()
    await bank.clock.sleep(ends - 1.0)
    await bank.route()
    assert bank.month.startswith("2026-02")
    for month, spent in (("2026-01", COST), ("2026-02", 0)):
        found = await bank.storage.read("acme", Stands(f"{month}-15T00:00:00.000Z"))
        assert found.purses[-1].spent_nanos == spent
    (row,) = await bank.rows()
    assert row.at.startswith("2026-01")
