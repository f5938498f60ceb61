"""Several calls as one run: one budget over all of them, and one trace with theirs below it."""

from __future__ import annotations

import asyncio

from routewright import Agent, Router
from routewright.errors import QuotaExhausted
from routewright.wire import SubTraceSpan

REVIEWS = ["Great kettle!", "It broke after a day.", "Does what it says."]


async def main() -> None:
    async with Router.sandbox() as router:
        async with router.run(total_budget_usd=0.01, metadata={"job": "reviews"}) as run:
            await asyncio.gather(*(router.route(f"Good or bad? {review}") for review in REVIEWS))
            await Agent(router).run("Summarise the reviews.")
            print(f"cost ${run.cost_usd:.6f}, left ${run.left_usd:.6f}")

        trace = await router.trace(run.trace_id)
        print(trace.status, trace.metadata)
        for span in trace.spans:
            if isinstance(span, SubTraceSpan) and span.parent_id is None:
                print(f"  {span.name}: ${span.cost_usd:.6f}")

        try:
            async with router.run(total_budget_usd=0.0001) as run:
                while True:
                    await router.route("One more?", params={"max_output_tokens": 50})
        except QuotaExhausted as error:
            print(f"stopped at ${run.cost_usd:.6f}: {error.message}")


if __name__ == "__main__":
    asyncio.run(main())
