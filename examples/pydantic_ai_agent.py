"""An agent of pydantic-ai with a tool and a typed answer, over a Router: budget, fallback and cost of every call.

python examples/pydantic_ai_agent.py
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput

from routewright import Router
from routewright.integrations.pydantic_ai import RouterModel
from routewright.wire import Chunk, Finish, ToolDelta, UpstreamCall, Usage


class Reply(BaseModel):
    """What a customer is told."""

    text: str
    in_stock: bool


def stock(article: str) -> int:
    """How many of an article there are."""
    return {"lamp": 3}.get(article, 0)


def answer(call: UpstreamCall) -> str | list[Chunk]:
    """Stands for models that call tools."""
    if call.messages[-1].role == "tool":
        return f'{{"text": "There are {call.messages[-1].content}.", "in_stock": true}}'
    return [ToolDelta(0, '{"article": "lamp"}', "call_1", "stock"), Usage(20, 8), Finish("tool_calls")]


async def main() -> None:
    async with Router.sandbox(answers=answer) as router:
        model = RouterModel(router, "auto:quality", budget={"maxCostUsd": 0.01}, metadata={"team": "shop"})
        agent = Agent(model, instructions="Answer customers.", tools=[stock], output_type=NativeOutput(Reply))
        result = await agent.run("Is the lamp in stock?")
        print(result.output)
        for message in result.all_messages():
            if message.kind == "response":
                print(f"  {message.model_name}, ${message.usage.cost:.6f}, trace {message.provider_response_id}")
        print(f"${result.usage.cost:.6f} for {result.usage.requests} requests")


if __name__ == "__main__":
    asyncio.run(main())
