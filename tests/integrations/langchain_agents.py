"""Agents of the package ``langchain``, graphs of LangGraph, run by ``test_langchain.py`` in a process that has them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.exceptions import ModelPermissionDeniedError
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from routewright.integrations.langchain import ChatRoutewright
from routewright.wire import Finish, ToolDelta, Usage
from tests.integrations.upstreams import PLAIN, SIGNED, STRUCTURED, THOUGHTS, TOOL, router_of

pytestmark = pytest.mark.anyio
QUESTION = {"messages": [("user", "How warm is Rome?")]}
THINKING_TOOL = [THOUGHTS[0], *TOOL]


class Report(BaseModel):
    city: str
    degrees: int


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


def agent_of(script: Any, **options: Any) -> tuple[Any, Any, Any]:
    router, provider = router_of(script)
    return create_agent(ChatRoutewright(router=router), [weather], **options), router, provider


async def test_thoughts_of_an_agent_survive_its_checkpoints() -> None:
    agent, _, provider = agent_of([THINKING_TOOL, PLAIN, PLAIN], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    await agent.ainvoke(QUESTION, config)
    await agent.ainvoke({"messages": [("user", "And Oslo?")]}, config)
    for call in provider.calls[1:]:
        assert call.messages[1].reasoning.items == [SIGNED]


async def test_an_agent_streams_text_as_it_comes() -> None:
    agent, *_ = agent_of([TOOL, PLAIN])
    chunks = [chunk async for chunk, _ in agent.astream(QUESTION, stream_mode="messages")]
    texts = [chunk.text for chunk in chunks if chunk.type == "AIMessageChunk" and chunk.text]
    assert texts == ["Air scatters ", "blue light."]


@pytest.mark.parametrize("strategy", [ProviderStrategy, ToolStrategy])
async def test_an_agent_answers_by_a_schema(strategy: Any) -> None:
    by_tool = [ToolDelta(0, '{"city":"Rome","degrees":21}', "call_2", "Report"), Usage(15, 9), Finish("tool_calls")]
    final = STRUCTURED if strategy is ProviderStrategy else by_tool
    agent, *_ = agent_of([TOOL, final], response_format=strategy(Report))
    assert (await agent.ainvoke(QUESTION))["structured_response"] == Report(city="Rome", degrees=21)


async def test_the_calls_of_an_agent_are_one_run() -> None:
    agent, router, _ = agent_of([TOOL, PLAIN, TOOL, PLAIN])
    async with router.run(total_budget_usd=0.05, metadata={"team": "red"}) as run:
        messages = (await agent.ainvoke(QUESTION))["messages"]
    costs = [message.response_metadata["cost_usd"] for message in messages if message.type == "ai"]
    assert run.cost_usd == pytest.approx(sum(costs))
    trace = await router.trace(run.trace_id)
    assert trace.children == [message.response_metadata["trace_id"] for message in messages if message.type == "ai"]
    assert (await router.trace(trace.children[0])).metadata["team"] == "red"
    async with router.run(total_budget_usd=0.000001):
        with pytest.raises(ModelPermissionDeniedError):
            await agent.ainvoke(QUESTION)
