"""Accounts that are set up, or get other terms, while their calls run: all are billed, and the terms hold at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from routewright import QuotaExhausted, RateLimited, UnsupportedWrite
from routewright.testing.provider import Pause
from routewright.wire import ACCOUNT_TOPIC, Caller, Notice, PutAccount, RateLimits, Stands

from .test_admission import ANSWER, COST, Bank, account, key
from .test_failing_parts import Failing

pytestmark = pytest.mark.anyio
SLOW = [Pause(5.0), *ANSWER]


async def changed(bank: Bank, terms: PutAccount) -> None:
    """Give the account other terms, and say so."""
    await bank.storage.apply("acme", [terms])
    await bank.coordination.announce(Notice(ACCOUNT_TOPIC, "acme"))
    await bank.clock.sleep(0.01)


async def running(*script: Any, behind: bool = False, known: bool = True) -> Bank:
    """Of an account that nobody set up."""
    bank = Bank(*([ANSWER] if known else []), *script)
    if behind:
        bank.use(Failing(bank))
    if known:
        await bank.route()
    return bank


@pytest.mark.parametrize("key_id", [None, "key_1"])
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("known", [False, True])
async def test_a_call_that_runs_as_its_account_is_set_up_is_in_its_month(
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


@pytest.mark.parametrize("said", [True, False])
async def test_an_account_that_is_set_up_is_limited_at_once_or_soon(said: bool) -> None:
    bank = await running(ANSWER)
    await bank.clock.sleep(0.1)  # it listens
    terms = account(monthly_nanos=1)
    if said:
        await changed(bank, terms)
    else:
        await bank.storage.apply("acme", [terms])
        await bank.clock.sleep(2.0)
    with pytest.raises(QuotaExhausted):
        await bank.route()
    assert len(bank.good.calls) == 1


class Forgetful(Failing):
    """Says once that it knows of no accounts."""

    forgets = False

    async def read(self, account: str, query: Any) -> Any:
        if self.forgets and isinstance(query, Stands):
            self.forgets = False
            raise UnsupportedWrite("no accounts here")
        return await super().read(account, query)


async def test_a_storage_that_once_kept_accounts_lets_nobody_go_without_limits() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=1)]).open()
    storage = Forgetful(bank)
    bank.use(storage)
    with pytest.raises(QuotaExhausted):
        await bank.route()
    storage.forgets = True
    await bank.clock.sleep(2.0)
    with pytest.raises(UnsupportedWrite):
        await bank.route()
    for _ in range(2):
        with pytest.raises(QuotaExhausted):
            await bank.route()
        await bank.clock.sleep(2.0)
    assert bank.good.calls == []


async def test_a_limit_that_comes_while_calls_run_counts_those_that_end_after_it() -> None:
    bank = await running(SLOW, ANSWER)
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(monthly_nanos=600_000))
    await bank.router.flush()
    with pytest.raises(QuotaExhausted) as refused:
        await bank.route()
    assert refused.value.detail["spent_usd"] == COST / 1e9


async def test_a_limit_that_sinks_below_what_is_held_lets_what_runs_end_and_nothing_begin() -> None:
    bank = await Bank(SLOW, terms=[account(monthly_nanos=10**9)]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(monthly_nanos=1))
        with pytest.raises(QuotaExhausted):
            await bank.route()
    assert await bank.purse() == (1, COST, 0)


async def test_who_waits_for_money_gets_it_as_the_limit_is_raised() -> None:
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


async def test_slots_that_are_fewer_from_now_on_let_what_runs_end_and_nothing_begin() -> None:
    bank = await Bank(SLOW, SLOW, ANSWER, terms=[account(limits=RateLimits(concurrency=2))]).open()
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        await changed(bank, account(limits=RateLimits(concurrency=1)))
        with pytest.raises(RateLimited):
            await bank.route()
    assert (await bank.route()).output == "an answer"
