"""Tools of an MCP server for agents, through the official SDK (extra ``mcp``)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePath
from typing import Self, TextIO, cast
from urllib.parse import urlsplit

from msgspec import json

from routewright.backends.providers.endpoint import Endpoint, address_of, header_of
from routewright.errors import ValidationFailed, require_extra
from routewright.protocols import BaseTool, ToolContext, ToolFailed
from routewright.wire import FunctionSpec, JsonObject
from routewright.wire.account import Secret
from routewright.wire.problems import shown

with require_extra("mcp", __name__):
    import httpx2
    from mcp import StdioServerParameters, stdio_client, types
    from mcp.client.streamable_http import streamable_http_client

    from .mcp_connection import Connect, Connection, shorten

CONNECT_S = 30.0
MOST_BYTES = 4 << 20
"""Longest response over HTTP. The SDK limits events of streams itself."""


class McpTools:
    """The tools of one MCP server, while the context is open.

        async with McpTools.stdio("python", ["server.py"]) as tools:
            answer = await Agent(router, tools=[*tools, "calculator"]).run("...")

    Enter and leave it in the same task. The tools only work in that event loop.
    """

    def __init__(
        self, name: str, connect: Connect, allow: Collection[str] | None = None, *, needs_approval: bool = False
    ) -> None:
        """Use a transport of the SDK; ``stdio`` and ``http`` are simpler. ``name``: the server's name in errors.

        ``allow``: names of tools to offer; None: all. ``needs_approval``: of each tool (``protocols.Tool``)."""
        if isinstance(allow, str):
            raise ValidationFailed.at("allow", "must be a list of names, got a string", f"write [{shown(allow)}]")
        self.name = name
        self.needs_approval = needs_approval
        self._connect = connect
        self._allow = None if allow is None else tuple(allow)
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
        """Start a program that speaks MCP on standard input and output. It shares this process's standard error.

        ``env``: additional variables. Of this process only a few are passed on, such as ``PATH``."""
        if isinstance(args, str):
            raise ValidationFailed.at("args", "must be a list of strings, got a string", f"write [{shown(args)}]")
        hidden = {name: Secret(value) for name, value in (env or {}).items()}
        connect = partial(_open_stdio, command, list(args), hidden)
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
        return cls(urlsplit(url).netloc, partial(_open_http, url, hidden), allow, needs_approval=needs_approval)

    def __repr__(self) -> str:
        # no arguments, variables or headers, which may contain keys
        return f"<McpTools of {self.name!r}>"

    async def __aenter__(self) -> list[McpTool]:
        """Start the server and list its tools. Names that vendors refuse are mapped; tools that cannot be offered to a
        model are left out, with one warning. Raises ``ToolFailed`` for a server that cannot be reached, and
        ``ValidationFailed`` for ``allow`` with a tool that it does not have."""
        if self._connection is not None:
            raise RuntimeError(f"{self!r} is open already")
        self._connection = connection = Connection(self.name, self._connect, self._allow)
        try:
            return [McpTool(*tool, connection, self.needs_approval) for tool in (await connection.open()).items()]
        except BaseException:
            self._connection = None
            await connection.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class McpTool(BaseTool):
    """One tool of an MCP server (``protocols.Tool``)."""

    def __init__(self, name: str, spec: FunctionSpec, connection: Connection, needs_approval: bool) -> None:
        """``name``: the server's own, which vendors may not take."""
        self.spec = spec
        self._name = name
        self.needs_approval = needs_approval
        self._connection = connection

    def __repr__(self) -> str:
        return f"<McpTool {self.spec.name!r} of {self._connection.name!r}>"

    async def run(self, arguments: JsonObject, context: ToolContext) -> object:
        """The structured content, or else the text. Raises ``ToolFailed``."""
        result = await self._connection.call(self._name, arguments)
        structured = result.structured_content
        text = "\n".join(map(_text_of, result.content))
        if result.is_error:
            text = text or (json.encode(structured).decode() if structured else "the tool failed without a message")
            raise ToolFailed(shorten(text))
        return text if structured is None or (text and not structured) else structured


@asynccontextmanager
async def _open_stdio(command: str, args: list[str], env: Mapping[str, Secret]) -> AsyncIterator[object]:
    variables = {name: value.reveal() for name, value in env.items()}
    errors = sys.__stderr__ or cast(TextIO, subprocess.DEVNULL)  # a notebook's sys.stderr is not a file
    async with stdio_client(StdioServerParameters(command=command, args=args, env=variables), errors) as streams:
        yield streams


@asynccontextmanager
async def _open_http(url: str, headers: Mapping[str, Secret]) -> AsyncIterator[object]:
    async def limit(response: httpx2.Response) -> None:
        response.stream = _Limited(response)

    fields = {"accept-encoding": "identity"} | {name: value.reveal() for name, value in headers.items()}
    timeout = httpx2.Timeout(CONNECT_S, read=None)  # the step's deadline bounds a call
    hooks = {"response": [limit]}
    async with (
        httpx2.AsyncClient(headers=fields, timeout=timeout, trust_env=False, event_hooks=hooks) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


class _Limited(httpx2.AsyncByteStream):
    """Refuses compressed bodies, which could expand a thousandfold, and those longer than ``MOST_BYTES``."""

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
