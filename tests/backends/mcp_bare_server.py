"""An MCP server over stdio without the SDK, which starts fast: ``python mcp_bare_server.py DEFECT``."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

OTHER_TOOL: dict[str, Any] = {
    "none": {"name": "hang", "inputSchema": {}},
    "schema": {"name": "bad", "inputSchema": {"type": "string"}},
    "no_schema": {"name": "bad", "inputSchema": [1]},
    "properties": {"name": "bad", "inputSchema": {"type": "object", "properties": 7}},
    "huge_schema": {"name": "bad", "inputSchema": {"type": "object", "title": "x" * 100_000}},
    "description": {"name": "bad", "description": "x" * 20_000, "inputSchema": {"type": "object"}},
    "name": {"name": "no name/" + "x" * 500, "inputSchema": {"type": "object"}},
    "number": 7,
    "twice": {"name": "good", "inputSchema": {"type": "object"}},
    "endless": {"name": "other", "inputSchema": {}},
    "silent": {},
    "result": {"name": "other", "inputSchema": {}},
}


def serve(defect: str) -> None:
    """Serve the tools ``good``, ``die`` and one more."""
    pages = 0
    for line in sys.stdin:
        asked = json.loads(line)
        method, answer = asked.get("method"), dict[str, Any]()
        if method == "initialize":
            answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            answer["serverInfo"] = {"name": "bare", "version": "1"}
        elif method == "tools/list" and defect != "silent":
            pages += 1
            good = {"name": f"good{pages}" if defect == "endless" else "good", "inputSchema": {}, "outputSchema": 3}
            die = {"name": "die", "inputSchema": {}}
            answer = {"tools": [good] if defect == "endless" else [good, die, OTHER_TOOL[defect]]}
            answer |= {"nextCursor": str(pages)} if defect == "endless" else {}
        elif method == "tools/call" and asked["params"]["name"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "tools/call" and asked["params"]["name"] != "hang":
            answer = {"content": 5} if defect == "result" else {"content": [], "structuredContent": {"n": 1}}
        if "id" in asked and answer:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
