"""openai-agents: an agent's run over a model of our own, tracing off, which would send to the network.

python -m benchmarks.peers.openai_agents_run alone
python -m benchmarks.peers.openai_agents_run 'at once' 100
python -m benchmarks.peers.openai_agents_run waiting 1000
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.script import ANSWER, ARGUMENTS, CALLS, INPUT_TOKENS, OUTPUT_TOKENS, SYSTEM, TASK, TOOL, Run, Tool

from .process import measure_agent


def running(add: Tool) -> Run:
    agents = import_module("agents")  # installed in its own environment only
    agents.set_tracing_disabled(True)
    agent = agents.Agent(name="scripted", instructions=SYSTEM, model=model(), tools=[agents.function_tool(add)])

    async def run() -> str:
        own = agent.clone()  # runs that share one are each compared with all others
        return str((await agents.Runner.run(own, TASK, max_turns=20)).final_output)

    return run


def model() -> Any:
    agents, openai = import_module("agents"), import_module("openai.types.responses")

    def message() -> Any:
        text = openai.ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
        return openai.ResponseOutputMessage(
            id="msg_1", content=[text], role="assistant", status="completed", type="message"
        )

    class Scripted(agents.Model):  # type: ignore[misc, name-defined]
        async def get_response(self, *, input: Any, **given: Any) -> Any:
            told = 0 if isinstance(input, str) else sum(item.get("type") == "function_call" for item in input)
            if told == CALLS - 1:
                item = message()
            else:
                item = openai.ResponseFunctionToolCall(
                    arguments=ARGUMENTS, call_id=f"call_{told}", name=TOOL, type="function_call"
                )
            usage = agents.Usage(
                requests=1,
                input_tokens=INPUT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
            )
            return agents.ModelResponse(output=[item], usage=usage, response_id=None)

        def stream_response(self, *given: Any, **more: Any) -> Any:
            raise NotImplementedError

    return Scripted()


if __name__ == "__main__":
    measure_agent(running)
