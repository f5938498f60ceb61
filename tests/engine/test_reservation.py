"""How much money is reserved for a call, or for all calls of an agent run, and the error if it is not enough."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    BudgetExceeded,
    CallableProvider,
    Policy,
    Pricing,
    ProviderFault,
    RateLimited,
    Router,
    Settings,
    SqliteStorage,
)
from routewright._engine.context import InsideRun, RunScope
from routewright._engine.request_input import RawRequest
from routewright.errors import (
    QuotaExhausted,
    UpstreamFailed,
)
from routewright.protocols import Facts
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    Delta,
    Finish,
    PolicyFallback,
    RateLimits,
    RunLimit,
    Stands,
    UpstreamCall,
    Usage,
)

from .account_router import ACME, ANSWER, CAP, COST, ONE, Bank, account

pytestmark = pytest.mark.anyio

LIMIT = 10**9
SLOW = [Pause(5.0), *ANSWER]


async def held(bank: Bank, **options: Any) -> int:
    """What is reserved while a call runs."""
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, goal="quality", **options))
        await bank.clock.sleep(1.0)
        _, _, reserved = await bank.purse()
    _, spent, left = await bank.purse()
    assert (spent > 0, left) == (True, 0)
    return reserved


async def hedging(*, hedge: bool = True) -> Bank:
    """Of its two models the second costs twice as much as the first."""
    bank = Bank(SLOW, spare=[ANSWER], terms=[account(monthly_nanos=LIMIT)])
    policy = Policy(name="quick", goal="quality", fallback=PolicyFallback(hedge=hedge))
    bank.router = Router(
        providers=[bank.good, bank.spare], policies=[policy], storage=bank.storage, settings=Settings(clock=bank.clock)
    )
    return await bank.open()


async def test_a_hedged_call_reserves_both_models() -> None:
    alone = await held(await hedging(hedge=False), policy_id="quick")
    assert await held(await hedging(), policy_id="quick") == 3 * alone


async def test_a_hedged_call_reserves_at_most_its_own_budget() -> None:
    assert await held(await hedging(), policy_id="quick", budget={"maxCostUsd": 0.001}) == 1_000_000


async def test_a_cheaper_fallback_does_not_lower_the_reservation() -> None:
    bank = Bank(spare=[SLOW], terms=[account(monthly_nanos=LIMIT)])
    dear = replace(ONE, pricing_per_1m=Pricing(100.0, 400.0))
    first = ScriptedProvider([ProviderFault("auth")], models=[dear], clock=bank.clock)
    bank.use(bank.storage, providers=[first, bank.spare])
    assert await held(await bank.open()) > 100 * 400_000


@pytest.mark.parametrize(
    ("budget_usd", "raised"), [(1e-6, BudgetExceeded), (1.0, QuotaExhausted), (None, QuotaExhausted)]
)
async def test_a_refusal_by_the_requests_own_budget_does_not_blame_the_account(
    budget_usd: float | None, raised: type[Exception]
) -> None:
    bank = await Bank(terms=[account(monthly_nanos=500)]).open()
    budget = None if budget_usd is None else {"maxCostUsd": budget_usd}
    with pytest.raises(raised):
        await bank.route(budget=budget)
    assert await bank.purse() == (500, 0, 0)


async def test_a_fallback_widens_the_reservation_up_to_the_requests_budget() -> None:
    broken: list[Any] = [Delta("half an"), Usage(100, 10), ProviderFault("auth")]
    for budget, fallbacks in {0.0012: 0, 0.0013: 1}.items():
        bank = await Bank(broken, spare=[ANSWER], terms=[account(monthly_nanos=LIMIT)]).open()
        with nullcontext() if fallbacks else pytest.raises(UpstreamFailed):
            await bank.route(goal="quality", budget={"maxCostUsd": budget})
        assert len(bank.spare.calls) == fallbacks


async def test_a_vain_wait_for_reserved_money_is_explained_by_sqlite_too(tmp_path: Path) -> None:
    ends = anyio.Event()

    async def answer(call: UpstreamCall) -> str:
        await ends.wait()
        return "done"

    storage = SqliteStorage(tmp_path / "store.db")
    await storage.apply(ACME.account, [account(monthly_nanos=10_000_000)])
    async with Router(providers=[CallableProvider(answer, models=[ONE])], storage=storage) as router:
        ask = partial(router.route, "hi", caller=ACME, params={"max_output_tokens": 2_000})
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            while not storage.accounts._writer.transaction.state.holds:  # noqa: ASYNC110  # another thread takes it
                await anyio.sleep(0.001)
            for timeout_ms in (100, 400):
                with pytest.raises(RateLimited, match="running calls have reserved") as refused:
                    await ask(timeout_ms=timeout_ms)
                assert refused.value.detail["limit_of"] == "money"
            ends.set()


# Agent runs


SILENT: list[Line] = [Delta("an answer"), Finish("stop")]
"""The provider does not say what was used."""
WORST = 100 * 4_000
"""Of a call that may write 100 tokens, less than that, since it is read, too."""
RUN = RunLimit("tr_run", 1_000_000)


async def call(bank: Bank, run: RunLimit | None = RUN, tokens: int = 100, **options: Any) -> Any:
    asked = RawRequest("hi", {"params": {"max_output_tokens": tokens}, **options})
    return await bank.router.engine.route(asked, ACME, inside=None if run is None else inside(bank, run))


def inside(bank: Bank, run: RunLimit) -> InsideRun:
    """A place for the model calls of a run."""
    scope = RunScope(bank.router.engine.ids, ACME, "agents", id=run.id, cap_nanos=run.limit_nanos, has_purse=True)
    return InsideRun(scope, None)


async def counted(bank: Bank, run: RunLimit = RUN) -> tuple[int, int]:
    """What the run has spent, and what is reserved of it."""
    found = await bank.storage.read("acme", Stands(bank.month, None, run))
    (purse,) = [each for each in found.purses if each.level == "agent_run"]
    return purse.spent_nanos, purse.reserved_nanos


async def test_a_run_is_limited_even_if_its_account_was_cached_before() -> None:
    bank = await Bank(ANSWER, terms=[account()]).open()
    await bank.route()
    with pytest.raises(QuotaExhausted) as refused:
        await call(bank, RunLimit("tr_run", COST))
    assert refused.value.detail["level"] == "agent_run"
    assert len(bank.good.calls) == 1


async def test_a_run_limits_only_its_own_calls() -> None:
    bank = await Bank(*[ANSWER] * 3, terms=[account()]).open()
    with pytest.raises(QuotaExhausted):
        await call(bank, RunLimit("tr_poor", COST))
    await call(bank, None)
    await call(bank, RUN)
    assert await counted(bank) == (COST, 0)


async def test_a_run_limits_the_calls_of_an_unknown_account() -> None:
    bank = await Bank(ANSWER, ANSWER).open()
    await bank.route()
    await call(bank)
    assert await counted(bank) == (COST, 0)
    with pytest.raises(QuotaExhausted):
        await call(bank, tokens=250)
    assert len(bank.good.calls) == 2


async def test_unknown_usage_counts_at_its_maximum_in_the_run_and_is_charged_as_estimated() -> None:
    bank = await Bank(SILENT, terms=[account(monthly_nanos=10**9)]).open()
    await call(bank)
    (row,) = await bank.rows()
    assert await bank.purse() == (10**9, row.charge_nanos, 0)
    assert row.charge_nanos < WORST < (await counted(bank))[0]


async def test_a_call_of_a_run_that_waited_in_vain_names_the_other_calls() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], terms=[account()]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(call, bank, tokens=150))
        await bank.clock.sleep(0.1)
        with pytest.raises(RateLimited) as refused:
            await call(bank, tokens=150, timeout_ms=1_000)
        assert refused.value.detail["level"] == "agent_run"
    assert await counted(bank) == (COST, 0)


async def test_the_bill_of_a_call_names_its_run_and_the_most_that_it_can_have_cost() -> None:
    bank = await Bank(SILENT, terms=[account()]).open()
    storage = bank.behind()
    await call(bank)
    (bill,) = storage.of(Facts)
    assert bill.run == RUN
    assert bill.run_nanos > WORST > bill.rows[0].cost_nanos


async def test_the_calls_of_an_agent_run_stay_within_its_budget() -> None:
    run = RunLimit("tr_run", 1_000_000)
    broken: list[Line] = [Delta("half an"), ProviderFault("auth")]
    bank = await Bank(broken, [Pause(1.0), *ANSWER], ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    engine = bank.router._parts.engine

    async def call() -> Any:
        return await engine.route(RawRequest("hi", {"params": CAP}), ACME, inside=inside(bank, run))

    with pytest.raises(UpstreamFailed):
        await call()
    found = await bank.storage.read("acme", Stands(bank.month, None, run))
    worst = found.purses[0].spent_nanos
    assert worst > 100 * 4_000, "it broke off, so that it may have cost all that it could"
    assert found.purses[-1].spent_nanos == 0, "and the account is charged nothing for it"
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await bank.clock.sleep(0.1)
        began = bank.clock.monotonic()
        with pytest.raises(QuotaExhausted) as caught:
            await call()
        assert caught.value.detail["level"] == "agent_run"
        assert bank.clock.monotonic() - began == pytest.approx(0.9, abs=0.01), "it waits for what the other holds"
    found = await bank.storage.read("acme", Stands(bank.month, None, run))
    assert (found.purses[0].spent_nanos, found.purses[0].reserved_nanos) == (worst + COST, 0)
    assert await bank.purse() == (10**9, COST, 0)


async def test_calls_of_an_agent_run_take_no_slot_and_wait_for_rate_limits() -> None:
    limits = RateLimits(concurrency=1, requests_per_min=2)
    bank = await Bank(*[[Pause(1.0), *ANSWER]] * 3, terms=[account(limits=limits)]).open()
    engine, run, began = bank.router._parts.engine, RunLimit("tr_run", 10**9), bank.clock.monotonic()

    async def call(timeout_ms: int) -> float:
        request = RawRequest("hi", {"params": CAP, "timeout_ms": timeout_ms})
        await engine.route(request, ACME, inside=inside(bank, run))
        return bank.clock.monotonic() - began

    async with anyio.create_task_group() as group:
        group.start_soon(call, 60_000)
        assert await call(60_000) == pytest.approx(1.0, abs=0.01), "at once, beside the other"
        with pytest.raises(RateLimited, match="2 requests a minute"):
            await call(10_000)
        assert bank.clock.monotonic() - began == pytest.approx(1.0, abs=0.01), "its time does not reach so far"
        assert await call(90_000) == pytest.approx(61.0, abs=0.01)
