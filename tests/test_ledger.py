"""``Ledger``: its rows and sums, and how it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routewright import Ledger, MemoryStorage, ValidationFailed
from routewright.errors import InternalError, UnsupportedWrite
from routewright.ledger import PIECE
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.testing.provider import Turn
from routewright.wire import (
    Delta,
    Finish,
    LedgerRow,
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
        ({"since": date(2026, 11, 19), "until": date(2026, 11, 21)}, [2, 1]),
        ({"trace_id": "tr_0002"}, [2]),
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
        ({"since": "2026-11-22", "until": "2026-11-21"}, "^since: is .*, after .*, the until"),
        ({"trace_id": 7}, "^trace_id: "),
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


async def test_sums_are_by_day_model_and_kind(firm: Firm) -> None:
    at = "2026-11-20T10:00:00.000Z"
    await book(firm.storage, "acme", row(1, at, 10), row(2, "2026-11-21T10:00:00.000Z", 20), row(4, at, 40))
    await book(firm.storage, "acme", row(3, at, 30, model="b/two", provider="b"))
    await book(firm.storage, "acme", row(1, at, -5, attempt=-1, kind="correction"))  # of an earlier version
    sums = await firm.ledger.sums("2026-11-20", "2026-11-20")
    assert [(each.day, each.model, each.kind, each.rows, each.charge_nanos) for each in sums] == [
        ("2026-11-20", "a/one", "attempt", 2, 50),
        ("2026-11-20", "a/one", "correction", 1, -5),
        ("2026-11-20", "b/two", "attempt", 1, 30),
    ]


async def test_uncharged_cost_is_listed_as_cost(storage: Storage, clock: FakeClock) -> None:
    firm = await Firm(storage, clock, [BROKEN, FAILS], [FAILS, FAILS]).set_up()
    trace = await firm.call()
    assert trace.status == "failed"
    (found,) = await firm.ledger.sums()
    assert (found.cost_nanos, found.charge_nanos) == (COST, 0)
    await firm.close()


async def test_an_expired_reservation_is_an_uncertain_cost(firm: Firm, clock: FakeClock) -> None:
    await firm.set_up(10**6, prepaid=True)
    at = "2026-11-21T12:00:00.000Z"
    await hold(firm.storage, "tr_lost", 5_000, at, lasts_s=1.0)
    await clock.sleep(60)
    await firm.call()
    await firm.storage.sweep(clock.time())
    (expired,) = [each for each in await firm.ledger.sums() if each.kind == "expired"]
    assert (expired.model, expired.charge_nanos, expired.least_nanos, expired.most_nanos) == ("", 0, 0, 5_000)
    assert (await firm.purses())["account"] == COST


async def test_ledger_traces_and_analytics_agree_after_calls_of_all_kinds(storage: Storage, clock: FakeClock) -> None:
    script = [TOLD, SILENT, BROKEN, FAILS, FAILS, FAILS]
    firm = await Firm(storage, clock, script, [TOLD, SILENT]).set_up(10**9, prepaid=True)
    for _ in range(4):
        await firm.call()
        skip_days(clock, 3)
    await check_identity(firm)
    await firm.close()


TURNS: tuple[Turn, ...] = (TOLD, SILENT, BROKEN, FAILS, [Delta("cut")], [Delta("x" * 50), Finish("stop")])


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
    for _ in range(rng.randrange(2, 10)):
        await firm.call()
        skip_days(clock, rng.choice((0, 0.4, 9)))
    await check_identity(firm)
    standing = await firm.purses()
    assert standing["account"] == sum([row.charge_nanos async for row in firm.ledger.rows()])
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

    with pytest.raises(error, match=said):
        await Ledger(Odd()).sums()


# Without await


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_blocking_twin_does_the_same(kind: str, tmp_path: Path) -> None:
    ledger = Ledger("memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'calls.db'}")
    worker = ledger.blocking._worker
    worker.run(book, ledger._storage, "acme", row(1, "2026-11-20T10:00:00.000Z"), row(2, "2026-11-20T11:00:00.000Z"))
    with ledger.as_account("acme").blocking as acme:
        assert [each.request_id for each in acme.rows(since="2026-11-20")] == ["tr_0002", "tr_0001"]
        assert [each.charge_nanos for each in acme.sums("2026-11-20", "2026-11-20")] == [14]
        assert acme.sums("2026-11-20", "2026-11-20", account="other") == []
    assert list(ledger.blocking.rows()) == []
