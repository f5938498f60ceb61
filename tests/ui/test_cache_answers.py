"""What the page says of the response cache of an account."""

from __future__ import annotations

import pytest

from routewright import Caller, Console, MemoryStorage, Router
from routewright.ui.api import operations

pytestmark = pytest.mark.anyio


async def test_the_cache_is_that_of_the_account_and_environment() -> None:
    storage = MemoryStorage()
    async with Router.sandbox(storage=storage) as router:
        console = Console(storage)
        await console.create_account("acme")
        acme = Caller("acme", "sandbox")
        question = "Why is the sky blue?"
        for _ in range(3):
            await router.route(question, caller=acme, cache={"max_error": 0.05})
        await router.flush()
        owner = {"account": "acme", "environment": "sandbox"}
        known = operations(router, console)
        stats = await known["page.cache_stats"]({"account": "acme"}, "ada")
        assert isinstance(stats, dict)
        assert stats["entries"] == 1
        assert stats["saves_usd"] > 0
        assert known["page.explain_cache"].changes, "it shows questions of others, which takes console:write"
        explanation = await known["page.explain_cache"](owner | {"request": question}, "ada")
        assert isinstance(explanation, dict)
        assert explanation["reason"].startswith("a hit: the same request was answered")
        risk = await known["page.cache_risk"](owner, "ada")
        assert isinstance(risk, dict)
        assert (risk["traces"], risk["lookups"], risk["hits"], risk["wrong_share"]) == (3, 3, 2, 0)
        nothing = await known["page.cache_risk"]({"account": "default", "environment": "production"}, "ada")
        assert nothing == {
            "traces": 0, "lookups": 0, "hits": 0, "explored": 0, "max_errors": [], "wrong_share": None,
        }  # fmt: skip
