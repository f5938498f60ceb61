"""pydantic-ai: an agent's run over a function as the model.

python -m benchmarks.peers.pydantic_ai_agent alone
python -m benchmarks.peers.pydantic_ai_agent 'at once' 100
python -m benchmarks.peers.pydantic_ai_agent waiting 1000
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, Run, Tool

from .process import measure_agent


def running(add: Tool) -> Run:
    ai = import_module("pydantic_ai")  # installed in its own environment only
    said = import_module("pydantic_ai.messages")
    usage = import_module("pydantic_ai.usage").RequestUsage

    async def answer(messages: Any, info: Any) -> Any:
        told = sum(message.kind == "response" for message in messages)
        part = said.TextPart(ANSWER) if told == CALLS - 1 else said.ToolCallPart(TOOL, ARGUMENTS, f"call_{told}")
        return said.ModelResponse(parts=[part], usage=usage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS))

    model = import_module("pydantic_ai.models.function").FunctionModel(answer, model_name="scripted")
    agent = ai.Agent(model, instructions=SYSTEM, tools=[add])

    async def run() -> str:
        return str((await agent.run(TASK)).output)

    return run


if __name__ == "__main__":
    measure_agent(running)
