"""LangChain: ``ChatRoutewright`` beside a model that answers at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, add
from routewright import Model, Pricing, Router
from routewright.integrations.langchain import ChatRoutewright
from routewright.testing import ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, ToolDelta, UpstreamCall, Usage

from .process import Run, compare

MODEL = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)


class Instant(BaseChatModel):  # type: ignore[misc]
    """Asks for the tool until it has enough results."""

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Sequence[object], **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        results = sum(message.type == "tool" for message in messages)
        calls = [{"name": TOOL, "args": json.loads(ARGUMENTS), "id": f"call_{results}"}]
        ends = not kwargs.get("tools") or results == CALLS - 1
        usage = {
            "input_tokens": INPUT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        message = AIMessage(ANSWER if ends else "", tool_calls=[] if ends else calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        return self._generate(messages, **kwargs)


def answer(call: UpstreamCall) -> list[Chunk]:
    results = sum(message.role == "tool" for message in call.messages)
    if call.tools and results < CALLS - 1:
        return [ToolDelta(0, ARGUMENTS, f"call_{results}", TOOL), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]
    return [Delta(ANSWER), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]


def one_call(model: BaseChatModel) -> Run:
    async def run() -> str:
        return str((await model.ainvoke(TASK)).text)

    return run


def agent_run(model: BaseChatModel) -> Run:
    agent = create_agent(model, [add], system_prompt=SYSTEM)

    async def run() -> str:
        state = await agent.ainvoke({"messages": [("user", TASK)]}, {"recursion_limit": 100})
        assert len(state["messages"]) == 2 * CALLS
        return str(state["messages"][-1].text)

    return run


if __name__ == "__main__":
    theirs = Instant()
    router = Router(providers=[ScriptedProvider(answer, models=[MODEL])])
    ours = ChatRoutewright(router=router)
    compare(call=(one_call(theirs), one_call(ours)), agent=(agent_run(theirs), agent_run(ours)))
