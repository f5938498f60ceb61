"""Agents of Google ADK over ``RouterLlm``, end to end. Run by ``test_google_adk.py`` in a process of its own."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

import anyio
import msgspec
import pytest
from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.events import Event
from google.adk.models import LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from google.genai.errors import ClientError, ServerError
from pydantic import BaseModel

from routewright import BudgetExceeded, ProviderFault, Router, Settings, wire
from routewright.integrations.google_adk import RouterLlm, _messages
from routewright.testing import FakeClock
from routewright.testing.provider import Pause
from routewright.wire import Delta, Finish, ToolDelta, Usage

from .upstreams import BROKEN, PLAIN, RESCUED, SIGNED, STRUCTURED, THOUGHTS, TOOL, TOOLS, router_of

pytestmark = pytest.mark.anyio

SSE = RunConfig(streaming_mode=StreamingMode.SSE)
TEXT = "Air scatters blue light."
PNG = b"\x89PNG\r\n\x1a\n"


def scripted(script: Any, **options: Any) -> tuple[Router, Any]:
    """A Router and its provider, whose calls are looked into deeply."""
    return router_of(script, **options)


class Weather(BaseModel):
    city: str
    degrees: int


def weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "degrees": 21}


async def run_agent(
    agent: Agent, *parts: types.Part, config: RunConfig | None = None, plugins: Sequence[BasePlugin] = ()
) -> list[Event]:
    message = types.Content(role="user", parts=[*parts] or [types.Part(text="Why is the sky blue?")])
    runner = InMemoryRunner(app=App(name="app", root_agent=agent, plugins=[*plugins]))
    session = await runner.session_service.create_session(app_name="app", user_id="ada")
    options = {"user_id": "ada", "session_id": session.id, "run_config": config}
    async with aclosing(runner.run_async(new_message=message, **options)) as events:
        return [event async for event in events]


async def call(model: RouterLlm, *contents: types.Content, stream: bool = False, **config: Any) -> list[LlmResponse]:
    request = LlmRequest(
        contents=[*contents] or [types.UserContent("Hi")], config=types.GenerateContentConfig(**config)
    )
    return [response async for response in model.generate_content_async(request, stream)]


async def sent(script: Any, *contents: types.Content, **config: Any) -> Any:
    """What the model's provider is sent."""
    router, provider = scripted(script)
    async with router:
        await call(RouterLlm(router), *contents, **config)
    return provider.calls[-1]


def model_turn(*parts: types.Part) -> types.Content:
    return types.Content(role="model", parts=[*parts])


def user_turn(*parts: types.Part) -> types.Content:
    return types.Content(role="user", parts=[*parts])


async def test_plain() -> None:
    router, provider = scripted([PLAIN])
    async with router:
        (event,) = await run_agent(Agent(name="helper", model=RouterLlm(router), instruction="Be brief."))
    assert event.content.parts[0].text == TEXT
    assert event.is_final_response()
    system, user = provider.calls[0].messages
    assert system.role == "system"
    assert system.content.startswith("Be brief.")
    assert (user.role, user.content) == ("user", "Why is the sky blue?")


async def test_stream() -> None:
    router, _ = scripted([PLAIN])
    async with router:
        *pieces, whole = await run_agent(Agent(name="helper", model=RouterLlm(router)), config=SSE)
    assert [(piece.partial, piece.content.parts[0].text) for piece in pieces] == [
        (True, "Air scatters "),
        (True, "blue light."),
    ]
    assert (whole.partial, whole.content.parts[0].text) == (False, TEXT)
    assert whole.usage_metadata.total_token_count == 17


async def test_tools() -> None:
    router, provider = scripted([TOOL, PLAIN])
    async with router:
        events = await run_agent(Agent(name="helper", model=RouterLlm(router), tools=[weather]))
    request, result, answer = events
    assert request.get_function_calls()[0].args == {"city": "Rome"}
    assert result.get_function_responses()[0].response == {"city": "Rome", "degrees": 21}
    assert answer.content.parts[0].text == TEXT
    tool = provider.calls[0].tools[0].function_spec
    assert (tool.name, tool.description) == ("weather", "The weather of a city.")
    assert tool.parameters["properties"]["city"]["type"] == "string"
    *_, assistant, reply = provider.calls[1].messages
    assert assistant.tool_calls == [wire.ToolCall("call_1", wire.FunctionCall("weather", '{"city":"Rome"}'))]
    assert (reply.role, reply.tool_call_id) == ("tool", "call_1")
    assert json.loads(reply.content) == {"city": "Rome", "degrees": 21}


