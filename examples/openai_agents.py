"""An agent of the OpenAI Agents SDK with a tool, over a Router: budget, fallback and cost of every call."""

import asyncio

from agents import Agent, RunConfig, Runner, function_tool

from routewright import Router
from routewright.integrations.openai_agents import RouterModel
from routewright.wire import Finish, ToolDelta, UpstreamCall, Usage


@function_tool  # type: ignore[untyped-decorator]
def stock(article: str) -> int:
    """How many of an article there are."""
    return {"lamp": 3}.get(article, 0)


async def main() -> None:
    async with Router.sandbox(answers=a_model) as router:
        model = RouterModel(router, goal="quality", budget={"maxCostUsd": 0.01}, metadata={"team": "shop"})
        agent = Agent("clerk", instructions="Answer customers.", model=model, tools=[stock])
        config = RunConfig(tracing_disabled=True)  # else the SDK sends its traces to OpenAI
        result = await Runner.run(agent, "Is the lamp in stock?", run_config=config)
        print(result.final_output)
        for response in result.raw_responses:
            facts = response.output[0].provider_data
            print(f"{facts['model']}, ${facts['cost_usd']:.6f}, trace {response.response_id}")
        print(f"{result.context_wrapper.usage.total_tokens} tokens")


def a_model(call: UpstreamCall) -> str | list[ToolDelta | Usage | Finish]:
    """Stands for models that call tools."""
    if call.messages[-1].role == "tool":
        return f"Yes: {call.messages[-1].content}"
    request = ToolDelta(0, '{"article": "lamp"}', "call_1", "stock")
    return [request, Usage(20, 8), Finish("tool_calls")]


if __name__ == "__main__":
    asyncio.run(main())
