"""Real clients with only base URL and key changed. The vendors' own and curl: plain, streamed, tools, structured,
failing, async; those that use them: streamed, and tools."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from routewright import RateLimits
from routewright.wire import Finish, ToolDelta, UpstreamCall, Usage

from .openai.clients import sandbox

SAID, RAIN = "Hello there.", "It rains in Oslo."
WEATHER = {"city": "Oslo", "degrees": 7}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what clients warn of is theirs
    pytest.mark.xdist_group("client table"),
]


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    """Connections that a client never closes are collected here, not in a test of another file."""
    yield
    gc.collect()


class At(NamedTuple):
    """Where a client asks, and with which keys."""

    url: str
    key: str
    spent: str
    """A key whose limit of requests is used up."""


def answer(call: UpstreamCall) -> Any:
    """What the model says: what it is asked for."""
    if any(message.role == "tool" for message in call.messages):
        return RAIN
    names = [tool.function_spec.name for tool in call.tools or ()]
    if names and call.tool_choice != "none":
        given = {"city": "Oslo"} if names[0] == "weather" else WEATHER
        call_id, said = "call_1", json.dumps(given)
        return [ToolDelta(0, said[:5], call_id, names[0]), ToolDelta(0, said[5:]), Usage(9, 9), Finish("tool_calls")]
    asks_json = call.params.response_format is not None or "json" in str(call.messages).lower()
    return json.dumps(WEATHER) if asks_json else SAID


@pytest.fixture(scope="module")
def at() -> Iterator[At]:
    site = sandbox(answer, faults={"openai/gpt-4o": "server", "anthropic/claude-haiku-4-5": "server"})
    with site.served() as url:
        key = site.key(environment="sandbox")
        spent = site.key("other", environment="sandbox", limits=RateLimits(requests_per_min=0))
        os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
        with warnings.catch_warnings(action="ignore"):
            yield At(url, key, spent)
        _close_what_is_left(int(url.rpartition(":")[2]))


CLIENTS = frozenset("httpx httpx2 openai anthropic litellm langchain_openai langchain_anthropic pydantic_ai".split())


def _close_what_is_left(port: int) -> None:
    """Close the connections that clients keep for good, whose end would be told in somebody else's test."""
    gc.collect()
    for each in gc.get_objects():
        kind = type(each)  # asking the object itself may wake up whatever it is lazy about
        is_client = str(getattr(kind, "__module__", "")).partition(".")[0] in CLIENTS and any(
            b.__name__ == "AsyncClient" for b in kind.__mro__
        )
        if is_client and (state := vars(each).get("_state")):
            each._state = type(state).CLOSED  # else it closes itself in the loop that runs when it is collected
        if not issubclass(kind, socket.socket) and kind.__name__ != "_SelectorSocketTransport":
            continue
        sock = each if issubclass(kind, socket.socket) else each._sock
        if sock is None or sock.fileno() == -1 or sock.family != socket.AF_INET:
            continue
        with contextlib.suppress(OSError):
            if sock.getpeername()[1] == port:
                if sock is not each:
                    each._sock = None
                sock.close()


HI: Any = [{"role": "user", "content": "Hi"}]
FAILURES = {"401": "wrong key", "404": "no such model", "400": "a wrong field", "429": "a limit", "502": "no answer"}


def failing(
    ask: Callable[[str, str, Any], Any], at: At, model: str, broken: str, errors: dict[str, type[BaseException]]
) -> None:
    """Ask in every way that fails: ``ask(key, model, cap)``."""
    ways: dict[str, tuple[str, str, Any]] = {
        "401": ("sk_test_wrong", model, 20),
        "404": (at.key, "no-such-model", 20),
        "400": (at.key, model, -1),
        "429": (at.spent, model, 20),
        "502": (at.key, broken, 20),
    }
    assert ways.keys() == FAILURES.keys()
    for status, way in ways.items():
        with pytest.raises(errors[status]):
            ask(*way)


def errors_of(module: str, broken: str = "InternalServerError") -> dict[str, type[BaseException]]:
    """The exceptions of an SDK, which have the same names in each."""
    names = ("AuthenticationError", "NotFoundError", "BadRequestError", "RateLimitError", broken)
    return {status: getattr(import_module(module), name) for status, name in zip(FAILURES, names, strict=True)}


