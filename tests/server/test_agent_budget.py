"""Agent runs within the budgets and limits of their account and key."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import RateLimits

from .agent_runs import CALL_NANOS, HOWS, PLAIN, House, How, asks, says

pytestmark = pytest.mark.anyio
hows = pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
WORST_USD = 0.0016
"""A call holds a little less than this."""
TERMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the month": ({"monthly_limit_usd": WORST_USD}, {}),
    "of the key": ({}, {"budget_usd": WORST_USD}),
    "of the key's month": ({}, {"monthly_limit_usd": WORST_USD}),
}
"""Of the account and of the key."""


@hows
@pytest.mark.parametrize("name", [*TERMS, "of the balance"])
async def test_a_run_that_uses_up_the_budget_ends_budget_exceeded(how: How, name: str) -> None:
    of_account, of_key = TERMS.get(name, ({"prepaid": True}, {}))
    house = House(lambda _: asks("add", {"a": 1, "b": 1}), **of_account)
    await house.open(**of_key)
    if name == "of the balance":
        await house.console.credit("acme", WORST_USD)
    told = await house.run(how, max_steps=1_000)
    body = told.body
    assert (told.status, body["status"]) == (200, "budget_exceeded")
    assert body["error"]["code"] == ("insufficient_balance" if name == "of the balance" else "quota_exhausted")
    assert len(body["steps"]) > 1
    spent = sum(row.charge_nanos for row in await house.rows())
    assert spent == round(body["summary"]["total_cost_usd"] * 1e9) == len(house.provider.calls) * CALL_NANOS
    assert spent <= WORST_USD * 1e9 < spent + 1_600_000
    await house.check_nothing_is_held()


async def test_a_runs_budget_holds_within_its_accounts() -> None:
    house = await House(lambda _: asks("add", {"a": 1, "b": 1}), monthly_limit_usd=0.01).open()
    body = (await house.run(max_steps=1_000, total_budget_usd=WORST_USD)).body
    assert (body["status"], body["error"]["code"]) == ("budget_exceeded", "quota_exhausted")
    assert "the run has" in body["error"]["message"]
    assert body["summary"]["total_cost_usd"] <= WORST_USD
    assert (await house.run(max_steps=2)).body["marker"] == "max_steps_reached"


@hows
async def test_the_headers_describe_the_request_window(how: How) -> None:
    limits = RateLimits(requests_per_min=10)
    house = await House([asks("add", {"a": 1, "b": 1}), says("two"), says("other")], limits=limits).open()
    told = await house.run(how)
    sent = {name: value for name, value in told.headers.items() if name.startswith("x-ratelimit-")}
    assert sent == {
        "x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-ratelimit-resource": "requests",
        "x-ratelimit-reset": str(round(house.clock.time()) + 60),
    }  # fmt: skip
    again = await house.run(PLAIN, task="other")  # after the run and its two calls
    assert again.headers["x-ratelimit-remaining"] == "6"


async def test_without_limits_there_are_no_limit_headers() -> None:
    house = await House([says("one")]).open()
    assert not [name for name in (await house.run()).headers if name.startswith("x-ratelimit-")]


async def test_a_replay_counts_against_no_window() -> None:
    house = await House([says("one"), says("two")], limits=RateLimits(requests_per_min=4)).open()
    for _ in range(10):
        assert (await house.run(HOWS["plain with a key"])).status == 200
    assert (await house.run()).status == 200
