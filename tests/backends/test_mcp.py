"""Tools of MCP servers: real servers over stdio and HTTP, and misbehaving ones."""

from __future__ import annotations

import gc
import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import Agent, Catalogue, Model, Pricing, Router, ValidationFailed
from routewright.agent import AgentAnswer
from routewright.backends.tools import mcp_connection
from routewright.backends.tools.mcp import McpTools
from routewright.protocols import Tool, ToolFailed
from routewright.testing import ScriptedProvider
from routewright.wire import Finish, ToolDelta, Usage
from tests.upstream import Answer, Request, Upstream, of_json

pytestmark = pytest.mark.anyio
# On trio the SDK leaves the end of an HTTP answer to the garbage collector.
unread = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
SERVER = str(Path(__file__).with_name("mcp_server.py"))
BARE = str(Path(__file__).with_name("mcp_bare_server.py"))
ONE = Model(
    id="test/one", modalities=("text", "tool"), quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000
)


def shop(**given: Any) -> McpTools:
    return McpTools.stdio(sys.executable, [SERVER, "stdio"], **given)


def bare(defect: str = "none", **given: Any) -> McpTools:
    return McpTools.stdio(sys.executable, [BARE, defect], **given)


async def run(tools: list[Any], *calls: tuple[str, dict[str, Any]], **given: Any) -> AgentAnswer[Any]:
    """A run in which the model makes some calls, all in one step."""
    asked = [ToolDelta(place, json.dumps(told), f"call_{place}", name) for place, (name, told) in enumerate(calls)]
    provider = ScriptedProvider([[*asked, Usage(10, 10), Finish("tool_calls")], "done"], models=[ONE])
    router = Router(providers=[provider], catalogue=Catalogue(()))
    try:
        return await Agent(router, tools=tools, **given).run("go")
    finally:
        await router.aclose()


def children() -> list[str]:
    """Running child processes; empty if the system does not list them."""
    told = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return told.read_text().split() if told.exists() else []


def outputs(answer: AgentAnswer[Any]) -> list[Any]:
    return [step.output for step in answer.steps if step.action == "tool_call"]


