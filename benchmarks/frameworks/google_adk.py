"""Google ADK: ``RouterLlm`` beside a model that answers at once."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, add
from routewright import Model, Pricing, Router
from routewright.integrations.google_adk import RouterLlm
from routewright.testing import ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, ToolDelta, UpstreamCall, Usage

from .process import Run, compare

MODEL = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)


class Instant(BaseLlm):  # type: ignore[misc]
    """Asks for the tool until it has enough results."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts]
        results = sum(part.function_response is not None for part in parts)
        part = types.Part(text=ANSWER)
        if llm_request.config.tools and results < CALLS - 1:
            call = types.FunctionCall(id=f"call_{results}", name=TOOL, args=json.loads(ARGUMENTS))
            part = types.Part(function_call=call)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=INPUT_TOKENS,
            candidates_token_count=OUTPUT_TOKENS,
            total_token_count=INPUT_TOKENS + OUTPUT_TOKENS,
        )
        content = types.Content(role="model", parts=[part])
        yield LlmResponse(content=content, partial=False, usage_metadata=usage, finish_reason="STOP")


def answer(call: UpstreamCall) -> list[Chunk]:
    results = sum(message.role == "tool" for message in call.messages)
    if call.tools and results < CALLS - 1:
        return [ToolDelta(0, ARGUMENTS, f"call_{results}", TOOL), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]
    return [Delta(ANSWER), Usage(INPUT_TOKENS, OUTPUT_TOKENS), Finish("stop")]


def one_call(model: BaseLlm) -> Run:
    async def run() -> str:
        request = LlmRequest(contents=[types.UserContent(TASK)])
        (response,) = [response async for response in model.generate_content_async(request)]
        return str(response.content.parts[0].text)

    return run


def agent_run(model: BaseLlm) -> Run:
    agent = Agent(name="helper", model=model, instruction=SYSTEM, tools=[add])

    async def run() -> str:
        runner = InMemoryRunner(agent)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="ada")
        message = types.UserContent(TASK)
        events = runner.run_async(user_id="ada", session_id=session.id, new_message=message)
        steps = [event async for event in events]
        assert len(steps) == 2 * CALLS - 1
        return str(steps[-1].content.parts[0].text)

    return run


if __name__ == "__main__":
    logging.disable()
    theirs = Instant(model="instant")
    ours = RouterLlm(Router(providers=[ScriptedProvider(answer, models=[MODEL])]))
    compare(call=(one_call(theirs), one_call(ours)), agent=(agent_run(theirs), agent_run(ours)))
