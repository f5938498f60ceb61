"""One connection to an MCP server, through the official SDK."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from anyio.lowlevel import current_token
from mcp import ClientSession, MCPError, types
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from msgspec import json
from pydantic import ValidationError

from routewright._core.request.rules import FUNCTION_NAME
from routewright.backends.clock import SystemClock
from routewright.errors import ValidationFailed
from routewright.protocols import ToolFailed
from routewright.wire import FunctionSpec, JsonObject
from routewright.wire.problems import did_you_mean, shown

OPEN_S = 30.0
"""How long a server may take to start and to list its tools."""
CLOSE_S = 10.0
"""How long a server may take to end."""
MOST_PAGES = 100
MOST_TOOLS = 1_000
DESCRIPTION_CHARS = 16_000
SCHEMA_BYTES = 64 << 10
_NAME_CHARS = 100
ERROR_CHARS = 2_000
"""Longest error text."""
_LOST = ("Connection closed", "SSE stream")
"""Beginnings of the SDK's messages about a lost connection."""
_clock = SystemClock()

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transport of the SDK: a pair of streams."""


class Connection:
    """The SDK's session in its own task, since a broken transport cancels that task."""

    def __init__(self, name: str, connect: Connect, allow: Collection[str] | None) -> None:
        self.name = name
        self.specs: dict[str, FunctionSpec] = {}
        """The allowed tools."""
        self._allow = None if allow is None else set(allow)
        self._names = set[str]()
        self._connect = connect
        self._group = anyio.create_task_group()
        self._is_open = anyio.Event()
        self._closing = anyio.Event()
        self._gone = anyio.Event()
        self._session: ClientSession | None = None
        self._error: Exception | None = None

    async def open(self) -> list[FunctionSpec]:
        """Connect and list the tools. Raises ``ToolFailed`` and ``ValidationFailed``."""
        self._loop = current_token()
        await self._group.__aenter__()
        self._group.start_soon(self._serve)
        with _clock.deadline(_clock.monotonic() + OPEN_S) as limit:
            await self._is_open.wait()
        if limit.expired:
            raise ToolFailed(f"the MCP server {self.name} listed no tools within {OPEN_S:.0f} s")
        error = self._error
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        match error:
            case None:
                return [*self.specs.values()]
            case ValidationFailed() | ToolFailed():
                raise error
            case ValidationError():
                problem = f"the MCP server {self.name} sends answers that the protocol does not allow"
                raise ValidationFailed.at("tools", problem, "update the server")
            case FileNotFoundError() | PermissionError():
                reason = f"cannot start {shown(error.filename)}: {error.strerror}"
            case _:
                reason = shorten(error.message) if isinstance(error, MCPError) else type(error).__name__
        raise ToolFailed(f"the MCP server {self.name} cannot be opened: {reason}")

    async def close(self) -> None:
        """End the server, and kill it if it takes too long. Idempotent."""
        self._closing.set()
        if self._session is None:
            self._group.cancel_scope.cancel()
        with _clock.deadline(_clock.monotonic() + CLOSE_S, shield=True):
            await self._gone.wait()
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    async def call(self, tool: str, arguments: JsonObject) -> types.CallToolResult:
        """Call a tool. Raises ``ToolFailed``."""
        if self._session is None or self._closing.is_set():
            raise ToolFailed("the MCP server of this tool is closed")
        if current_token() != self._loop:
            raise ToolFailed("the MCP server of this tool was opened in another event loop")
        try:
            return await self._session.call_tool(tool, arguments)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and error.message.startswith(_LOST):
                raise ToolFailed("the MCP server of this tool ended the connection") from None
            raise ToolFailed(f"the MCP server refused the call: {shorten(error.message)}") from None
        except (ValidationError, RuntimeError):
            raise ToolFailed("the MCP server returned a result that the protocol does not allow") from None

    async def _serve(self) -> None:
        try:
            async with (
                self._connect() as (read, write),
                ClientSession(dispatcher=_Screen(read, write, self)) as session,
            ):
                await session.initialize()
                await self._list(session)
                self._session = session
                self._is_open.set()
                await self._closing.wait()
        except Exception as error:  # of the SDK, its transports and the server; raised again for the caller
            self._error = error
        finally:
            self._is_open.set()
            self._gone.set()

    async def _list(self, session: ClientSession) -> None:
        cursor = None
        for _ in range(MOST_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                if tool.name in self.specs:
                    raise self._refusal(tool.name, "is listed twice")
                if len(self.specs) == MOST_TOOLS:
                    problem = f"the MCP server {self.name} lists more than {MOST_TOOLS} tools"
                    raise ValidationFailed.at("tools", problem, "configure the server to list fewer")
                self.specs[tool.name] = FunctionSpec(tool.name, tool.description, tool.input_schema)
            if (cursor := page.next_cursor) is None:
                break
        else:
            problem = f"the MCP server {self.name} lists its tools on more than {MOST_PAGES} pages"
            raise ValidationFailed.at("tools", problem, "configure the server to list fewer")
        for name in sorted((self._allow or set()) - self.specs.keys()):
            hint = did_you_mean(name, self._names) or "leave it out"
            raise ValidationFailed.at("allow", f"the MCP server {self.name} has no tool {shown(name)}", hint)

    def screen(self, page: Sequence[object]) -> list[object]:
        """The allowed tools of a raw page, with only the used fields: output schemas are dropped, never evaluated.
        Servers are not trusted: ``ValidationFailed`` for a tool that no model can use."""
        self._names |= {str(tool.get("name"))[:_NAME_CHARS] for tool in page[:MOST_TOOLS] if isinstance(tool, dict)}
        return [
            self._check(tool) if isinstance(tool, dict) else tool
            for tool in page
            if self._allow is None or (isinstance(tool, dict) and tool.get("name") in self._allow)
        ]

    def _check(self, tool: Mapping[str, object]) -> JsonObject:
        name = tool.get("name")
        description = tool.get("description")
        schema = tool.get("inputSchema")
        if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
            raise self._refusal(name, "has a name other than 1 to 64 letters, digits, '-' and '_'")
        if not isinstance(description, str | None) or len(description or "") > DESCRIPTION_CHARS:
            raise self._refusal(name, f"has a description other than a text of at most {DESCRIPTION_CHARS} characters")
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise self._refusal(name, "has an inputSchema that is not the schema of an object")
        if not isinstance(schema.get("properties", {}), dict):
            raise self._refusal(name, "has an inputSchema whose properties are not an object")
        if len(json.encode(schema)) > SCHEMA_BYTES:
            raise self._refusal(name, f"has an inputSchema of more than {SCHEMA_BYTES >> 10} KiB")
        return {"name": name, "description": description, "inputSchema": {"type": "object"} | schema}

    def _refusal(self, tool: object, problem: str) -> ValidationFailed:
        name = shown(tool[:_NAME_CHARS] if isinstance(tool, str) else tool)
        message = f"the tool {name} of the MCP server {self.name} {problem}"
        return ValidationFailed.at("tools", message, "fix the server, or name its other tools in allow=[...]")


class _Screen(JSONRPCDispatcher[TransportContext]):
    """Checks lists of tools before the SDK, which refuses the complete list without naming the invalid tool."""

    def __init__(self, read: Any, write: Any, connection: Connection) -> None:
        super().__init__(read, write)
        self._connection = connection

    async def send_raw_request(self, method: str, *arguments: Any, **options: Any) -> JsonObject:
        raw = await super().send_raw_request(method, *arguments, **options)
        if method == "tools/list" and isinstance(raw.get("tools"), list):
            return raw | {"tools": self._connection.screen(raw["tools"])}
        return raw


def shorten(text: str) -> str:
    """A server's error text, cut off at ``ERROR_CHARS``."""
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]} [cut off]"
