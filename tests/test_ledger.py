"""``Ledger``: its rows, sums and statements, and how it is opened."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from routewright import Caller, Ledger, MemoryStorage, ValidationFailed
from routewright.errors import InternalError, NotFound, UnsupportedWrite
from routewright.ledger import PIECE, BlockingLedger
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    LedgerRow,
    LedgerSum,
    LedgerSumsOfAll,
    Tokens,
)

from .billing import (
    BROKEN,
    COST,
    FAILS,
    NOON,
    SILENT,
    TOLD,
    Firm,
    account,
    book,
    check_identity,
    hold,
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
    yield firm
    await firm.close()


def row(number: int, at: str, charge: int = 7, **given: Any) -> LedgerRow:
    facts: dict[str, Any] = {"attempt": 1, "model": "a/one", "provider": "a", "tokens": Tokens(1, 1, 0)}
    return LedgerRow(request_id=f"tr_{number:04}", at=at, cost_nanos=charge, charge_nanos=charge, **facts | given)


async def all_rows(ledger: Ledger, **asked: Any) -> list[str]:
    return [f"{row.request_id}/{row.attempt}" async for row in ledger.rows(**asked)]


# Making one


@pytest.mark.parametrize("name", ["", "_system", "a\nb", 7, None])
def test_an_invalid_account_is_refused(name: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^account: "):
        Ledger("memory:").as_account(name)


async def test_async_with_closes_the_storage(tmp_path: Path) -> None:
    async with Ledger(f"sqlite:///{tmp_path}/calls.db") as ledger:
        assert await ledger.sums() == []
    assert repr(ledger) == f"Ledger({ledger._storage!r})"


# Rows


async def test_rows_of_one_account_are_newest_first(firm: Firm) -> None:
    await book(firm.storage, "acme", row(1, "2026-11-20T10:00:00.000Z"), row(3, "2026-11-21T10:00:00.000Z"))
    await book(firm.storage, "acme", row(2, "2026-11-20T11:00:00.000Z"))
    await book(firm.storage, "other", row(9, "2026-11-20T11:00:00.000Z"))
    assert await all_rows(firm.ledger) == ["tr_0003/1", "tr_0002/1", "tr_0001/1"]
    assert await all_rows(firm.ledger, account="other") == ["tr_0009/1"]
    assert await all_rows(firm.ledger.as_account("other")) == ["tr_0009/1"]
    assert await all_rows(firm.ledger.as_account("other").as_account("none")) == []


async def test_any_number_of_rows_is_read_once_each(firm: Firm) -> None:
    rows = [row(number, "2026-11-20T10:00:00.000Z") for number in range(2 * PIECE + 5)]
    await book(firm.storage, "acme", *rows)
    found = await all_rows(firm.ledger)
    assert found == [f"{each.request_id}/1" for each in reversed(rows)]


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"since": "2026-11-20"}, [3, 2]),
        ({"until": "2026-11-20T12:00:00Z"}, [1]),
        ({"since": date(2026, 11, 19), "until": date(2026, 11, 21)}, [2, 1]),
        ({"since": datetime(2026, 11, 20, 14, tzinfo=timezone(timedelta(hours=2)))}, [3, 2]),
        ({"trace_id": "tr_0002"}, [2]),
        ({"trace_id": "trc_0002", "until": "2026-11-20"}, []),
        ({"trace_id": "tr_0004"}, []),
    ],
)
async def test_rows_can_be_selected_by_time_and_call(firm: Firm, asked: dict[str, Any], numbers: list[int]) -> None:
    for number, day in ((1, 19), (2, 20), (3, 21)):
        await book(firm.storage, "acme", row(number, f"2026-11-{day}T12:00:00.000Z"))
    assert await all_rows(firm.ledger, **asked) == [f"tr_{number:04}/1" for number in numbers]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"since": "2026-11-22", "until": "2026-11-21"}, "^since: is .*, after until"),
        ({"since": "yesterday"}, "^since: is 'yesterday'; write a timestamp"),
        ({"until": datetime(2026, 11, 20)}, "^until: is"),
        ({"trace_id": 7}, "^trace_id: "),
        ({"account": "_system"}, "^account: "),
    ],
)
async def test_invalid_selections_of_rows_are_refused(firm: Firm, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        await all_rows(firm.ledger, **asked)


# Sums


async def test_days_of_sums_are_inclusive_and_default_to_the_last_seven(firm: Firm) -> None:
    for number, at in enumerate(("2026-11-14T23:59:59.999Z", "2026-11-15T00:00:00.000Z", "2026-11-21T12:00:00.000Z")):
        await book(firm.storage, "acme", row(number, at, charge=10**number))
    assert [each.charge_nanos for each in await firm.ledger.sums()] == [10, 100]
    assert [each.charge_nanos for each in await firm.ledger.sums("2026-11-14", date(2026, 11, 15))] == [1, 10]
    assert await firm.ledger.sums("2026-11-14", account="other") == []


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (("2026-11-22", "2026-11-21"), "^first: is 2026-11-22, after 2026-11-21, the last; swap them$"),
        (("2000-01-01", "2026-11-21"), "^first: is 2000-01-01, 9822 days up to 2026-11-21, the last; take at most"),
        (("november", None), "^first: is 'november'; write YYYY-MM-DD$"),
        ((None, 20261121), "^last: is 20261121; write YYYY-MM-DD$"),
    ],
)
async def test_invalid_days_are_refused(firm: Firm, days: tuple[Any, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        await firm.ledger.sums(*days)


async def test_sums_of_all_accounts_are_by_day_model_and_kind(firm: Firm) -> None:
    at = "2026-11-20T10:00:00.000Z"
    await book(firm.storage, "acme", row(1, at, 10), row(2, "2026-11-21T10:00:00.000Z", 20))
    await book(firm.storage, "other", row(3, at, 30, model="b/two", provider="b"), row(4, at, 40))
    await book(firm.storage, "third", row(5, at, -5, attempt=-1, kind="correction"))
    asked = LedgerSumsOfAll("2026-11-20", "2026-11-20")
    found: list[LedgerSum] = await firm.storage.read(SYSTEM_ACCOUNT, asked)
    assert [(each.day, each.model, each.kind, each.rows, each.charge_nanos) for each in found] == [
        ("2026-11-20", "a/one", "attempt", 2, 50),
        ("2026-11-20", "a/one", "correction", 1, -5),
        ("2026-11-20", "b/two", "attempt", 1, 30),
    ]
    assert await firm.storage.read("acme", asked) == [], "one account sees nothing of the others"


async def test_sums_of_all_include_calls_whose_traces_are_unread(firm: Firm) -> None:
    await firm.set_up()
    await firm.call()
    await firm.call(Caller("other"))
    (found,) = await firm.storage.read(SYSTEM_ACCOUNT, LedgerSumsOfAll("2026-11-21", "2026-11-21"))
    assert (found.rows, found.cost_nanos) == (2, 2 * COST)


# Statements


async def test_a_statement_covers_the_present_month_by_default(firm: Firm, clock: FakeClock) -> None:
    await firm.set_up()
    await firm.call()
    told = await firm.ledger.statement()
    assert (told.account, told.month, told.by) == ("acme", "2026-11", "model")
    assert [(line.model, line.rows, line.charged_nanos) for line in told.charges] == [("good/one", 1, COST)]
    skip_days(clock, 10)
    assert (await firm.ledger.statement()).charges == []
    assert await firm.ledger.statement("2026-11") == told


async def test_a_month_opens_with_the_balance_the_last_one_closed_with(firm: Firm, clock: FakeClock) -> None:
    await firm.set_up(10**9, prepaid=True)
    for day in range(0, 30, 10):
        for _ in range(day // 10 + 1):
            await firm.call()
        skip_days(clock, 10)
    await firm.storage.apply("acme", [AddCredit("cr_2", 5 * 10**8, "2026-12-05T00:00:00.000Z")])
    november, december, january = [await firm.ledger.statement(month) for month in ("2026-11", "2026-12", "2027-01")]
    assert (november.opening_nanos, november.closing_nanos) == (0, 10**9 - COST)
    assert (december.opening_nanos, december.closing_nanos) == (10**9 - COST, 15 * 10**8 - 6 * COST)
    assert january.opening_nanos == january.closing_nanos == 15 * 10**8 - 6 * COST
    assert (await firm.purses())["account"] == 6 * COST


async def test_charges_before_the_account_existed_do_not_reduce_its_balance(firm: Firm) -> None:
    created = "2026-11-10T12:00:00.000Z"
    times = ("2026-10-31T00:00:00.000Z", "2026-11-10T11:59:59.999Z")
    await book(firm.storage, "acme", *(row(number, at, 100) for number, at in enumerate(times)))
    await firm.storage.apply("acme", [account(prepaid=True, created_at=created), AddCredit("cr_1", 1_000, created)])
    await book(firm.storage, "acme", row(8, created, 30))
    told = await firm.ledger.statement("2026-11")
    assert told.closing_nanos == 1_000 - 30
    assert told.opening_nanos is not None
    assert told.opening_nanos + told.totals.credited_nanos - told.totals.charged_nanos == told.closing_nanos
    assert (await firm.purses())["account"] == 30
    assert (await firm.ledger.statement("2026-12")).opening_nanos == 970


async def test_an_account_that_is_not_prepaid_has_no_balance(firm: Firm) -> None:
    assert (await firm.ledger.statement(account="nobody")).opening_nanos is None
    await firm.set_up(1_000)
    told = await firm.ledger.statement()
    assert (told.opening_nanos, told.closing_nanos, told.totals.credited_nanos) == (None, None, 1_000)


async def test_uncharged_cost_is_listed_as_cost(storage: Storage, clock: FakeClock) -> None:
    firm = await Firm(storage, clock, [BROKEN, FAILS], [FAILS, FAILS]).set_up()
    trace = await firm.call()
    assert trace.status == "failed"
    (line,) = (await firm.ledger.statement()).charges
    assert (line.cost_nanos, line.charged_nanos) == (COST, 0)
    await firm.close()


async def test_an_expired_reservation_is_an_uncertain_cost(firm: Firm, clock: FakeClock) -> None:
    await firm.set_up(10**6, prepaid=True)
    at = "2026-11-21T12:00:00.000Z"
    await hold(firm.storage, "tr_lost", 5_000, at, lasts_s=1.0)
    await clock.sleep(60)
    await firm.call()
    await firm.storage.sweep(clock.time())
    told = await firm.ledger.statement()
    assert [(line.model, line.least_nanos, line.most_nanos) for line in told.uncertain] == [("", 0, 5_000)]
    assert told.closing_nanos == 10**6 - COST


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"month": "2026-13"}, "^month: is '2026-13'; write YYYY-MM$"), ({"by": "week"}, "^by: is 'week'; one of model")],
)
async def test_invalid_arguments_of_a_statement_are_refused(firm: Firm, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        await firm.ledger.statement(**asked)


async def test_ledger_traces_and_analytics_agree_after_calls_of_all_kinds(storage: Storage, clock: FakeClock) -> None:
    script = [TOLD, SILENT, BROKEN, FAILS, FAILS, FAILS]
    firm = await Firm(storage, clock, script, [TOLD, SILENT]).set_up(10**9, prepaid=True)
    for _ in range(4):
        await firm.call()
        skip_days(clock, 3)
    await check_identity(firm)
    await firm.close()


# A storage that keeps no books, or fails


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (UnsupportedWrite("it knows no query LedgerSums"), UnsupportedWrite, "^it knows no query LedgerSums"),
        (OSError("the disk is at secret/path"), InternalError, "^the storage failed with OSError$"),
    ],
)
async def test_a_storage_without_a_ledger_says_so_and_a_broken_one_only_its_error(
    raised: Exception, error: type[Exception], said: str
) -> None:
    class Odd(MemoryStorage):
        async def read(self, account: str, query: Any) -> Any:
            raise raised

    for asked in (Ledger(Odd()).sums(), Ledger(Odd()).statement("2026-11")):
        with pytest.raises(error, match=said):
            await asked


# Without await


def test_every_async_method_has_a_blocking_twin() -> None:
    waits = {
        name
        for name, method in inspect.getmembers(Ledger, inspect.isfunction)
        if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
    }
    twins = {name for name, _ in inspect.getmembers(BlockingLedger, inspect.isfunction) if not name.startswith("_")}
    assert waits - {"aclose"} == twins - {"close"}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_blocking_twin_does_the_same(kind: str, tmp_path: Path) -> None:
    ledger = Ledger("memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'calls.db'}")
    worker = ledger.blocking._worker
    worker.run(book, ledger._storage, "acme", row(1, "2026-11-20T10:00:00.000Z"), row(2, "2026-11-20T11:00:00.000Z"))
    with ledger.as_account("acme").blocking as acme:
        assert [each.request_id for each in acme.rows(since="2026-11-20")] == ["tr_0002", "tr_0001"]
        assert [each.charge_nanos for each in acme.sums("2026-11-20", "2026-11-20")] == [14]
        assert acme.statement("2026-11", by="day").totals.charged_nanos == 14
        assert acme.sums("2026-11-20", "2026-11-20", account="other") == []
        with pytest.raises(NotFound):
            acme.correct("tr_0001", 1, cost_usd=1.0)
    assert list(ledger.blocking.rows()) == []
