"""An agent of Google ADK with a tool, over a Router: budget, fallback and cost of every call."""

import asyncio

from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from google.genai import types

from routewright import Router
from routewright.integrations.google_adk import RouterLlm
from routewright.wire import Finish, ToolDelta, UpstreamCall, Usage


def stock(article: str) -> dict[str, int]:
    """How many of an article there are."""
    return {"count": {"lamp": 3}.get(article, 0)}


async def main() -> None:
    async with Router.sandbox(answers=a_model) as router:
        model = RouterLlm(router, goal="quality", budget={"maxCostUsd": 0.01}, metadata={"team": "shop"})
        agent = Agent(name="clerk", model=model, instruction="Answer customers.", tools=[stock])
        runner = InMemoryRunner(agent)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="ada")
        message = types.UserContent("Is the lamp in stock?")
        async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=message):
            for part in event.content.parts:
                print(part.text or part.function_call or part.function_response)
            if event.custom_metadata:
                facts = event.custom_metadata["routewright"]
                print(f"  {event.model_version}, ${facts['cost_usd']:.6f}, trace {facts['trace_id']}")


def a_model(call: UpstreamCall) -> str | list[ToolDelta | Usage | Finish]:
    """Stands for models that call tools."""
    if call.messages[-1].role == "tool":
        return f"Yes: {call.messages[-1].content}"
    request = ToolDelta(0, '{"article": "lamp"}', "call_1", "stock")
    return [request, Usage(20, 8), Finish("tool_calls")]


if __name__ == "__main__":
    asyncio.run(main())