@pytest.mark.parametrize("config", [None, SSE], ids=["plain", "stream"])
async def test_parallel_tools(config: RunConfig | None) -> None:
    router, provider = scripted([TOOLS, PLAIN])
    async with router:
        await run_agent(Agent(name="helper", model=RouterLlm(router), tools=[weather]), config=config)
    results = [message for message in provider.calls[1].messages if message.role == "tool"]
    assert [message.tool_call_id for message in results] == ["call_1", "call_2"]
    assert [json.loads(message.content)["city"] for message in results] == ["Rome", "Oslo"]


async def test_structured() -> None:
    router, provider = scripted([STRUCTURED])
    async with router:
        agent = Agent(name="helper", model=RouterLlm(router), output_schema=Weather, output_key="weather")
        (event,) = await run_agent(agent)
    assert event.actions.state_delta == {"weather": {"city": "Rome", "degrees": 21}}
    schema = provider.calls[0].params.response_format["json_schema"]["schema"]
    assert schema["required"] == ["city", "degrees"]


async def test_image() -> None:
    router, provider = scripted([PLAIN])
    parts = types.Part(text="What is it?"), types.Part.from_bytes(data=PNG, mime_type="image/png")
    async with router:
        await run_agent(Agent(name="helper", model=RouterLlm(router)), *parts)
    _, image = provider.calls[0].messages[-1].content
    assert base64.b64decode(image.image_url.url.removeprefix("data:image/png;base64,")) == PNG


async def test_thoughts() -> None:
    """Back unchanged with their signatures, also after the session was stored as JSON."""
    router, provider = scripted([THOUGHTS, PLAIN])
    model = RouterLlm(router)
    async with router:
        agent = Agent(name="helper", model=model)
        *pieces, whole = await run_agent(agent, config=SSE)
        assert [piece.content.parts[0].text for piece in pieces if piece.content.parts[0].thought] == [
            "Light scatters."
        ]
        assert whole.content.parts[0].thought
        assert whole.content.parts[0].text == "Light scatters."
        assert whole.usage_metadata.thoughts_token_count == 4
        stored = Event.model_validate_json(whole.model_dump_json())
        await call(model, types.UserContent("Hi"), stored.content, types.UserContent("And at night?"))
    assistant = provider.calls[1].messages[1]
    assert assistant.content == TEXT
    assert assistant.reasoning.items == [SIGNED]


async def test_cancel() -> None:
    router, provider = scripted(iter([[PLAIN[0], Pause(1.0)]] * 2))
    provider.pause = lambda _: anyio.sleep_forever()
    started = anyio.Event()

    async def read() -> None:
        async for _ in RouterLlm(router).generate_content_async(LlmRequest(), stream=True):
            started.set()

    async with router:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await started.wait()
            assert provider.open_calls == 1
            tasks.cancel_scope.cancel()
        assert provider.open_calls == 0
        async with aclosing(RouterLlm(router).generate_content_async(LlmRequest(), stream=True)) as responses:
            await anext(responses)
        assert provider.open_calls == 0


async def test_budget_refusal() -> None:
    router, provider = scripted([PLAIN])
    async with router:
        model = RouterLlm(router, budget={"maxCostUsd": 0.0000001})
        with pytest.raises(ClientError, match="budget") as refusal:
            await run_agent(Agent(name="helper", model=model))
    assert (refusal.value.code, refusal.value.status) == (422, "router.budget_exceeded")
    assert isinstance(refusal.value.__cause__, BudgetExceeded)
    assert refusal.value.__cause__.detail["rejected_candidates"]
    assert len(str(refusal.value)) < 500
    assert provider.calls == []


async def test_rescue_midway() -> None:
    """Before its first text a stream is rescued, after it fails; a plain call is rescued in both cases."""
    router, _ = scripted([*RESCUED, BROKEN, PLAIN, BROKEN, PLAIN], settings=Settings(clock=FakeClock()))
    agent = Agent(name="helper", model=RouterLlm(router))
    async with router:
        *_, whole = await run_agent(agent, config=SSE)
        assert (whole.model_version, whole.content.parts[0].text) == ("anthropic/two", TEXT)
        (event,) = await run_agent(agent)
        assert event.content.parts[0].text == TEXT
        with pytest.raises(ServerError) as failure:
            await run_agent(agent, config=SSE)
    assert failure.value.code == 502


