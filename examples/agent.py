"""An agent with two tools and a budget, against a stand-in for a model.

    python examples/agent.py

With keys of real providers leave out ``providers``: the Router finds them in the environment.
"""

from __future__ import annotations

from routewright import Agent, CallableProvider, Delta, Finish, Model, Pricing, Router, Usage
from routewright.wire import Chunk, ToolDelta, UpstreamCall

MODEL = Model(
    id="standin/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), context_window=32_000, modalities=("text", "tool")
)


def price_of(item: str) -> float:
    """The price of an item in euros."""
    return {"tea": 4.2, "cake": 3.5}[item]


def answer(call: UpstreamCall) -> list[Chunk]:
    """Ask for two prices, add them up, and answer."""
    told = [message.content for message in call.messages if message.role == "tool"]
    if not told:
        return [
            ToolDelta(0, '{"item": "tea"}', "call_1", "price_of"),
            ToolDelta(1, '{"item": "cake"}', "call_2", "price_of"),
            Usage(100, 20),
            Finish("tool_calls"),
        ]
    if len(told) == 2:
        sum_of = f'{{"expression": "{told[0]} + {told[1]}"}}'
        return [ToolDelta(0, sum_of, "call_3", "calculator"), Usage(140, 15), Finish("tool_calls")]
    return [Delta(f"Tea and cake are {told[-1]} euros."), Usage(170, 9), Finish("stop")]


def main() -> None:
    router = Router(providers=[CallableProvider(answer, models=[MODEL])])
    agent = Agent(router, tools=[price_of, "calculator"], max_steps=8, total_budget_usd=0.01)
    result = agent.blocking.run("What do tea and cake cost together?")
    print(result.output)
    for step in result.steps:
        print(f"{step.number}. {step.tool or step.model}: {step.output}")
    print(f"{result.status}, ${result.summary.total_cost_usd:.6f}")
    router.blocking.close()


if __name__ == "__main__":
    main()
