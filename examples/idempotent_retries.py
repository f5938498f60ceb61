"""Twenty impatient clients send the same request under one key: the model is called once, and all get its answer."""

from __future__ import annotations

import asyncio

from routewright import Answer, CallableProvider, Model, Pricing, Router, UpstreamCall

MODEL = Model(id="mine/one", quality=0.8, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000)


async def main() -> None:
    calls = 0

    async def answer(call: UpstreamCall) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.05)
        return f"This is answer {calls}."

    answers: list[Answer] = []
    async with Router(providers=[CallableProvider(answer, name="mine", models=[MODEL])]) as router:

        async def client() -> None:
            answers.append(await router.route("What is new?", idempotency_key="order-17"))

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(client())

    told = ", ".join({each.output for each in answers})
    print(f"{calls} call, {len(answers)} answers, all of them: {told}")
    assert calls == 1


if __name__ == "__main__":
    asyncio.run(main())
