"""Print an answer while it comes; then watch the events of a call whose first model fails."""

from __future__ import annotations

import asyncio

from routewright import Router
from routewright.wire import OutputDelta, RouteCompleted, RouteFallback, RouteStarted


async def main() -> None:
    async with Router.sandbox(answers={"Count to five.": "one two three four five"}) as router:
        async with router.stream("Count to five.") as stream:
            async for text in stream.text():
                print(text, end="", flush=True)
        print(f"\n({stream.result.routing.selected_model})\n")
        await watch(stream.result.routing.selected_model)


async def watch(down: str) -> None:
    async with Router.sandbox(faults={down: "server"}) as router, router.stream("Count to five.") as stream:
        async for event in stream:
            match event:
                case RouteStarted(data=started):
                    print(f"asking {started.routing.selected_model}")
                case RouteFallback(data=moved):
                    print(f"{moved.from_model} failed ({moved.reason}), asking {moved.to_model}")
                case OutputDelta(data=piece):
                    print(f"  attempt {piece.attempt}: {piece.text!r}")
                case RouteCompleted(data=response):
                    print(f"answered by {response.fallback_model or response.primary_model}")


if __name__ == "__main__":
    asyncio.run(main())
