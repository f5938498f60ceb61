"""One connection to an MCP server, through the official SDK."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from anyio.lowlevel import current_token
from mcp import ClientSession, MCPError, types
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from msgspec import json
from msgspec.structs import replace
from pydantic import ValidationError

from routewright._core.request.compatibility import complete_tool
from routewright._core.request.rules import FUNCTION_NAME
from routewright.backends.clock import SystemClock
from routewright.backends.providers.tool_ids import short_id
from routewright.errors import ValidationFailed
from routewright.protocols import ToolFailed
from routewright.wire import FunctionSpec, JsonObject, Tool
from routewright.wire.json_scan import MAX_DEPTH, find_flaw
from routewright.wire.problems import did_you_mean, shown

OPEN_S = 30.0
"""How long a server may take to start and to list its tools."""
CLOSE_S = 10.0
"""How long a server may take to end."""
MOST_PAGES = 100
MOST_TOOLS = 1_000
DESCRIPTION_CHARS = 16_000
SCHEMA_BYTES = 64 << 10
_NAME_CHARS = 64
ERROR_CHARS = 2_000
"""Longest error text."""
_LOST = ("Connection closed", "SSE stream")
"""Beginnings of the SDK's messages about a lost connection."""
_clock = SystemClock()
_log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transport of the SDK: a pair of streams."""


class Connection:
    """The SDK's session in its own task, since a broken transport cancels that task."""

    def __init__(self, name: str, connect: Connect, allow: Collection[str] | None) -> None:
        self.name = name
        self.specs: dict[str, FunctionSpec] = {}
        """The allowed tools by the server's name. The spec has a name that vendors take."""
        self._allow = None if allow is None else set(allow)
        self._names = set[str]()
        self._left_out: list[str] = []
        self._cursors = {""}
        self._connect = connect
        self._group = anyio.create_task_group()
        self._is_open = anyio.Event()
        self._closing = anyio.Event()
        self._gone = anyio.Event()
        self._session: ClientSession | None = None
        self._error: Exception | None = None

    async def open(self) -> dict[str, FunctionSpec]:
        """Connect and list the tools, by the server's names. Raises ``ToolFailed`` and ``ValidationFailed``."""
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
                return self.specs
            case ValidationFailed() | ToolFailed():
                raise error
            case ValidationError():
                problem = f"the MCP server {self.name} sends answers that the protocol does not allow"
                raise ValidationFailed.at("tools", problem, "update the server")
            case FileNotFoundError() | PermissionError():
                reason = f"cannot start {shown(error.filename)}: {error.strerror}"
            case MCPError(code=types.CONNECTION_CLOSED):
                reason = "it ended the connection; start it alone to see why"
            case _:
                reason = shown(error.message) if isinstance(error, MCPError) else type(error).__name__
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
            if (cursor := page.next_cursor) is None:
                break
        else:
            self._left_out.append(f"those after {MOST_PAGES} pages")
        if len(self.specs) > MOST_TOOLS:
            problem = f"the MCP server {self.name} lists more than {MOST_TOOLS} tools"
            raise ValidationFailed.at("tools", problem, "configure the server to list fewer")
        for name in sorted((self._allow or set()) - self._names):
            hint = did_you_mean(name, self._names) or "leave it out"
            raise ValidationFailed.at("allow", f"the MCP server {self.name} has no tool {shown(name)}", hint)
        if self._left_out:
            tools = ", ".join(self._left_out[:10])
            _log.warning("left out %d tools of the MCP server %s: %s", len(self._left_out), self.name, tools)
        taken = set[str]()
        for name in sorted(self.specs, key=lambda name: FUNCTION_NAME.fullmatch(name) is None):
            new_name = re.sub("[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARS]
            while new_name in taken:
                new_name = f"{new_name[: _NAME_CHARS - 10]}_{short_id(new_name + name)}"
            taken.add(new_name)
            self.specs[name] = replace(self.specs[name], name=new_name)

    def screen(self, raw: JsonObject) -> JsonObject:
        """Add the allowed tools of a raw page. Returns what the SDK has to know of it: schemas of servers are not
        trusted, and one that it refuses would lose the whole page."""
        # Servers say in odd ways that a list has ended: with an empty cursor, with the same one again, or with a new
        # one for the same tools, for ever. To refuse such a server would lose all its tools, and to obey it would never
        # end. So a page that brings nothing new is the last one, and so is the hundredth. See
        # test_a_list_of_tools_ends and test_a_list_that_never_ends_is_cut.
        page = (raw.get("tools") or [])[: MOST_TOOLS + 1]
        count = len(self._names)
        names: list[JsonObject] = []
        for tool in page:
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(name, str) or not name.strip():
                self._left_out += [f"{shown(name)} (has no name)"] if self._allow is None else []
            elif name not in self._names:
                self._names.add(name)
                if self._allow is None or name in self._allow:
                    self._add(name, tool)
                    names.append({"name": name, "inputSchema": {"type": "object"}})
        cursor = raw.get("nextCursor")
        is_new = isinstance(cursor, str) and cursor not in self._cursors and (not page or len(self._names) > count)
        self._cursors.add(str(cursor))
        return {"tools": names, "nextCursor": cursor if is_new else None}

    def _add(self, name: str, tool: Mapping[str, object]) -> None:
        description = tool.get("description")
        schema = tool.get("inputSchema")
        text = description[:DESCRIPTION_CHARS] if isinstance(description, str) else None
        if isinstance(schema, dict | None) and find_flaw([text, schema], MAX_DEPTH - 4) is None:
            spec = complete_tool(Tool(function=FunctionSpec(name, text, schema))).function_spec
            if len(json.encode(spec.parameters)) <= SCHEMA_BYTES and (spec.parameters or {})["type"] == "object":
                self.specs[name] = spec
                return
        self._left_out.append(f"{shown(name)} (its inputSchema is not that of an object, or is too large)")


class _Screen(JSONRPCDispatcher[TransportContext]):
    """Takes lists of tools before the SDK, which refuses a whole list for one tool, and completes results."""

    def __init__(self, read: Any, write: Any, connection: Connection) -> None:
        super().__init__(read, write)
        self._connection = connection

    async def send_raw_request(self, method: str, *arguments: Any, **options: Any) -> JsonObject:
        raw = await super().send_raw_request(method, *arguments, **options)
        if method == "tools/list" and isinstance(raw.get("tools"), list | None):
            return self._connection.screen(raw)
        if method == "tools/call":  # languages without empty lists send null
            raw = {name: value for name, value in raw.items() if value is not None}
            return {"content": [], **raw}
        return raw


def shorten(text: str) -> str:
    """A server's error text, cut off at ``ERROR_CHARS``."""
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]} [cut off]"
