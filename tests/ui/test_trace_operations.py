"""What the page reads of traces."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Console, MemoryStorage, Router
from routewright.errors import BudgetExceeded, ValidationFailed
from routewright.ui.api import operations

pytestmark = pytest.mark.anyio


async def test_the_list_leaves_decisions_out() -> None:
    storage = MemoryStorage()
    async with Router.sandbox(storage=storage) as router:
        done = await router.route("Why is the sky blue?")
        await router.flush()
        known = operations(router, Console(storage))
        page = await known["traces.query"]({"filter": "status=completed", "limit": 1}, "ada")
        trace = await known["traces.get"]({"trace_id": done.trace_id}, "ada")
        assert isinstance(page, dict)
        assert isinstance(trace, dict)
        assert [item["id"] for item in page["data"]] == [done.trace_id]
        assert "decision_input" not in page["data"][0]
        assert trace["decision_input"] is not None
        with pytest.raises(ValidationFailed, match="unknown"):
            await known["traces.query"]({"filters": "status=completed"}, "ada")


async def test_a_refusal_is_replayed_as_the_same_decision() -> None:
    storage = MemoryStorage()
    async with Router.sandbox(storage=storage) as router:
        with pytest.raises(BudgetExceeded) as refusal:
            await router.route("Hello", budget={"maxCostUsd": 1e-9})
        await router.flush()
        known = operations(router, Console(storage))
        explanation: Any = await known["page.explain"]({"trace_id": refusal.value.trace_id}, "ada")
    assert explanation["is_same"] is True
    assert explanation["refusal"] == refusal.value.message