async def test_usage() -> None:
    router, _ = scripted([PLAIN, THOUGHTS])
    async with router:
        (plain,) = await call(RouterLlm(router))
        (thoughtful,) = await call(RouterLlm(router))
    usage = plain.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.cached_content_token_count) == (12, 5, 4)
    usage = thoughtful.usage_metadata
    assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (5, 4, 21)
    facts = thoughtful.custom_metadata["routewright"]
    assert facts["trace_id"].startswith("tr_")
    assert facts["cost_usd"] == pytest.approx((12 + 2 * 9) / 1e6)
    assert not facts["cache_hit"]
    assert json.loads(thoughtful.model_dump_json())["custom_metadata"]["routewright"] == facts


async def test_options_of_the_model_the_run_and_the_call_are_merged() -> None:
    router, provider = scripted([PLAIN, PLAIN])
    own = {"metadata": {"ticket": 7}, "params": {"verbosity": "low"}, "prefer": "anthropic/two"}
    async with router:
        model = RouterLlm(router, metadata={"team": "red"}, goal="quality")
        settings = types.GenerateContentConfig(temperature=0.5, labels={"stage": "test"})
        agent = Agent(name="helper", model=model, generate_content_config=settings)
        options = types.HttpOptions(extra_body={"routewright": own}, timeout=9_000)
        (event,) = await run_agent(agent, config=RunConfig(http_options=options, labels={"run": "nightly"}))
        trace = await router.traces.get(event.custom_metadata["routewright"]["trace_id"])
    assert event.model_version == "anthropic/two"
    assert trace.goal == "quality"
    tags = {"adk_agent_name": "helper", "run": "nightly", "stage": "test", "team": "red", "ticket": 7}
    assert trace.metadata == tags
    params = provider.calls[0].params
    assert (params.temperature, params.verbosity) == (0.5, "low")


@pytest.mark.parametrize(
    ("config", "params"),
    [
        ({"temperature": 0.0, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"max_output_tokens": 7, "stop_sequences": ["."]}, {"max_output_tokens": 7, "stop": ["."]}),
        ({"seed": 0, "service_tier": "FLEX"}, {"seed": 0, "service_tier": "flex"}),
        ({"service_tier": "standard"}, {"service_tier": "default"}),
        ({"service_tier": "unspecified"}, {"service_tier": "default"}),
        ({"thinking_config": types.ThinkingConfig(thinking_budget=0)}, {"reasoning": "none"}),
        ({"thinking_config": types.ThinkingConfig(thinking_budget=99)}, {"reasoning": {"max_tokens": 99}}),
        ({"thinking_config": types.ThinkingConfig(thinking_budget=-1)}, {}),
        ({"thinking_config": types.ThinkingConfig(thinking_level="HIGH")}, {"reasoning": "high"}),
        ({"response_mime_type": "application/json"}, {"response_format": {"type": "json_object"}}),
        ({"response_mime_type": "text/plain", "candidate_count": None}, {}),
    ],
    ids=str,
)
async def test_fields_of_a_config_are_parameters(config: dict[str, Any], params: dict[str, Any]) -> None:
    assert msgspec.to_builtins((await sent([PLAIN], **config)).params) == params


@pytest.mark.parametrize(
    "schema",
    [
        Weather,
        Weather.model_json_schema(),
        types.Schema(type="OBJECT",
            properties={"city": types.Schema(type="STRING"), "degrees": types.Schema(type="INTEGER")},
            required=["city", "degrees"]),
        {"type": "OBJECT", "properties": {"city": {"type": "STRING"}, "degrees": {"type": "INTEGER"}}},
    ],
    ids=["class", "json", "google", "google as a dict"],
)  # fmt: skip
@pytest.mark.parametrize("field", ["response_schema", "response_json_schema"])
async def test_any_form_of_a_schema_becomes_a_json_schema(field: str, schema: Any) -> None:
    call = await sent([STRUCTURED], response_mime_type="application/json", **{field: schema})
    schema = call.params.response_format["json_schema"]["schema"]
    assert schema["properties"]["degrees"]["type"] == "integer"
    assert schema["type"] == "object"


