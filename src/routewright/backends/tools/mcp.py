"""Tools of an MCP server, through the official SDK. A server is not trusted: a tool that no model can use is
refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import PurePath
from typing import Any, Self, TextIO, cast
from urllib.parse import urlsplit

import anyio
from anyio.lowlevel import current_token
from mcp import ClientSession, MCPError, types
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from msgspec import json
from pydantic import ValidationError

from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.rules import FUNCTION_NAME
from routewright.backends.clock import SystemClock
from routewright.backends.providers.endpoint import Endpoint, address_of, header_of
from routewright.errors import ValidationFailed
from routewright.protocols import ToolContext, ToolFailed
from routewright.wire import FunctionSpec
from routewright.wire.account import Secret

OPEN_S = 30.0
"""How long a server may take to start and to list its tools."""
CLOSE_S = 10.0
"""How long a server may take to end."""
MOST_PAGES = 100
ERROR_CHARS = 2_000
"""Longer error texts are cut off."""
_LOST = ("Connection closed", "SSE stream")
"""The start of the SDK's messages about a lost connection."""
_clock = SystemClock()

Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transport of the SDK: a pair of streams."""


class Connection:
    """The SDK's session, in a task of its own: when its transport breaks, it cancels the task in which it runs."""

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
    """Screens lists of tools before the SDK reads them, since it refuses a whole list and does not say for which."""

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


MOST_TOOLS = 1_000
DESCRIPTION_CHARS = 16_000
SCHEMA_BYTES = 64 << 10
_NAME_CHARS = 100


class Listing:
    """The tools of one server, page by page. Every method raises ``ValidationFailed``."""

    def __init__(self, server: str, allow: Collection[str] | None) -> None:
        """``server`` is its name in errors. ``allow``: names of the tools to keep; None: all."""
        self.specs: dict[str, FunctionSpec] = {}
        self._server, self._allow = server, None if allow is None else set(allow)
        self._names = set[str]()

    def screened(self, page: Sequence[Any]) -> list[Any]:
        """Keep the allowed tools of a raw page, with the fields that are used. Output schemas are dropped, so that they
        are never evaluated."""
        self._names |= {str(tool.get("name"))[:_NAME_CHARS] for tool in page[:MOST_TOOLS] if isinstance(tool, dict)}
        return [
            self._checked(tool) if isinstance(tool, dict) else tool
            for tool in page
            if self._allow is None or (isinstance(tool, dict) and tool.get("name") in self._allow)
        ]

    def add(self, spec: FunctionSpec) -> None:
        """Add a tool of a page."""
        if spec.name in self.specs:
            raise self._refusal(spec.name, "is listed twice")
        if len(self.specs) == MOST_TOOLS:
            problem = f"the MCP server {self._server} lists more than {MOST_TOOLS} tools"
            raise ValidationFailed.at("tools", problem, "have it list fewer")
        self.specs[spec.name] = spec

    def finish(self) -> None:
        """Check that all allowed tools were there."""
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


try:
    import httpx2
    from mcp import StdioServerParameters, stdio_client, types
    from mcp.client.streamable_http import streamable_http_client

    from .mcp import Connect, Connection, bounded
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{__name__} needs the extra 'mcp' ({exc.name} is missing): pip install 'routewright[mcp]'", name=exc.name
    ) from exc

CONNECT_S = 30.0
MOST_BYTES = 4 << 20
"""Of a response over HTTP. The SDK limits the events of a stream by itself."""


