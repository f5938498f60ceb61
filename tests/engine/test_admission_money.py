"""How much money is reserved for a call, for how many models, and the error if it is not enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    MemoryStorage,
    Policy,
    Pricing,
    ProviderFault,
    RateLimited,
    Router,
    Settings,
    SqliteStorage,
)
from routewright._core.timestamps import timestamp
from routewright.errors import QuotaExhausted, UpstreamFailed
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Pause
from routewright.wire import Ask, Delta, PolicyFallback, Stands, UpstreamCall, Usage

from .test_admission import ACME, ANSWER, CAP, COST, ONE, Bank, account

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


class Line:
    """Calls of one account that has room for one large call at a time, and what became of them, in their order."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.ended: list[str] = []

    async def call(self, name: str, tokens: int) -> None:
        await self.bank.route(name, params={"max_output_tokens": tokens})
        self.ended.append(name)

    async def run(self, calls: Sequence[tuple[str, int]]) -> None:
        async with anyio.create_task_group() as group:
            for name, tokens in calls:
                group.start_soon(self.call, name, tokens)
                await self.bank.clock.sleep(0.1)

    @property
    def asked(self) -> list[Any]:
        """Of whom a provider was asked."""
        return [call.messages[0].content for call in self.bank.good.calls]


LARGE, SMALL = 700, 50


async def line(*script: Any) -> Line:
    return Line(await Bank(*script, terms=[account(monthly_nanos=4_200_000)]).open())


async def test_calls_waiting_for_money_are_served_in_order() -> None:
    waiting, names = await line(*[SLOW] * 5), ["a", "b", "c", "d", "e"]
    await waiting.run([(name, LARGE) for name in names])
    assert waiting.asked == waiting.ended == names
    assert await waiting.bank.purse() == (4_200_000, 5 * COST, 0)


async def test_a_small_call_does_not_overtake_one_waiting_for_the_same_money() -> None:
    waiting = await line(*[SLOW] * 3)
    async with anyio.create_task_group() as group:
        group.start_soon(waiting.run, [("runs", LARGE), ("waits", LARGE), ("small", SMALL)])
        await waiting.bank.clock.sleep(4.9)
        assert waiting.asked == ["runs"]
    assert sorted(waiting.asked[1:]) == ["small", "waits"], "at one time, since there is room for both"


async def test_a_small_call_does_not_wait_if_no_other_waits() -> None:
    waiting = await line(SLOW, ANSWER)
    await waiting.run([("runs", LARGE), ("small", SMALL)])
    assert waiting.ended == ["small", "runs"]


async def test_a_call_that_leaves_the_queue_lets_later_ones_move_up() -> None:
    waiting = await line(SLOW, ANSWER, ANSWER)

    async def leaves() -> None:
        with waiting.bank.clock.deadline(waiting.bank.clock.monotonic() + 1.0):
            await waiting.call("leaves", LARGE)

    async with anyio.create_task_group() as group:
        for call in (partial(waiting.call, "runs", LARGE), leaves, partial(waiting.call, "stays", LARGE)):
            group.start_soon(call)
            await waiting.bank.clock.sleep(0.1)
    assert waiting.ended == ["runs", "stays"]


async def test_a_queued_call_waits_until_its_deadline_and_is_not_admitted_later() -> None:
    waiting = await line(SLOW, SLOW)
    clock = waiting.bank.clock
    async with anyio.create_task_group() as group:
        for name in ("runs", "waits"):
            group.start_soon(waiting.call, name, LARGE)
            await clock.sleep(0.1)
        began = clock.monotonic()
        with pytest.raises(RateLimited) as refused:
            await waiting.bank.route("small", params={"max_output_tokens": SMALL}, timeout_ms=1_000)
        assert refused.value.detail["level"] == "month"
        assert clock.monotonic() - began == pytest.approx(1.0)
    assert waiting.asked == ["runs", "waits"]


def test_steps_never_wait_for_reserved_money() -> None:
    storage, provider, at = MemoryStorage(), ScriptedProvider([], models=[ONE]), timestamp(time.time())
    anyio.run(storage.apply, "acme", [account(monthly_nanos=600_000)])
    anyio.run(storage.accounts.admit, Ask(id="tr_other", caller=ACME, at=time.time(), lasts_s=60.0, nanos=500_000))
    router = Router(providers=[provider], storage=storage)
    began = time.monotonic()
    with pytest.raises(RateLimited) as refused:
        router.steps("hi", caller=ACME, params=CAP, timeout_ms=10_000)
    assert refused.value.detail["level"] == "month"
    assert time.monotonic() - began < 5.0
    router.blocking.close()
    (month,) = (each for each in anyio.run(storage.read, "acme", Stands(at)).purses if each.level == "month")
    assert (month.spent_nanos, month.reserved_nanos) == (0, 500_000)


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
