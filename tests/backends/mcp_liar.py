"""An MCP server over stdio with one defect: ``python mcp_liar.py HOW``. It implements the protocol by hand."""

from __future__ import annotations

import json
import sys
from typing import Any

LIES: dict[str, Any] = {
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


def lie(how: str) -> None:
    """Speak the protocol by hand, with one thing wrong."""
    pages = 0
    for line in sys.stdin:
        asked = json.loads(line)
        method, answer = asked.get("method"), dict[str, Any]()
        if method == "initialize":
            answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            answer["serverInfo"] = {"name": "liar", "version": "1"}
        elif method == "tools/list" and how != "silent":
            pages += 1
            good = {"name": f"good{pages}" if how == "endless" else "good", "inputSchema": {}, "outputSchema": 3}
            answer = {"tools": [good] if how == "endless" else [good, LIES[how]]}
            answer |= {"nextCursor": str(pages)} if how == "endless" else {}
        elif method == "tools/call":
            answer = {"content": 5} if how == "result" else {"content": [], "structuredContent": {"n": 1}}
        if "id" in asked and answer:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)


if __name__ == "__main__":
    lie(sys.argv[1])