@pytest.fixture
def site() -> Iterator[str]:
    """The address of the server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, "http", str(port)])
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
        gc.collect()


async def test_an_agent_uses_the_tools_of_a_server_over_stdio() -> None:
    async with shop(env={"TOKEN": "t0k3n"}) as tools:
        assert all(isinstance(tool, Tool) for tool in tools)
        spec = next(tool.spec for tool in tools if tool.spec.name == "price")
        assert spec.description == "The price of an article."
        assert (spec.parameters or {})["required"] == ["article"]
        answer = await run(
            [*tools, "calculator"],
            ("price", {"article": "tea", "pieces": 2}),
            ("label", {"article": "tea"}),
            ("calculator", {"expression": "1+1"}),
            ("refuse", {}),
            ("price", {}),
            ("variable", {"name": "TOKEN"}),
            max_steps=20,
        )
        found, label, two, refused, wrong, token = outputs(answer)
    assert answer.status == "completed"
    assert found == {"result": {"article": "tea", "price": 6}}
    assert label == {"result": "label of tea\n[image/png left out]\nend"}
    assert two == {"result": "2"}
    assert "out of stock" in refused["error"]
    assert refused["error"].endswith("[cut off]")
    assert len(refused["error"]) < 2_100
    assert "article is missing" in wrong["error"]
    assert "t0k3n" in str(token)


@unread
async def test_an_agent_uses_the_tools_of_a_server_over_http(site: str) -> None:
    async with McpTools.http(site, headers={"authorization": "Bearer s3cret"}, allow=["price", "hang", "die"]) as tools:
        assert {tool.spec.name for tool in tools} == {"price", "hang", "die"}
        answer = await run(tools, ("price", {"article": "tea"}), ("hang", {}), per_step_timeout_ms=1000)
        found, late = outputs(answer)
        assert found == {"result": {"article": "tea", "price": 3}}
        assert late["error"].startswith("timed out after ")
        again = await run(tools, ("price", {"article": "tea"}))
        assert outputs(again) == [found]
        for call in (("die", {}), ("price", {"article": "tea"})):
            gone = await run(tools, call)
            assert gone.status == "completed"
            assert outputs(gone) == [{"error": "the MCP server of this tool ended the connection"}]


async def test_all_tools_of_a_server_may_need_approval() -> None:
    async with bare(needs_approval=True, allow=["good"]) as tools:
        answer = await run(tools, ("good", {}))
        assert (answer.marker, outputs(answer)) == ("tool_calls_pending", [])
        approved = await run(tools, ("good", {}), approve=lambda name, arguments: True)
        assert outputs(approved) == [{"result": {"n": 1}}]
    assert McpTools.http("http://x/", needs_approval=True).needs_approval


async def test_a_call_that_hangs_ends_at_the_deadline_and_harms_no_other() -> None:
    async with bare() as tools:
        began = time.monotonic()
        answer = await run(tools, ("hang", {}), ("good", {}), per_step_timeout_ms=1000)
        assert time.monotonic() - began < 3
        late, found = outputs(answer)
        assert late["error"].startswith("timed out after ")
        assert found == {"result": {"n": 1}}
        assert outputs(await run(tools, ("good", {}))) == [found]


async def test_a_server_that_dies_fails_its_calls_but_not_the_run() -> None:
    async with bare() as tools:
        for name in ("die", "good"):
            answer = await run(tools, (name, {}))
            assert answer.status == "completed"
            assert outputs(answer) == [{"error": "the MCP server of this tool ended the connection"}]


async def test_more_tools_than_any_server_should_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "MOST_TOOLS", 3)
    async with bare() as tools:
        assert len(tools) == 3
    monkeypatch.setattr(mcp_connection, "MOST_TOOLS", 2)
    with pytest.raises(ValidationFailed, match="lists more than 2 tools; configure the server to list fewer"):
        async with bare():
            raise AssertionError("it opened")


@pytest.mark.parametrize("defect", ["schema", "name", "number"])
async def test_tools_that_are_not_allowed_are_neither_offered_nor_checked(defect: str) -> None:
    async with bare(defect, allow=["good"]) as tools:
        (tool,) = tools
        assert tool.spec.parameters == {"type": "object", "properties": {}}
        assert outputs(await run(tools, ("good", {}), ("bad", {})))[0] == {"result": {"n": 1}}


def bomb(request: Request) -> Answer:
    """An MCP server over HTTP whose results are small, or take too much memory once they are read."""
    if request.method == "GET":
        return Answer(status=405)
    asked = request.body
    about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    results: dict[str, Any] = {
        "initialize": about | {"serverInfo": {"name": "bomb", "version": "1"}},
        "tools/list": {"tools": [{"name": name, "inputSchema": {}} for name in ("small", "long", "packed")]},
    }
    name = asked.get("params", {}).get("name")
    text = "x" * (5 << 20 if name == "long" else 5)
    result = results.get(asked["method"], {"content": [{"type": "text", "text": text}]})
    if "id" not in asked:
        return Answer(status=202)
    answer = of_json({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    if name == "packed":
        answer.pieces = [gzip.compress(bytes(piece)) for piece in answer.pieces if isinstance(piece, bytes)]
        answer.headers["content-encoding"] = "gzip"
    return answer


@unread
async def test_a_server_over_http_cannot_fill_the_memory() -> None:
    with Upstream(bomb) as server:
        async with McpTools.http(f"{server.root}/mcp") as tools:
            small, long, packed = outputs(await run(tools, ("small", {}), ("long", {}), ("packed", {})))
    assert small == {"result": "xxxxx"}
    for output in (long, packed):
        assert "the body is compressed, or longer than 4194304 bytes" in output["error"]


async def test_a_server_that_cannot_be_opened_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationFailed, match="no tool 'goof'; did you mean 'good'"):
        async with bare(allow=["goof"]):
            pass
    with pytest.raises(ValidationFailed, match="list of names"):
        bare(allow="good")
    with pytest.raises(ValidationFailed, match=r"args: must be a list of strings, got a string; write \['server.py'\]"):
        McpTools.stdio("python", "server.py")
    with pytest.raises(ValidationFailed, match="is not an address"):
        McpTools.http("shop")
    for tools in (
        McpTools.stdio("/no/such/program"),
        McpTools.stdio(sys.executable, ["-c", "pass"]),
        McpTools.http("http://127.0.0.1:1/mcp"),
    ):
        with pytest.raises(ToolFailed, match="cannot be opened"):
            async with tools:
                pass
    with pytest.raises(ToolFailed, match="cannot start '/no/such/program': No such file"):
        async with McpTools.stdio("/no/such/program"):
            pass
    with pytest.raises(ToolFailed, match="cannot be opened: it ended the connection; start it alone to see why"):
        async with McpTools.stdio(sys.executable, ["-c", "pass"]):
            pass
    monkeypatch.setattr(mcp_connection, "OPEN_S", 0.5)
    with pytest.raises(ToolFailed, match="listed no tools within"):
        async with bare("silent"):
            pass


async def test_an_error_in_the_context_ends_the_server_and_passes() -> None:
    others, opened = children(), bare()
    with pytest.raises(KeyError):
        async with opened as tools:
            raise KeyError
    assert outputs(await run(tools, ("good", {}))) == [{"error": "the MCP server of this tool is closed"}]
    with anyio.move_on_after(10) as scope:
        async with opened as tools:
            with pytest.raises(RuntimeError, match="open already"):
                await opened.__aenter__()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert set(children()) <= set(others)


async def test_the_tools_belong_to_their_event_loop() -> None:
    async with bare() as tools:

        def elsewhere() -> AgentAnswer[Any]:
            return anyio.run(run, tools, ("good", {}))

        answer = await anyio.to_thread.run_sync(elsewhere)
    assert outputs(answer) == [{"error": "the MCP server of this tool was opened in another event loop"}]


def test_no_repr_shows_keys() -> None:
    for tools in (shop(env={"TOKEN": "s3cret"}), McpTools.http("http://x/", headers={"authorization": "s3cret"})):
        assert "s3cret" not in repr(tools) + repr(vars(tools))


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['mcp'] = None; import routewright.backends.tools.mcp"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "needs the extra 'mcp' (mcp is missing): pip install 'routewright[mcp]'" in done.stderr