# openai: chat completions and responses.

FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": CITY}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS: Any = [{"type": "function", **FUNCTION}]


def _openai(at: At, key: str | None = None) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{at.url}/v1", api_key=key or at.key, max_retries=0)


def openai_plain(at: At) -> None:
    assert _openai(at).chat.completions.create(model="gpt-4.1", messages=HI).choices[0].message.content == SAID


def openai_stream(at: At) -> None:
    with _openai(at).chat.completions.stream(model="gpt-4.1", messages=HI) as stream:
        assert stream.get_final_completion().choices[0].message.content == SAID


def openai_tools(at: At) -> None:
    create = _openai(at).chat.completions.create
    said = create(model="gpt-4.1", messages=HI, tools=CHAT_TOOLS, parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "Rain"}
    turns = [*HI, said.model_dump(exclude_none=True), result]
    assert create(model="gpt-4.1", messages=turns, tools=CHAT_TOOLS).choices[0].message.content == RAIN


def _shape() -> Any:
    from pydantic import BaseModel, create_model

    return create_model("Weather", __base__=BaseModel, city=(str, ...), degrees=(int, ...))


def openai_structured(at: At) -> None:
    said = _openai(at).chat.completions.parse(model="gpt-4.1", messages=HI, response_format=_shape())
    assert said.choices[0].message.parsed.degrees == 7


def openai_errors(at: At) -> None:
    def ask(key: str, model: str, cap: int) -> None:
        _openai(at, key).chat.completions.create(model=model, messages=HI, max_tokens=cap)

    failing(ask, at, "gpt-4.1", "gpt-4o", errors_of("openai"))


async def openai_async(at: At) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{at.url}/openai/v1", api_key=at.key) as client:
        said = await client.chat.completions.create(model="gpt-4.1", messages=HI)
        pieces = [each async for each in await client.chat.completions.create(model="auto", messages=HI, stream=True)]
    assert said.choices[0].message.content == SAID
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == SAID


def responses_plain(at: At) -> None:
    said = _openai(at).responses.create(model="gpt-4.1", input="Hi", instructions="Be brief.")
    assert (said.output_text, said.status, said.usage.total_tokens > 0) == (SAID, "completed", True)


def responses_stream(at: At) -> None:
    with _openai(at).responses.stream(model="gpt-4.1", input="Hi") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == SAID
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def responses_tools(at: At) -> None:
    create = _openai(at).responses.create
    asked: list[Any] = [{"role": "user", "content": "Hi"}]
    first = create(model="gpt-4.1", input=asked, tools=FLAT_TOOLS)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    assert create(model="gpt-4.1", input=[*asked, *first.output, result], tools=FLAT_TOOLS).output_text == RAIN


def responses_structured(at: At) -> None:
    said = _openai(at).responses.parse(model="gpt-4.1", input="Hi", text_format=_shape())
    assert said.output_parsed.city == "Oslo"


def responses_errors(at: At) -> None:
    def ask(key: str, model: str, cap: int) -> None:
        _openai(at, key).responses.create(model=model, input="Hi", max_output_tokens=cap)

    failing(ask, at, "gpt-4.1", "gpt-4o", errors_of("openai"))


async def responses_async(at: At) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key=at.key) as client:
        said = [event async for event in await client.responses.create(model="gpt-4.1", input="Hi", stream=True)]
    assert said[-1].response.output_text == SAID


# anthropic.

CLAUDE = "claude-sonnet-4-6"
CLAUDE_TOOLS: Any = [{"name": "weather", "input_schema": CITY, "cache_control": {"type": "ephemeral"}}]


def _anthropic(at: At, key: str | None = None) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=f"{at.url}/anthropic", api_key=key or at.key, max_retries=0)


def anthropic_plain(at: At) -> None:
    said = _anthropic(at).messages.create(model=CLAUDE, max_tokens=50, messages=HI)
    assert (said.content[0].text, said.stop_reason) == (SAID, "end_turn")
    assert CLAUDE in str([each.id for each in _anthropic(at).models.list()])


def anthropic_stream(at: At) -> None:
    with _anthropic(at).messages.stream(model=CLAUDE, max_tokens=50, messages=HI) as stream:
        assert "".join(stream.text_stream) == SAID


