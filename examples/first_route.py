"""Route a request and see why it went where it went."""

from __future__ import annotations

import asyncio

from routewright import Router


async def main() -> None:
    async with Router.sandbox() as router:  # with a key in the environment: Router()
        answer = await router.route("Why is the sky blue?", goal="quality", budget={"maxCostUsd": 0.05})
        print(answer.output)
        print(f"by {answer.routing.selected_model} for ${answer.routing.cost_usd:.6f}")
        print()
        print(router.explain(answer))


if __name__ == "__main__":
    asyncio.run(main())