def declared(*names: str) -> list[types.Tool]:
    schema = types.Schema(type="OBJECT", properties={"type": types.Schema(type="STRING", nullable=True)})
    functions = [types.FunctionDeclaration(name=name, parameters=schema) for name in names]
    return [types.Tool(function_declarations=functions)]


@pytest.mark.parametrize(
    ("calling", "choice", "names"),
    [
        ({"mode": "AUTO"}, None, ["walk", "swim"]),
        ({"mode": "ANY"}, "required", ["walk", "swim"]),
        ({"mode": "NONE"}, "none", ["walk", "swim"]),
        ({"mode": "ANY", "allowed_function_names": ["swim"]}, "required", ["swim"]),
        ({"mode": "VALIDATED", "allowed_function_names": ["walk"]}, None, ["walk"]),
    ],
)
async def test_tools_are_chosen_as_the_config_says(calling: Any, choice: str | None, names: list[str]) -> None:
    tool_config = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(**calling))
    call = await sent([PLAIN], tools=declared("walk", "swim"), tool_config=tool_config)
    assert call.tool_choice in (choice, choice or "auto")
    assert [tool.function_spec.name for tool in call.tools] == names
    assert set(call.tools[0].function_spec.parameters["properties"]["type"]["type"]) == {"string", "null"}


ONLY_SWIM = types.ToolConfig(
    function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["swim"])
)