def anthropic_tools(at: At) -> None:
    create = _anthropic(at).messages.create
    first = create(model=CLAUDE, max_tokens=50, messages=HI, tools=CLAUDE_TOOLS)
    call = first.content[-1]
    assert (call.name, call.input, first.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}
    turns = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert create(model=CLAUDE, max_tokens=50, messages=turns, tools=CLAUDE_TOOLS).content[0].text == RAIN


def anthropic_structured(at: At) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    said = _anthropic(at).messages.create(model=CLAUDE, max_tokens=50, messages=HI, output_config=form)
    assert json.loads(said.content[0].text) == WEATHER


def anthropic_errors(at: At) -> None:
    def ask(key: str, model: str, cap: int) -> None:
        _anthropic(at, key).messages.create(model=model, max_tokens=cap, messages=HI)

    failing(ask, at, CLAUDE, "claude-haiku-4-5", errors_of("anthropic"))


async def anthropic_async(at: At) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=at.url, api_key=at.key) as client:  # which asks at /v1/messages
        said = await client.messages.create(model=CLAUDE, max_tokens=50, messages=HI)
        async with client.messages.stream(model=CLAUDE, max_tokens=50, messages=HI) as stream:
            assert await stream.get_final_text() == SAID
    assert said.content[0].text == SAID


# LangChain.


def _langchain(at: At, kind: str) -> Any:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    told: Any = {"api_key": at.key, "max_tokens": 50, "max_retries": 0}
    if kind == "anthropic":
        return ChatAnthropic(**{"model": CLAUDE, "base_url": f"{at.url}/anthropic", **told})
    return ChatOpenAI(model="gpt-4.1", base_url=f"{at.url}/openai/v1", use_responses_api=kind == "responses", **told)


def _langchain_case(kind: str) -> dict[str, Callable[[At], Any]]:
    def stream(at: At) -> None:
        assert "".join(piece.text for piece in _langchain(at, kind).stream("Hi")) == SAID

    def tools(at: At) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        model = _langchain(at, kind).bind_tools([{"type": "function", "function": FUNCTION}])
        asked = HumanMessage("Hi")
        called = model.invoke([asked])
        (call,) = called.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        assert model.invoke([asked, called, ToolMessage("Rain", tool_call_id=call["id"])]).text == RAIN

    return {"stream": stream, "tools": tools}


# litellm.


def _completion(at: At, **more: Any) -> Any:
    import litellm

    asked = {"model": "openai/gpt-4.1", "api_base": f"{at.url}/openai/v1", "messages": HI}
    return litellm.completion(**{**asked, "api_key": at.key, "num_retries": 0, **more})


def litellm_stream(at: At) -> None:
    pieces = _completion(at, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == SAID


def litellm_tools(at: At) -> None:
    said = _completion(at, tools=CHAT_TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "Rain"}
    after = _completion(at, messages=[*HI, said, result], tools=CHAT_TOOLS)
    assert after.choices[0].message.content == RAIN


# pydantic-ai.


def _pydantic_agents(at: At, **options: Any) -> list[Any]:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    named: dict[str, Any] = {"api_key": at.key, "max_retries": 0}
    openai = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{at.url}/openai/v1", **named))
    claude = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=f"{at.url}/anthropic", **named))
    models: list[Any] = [kind("gpt-4.1", provider=openai) for kind in (OpenAIResponsesModel, OpenAIChatModel)]
    return [Agent(model, **options) for model in (*models, AnthropicModel(CLAUDE, provider=claude))]


async def pydantic_stream(at: At) -> None:
    for agent in _pydantic_agents(at):
        async with agent.run_stream("Hi") as stream:
            assert await stream.get_output() == SAID


async def pydantic_tools(at: At) -> None:
    async def weather(city: str) -> str:
        assert city == "Oslo"
        return "Rain"

    for agent in _pydantic_agents(at, tools=[weather]):
        assert (await agent.run("Hi")).output == RAIN


async def pydantic_structured(at: At) -> None:
    from pydantic_ai import NativeOutput

    for kind in (_shape(), NativeOutput(_shape())):
        for agent in _pydantic_agents(at, output_type=kind):
            assert (await agent.run("Hi")).output.degrees == 7


# openai-agents.


