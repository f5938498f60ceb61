"""Watch a minute of waiting pass in a moment: a model that is too slow, and the one that takes its place."""

from __future__ import annotations

import asyncio
import time

from routewright import Model, Pricing, Router, Settings
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import Finish

SLOW = Model(id="slow/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0))
QUICK = Model(id="quick/two", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0))


async def main() -> None:
    clock = FakeClock()
    slow = ScriptedProvider([[Pause(50), "at last", Finish("stop")]], models=[SLOW], clock=clock)
    quick = ScriptedProvider([[Pause(3), "Here.", Finish("stop")]], models=[QUICK], clock=clock)
    router = Router(providers=[slow, quick], settings=Settings(clock=clock))

    began = time.perf_counter()
    answer = await router.route("Hello", goal="quality")
    print(f"{answer.output} from {answer.routing.selected_model}, after {clock.monotonic():.0f} s of virtual time")
    assert time.perf_counter() - began < clock.monotonic()


if __name__ == "__main__":
    asyncio.run(main())
