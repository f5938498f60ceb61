"""A client disconnects during an agent run: the run ends and is settled; with an idempotency key it continues."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import RateLimits

from .agent_runs import (
    CALL_NANOS,
    HOWS,
    PLAIN_KEY,
    SLOW_S,
    STREAMED_KEY,
    House,
    How,
    asks,
    says,
    slowly,
)

pytestmark = pytest.mark.anyio
without_key = pytest.mark.parametrize(
    "how", [how for how in HOWS.values() if how.key is None], ids=["plain", "streamed"]
)
with_key = pytest.mark.parametrize("how", [PLAIN_KEY, STREAMED_KEY], ids=["plain", "streamed"])
MOMENTS = {"in the first model call": 1.0, "in a tool": SLOW_S + 1, "in a later model call": 2 * SLOW_S + 1}
moments = pytest.mark.parametrize("after_s", MOMENTS.values(), ids=MOMENTS)
LASTS_S = 3 * SLOW_S


storages = pytest.mark.parametrize("storage_s", [None, 0.0], ids=["", "with checkpoints"])


async def opened(*more: Any, storage_s: float | None = None) -> House:
    """A house whose first run takes three slow steps, and whose account has money and one slot."""
    script = [slowly(asks("wait", {})), slowly(says("done")), *more]
    return await House(script, storage_s=storage_s, monthly_limit_usd=1.0, limits=RateLimits(concurrency=1)).open()


@without_key
@moments
@storages
async def test_a_disconnect_ends_a_run_and_releases_what_it_held(
    how: How, after_s: float, storage_s: float | None
) -> None:
    house = await opened(storage_s=storage_s)
    await house.client(how, metadata={"team": "a"}).ask_and_leave(after_s)
    assert house.clock.monotonic() == after_s
    await house.check_nothing_is_held()
    steps = int(after_s // SLOW_S)
    (run,) = await house.runs()
    assert (run["status"], run["error"], run["metadata"]) == ("cancelled", None, {"team": "a"})
    assert run["cost_usd"] == CALL_NANOS / 1e9 * (steps > 0)
    (event,) = await house.ends()
    assert (event.data["trace_id"], event.data["status"]) == (run["id"], "failed")
    assert event.data["summary"]["total_steps"] == steps
    assert (await house.purses())["month"] == (10**9, CALL_NANOS * (steps > 0), 0)


@with_key
@moments
@storages
async def test_with_a_key_a_run_finishes_and_is_replayed(how: How, after_s: float, storage_s: float | None) -> None:
    house = await opened(storage_s=storage_s)
    await house.client(how).ask_and_leave(after_s)
    assert house.clock.monotonic() == LASTS_S
    await house.check_nothing_is_held()
    again = await house.run(how)
    assert (again.status, again.body["output"]) == (200, "done")
    assert house.clock.monotonic() == LASTS_S
    assert len(house.provider.calls) == len(await house.rows()) == 2
    (run,) = await house.runs()
    (event,) = await house.ends()
    assert (run["id"], run["status"]) == (again.body["trace_id"], "completed")
    assert (event.data["trace_id"], event.data["status"]) == (run["id"], "completed")
    assert (await house.purses())["month"] == (10**9, 2 * CALL_NANOS, 0)
