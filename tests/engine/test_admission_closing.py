"""Closing a Router during paid calls: their costs are booked and their reservations end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import ProviderFault, RateLimited, RouterError, SqliteStorage
from routewright.errors import IdempotencyKeyReused
from routewright.testing.provider import Line, Pause
from routewright.wire import Ask, Claim, Delta, Grant, LedgerRows, OutputDelta, RateLimits, Stands, Usage

from .test_admission import ACME, ANSWER, CAP, COST, Bank, account

pytestmark = pytest.mark.anyio
LIMIT, SLOTS = 10**9, 2
SLOW: list[Line] = [Delta("an answer"), Usage(100, 50), Pause(5.0), *ANSWER[2:]]
kinds = pytest.mark.parametrize("kind", ["memory", "slow", "sqlite"])
BREAKS: list[Line] = [Pause(5.0), ProviderFault("auth")]


def storage_of(kind: str, bank: Bank, folder: Path) -> Any:
    match kind:
        case "memory":
            return bank.storage
        case "slow":
            storage = bank.behind()
            storage.takes_s = 0.01
            return storage
    bank.storage = SqliteStorage(folder / "calls.db", clock=bank.clock)  # type: ignore[assignment]
    return bank.storage


async def opened(kind: str, folder: Path, *script: Any) -> Bank:
    bank = Bank(*script, terms=[account(monthly_nanos=LIMIT, limits=RateLimits(concurrency=SLOTS))])
    bank.use(storage_of(kind, bank, folder))
    return await bank.open()


async def left(bank: Bank) -> tuple[int, int, bool, bool]:
    """What is spent and reserved, and whether the key is taken and a slot held."""
    found = await bank.storage.read("acme", Stands(bank.month))
    (month,) = [purse for purse in found.purses if purse.level == "month"]
    claimed, holds, grants = False, False, []
    for number in range(SLOTS):
        claim = Claim("k", "another") if number == 0 else None
        ask = Ask(id=f"tr_{number}", caller=ACME, at=bank.clock.time(), lasts_s=1.0, claim=claim)
        try:
            grants.append(await bank.storage.accounts.admit(ask))
        except RateLimited:
            holds = True
        except IdempotencyKeyReused:  # it has its answer, or runs
            claimed = True
    for grant in grants:
        assert isinstance(grant, Grant)
        bank.storage.accounts.release(grant)
    return month.spent_nanos, month.reserved_nanos, claimed, holds


@kinds
async def test_a_call_that_ends_after_the_close_is_billed_once(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        assert bank.clock.monotonic() <= 3.0, "two seconds after closing began"
    (answer,) = bank.answers
    assert answer.output == "an answer"
    assert bank.clock.monotonic() < 6.0, "nothing is waited for that nobody does"
    assert await left(bank) == (COST, 0, True, False)
    rows = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert [(row.request_id, row.charge_nanos) for row in rows] == [(answer.trace_id, COST)]


@kinds
async def test_a_call_that_fails_after_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, BREAKS)

    async def call() -> None:
        with pytest.raises(RouterError):
            await bank.route(idempotency_key="k")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
    assert await left(bank) == (0, 0, False, False)


@kinds
async def test_a_call_cancelled_after_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        group.cancel_scope.cancel()
    assert await left(bank) == (0, 0, False, False)
    (row,) = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert (row.kind, row.cost_nanos) == ("attempt", COST), "its cost is in the ledger"


@kinds
async def test_a_stream_left_after_the_close_is_billed_for_its_output(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    async with bank.router.stream("hi", caller=ACME, params=CAP, idempotency_key="k") as stream:
        while not isinstance(await anext(stream), OutputDelta):
            pass
        await bank.router.aclose()
    (row,) = await bank.storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert row.charge_nanos > 0
    assert await left(bank) == (row.charge_nanos, 0, False, False)


@pytest.mark.parametrize("kind", ["slow", "sqlite"])
async def test_a_call_waiting_for_money_at_the_close_holds_nothing(kind: str, tmp_path: Path) -> None:
    bank = await opened(kind, tmp_path, SLOW)
    await bank.storage.apply("acme", [account(monthly_nanos=600_000)])
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        group.start_soon(partial(bank.route, idempotency_key="k"))
        await bank.clock.sleep(1.0)
        await bank.router.aclose()
        group.cancel_scope.cancel()
    assert await left(bank) == (0, 0, False, False)
