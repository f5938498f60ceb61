"""One connection to an MCP server, through the official SDK."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from anyio.lowlevel import current_token
from mcp import ClientSession, MCPError, types
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from pydantic import ValidationError

from routewright._core.request.problems import shown
from routewright.backends.clock import SystemClock
from routewright.errors import ValidationFailed
from routewright.protocols import ToolFailed
from routewright.wire import FunctionSpec

from .mcp_listing import Listing

OPEN_S = 30.0
"""How long a server may take to start and to list its tools."""
CLOSE_S = 10.0
"""How long a server may take to end."""
MOST_PAGES = 100
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
        self.name, self.listing = name, Listing(name, allow)
        self._connect = connect
        self._group = anyio.create_task_group()
        self._is_open, self._closing, self._gone = anyio.Event(), anyio.Event(), anyio.Event()
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
        if self._error is not None:
            raise _opening_error(self.name, self._error)
        return [*self.listing.specs.values()]

    async def close(self) -> None:
        """End the server, and kill it if it takes too long. Idempotent."""
        self._closing.set()
        if self._session is None:
            self._group.cancel_scope.cancel()
        with _clock.deadline(_clock.monotonic() + CLOSE_S, shield=True):
            await self._gone.wait()
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
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
            raise ToolFailed(f"the MCP server refused the call: {bounded(error.message)}") from None
        except (ValidationError, RuntimeError):
            raise ToolFailed("the MCP server gave a result that the protocol does not allow") from None

    async def _serve(self) -> None:
        try:
            async with (
                self._connect() as (read, write),
                ClientSession(dispatcher=_Screen(read, write, self.listing)) as session,
            ):
                await session.initialize()
                await self._list(session)
                self._session = session
                self._is_open.set()
                await self._closing.wait()
        except Exception as error:
            self._error = error
        finally:
            self._is_open.set()
            self._gone.set()

    async def _list(self, session: ClientSession) -> None:
        cursor = None
        for _ in range(MOST_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                self.listing.add(FunctionSpec(tool.name, tool.description, tool.input_schema))
            cursor = page.next_cursor
            if cursor is None:
                return self.listing.finish()
        problem = f"the MCP server {self.name} lists them on more than {MOST_PAGES} pages"
        raise ValidationFailed.at("tools", problem, "have it list fewer")


class _Screen(JSONRPCDispatcher[TransportContext]):
    """Checks lists of tools before the SDK, which refuses the complete list without naming the invalid tool."""

    def __init__(self, read: Any, write: Any, listing: Listing) -> None:
        super().__init__(read, write)
        self._listing = listing

    async def send_raw_request(self, method: str, *given: Any, **more: Any) -> dict[str, Any]:
        raw = await super().send_raw_request(method, *given, **more)
        if method == "tools/list" and isinstance(raw.get("tools"), list):
            return raw | {"tools": self._listing.screened(raw["tools"])}
        return raw


def _opening_error(server: str, error: Exception) -> Exception:
    """The exception for a server that could not be opened."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationFailed | ToolFailed):
        return error
    if isinstance(error, ValidationError):
        problem = f"the MCP server {server} gives answers that the protocol does not allow"
        return ValidationFailed.at("tools", problem, "update the server")
    what = bounded(error.message) if isinstance(error, MCPError) else type(error).__name__
    if isinstance(error, FileNotFoundError | PermissionError):
        what = f"cannot start {shown(error.filename)}: {error.strerror}"
    return ToolFailed(f"the MCP server {server} could not be opened: {what}")


def bounded(text: str) -> str:
    """A server's error text, cut off at ``ERROR_CHARS``."""
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]} [cut off]"
