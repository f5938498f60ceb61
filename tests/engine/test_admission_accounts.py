"""Accounts created or changed while their calls run: all calls are billed, and new terms apply at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from routewright import RateLimited
from routewright.errors import QuotaExhausted
from routewright.testing.provider import Pause
from routewright.wire import Caller, Left, PutAccount, RateLimits

from .behind import Behind
from .test_admission import ANSWER, COST, Bank, account, key

pytestmark = pytest.mark.anyio
SLOW = [Pause(5.0), *ANSWER]


async def changed(bank: Bank, terms: PutAccount) -> None:
    """Give the account other terms."""
    await bank.storage.apply("acme", [terms])


async def running(*script: Any, behind: bool = False, known: bool = True) -> Bank:
    """Of an account that nobody set up."""
    bank = Bank(*([ANSWER] if known else []), *script)
    if behind:
        bank.behind()
    if known:
        await bank.route()
    return bank


@pytest.mark.parametrize("key_id", [None, "key_1"])
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("known", [False, True])
async def test_a_call_running_when_its_account_is_created_counts_in_its_month(
    options: dict[str, Any], key_id: str | None, behind: bool, known: bool
) -> None:
    bank = await running(SLOW, behind=behind, known=known)
    await bank.router.flush()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, caller=Caller("acme", key_id=key_id), **options))
        await bank.clock.sleep(1.0)
        await bank.storage.apply("acme", [account(monthly_nanos=10**9), key(monthly_nanos=10**9)])
    await bank.router.flush()
    assert await bank.purse() == (10**9, COST, 0)
    of_key = [purse.spent_nanos for purse in (await bank.standing("key_1")).purses if purse.level == "key"]
    assert of_key == [COST if key_id else 0] * 2


async def test_a_new_account_is_limited_at_once() -> None:
    bank = await running(ANSWER)
    await bank.storage.apply("acme", [account(monthly_nanos=1)])
    with pytest.raises(QuotaExhausted):
        await bank.route()
    assert len(bank.good.calls) == 1


async def test_a_new_account_is_limited_within_seconds_by_a_storage_without_memory() -> None:
    bank = await running(ANSWER, behind=True)
    storage = bank.router._parts.storage
    assert isinstance(storage, Behind)
    storage.forgets = True
    await bank.storage.apply("acme", [account(monthly_nanos=1)])
    with pytest.raises(QuotaExhausted):
        await bank.route()


@pytest.mark.parametrize("remembered", [None, 1, COST, 10**12])
async def test_cached_balances_neither_admit_nor_refuse(remembered: int | None) -> None:
    """The decision goes by old figures; what is taken, and what is refused, does not."""
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    storage = bank.behind()
    storage.accounts.left = lambda *_: Left(account().account, None, remembered)  # type: ignore[method-assign]
    assert (await bank.route()).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)
    await bank.storage.apply("acme", [account(monthly_nanos=COST + 1)])
    with pytest.raises(QuotaExhausted) as refused:
        await bank.route()
    assert refused.value.detail["spent_usd"] == COST / 1e9
    assert await bank.purse() == (COST + 1, COST, 0)


async def test_a_new_limit_counts_calls_that_end_after_it() -> None:
    bank = await running(SLOW, ANSWER)
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(monthly_nanos=600_000))
    await bank.router.flush()
    with pytest.raises(QuotaExhausted) as refused:
        await bank.route()
    assert refused.value.detail["spent_usd"] == COST / 1e9


async def test_a_limit_lowered_below_the_reservations_admits_nothing_new() -> None:
    bank = await Bank(SLOW, terms=[account(monthly_nanos=10**9)]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(monthly_nanos=1))
        with pytest.raises(QuotaExhausted):
            await bank.route()
    assert await bank.purse() == (1, COST, 0)


async def test_a_waiting_call_is_admitted_when_the_limit_is_raised() -> None:
    bank = await Bank([Pause(50.0), *ANSWER], ANSWER, terms=[account(monthly_nanos=600_000)]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        assert len(bank.good.calls) == 1
        await changed(bank, account(monthly_nanos=10**9))
        await bank.clock.sleep(1.0)
        assert len(bank.good.calls) == 2
    assert await bank.purse() == (10**9, 2 * COST, 0)


async def test_lowered_concurrency_lets_running_calls_end_and_admits_nothing_new() -> None:
    bank = await Bank(SLOW, SLOW, ANSWER, terms=[account(limits=RateLimits(concurrency=2))]).open()
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(limits=RateLimits(concurrency=1)))
        with pytest.raises(RateLimited):
            await bank.route()
    assert (await bank.route()).output == "an answer"