def _agent(at: At, **more: Any) -> Any:
    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=f"{at.url}/openai/v1", api_key=at.key, max_retries=0)
    model = agents.OpenAIResponsesModel("gpt-4.1", client)
    return agents.Agent(name="Bot", instructions="Be brief.", model=model, **more)


async def agents_stream(at: At) -> None:
    from agents import Runner

    run = Runner.run_streamed(_agent(at), "Hi")
    kinds = [event.type async for event in run.stream_events()]
    assert run.final_output == SAID
    assert "raw_response_event" in kinds


async def agents_tools(at: At) -> None:
    from agents import Runner, function_tool

    @function_tool  # type: ignore[untyped-decorator]
    async def weather(city: str) -> str:
        """Tells the weather."""
        return "Rain"

    streamed = Runner.run_streamed(_agent(at, tools=[weather]), "Hi")
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == RAIN


# curl.


def _curl(at: At, path: str, body: dict[str, Any], *options: str, key: str | None = None) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    told = ["-H", f"Authorization: Bearer {key or at.key}", "-H", "Content-Type: application/json"]
    command = ["curl", "-sS", "--noproxy", "*", at.url + path, *told, *options, "-d", json.dumps(body)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def curl_plain(at: At) -> None:
    assert SAID in _curl(at, "/v1/chat/completions", {"model": "auto", "messages": HI})
    assert SAID in _curl(at, "/v1/responses", {"model": "auto", "input": "Hi"})
    assert SAID in _curl(at, "/v1/messages", {"model": "auto", "max_tokens": 50, "messages": HI})


def curl_stream(at: At) -> None:
    said = _curl(at, "/v1/responses", {"model": "auto", "input": "Hi", "stream": True}, "-N")
    assert said.count("event: ") == said.count("data: ") > 5
    assert said.rstrip().rpartition("event: ")[2].startswith("response.completed")


def curl_errors(at: At) -> None:
    code = ("-o", "/dev/null", "-w", "%{http_code}")
    assert _curl(at, "/v1/responses", {"model": "nope", "input": "Hi"}, *code) == "404"
    assert _curl(at, "/v1/responses", {"model": "gpt-4o", "input": "Hi"}, *code) == "502"
    assert _curl(at, "/v1/responses", {"model": "auto"}, *code) == "400"
    assert _curl(at, "/v1/responses", {"model": "auto", "input": "Hi"}, *code, key="x") == "401"
    assert _curl(at, "/v1/responses", {"model": "auto", "input": "Hi"}, *code, key=at.spent) == "429"


# instructor, which only the lock installs beside the others


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


async def instructor(at: At) -> None:
    instructor: Any = pytest.importorskip("instructor")
    import openai

    own = openai.OpenAI(base_url=f"{at.url}/openai/v1", api_key=at.key, max_retries=0)
    request = {"model": "gpt-4.1", "messages": HI, "response_model": Weather, "max_retries": 0}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON):
        client = instructor.from_openai(own, mode=mode)
        assert client.chat.completions.create(**request).degrees == 7, mode
        *_, last = client.chat.completions.create_partial(**request)
        assert last.city == "Oslo", mode
    with pytest.raises(Exception, match="no-such-model"):
        client.chat.completions.create(**{**request, "model": "no-such-model"})
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key=at.key, max_retries=0))
    assert (await client.chat.completions.create(**request)).city == "Oslo"


KINDS = ("plain", "stream", "tools", "structured", "errors", "async")
_FLAT = {name: globals() for name in ("openai", "responses", "anthropic", "litellm", "pydantic", "agents", "curl")}
TABLE: dict[tuple[str, str], Callable[[At], Any]] = {
    (client, kind): known[f"{client}_{kind}"]
    for client, known in _FLAT.items()
    for kind in KINDS
    if f"{client}_{kind}" in known
}
TABLE |= {
    (f"langchain {kind}", case): function
    for kind in ("chat", "responses", "anthropic")
    for case, function in _langchain_case(kind).items()
}
TABLE["instructor", "all"] = instructor


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all: some clients keep connections beyond a call."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize(("client", "kind"), TABLE, ids=[" ".join(cell) for cell in TABLE])
def test_a_client_works_unchanged(client: str, kind: str, at: At, runner: asyncio.Runner) -> None:
    done = TABLE[client, kind](at)
    if done is not None:
        runner.run(done)
