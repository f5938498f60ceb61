"""An agent with the tools of an MCP server, which this file is too: ``python mcp_agent.py serve``."""

from __future__ import annotations

import asyncio
import sys

from mcp.server import MCPServer

from routewright import Agent, Finish, Model, Router, Usage
from routewright.testing import ScriptedProvider
from routewright.tools import McpTools
from routewright.wire import ToolDelta

server = MCPServer("shop")


@server.tool()
def stock_of(item: str) -> int:
    """How many of an item are in stock."""
    return {"tea": 12, "cake": 0}[item]


# in place of a vendor's model, which Router() finds by its key: it asks for the tool, then answers
ANSWERS: list[str | list[ToolDelta | Usage | Finish]] = [
    [ToolDelta(0, '{"item": "tea"}', "call_1", "stock_of"), Usage(100, 20), Finish("tool_calls")],
    "12 packets of tea are left.",
]
MODEL = Model(id="standin/one", quality=0.5, modalities=("text", "tool"), context_window=32_000)


async def main() -> None:
    async with (
        McpTools.stdio(sys.executable, [__file__, "serve"], allow=["stock_of"]) as tools,
        Router(providers=[ScriptedProvider(ANSWERS, models=[MODEL])]) as router,
    ):
        answer = await Agent(router, tools=[*tools, "calculator"], max_steps=4).run("How much tea is left?")
        for step in answer.steps:
            print(step.number, step.action, step.tool or "", step.output)
        print(answer.output)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server.run("stdio")
    else:
        asyncio.run(main())
