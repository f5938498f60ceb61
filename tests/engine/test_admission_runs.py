"""The calls of an agent run: its budget covers all of them, with and without an account."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from routewright import RateLimited
from routewright._engine.request_input import RawRequest
from routewright.errors import QuotaExhausted
from routewright.protocols import Facts
from routewright.testing.provider import Line, Pause
from routewright.wire import Delta, Finish, RunLimit, Stands

from .test_admission import ACME, ANSWER, COST, Bank, account

pytestmark = pytest.mark.anyio
SILENT: list[Line] = [Delta("an answer"), Finish("stop")]
"""The provider does not say what was used."""
WORST = 100 * 4_000
"""Of a call that may write 100 tokens, less than that, since it is read, too."""
RUN = RunLimit("tr_run", 1_000_000)


async def call(bank: Bank, run: RunLimit | None = RUN, tokens: int = 100, **options: Any) -> Any:
    asked = RawRequest("hi", {"params": {"max_output_tokens": tokens}, **options})
    return await bank.router._parts.engine.route(asked, ACME, run)


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


async def test_a_call_of_a_run_waits_for_the_reservations_of_its_other_calls() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], ANSWER, terms=[account()]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(call, bank, tokens=150))
        await bank.clock.sleep(0.1)
        await call(bank, tokens=150)
        assert bank.clock.monotonic() == pytest.approx(5.0, abs=0.2)
    assert await counted(bank) == (2 * COST, 0)


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
