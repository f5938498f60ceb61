"""Sets up an account with a limit, calls for it until the money is spent, and shows that all accounts agree."""

from __future__ import annotations

import asyncio

from routewright import CallableProvider, Console, MemoryStorage, Model, Pricing, Router, UpstreamCall
from routewright.errors import QuotaExhausted

MODEL = Model(id="mine/one", quality=0.8, pricing_per_1m=Pricing(100.0, 400.0), context_window=100_000)


def answer(call: UpstreamCall) -> str:
    return "Rivers run to the sea, and the sea is not full."


async def main() -> None:
    storage = MemoryStorage()
    console = Console(storage)
    await console.create_account("acme", plan="pro", monthly_limit_usd=0.05)
    created = await console.create_key("acme", name="website", scopes=["route"])
    caller = await console.authenticate(f"Bearer {created.secret.reveal()}", "production")

    async with Router(providers=[CallableProvider(answer, name="mine", models=[MODEL])], storage=storage) as router:
        routed = router.as_caller(caller)
        calls = 0
        try:
            while True:
                await routed.route("Say something of rivers.", params={"max_output_tokens": 50})
                calls += 1
        except QuotaExhausted as refused:
            print(f"{calls} calls were answered; then: {refused}")

    standing = await console.standing("acme")
    print(f"the month has come to ${standing.month.spent_usd} of ${standing.month.limit_usd}")
    usage = await router.traces.usage(account="acme")
    assert usage.totals.charged_usd == standing.month.spent_usd


if __name__ == "__main__":
    asyncio.run(main())
