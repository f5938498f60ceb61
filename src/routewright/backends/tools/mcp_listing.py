"""Checks the tool list of an MCP server. Servers are not trusted: tools that no model can use are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import json

from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.rules import FUNCTION_NAME
from routewright.errors import ValidationFailed
from routewright.wire import FunctionSpec

MOST_TOOLS = 1_000
DESCRIPTION_CHARS = 16_000
SCHEMA_BYTES = 64 << 10
_NAME_CHARS = 100


class Listing:
    """The tools of one server, read page by page. All methods raise ``ValidationFailed``."""

    def __init__(self, server: str, allow: Collection[str] | None) -> None:
        """``server``: its name in errors. ``allow``: names of the tools to keep; None: all."""
        self.specs: dict[str, FunctionSpec] = {}
        self._server, self._allow = server, None if allow is None else set(allow)
        self._names = set[str]()

    def screened(self, page: Sequence[Any]) -> list[Any]:
        """The allowed tools of a raw page, with only the used fields: output schemas are dropped, never evaluated."""
        self._names |= {str(tool.get("name"))[:_NAME_CHARS] for tool in page[:MOST_TOOLS] if isinstance(tool, dict)}
        return [
            self._checked(tool) if isinstance(tool, dict) else tool
            for tool in page
            if self._allow is None or (isinstance(tool, dict) and tool.get("name") in self._allow)
        ]

    def add(self, spec: FunctionSpec) -> None:
        """Add a tool. Raises if it is listed twice, or if there are more than ``MOST_TOOLS``."""
        if spec.name in self.specs:
            raise self._refusal(spec.name, "is listed twice")
        if len(self.specs) == MOST_TOOLS:
            problem = f"the MCP server {self._server} lists more than {MOST_TOOLS} tools"
            raise ValidationFailed.at("tools", problem, "have it list fewer")
        self.specs[spec.name] = spec

    def finish(self) -> None:
        """Check that all allowed tools were listed."""
        for name in sorted((self._allow or set()) - self.specs.keys()):
            hint = did_you_mean(name, self._names) or "leave it out"
            raise ValidationFailed.at("allow", f"the MCP server {self._server} has no tool {shown(name)}", hint)

    def _checked(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        name, described, schema = tool.get("name"), tool.get("description"), tool.get("inputSchema")
        if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
            raise self._refusal(name, "has a name other than 1 to 64 letters, digits, '-' and '_'")
        if not isinstance(described, str | None) or len(described or "") > DESCRIPTION_CHARS:
            raise self._refusal(name, f"has a description other than a text of at most {DESCRIPTION_CHARS} characters")
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise self._refusal(name, "has an inputSchema that is not the schema of an object")
        if not isinstance(schema.get("properties", {}), dict):
            raise self._refusal(name, "has an inputSchema whose properties are not an object")
        if len(json.encode(schema)) > SCHEMA_BYTES:
            raise self._refusal(name, f"has an inputSchema of more than {SCHEMA_BYTES >> 10} KiB")
        return {"name": name, "description": described, "inputSchema": {"type": "object"} | schema}

    def _refusal(self, tool: Any, problem: str) -> ValidationFailed:
        name = shown(tool[:_NAME_CHARS] if isinstance(tool, str) else tool)
        said = f"the tool {name} of the MCP server {self._server} {problem}"
        return ValidationFailed.at("tools", said, "fix the server, or name its other tools in allow=[...]")
