"""OpenAI Agents SDK: ``RouterModel`` beside the SDK's own model for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from agents import Agent, Model, ModelSettings, ModelTracing, Runner, Usage, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, add
from routewright import Model as RoutedModel
from routewright import Pricing, Router
from routewright.integrations.openai_agents import RouterModel
from routewright.testing import ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, ToolDelta, UpstreamCall
from routewright.wire import Usage as Tokens

from .process import Run, compare

MODEL = RoutedModel(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)
USAGE = Usage(1, INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, total_tokens=INPUT_TOKENS + OUTPUT_TOKENS)


def steps() -> Iterator[ModelStep]:
    for number in range(CALLS - 1):
        yield ModelStep([function_call(TOOL, json.loads(ARGUMENTS), call_id=f"call_{number}")], USAGE)
    yield ModelStep([assistant_message(ANSWER)], USAGE)


def answer(call: UpstreamCall) -> list[Chunk]:
    results = sum(message.role == "tool" for message in call.messages)
    if call.tools and results < CALLS - 1:
        return [ToolDelta(0, ARGUMENTS, f"call_{results}", TOOL), Tokens(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]
    return [Delta(ANSWER), Tokens(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]


def one_call(make: Callable[[], Model]) -> Run:
    settings = ModelSettings()
    stored = dict.fromkeys(("previous_response_id", "conversation_id", "prompt"))

    async def run() -> str:
        response = await make().get_response(SYSTEM, TASK, settings, [], None, [], ModelTracing.DISABLED, **stored)
        return str(response.output[0].content[0].text)

    return run


def agent_run(make: Callable[[], Model]) -> Run:
    tool = function_tool(add)

    async def run() -> str:
        result = await Runner.run(Agent("helper", instructions=SYSTEM, model=make(), tools=[tool]), TASK)
        assert len(result.raw_responses) == CALLS
        return str(result.final_output)

    return run


if __name__ == "__main__":
    set_tracing_disabled(True)
    router = Router(providers=[ScriptedProvider(answer, models=[MODEL])])
    compare(
        call=(one_call(lambda: ScriptedModel([[assistant_message(ANSWER)]])), one_call(lambda: RouterModel(router))),
        agent=(agent_run(lambda: ScriptedModel(steps())), agent_run(lambda: RouterModel(router))),
    )
