"""Answer a stack of requests side by side, out of one budget, and count what they cost while they run."""

from __future__ import annotations

import asyncio

from routewright import Answer, Router, Trace

QUESTIONS = [f"What is {number} times {number}?" for number in range(1, 21)]


async def main() -> None:
    spent: list[float] = []

    def add_up(trace: Trace) -> None:
        spent.append(trace.cost_usd)

    async with Router.sandbox() as router:
        with router.on_trace(add_up), router.tags(batch="squares"):
            results = await router.route_many(QUESTIONS, limit=4, budget={"maxCostUsd": 0.01})
            await router.flush()
    answers = [result for result in results if isinstance(result, Answer)]
    print(f"{len(answers)} of {len(results)} answered for ${sum(spent):.6f}")
    assert sum(spent) <= 0.01
    assert all(answer.trace.metadata == {"batch": "squares"} for answer in answers)


if __name__ == "__main__":
    asyncio.run(main())
