"""Lists of tools and results as servers of MCP send them: names, cursors, schemas, empty lists."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage
from pydantic import TypeAdapter

from routewright.backends.tools.mcp import McpTool, McpTools
from routewright.protocols import ToolContext, ToolFailed
from routewright.wire import Caller

pytestmark = pytest.mark.anyio
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
EMPTY = {"type": "object", "properties": {}}
_message: TypeAdapter[Any] = TypeAdapter(JSONRPCMessage)


class Server:
    """A server in this process. ``page`` makes the page of a cursor; ``result`` is that of each call."""

    def __init__(self, page: Callable[[str | None], dict[str, Any]], result: Any = None) -> None:
        self.page = page
        self.result = {"content": [{"type": "text", "text": "ok"}]} if result is None else result
        self.cursors: list[str | None] = []
        self.called: list[str] = []

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "initialize":
                return ABOUT
            case "tools/list":
                self.cursors.append(params.get("cursor"))
                return self.page(params.get("cursor"))
        self.called.append(params["name"])
        return self.result

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        to_client, from_server = anyio.create_memory_object_stream[Any](100)
        to_server, from_client = anyio.create_memory_object_stream[Any](100)

        async def serve() -> None:
            async for sent in from_client:
                request = json.loads(sent.message.model_dump_json(by_alias=True, exclude_none=True))
                if "id" in request:
                    result = self.answer(request["method"], request.get("params") or {})
                    answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                    await to_client.send(SessionMessage(_message.validate_python(answer)))

        async with anyio.create_task_group() as group, to_client, from_server, to_server, from_client:
            group.start_soon(serve)
            yield from_server, to_server
            group.cancel_scope.cancel()

    def tools(self, **options: Any) -> McpTools:
        return McpTools("shop", self.connect, **options)


def one_page(*tools: Any, **more: Any) -> Server:
    return Server(lambda cursor: {"tools": [*tools], **more})


def named(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


async def call(tool: McpTool) -> object:
    return await tool.run({}, ToolContext(run_id="r", step=1, caller=Caller(), deadline=0.0))


@pytest.mark.parametrize(
    ("names", "offered"),
    [
        pytest.param(["immich.ping"], ["immich_ping"], id="G Immich: dots"),
        pytest.param(["kata/list tools", "价格"], ["kata_list_tools", "__"], id="G slashes, blanks, other alphabets"),
        pytest.param(["a:b", "a.b"], ["a_b", "a_b_"], id="G two that are mapped alike"),
        pytest.param(["a.b", "a_b"], ["a_b_", "a_b"], id="G one that another one is mapped to"),
        pytest.param(["x" * 64, "x" * 65, "x" * 66], ["x" * 64, *["x" * 54 + "_"] * 2], id="G over 64 characters"),
        pytest.param(["a\nINFO forged", "b\x1b[2J"], ["a_INFO_forged", "b__2J"], id="G a name that forges a line"),
    ],
)  # fmt: skip
async def test_names_are_mapped_to_what_vendors_take_and_back(names: list[str], offered: list[str]) -> None:
    server = one_page(*map(named, names))
    async with server.tools() as tools:
        sent = [tool.spec.name for tool in tools]
        assert len({*sent}) == len(names)
        assert [name[: len(start)] for name, start in zip(sent, offered, strict=True)] == offered
        assert all(len(name) <= 64 and name.replace("_", "a").replace("-", "a").isalnum() for name in sent)
        for tool in tools:
            assert await call(tool) == "ok"
            assert "\n" not in repr(tool)
    assert server.called == names, "each by its own name"


def pages(*cursors: Any) -> Server:
    """Each page has a tool of its own and the next of these cursors."""
    rest = iter(range(1_000))

    def page(cursor: str | None) -> dict[str, Any]:
        number = next(rest)
        return {"tools": [named(f"t{number}")], "nextCursor": cursors[min(number, len(cursors) - 1)]}

    return Server(page)


@pytest.mark.parametrize(
    ("make", "count", "asked"),
    [
        pytest.param(lambda: pages("a", "b", None), 3, [None, "a", "b"], id="G sound"),
        pytest.param(lambda: pages(""), 1, [None], id="G java-sdk, csharp-sdk: an empty cursor"),
        pytest.param(lambda: pages("a", ""), 2, [None, "a"], id="G an empty cursor on the last page"),
        pytest.param(lambda: pages(7), 1, [None], id="G a number as cursor"),
        pytest.param(lambda: pages("a", "a"), 2, [None, "a"], id="G codebase-memory-mcp: a cursor that never moves"),
        pytest.param(lambda: pages("a", "b", "a"), 3, [None, "a", "b"], id="G cursors in a circle"),
        pytest.param(lambda: Server(lambda cursor: {"tools": [named("t")], "nextCursor": f"{cursor}x"}), 1,
            [None, "Nonex"], id="G a new cursor for the same tools, for ever"),
        pytest.param(
            lambda: Server(lambda at: {"tools": [named("t")] if at else [], "nextCursor": None if at else "a"}), 1,
            [None, "a"], id="G an empty first page"),
        pytest.param(lambda: Server(lambda cursor: {"tools": None}), 0, [None], id="G Go: null for no tools"),
        pytest.param(lambda: Server(lambda cursor: {}), 0, [None], id="G no list at all"),
    ],
)  # fmt: skip
async def test_a_list_of_tools_ends(make: Callable[[], Server], count: int, asked: list[str | None]) -> None:
    server = make()
    async with server.tools() as tools:
        assert len(tools) == count
    assert server.cursors == asked


async def test_a_list_that_never_ends_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with pages(*map(str, range(1_000))).tools() as tools:
        assert len(tools) == 100
    assert "left out 1 tools of the MCP server shop: those after 100 pages" in caplog.text


BAD: list[Any] = [
    pytest.param({"name": "bad", "inputSchema": {"type": "string"}}, "'bad' (its inputSchema is not", id="G mastra"),
    pytest.param({"name": "bad", "inputSchema": [1]}, "'bad' (its inputSchema is not", id="G a list as schema"),
    pytest.param({"name": "bad", "inputSchema": {"title": "x" * 100_000}}, "is too large", id="G a huge schema"),
    pytest.param({"name": ["x"], "inputSchema": {}}, "has no name", id="G a name that is none"),
    pytest.param({"name": " ", "inputSchema": {}}, "has no name", id="G a blank name"),
    pytest.param({"inputSchema": {}}, "has no name", id="G no name"),
    pytest.param(7, "has no name", id="G no tool"),
    pytest.param(None, "has no name", id="G null"),
]
DEEP: dict[str, Any] = {}
for _ in range(80):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
BAD.append(pytest.param({"name": "deep", "inputSchema": DEEP}, "'deep' (its inputSchema", id="G a schema too deep"))
BAD.append(
    pytest.param({"name": "a\nb" * 100, "inputSchema": 1}, "'a\\nb", id="G a name that would forge lines of the log")
)


@pytest.mark.parametrize(("tool", "words"), BAD)
async def test_a_bad_tool_is_left_out_with_a_warning(tool: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    async with one_page(named("good"), tool, named("fine")).tools() as tools:
        assert [tool.spec.name for tool in tools] == ["good", "fine"]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert words in record.getMessage()
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300


@pytest.mark.parametrize(
    ("tool", "description", "schema"),
    [
        pytest.param({"name": "t"}, None, EMPTY, id="G no schema"),
        pytest.param({"name": "t", "inputSchema": None}, None, EMPTY, id="G null"),
        pytest.param({"name": "t", "inputSchema": {}}, None, EMPTY, id="G empty"),
        pytest.param(named("t"), None, EMPTY, id="G Go SDK: an object alone"),
        pytest.param(named("t", description=None), None, EMPTY, id="G no description"),
        pytest.param(named("t", description=7), None, EMPTY, id="G a number as description"),
        pytest.param(named("t", description="x" * 20_000), "x" * 16_000, EMPTY, id="G a long description"),
        pytest.param({"name": "t", "inputSchema": {"type": "object", "properties": 7}}, None, EMPTY,
            id="G properties are none"),
        pytest.param({"name": "t", "inputSchema": {"type": "object", "properties": {"a": True}, "required": None}},
            None, {"type": "object", "properties": {"a": {}}}, id="G Hermes, PraisonAI: odd schemas"),
        pytest.param(named("t", annotations=3, outputSchema=4, icons=5, title=6, _meta=7, execution=8), None, EMPTY,
            id="G other fields of wrong types"),
    ],
)  # fmt: skip
async def test_what_a_tool_leaves_out_is_completed(tool: Any, description: Any, schema: Any) -> None:
    server = one_page(tool)
    async with server.tools() as tools:
        (offered,) = tools
        assert (offered.spec.description, offered.spec.parameters) == (description, schema)
        assert await call(offered) == "ok"
    assert len(server.cursors) == 1, "a call lists the tools no second time"


async def test_a_tool_that_is_listed_twice_is_taken_once(caplog: pytest.LogCaptureFixture) -> None:
    async with one_page(named("a", description="first"), named("b"), named("a")).tools() as tools:
        assert [(tool.spec.name, tool.spec.description) for tool in tools] == [("a", "first"), ("b", None)]
    assert not caplog.records


@pytest.mark.parametrize(
    ("result", "output"),
    [
        pytest.param({"content": [], "structuredContent": {"n": 1}}, {"n": 1}, id="G Brex: structured, no content"),
        pytest.param({"structuredContent": {"n": 1}}, {"n": 1}, id="G python-sdk 1796: content left out"),
        pytest.param({"content": None, "structuredContent": {"n": 1}}, {"n": 1}, id="G Go: content is null"),
        pytest.param({"content": None}, "", id="G nothing"),
        pytest.param({"content": [], "structuredContent": {}}, {}, id="G openai-agents: empty and structured"),
        pytest.param({"content": [{"type": "text", "text": "t"}], "structuredContent": {}}, "t",
            id="G a text beside nothing"),
        pytest.param({"content": [{"type": "text", "text": "t"}], "structuredContent": None, "isError": None}, "t",
            id="G nulls"),
        pytest.param({"content": [], "isError": True}, ToolFailed("without a message"), id="G an error without words"),
        pytest.param({"content": [], "isError": True, "structuredContent": {"code": 7}}, ToolFailed('{"code":7}'),
            id="G a structured error"),
        pytest.param({"content": [{"type": "text", "text": "no"}], "isError": True}, ToolFailed("no"), id="G an error"),
        pytest.param({"content": 5}, ToolFailed("the protocol does not allow"), id="G no result"),
    ],
)  # fmt: skip
async def test_results_are_read(result: Any, output: Any) -> None:
    server = Server(lambda cursor: {"tools": [named("t")]}, result)
    async with server.tools() as tools:
        if isinstance(output, ToolFailed):
            with pytest.raises(ToolFailed, match=str(output)):
                await call(tools[0])
        else:
            assert await call(tools[0]) == output
