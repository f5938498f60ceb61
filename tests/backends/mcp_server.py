"""An MCP server for tests, over stdio or HTTP: ``python mcp_server.py stdio`` or ``http PORT``."""

from __future__ import annotations

import base64
import os
import signal
import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop", log_level="CRITICAL")


@server.tool()
def price(article: str, pieces: int = 1) -> dict[str, Any]:
    """The price of an article."""
    return {"article": article, "price": 3 * pieces}


@server.tool(structured_output=False)
def label(article: str) -> list[Any]:
    """A label with a picture."""
    return [f"label of {article}", Image(data=base64.b64decode("aGk="), format="png"), "end"]


@server.tool()
def refuse() -> str:
    """Always fails."""
    raise ToolError("out of stock" + "!" * 5_000)


@server.tool()
async def hang() -> str:
    """Never answers."""
    await anyio.sleep_forever()
    return ""


@server.tool()
def die() -> str:
    """Ends the server."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool()
def variable(name: str) -> str:
    """An environment variable of the server."""
    return os.environ.get(name, "not set")


if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run()