class McpTools:
    """The tools of one MCP server, while the context is open.

        async with McpTools.stdio("python", ["server.py"]) as tools:
            answer = await Agent(router, tools=[*tools, "calculator"]).run("...")

    Enter and leave it in one task. The tools work in the event loop in which it was entered.
    """

    def __init__(
        self, name: str, connect: Connect, allow: Collection[str] | None = None, *, needs_approval: bool = False
    ) -> None:
        """Take a transport of the SDK. ``name`` is the server's name in errors. ``stdio`` and ``http`` are simpler.

        ``allow`` names the tools to offer; None: all. ``needs_approval`` is that of each tool (``protocols.Tool``)."""
        if isinstance(allow, str):
            raise ValidationFailed.at("allow", "must be a list of names, got a string", f"write [{shown(allow)}]")
        self.name, self.needs_approval = name, needs_approval
        self._connect, self._allow = connect, None if allow is None else tuple(allow)
        self._connection: Connection | None = None

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        allow: Collection[str] | None = None,
        *,
        needs_approval: bool = False,
    ) -> Self:
        """Start a program that speaks MCP on its standard input and output. Its standard error is that of this process.

        ``env`` adds to a few variables of this process, such as ``PATH``; no others are passed on."""
        if isinstance(args, str):
            raise ValidationFailed.at("args", "must be a list of strings, got a string", f"write [{shown(args)}]")
        hidden = {name: Secret(value) for name, value in (env or {}).items()}
        connect = partial(_started, command, list(args), hidden)
        return cls(PurePath(command).name, connect, allow, needs_approval=needs_approval)

    @classmethod
    def http(
        cls,
        url: str,
        headers: Mapping[str, str | Secret] | None = None,
        allow: Collection[str] | None = None,
        *,
        needs_approval: bool = False,
    ) -> Self:
        """Connect to a server over streamable HTTP. ``headers`` are sent with each request. Redirects to other hosts
        are not followed."""
        url = address_of(Endpoint(name="the MCP server", base_url=url), None, {})
        hidden = {name: header_of(name, value) for name, value in (headers or {}).items()}
        return cls(urlsplit(url).netloc, partial(_reached, url, hidden), allow, needs_approval=needs_approval)

    def __repr__(self) -> str:
        # no arguments, variables or headers: they may hold keys
        return f"<McpTools of {self.name!r}>"

    async def __aenter__(self) -> list[McpTool]:
        """Start the server and list its tools. Raises ``ToolFailed`` for a server that cannot be reached, and
        ``ValidationFailed`` for tools that cannot be offered to a model."""
        if self._connection is not None:
            raise RuntimeError(f"{self!r} is open already")
        self._connection = connection = Connection(self.name, self._connect, self._allow)
        try:
            return [McpTool(spec, connection, self.needs_approval) for spec in await connection.open()]
        except BaseException:
            self._connection = None
            await connection.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class McpTool:
    """One tool of an MCP server (``protocols.Tool``)."""

    def __init__(self, spec: FunctionSpec, connection: Connection, needs_approval: bool) -> None:
        self.spec, self.needs_approval = spec, needs_approval
        self._connection = connection

    def __repr__(self) -> str:
        return f"<McpTool {self.spec.name!r} of {self._connection.name!r}>"

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Structured content if there is any, else the text. Raises ``ToolFailed``."""
        result = await self._connection.call(self.spec.name, arguments)
        if not result.is_error and result.structured_content is not None:
            return result.structured_content
        text = "\n".join(map(_text_of, result.content))
        if result.is_error:
            raise ToolFailed(bounded(text) or "the tool failed and did not say why")
        return text


@asynccontextmanager
async def _started(command: str, args: list[str], env: Mapping[str, Secret]) -> AsyncIterator[Any]:
    given = {name: value.reveal() for name, value in env.items()}
    parameters = StdioServerParameters(command=command, args=args, env=given)
    errors = sys.__stderr__ or cast(TextIO, subprocess.DEVNULL)  # a notebook's sys.stderr is not a file
    async with stdio_client(parameters, errors) as streams:
        yield streams


@asynccontextmanager
async def _reached(url: str, headers: Mapping[str, Secret]) -> AsyncIterator[Any]:
    given = {"accept-encoding": "identity"} | {name: value.reveal() for name, value in headers.items()}
    timeout = httpx2.Timeout(CONNECT_S, read=None)  # the step's deadline bounds a call
    async with (
        httpx2.AsyncClient(
            headers=given, timeout=timeout, trust_env=False, event_hooks={"response": [_limit]}
        ) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


async def _limit(response: httpx2.Response) -> None:
    response.stream = _Limited(response)


class _Limited(httpx2.AsyncByteStream):
    """A body that is not compressed, as a small one could grow a thousandfold, and not longer than ``MOST_BYTES``."""

    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream), "of an AsyncClient"
        self._stream = response.stream
        self._is_plain = response.headers.get("content-encoding", "identity") == "identity"
        self._is_events = response.headers.get("content-type", "").startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if not self._is_plain or (size > MOST_BYTES and not self._is_events):
                raise httpx2.StreamError(f"the body is compressed, or longer than {MOST_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _text_of(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case types.EmbeddedResource():
            return f"[{block.resource.mime_type or 'a resource'} left out]"
    return f"[{block.mime_type} left out]"