async def test_a_choice_without_tools_is_none() -> None:
    calling = types.FunctionCallingConfig(mode="ANY")
    call = await sent([PLAIN], tools=[], tool_config=types.ToolConfig(function_calling_config=calling))
    assert not call.tools
    assert call.tool_choice is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"top_k": 3}, "config.top_k: is not supported"),
        ({"candidate_count": 2}, "candidate_count"),
        ({"safety_settings": [types.SafetySetting()]}, "safety_settings"),
        ({"cached_content": "caches/1"}, "cached_content"),
        ({"response_mime_type": "text/x.enum", "response_schema": {"enum": ["a"]}}, "response_mime_type"),
        ({"http_options": types.HttpOptions(extra_body={"contents": []})}, "contents"),
        ({"http_options": types.HttpOptions(extra_body={"routewright": {"goal": "speed"}})}, "goal"),
        ({"system_instruction": ["a list"]}, "messages[0].content"),
        ({"tools": [print]}, "config.tools"),
        ({"tools": declared("walk"), "tool_config": ONLY_SWIM}, "tool_choice"),
        ({"tools": [types.Tool(google_search=types.GoogleSearch())]}, "google_search"),
        ({"tools": [*declared("walk"), types.Tool(code_execution=types.ToolCodeExecution())]}, "code_execution"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_setting_without_a_counterpart_is_refused(config: dict[str, Any], words: str) -> None:
    router, provider = scripted([PLAIN])
    async with router:
        with pytest.raises(ClientError, match=re.escape(words)) as refusal:
            await call(RouterLlm(router), **config)
    assert refusal.value.code == 400
    assert provider.calls == []


@pytest.mark.parametrize(
    ("part", "content"),
    [
        (types.Part(text="grüße 🎉"), "grüße 🎉"),
        (types.Part.from_bytes(data="naïve".encode(), mime_type="text/csv; charset=utf-8"), "naïve"),
        (types.Part.from_uri(file_uri="https://example.com/a.png"),
         [wire.ImagePart(wire.ImageUrl("https://example.com/a.png"))]),
        (types.Part.from_uri(file_uri="https://example.com/a", mime_type="image/webp"),
         [wire.ImagePart(wire.ImageUrl("https://example.com/a"))]),
        (types.Part(inline_data=types.Blob(data=b"%PDF", mime_type="application/pdf", display_name="a.pdf")),
         [wire.FilePart(wire.FileData("data:application/pdf;base64,JVBERg==", "a.pdf"))]),
    ],
    ids=["unicode", "text", "image", "image of a type", "pdf"],
)  # fmt: skip
async def test_parts_of_a_user_are_sent(part: types.Part, content: Any) -> None:
    (message,) = (await sent([PLAIN], user_turn(part))).messages
    assert message.content == content


@pytest.mark.parametrize(
    "part",
    [
        types.Part.from_bytes(data=b"film", mime_type="video/mp4"),
        types.Part.from_uri(file_uri="gs://bucket/film.mp4", mime_type="video/mp4"),
        types.Part.from_uri(file_uri="gs://bucket/a.png", mime_type="image/png"),
        types.Part(file_data=types.FileData(file_uri="https://example.com/unknown")),
        types.Part.from_bytes(data=b"sound", mime_type="audio/flac"),
        types.Part(inline_data=types.Blob(mime_type="audio/wav")),
        types.Part(file_data=types.FileData(mime_type="video/mp4")),
    ],
    ids=["video", "film", "bucket", "unknown", "flac", "no data", "no address"],
)
async def test_a_file_that_no_model_reads_is_refused(part: types.Part) -> None:
    with pytest.raises(ClientError) as refusal:
        await sent([PLAIN], user_turn(part))
    assert refusal.value.status == "validation_failed"


async def test_audio_is_sent() -> None:
    message = next(
        _messages(LlmRequest(contents=[user_turn(types.Part.from_bytes(data=b"s", mime_type="audio/mpeg"))]))
    )
    assert message.content == [wire.AudioPart(wire.InputAudio("cw==", "mp3"))]


async def test_empty_parts_and_thoughts_of_others_are_left_out() -> None:
    call = await sent(
        [PLAIN],
        user_turn(types.Part(text="Hi"), types.Part(text=""), types.Part(text="hm", thought=True)),
        model_turn(types.Part(executable_code=types.ExecutableCode(code="1+1", language="PYTHON"))),
        model_turn(types.Part(text="I think", thought=True, thought_signature=b"of another vendor")),
        model_turn(types.Part(text="Hello", thought_signature=b"\xff\x00"), types.Part(text=" there")),
        model_turn(),
        user_turn(types.Part(text="one"), types.Part(text="two")),
    )
    user, assistant, last = call.messages
    assert user == wire.Message("user", "Hi")
    assert assistant == wire.Message("assistant", [wire.TextPart("Hello"), wire.TextPart(" there")])
    assert last.content == [wire.TextPart("one"), wire.TextPart("two")]


async def test_calls_without_ids_find_their_results() -> None:
    """As in the history of a Gemini."""
    walks = [types.Part.from_function_call(name="walk", args={"to": place}) for place in ("Rome", "Oslo")]
    ends = [types.Part.from_function_response(name="walk", response={"at": place}) for place in ("Rome", "Oslo")]
    turns = model_turn(types.Part(text="Now"), *walks), user_turn(*ends)
    messages = (await sent([PLAIN], types.UserContent("Go"), *turns, *turns)).messages
    calls = [call.id for message in messages for call in message.tool_calls or ()]
    assert len({*calls}) == 4
    assert [message.tool_call_id for message in messages if message.role == "tool"] == calls


async def test_files_of_a_result_follow_it() -> None:
    blob = types.FunctionResponseBlob(data=PNG, mime_type="image/png")
    response = types.FunctionResponse(
        id="c1",
        name="draw",
        response={"at": datetime(2026, 1, 1)},
        parts=[types.FunctionResponsePart(inline_data=blob)],
    )
    call = types.FunctionCall(id="c1", name="draw", args=None)
    turns = model_turn(types.Part(function_call=call)), user_turn(types.Part(function_response=response))
    _, request, result, files = (await sent([PLAIN], types.UserContent("Go"), *turns)).messages
    assert request.tool_calls[0].function.arguments == "{}"
    assert result.content == '{"at":"2026-01-01T00:00:00"}'
    assert isinstance(files.content[0], wire.ImagePart)


@pytest.mark.parametrize("value", ["\ud800", [[]]], ids=["surrogate", "circle"])
async def test_a_value_that_json_cannot_hold_is_refused(value: Any) -> None:
    if isinstance(value, list):
        value[0].append(value)
    call = types.Part.from_function_call(name="walk", args={})
    assert call.function_call is not None
    call.function_call.args = {"to": value}
    with pytest.raises(ClientError, match="contents: cannot be read") as refusal:
        await sent([PLAIN], types.UserContent("Go"), model_turn(call))
    assert refusal.value.code == 400


DEEP = '{"a":' + "[" * 5_000 + "]" * 5_000 + "}"


@pytest.mark.parametrize("arguments", ['{"city":', '["Rome"]', "Rome", DEEP], ids=lambda text: text[:10])
async def test_malformed_arguments_are_reported_as_gemini_does(arguments: str) -> None:
    bad = [Delta("Let me see"), ToolDelta(0, arguments, "call_1", "weather"), Usage(1, 1), Finish("tool_calls")]
    router, _ = scripted([bad, bad])
    async with router:
        for stream in (False, True):
            *_, response = await call(RouterLlm(router), tools=declared("weather"), stream=stream)
            assert response.error_code == response.finish_reason == types.FinishReason.MALFORMED_FUNCTION_CALL
            assert response.error_message == "the arguments of weather are no JSON object"
            assert [part.text for part in response.content.parts] == ["Let me see"]


async def test_a_call_without_arguments_has_none() -> None:
    router, _ = scripted([[ToolDelta(0, "", "call_1", "walk"), Usage(1, 1), Finish("tool_calls")]])
    async with router:
        (response,) = await call(RouterLlm(router), tools=declared("walk"))
    assert response.get_function_calls()[0].args == {}


async def test_a_cut_answer_says_so() -> None:
    router, _ = scripted([[*PLAIN[:3], Finish("length")]])
    async with router:
        (response,) = await call(RouterLlm(router))
    assert response.finish_reason is types.FinishReason.MAX_TOKENS
    assert response.error_code == "MAX_TOKENS"
    assert response.content.parts[0].text == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_can_be_hidden_and_still_go_back(stream: bool) -> None:
    router, _ = scripted([THOUGHTS])
    hidden = types.ThinkingConfig(include_thoughts=False)
    async with router:
        responses = await call(RouterLlm(router), stream=stream, thinking_config=hidden)
    assert "Light scatters" not in "".join(part.text or "" for response in responses for part in response.content.parts)
    assert responses[-1].content.parts[0].thought_signature


async def test_a_refusal_of_the_vendor_is_a_client_error() -> None:
    router, _ = scripted([ProviderFault("refused")] * 2)
    async with router:
        with pytest.raises(ClientError) as refusal:
            await call(RouterLlm(router))
    assert (refusal.value.code, refusal.value.status) == (403, "content_refused")
    assert refusal.value.details["error"]["trace_id"].startswith("tr_")


@pytest.mark.parametrize("config", [None, SSE], ids=["plain", "stream"])
async def test_an_agent_within_a_run_shares_its_purse_and_its_trace(config: RunConfig | None) -> None:
    router, _ = scripted([TOOL, PLAIN])
    async with router:
        async with router.run(total_budget_usd=1.0) as run:
            events = await run_agent(Agent(name="helper", model=RouterLlm(router), tools=[weather]), config=config)
        trace = await router.trace(run.trace_id)
    calls = [event.custom_metadata["routewright"] for event in events if event.custom_metadata]
    assert len(calls) == 2
    assert trace.children == [call["trace_id"] for call in calls]
    assert run.cost_usd == pytest.approx(sum(call["cost_usd"] for call in calls))


async def test_an_agent_that_spends_the_budget_of_a_run_is_stopped() -> None:
    router, provider = scripted([[*TOOL[:2], Usage(9_000, 8), Finish("tool_calls")], PLAIN])
    async with router, router.run(total_budget_usd=0.01):
        with pytest.raises(ClientError) as refusal:
            await run_agent(Agent(name="helper", model=RouterLlm(router), tools=[weather]))
    assert (refusal.value.code, refusal.value.status) == (402, "quota_exhausted")
    assert len(provider.calls) == 1


async def test_a_repeated_run_with_its_key_gets_the_same_answers() -> None:
    router, provider = scripted([TOOL, PLAIN])
    async with router:
        agent = Agent(name="helper", model=RouterLlm(router, idempotency_key="k"), tools=[weather])
        first, again = [await run_agent(agent) for _ in range(2)]
    assert len(provider.calls) == 2
    assert [event.content for event in again] == [event.content for event in first]


async def test_live_connections_are_refused() -> None:
    router, _ = scripted([])
    with pytest.raises(NotImplementedError, match="Live connection is not supported for auto"):
        RouterLlm(router).connect(LlmRequest())


async def test_a_model_is_copied_and_shown_without_its_router() -> None:
    router, _ = scripted([PLAIN])
    model = RouterLlm(router, goal="quality")
    assert model.model_dump() == {"model": "auto"}
    assert "router" not in repr(model)
    async with router:
        (event,) = await run_agent(Agent(name="helper", model=model).clone({"name": "copy"}))
    assert event.author == "copy"
