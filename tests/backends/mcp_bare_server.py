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
    "name": {"name": "no name/" + "x" * 500, "inputSchema": {"type": "object"}},
    "number": 7,
    "silent": {},
}


def serve(defect: str) -> None:
    """Serve the tools ``good``, ``die`` and one more."""
    for line in sys.stdin:
        asked = json.loads(line)
        method, answer = asked.get("method"), dict[str, Any]()
        if method == "initialize":
            answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            answer["serverInfo"] = {"name": "bare", "version": "1"}
        elif method == "tools/list" and defect != "silent":
            good = {"name": "good", "inputSchema": {}, "outputSchema": 3}
            answer = {"tools": [good, {"name": "die", "inputSchema": {}}, OTHER_TOOL[defect]]}
        elif method == "tools/call" and asked["params"]["name"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "tools/call" and asked["params"]["name"] != "hang":
            answer = {"content": [], "structuredContent": {"n": 1}}
        if "id" in asked and answer:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
