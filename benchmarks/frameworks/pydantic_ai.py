"""pydantic-ai: ``RouterModel`` beside a function as the model, which answers at once."""

from __future__ import annotations

from pydantic_ai import Agent, ModelMessage, ModelRequest, ModelResponse, RequestUsage, TextPart, ToolCallPart
from pydantic_ai.models import Model as Framework
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, add
from routewright import Model, Pricing, Router
from routewright.integrations.pydantic_ai import RouterModel
from routewright.testing import ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, ToolDelta, UpstreamCall, Usage

from .process import Run, compare

MODEL = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)


async def instant(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    results = sum(message.kind == "response" for message in messages)
    usage = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
    if info.function_tools and results < CALLS - 1:
        return ModelResponse([ToolCallPart(TOOL, ARGUMENTS, f"call_{results}")], usage=usage)
    return ModelResponse([TextPart(ANSWER)], usage=usage)


def answer(call: UpstreamCall) -> list[Chunk]:
    results = sum(message.role == "tool" for message in call.messages)
    if call.tools and results < CALLS - 1:
        return [ToolDelta(0, ARGUMENTS, f"call_{results}", TOOL), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]
    return [Delta(ANSWER), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]


def one_call(model: Framework) -> Run:
    messages = [ModelRequest.user_text_prompt(TASK)]

    async def run() -> object:
        return (await model.request(messages, None, ModelRequestParameters())).text

    return run


def agent_run(model: Framework) -> Run:
    agent = Agent(model, instructions=SYSTEM, tools=[add])

    async def run() -> object:
        result = await agent.run(TASK)
        assert result.usage.requests == CALLS
        return result.output

    return run


if __name__ == "__main__":
    theirs = FunctionModel(instant)
    ours = RouterModel(Router(providers=[ScriptedProvider(answer, models=[MODEL])]))
    compare(call=(one_call(theirs), one_call(ours)), agent=(agent_run(theirs), agent_run(ours)))
