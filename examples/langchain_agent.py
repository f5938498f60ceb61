"""An agent loop of LangChain over a Router: a tool, a budget for each call, a stream, the costs."""

from __future__ import annotations

import asyncio

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from routewright import Delta, Finish, Router, Usage
from routewright.integrations.langchain import ChatRoutewright
from routewright.wire import Chunk, ToolDelta, UpstreamCall


def weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


def answer(call: UpstreamCall) -> list[Chunk]:
    if call.messages[-1].role == "tool":
        return [Delta("It is 21 degrees "), Delta("in Rome."), Usage(40, 8), Finish("stop")]
    return [ToolDelta(0, '{"city": "Rome"}', "call_1", "weather"), Usage(30, 12), Finish("tool_calls")]


async def main() -> None:
    router = Router.sandbox(answers=answer)
    model = ChatRoutewright(router=router, model="auto:quality", budget={"maxCostUsd": 0.05})
    agent = model.bind_tools([weather])
    messages: list[BaseMessage] = [HumanMessage("How warm is it in Rome?")]
    while calls := (reply := await agent.ainvoke(messages)).tool_calls:
        results = [ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in calls]
        messages += [reply, *results]
    print(reply.text)
    async for chunk in agent.astream(messages):
        print(chunk.text, end="|")
    print()
    for trace in (await router.traces.query()).data:
        print(f"  {trace.selected_model} ${trace.cost_usd:.6f} {trace.tokens.output} tokens")
    await router.aclose()


if __name__ == "__main__":
    asyncio.run(main())
