"""Agents of pydantic-ai over a Router, end to end, and what its parts, settings and errors become."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    AudioUrl,
    BinaryContent,
    CachePoint,
    CompactionPart,
    DocumentUrl,
    ImageUrl,
    ModelHTTPError,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    NativeOutput,
    PromptedOutput,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolOrOutput,
    ToolReturnPart,
    UploadedFile,
    UserError,
    UserPromptPart,
    VideoUrl,
    exceptions,
    models,
)
from pydantic_ai.messages import NativeToolCallPart, RetryFeedbackPart, RetryInfo, SystemPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from routewright import Caller, ProviderFault, Router, ValidationFailed, wire
from routewright.errors import ContentRefused, InsufficientBalance, RateLimited, RouterError, RouterTimeoutError
from routewright.integrations.pydantic_ai import RouterModel, RouterModelSettings, translated
from routewright.testing import Pause, ScriptedProvider
from routewright.wire import Delta, Finish, ToolDelta, Usage

from .upstreams import BROKEN, FAULT, PLAIN, RESCUED, SIGNED, STRUCTURED, THOUGHTS, TOOL, TOOLS, router_of

pytestmark = pytest.mark.anyio

ACME = Caller("acme")
QUESTION = "Why is the sky blue?"
PIXEL = b"\x89PNG\r\n\x1a\n"
REFUSED = exceptions.ModelRequestRejectedError


class Weather(BaseModel):
    city: str
    degrees: int


def agent_of(script: Any, model: str = "auto", **options: Any) -> tuple[Agent[None, Any], ScriptedProvider]:
    """An agent with the tool ``weather``. Options of the model are those of ``RouterModel``."""
    own = {name: options.pop(name) for name in ("output_type", "instructions", "retries") if name in options}
    router, provider = router_of(script, timeout=5)
    agent: Agent[None, Any] = Agent(RouterModel(router, model, **options), **own)

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"21 degrees in {city} ☀"

    return agent, provider


def sent(provider: ScriptedProvider, call: int = -1) -> list[dict[str, Any]]:
    """The messages of a call to the provider, without empty fields."""
    fields: list[dict[str, Any]] = [msgspec.to_builtins(turn) for turn in provider.calls[call].messages]
    return [{name: value for name, value in turn.items() if value is not None} for turn in fields]


def last(result: Any) -> ModelResponse:
    response = result.all_messages()[-1]
    assert isinstance(response, ModelResponse)
    return response


async def test_plain() -> None:
    agent, provider = agent_of([PLAIN], instructions="Be brief.")
    result = await agent.run(QUESTION)
    assert result.output == "Air scatters blue light."
    assert sent(provider) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert (last(result).model_name, last(result).finish_reason) == ("anthropic/one", "stop")


async def test_stream() -> None:
    agent, provider = agent_of([PLAIN])
    async with agent.run_stream(QUESTION) as result:
        pieces = [text async for text in result.stream_text(delta=True, debounce_by=None)]
    assert pieces == ["Air scatters ", "blue light."]
    assert last(result).finish_reason == "stop"
    assert provider.open_calls == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools(streamed: bool) -> None:
    agent, provider = agent_of([TOOL, PLAIN])
    assert await output_of(agent, streamed) == "Air scatters blue light."
    assert sent(provider)[1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
            ],
        },
        {"role": "tool", "content": "21 degrees in Rome ☀", "tool_call_id": "call_1"},
    ]
    (tool,) = provider.calls[0].tools or [wire.Tool()]
    assert tool.function_spec.description == "The weather in a city."
    assert (tool.function_spec.parameters or {})["required"] == ["city"]
    assert provider.calls[0].tool_choice == "auto"


async def output_of(agent: Agent[None, Any], streamed: bool, **options: Any) -> Any:
    if not streamed:
        return (await agent.run(QUESTION, **options)).output
    async with agent.run_stream(QUESTION, **options) as result:
        return await result.get_output()


@pytest.mark.parametrize("streamed", [False, True])
async def test_parallel_tools(streamed: bool) -> None:
    agent, provider = agent_of([TOOLS, PLAIN], settings=ModelSettings(parallel_tool_calls=True))
    assert await output_of(agent, streamed) == "Air scatters blue light."
    assert [(turn["tool_call_id"], turn["content"]) for turn in sent(provider)[2:]] == [
        ("call_1", "21 degrees in Rome ☀"),
        ("call_2", "21 degrees in Oslo ☀"),
    ]
    assert provider.calls[0].params.parallel_tool_calls is True


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("output_type", "script"),
    [
        (NativeOutput(Weather), STRUCTURED),
        (PromptedOutput(Weather), STRUCTURED),
        (Weather, [ToolDelta(0, '{"city":"Rome","degrees":21}', "c", "final_result"), Usage(1, 1), Finish("stop")]),
    ],
)
async def test_structured(output_type: Any, script: Any, streamed: bool) -> None:
    agent, provider = agent_of([script], output_type=output_type)
    assert await output_of(agent, streamed) == Weather(city="Rome", degrees=21)
    params, choice = provider.calls[0].params, provider.calls[0].tool_choice
    if isinstance(output_type, NativeOutput):
        form = (params.response_format or {})["json_schema"]
        assert (form["name"], form["schema"]["required"]) == ("Weather", ["city", "degrees"])
    else:
        assert params.response_format is None
    assert choice == ("required" if output_type is Weather else "auto")


async def test_image() -> None:
    agent, provider = agent_of([PLAIN])
    url = ImageUrl("https://example.org/a.png", vendor_metadata={"detail": "low"})
    await agent.run([QUESTION, url, CachePoint(ttl="1h"), BinaryContent(PIXEL, media_type="image/png")])
    data = "data:image/png;base64,iVBORw0KGgo="
    assert sent(provider)[0]["content"] == [
        {"type": "text", "text": QUESTION},
        {
            "type": "image_url",
            "image_url": {"url": "https://example.org/a.png", "detail": "low"},
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
        {"type": "image_url", "image_url": {"url": data}},
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts(streamed: bool) -> None:
    agent, provider = agent_of([[*THOUGHTS[:1], *TOOL], PLAIN, PLAIN])
    await output_of(agent, streamed)
    reasoning = {"provider": "anthropic", "items": [SIGNED]}
    assert sent(provider)[1]["reasoning"] == reasoning

    async with agent.run_stream(QUESTION) as result:
        await result.get_output()
    history = ModelMessagesTypeAdapter.dump_json(result.all_messages())
    assert b"signature" not in history, "an answer without thoughts has none"


async def test_thoughts_outlive_a_stored_history() -> None:
    agent, provider = agent_of([THOUGHTS, PLAIN])
    first = await agent.run(QUESTION)
    (thought, _) = last(first).parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, thought.provider_name) == ("Light scatters.", "routewright")
    history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(first.all_messages()))
    assert history == first.all_messages()
    await agent.run("And at night?", message_history=history)
    assert sent(provider)[1] == {
        "role": "assistant",
        "content": "Air scatters blue light.",
        "reasoning": {"provider": "anthropic", "items": [SIGNED]},
    }


def endless() -> tuple[Agent[None, str], ScriptedProvider, asyncio.Event]:
    """An agent whose model answers a word, and then nothing; and the event of that."""
    router, provider = router_of(iter([[Delta("Air"), Pause(1.0)]] * 2))
    began = asyncio.Event()

    async def pause(_: float) -> None:
        began.set()
        await asyncio.Event().wait()

    provider.pause = pause  # type: ignore[method-assign, assignment]
    return Agent(RouterModel(router)), provider, began


async def test_cancel() -> None:
    agent, provider, began = endless()
    run = asyncio.create_task(agent.run(QUESTION))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert provider.open_calls == 0

    async with agent.run_stream(QUESTION) as result:
        async for _ in result.stream_text(debounce_by=None):
            break
        await result.cancel()
        assert provider.open_calls == 0
    response = last(result)
    assert (response.text, response.state, response.model_name) == ("Air", "interrupted", "anthropic/one")
    assert (response.provider_response_id or "").startswith("tr_")


async def test_a_stream_that_is_left_ends_its_call() -> None:
    agent, provider, _ = endless()
    async with agent.run_stream(QUESTION) as result:
        async for _ in result.stream_text(debounce_by=None):
            break
    assert provider.open_calls == 0


async def test_the_time_limit_of_the_framework_ends_the_call() -> None:
    agent, provider, _ = endless()
    for streamed in (False, True):
        with pytest.raises(exceptions.ModelRequestTimeout):
            await output_of(agent, streamed, model_settings=ModelSettings(request_timeout=0.01))
        assert provider.open_calls == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_budget_refusal(streamed: bool) -> None:
    agent, provider = agent_of([PLAIN], budget={"maxCostUsd": 1e-9})
    with pytest.raises(REFUSED, match=r"no model fits: .*; raise budget.max_cost_usd") as refused:
        await output_of(agent, streamed)
    assert isinstance(refused.value, ModelHTTPError)
    assert (refused.value.status_code, refused.value.provider_error_code) == (422, "router.budget_exceeded")
    assert len(str(refused.value)) < 500
    assert provider.calls == []


async def test_rescue_midway() -> None:
    agent, _ = agent_of(RESCUED)
    response = last(await agent.run(QUESTION))
    assert (response.text, response.model_name) == ("Air scatters blue light.", "anthropic/two")
    assert (response.provider_details or {})["fallback_model"] == "anthropic/two"

    agent, _ = agent_of([BROKEN, PLAIN])
    assert (await agent.run(QUESTION)).output == "Air scatters blue light."
    agent, provider = agent_of([BROKEN, PLAIN])
    with pytest.raises(exceptions.ModelServerError) as failed:
        await output_of(agent, streamed=True)
    assert failed.value.in_stream
    assert provider.open_calls == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage(streamed: bool) -> None:
    agent, _ = agent_of([[Delta("Blue."), Usage(12, 9, cached=4, reasoning=3, written=2), Finish("stop")]])
    async with agent.iter(QUESTION) as run:
        async for node in run:
            if streamed and agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    [_ async for _ in stream]
    assert run.result is not None
    response = last(run.result)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (12, 9)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.output_reasoning_tokens) == (4, 2, 3)
    assert usage.cost == run.usage.cost == Decimal("0.00003")
    details = response.provider_details or {}
    assert details["cost_usd"] == 0.00003
    assert details["trace_id"] == response.provider_response_id
    assert response.model_name == "anthropic/one"
    assert json.loads(json.dumps(details)) == details


async def test_settings_of_the_framework_become_those_of_the_call() -> None:
    model_settings = RouterModelSettings(
        max_tokens=900, temperature=0.5, top_p=0.9, seed=7, stop_sequences=["END"], service_tier="flex", timeout=3,
        max_retries=0, thinking="high", parallel_tool_calls=False, top_k=3,
    )  # fmt: skip
    agent, provider = agent_of([FAULT, PLAIN], settings=ModelSettings(temperature=0.1, seed=3))
    result = await agent.run(QUESTION, model_settings=model_settings)
    params = provider.calls[0].params
    assert (params.temperature, params.top_p, params.seed, params.stop) == (0.5, 0.9, 7, ["END"])
    assert (params.reasoning, params.service_tier, params.parallel_tool_calls) == ("high", "flex", False)
    assert provider.calls[0].max_output_tokens == 900
    assert last(result).model_name == "anthropic/two", "no model is tried twice"


@pytest.mark.parametrize(("thinking", "effort"), [(True, "medium"), (False, "none"), ("xhigh", "max"), (None, None)])
async def test_levels_of_thinking(thinking: Any, effort: str | None) -> None:
    agent, provider = agent_of([PLAIN])
    await agent.run(QUESTION, model_settings={} if thinking is None else ModelSettings(thinking=thinking))
    assert provider.calls[0].params.reasoning == effort


async def test_options_of_a_call_override_and_join_those_of_the_model() -> None:
    agent, provider = agent_of([PLAIN], "auto:quality", metadata={"team": "a", "env": "x"}, params={"seed": 1})
    options = {
        "metadata": {"team": "b"},
        "params": {"top_p": 0.5},
        "caller": Caller("acme"),
        "models": ["anthropic/two"],
    }
    response = last(await agent.run(QUESTION, model_settings=RouterModelSettings(routewright=options)))
    router = agent.model.router
    trace = await router.trace(response.provider_response_id, caller=ACME)
    assert (trace.goal, trace.account, trace.selected_model) == ("quality", "acme", "anthropic/two")
    assert trace.metadata == {"team": "b", "env": "x"}
    assert (provider.calls[0].params.seed, provider.calls[0].params.top_p) == (1, 0.5)


async def test_a_run_with_an_idempotency_key_can_be_repeated() -> None:
    agent, provider = agent_of([TOOL, PLAIN], idempotency_key="order-7")
    first = await agent.run(QUESTION)
    again = await agent.run(QUESTION)
    assert again.output == first.output
    assert last(again).provider_response_id == last(first).provider_response_id
    assert len(provider.calls) == 2
    assert (first.usage.cost, again.usage.cost) == (Decimal("0.000058"), 0), "a replay is paid for"
    assert last(again).provider_details == last(first).provider_details | {"replayed": True}


def test_a_wrong_model_is_refused_at_once() -> None:
    with pytest.raises(ValidationFailed, match="unknown goal 'speed'"):
        RouterModel(Router.sandbox(), "auto:speed")


def test_models_are_equal_if_all_of_them_is() -> None:
    router = Router.sandbox()
    model = RouterModel(router, "auto:cost", metadata={"a": 1})
    assert model == RouterModel(router, "auto:cost", metadata={"a": 1})
    assert model != RouterModel(router, metadata={"a": 1})
    assert model != RouterModel(router, "auto:cost")
    assert (model.system, model.model_id) == ("routewright", "routewright:auto:cost")


def test_the_profile_is_that_of_a_router() -> None:
    profile = RouterModel(Router.sandbox()).profile
    assert (profile["supports_thinking"], profile["supports_json_schema_output"]) == (True, True)
    assert profile["supported_native_tools"] == frozenset()


TEXT = [Delta("ok"), Usage(1, 1), Finish("stop")]
FUNCTIONS = [ToolDefinition(name="a"), ToolDefinition(name="b")]
OUTPUTS = [ToolDefinition(name="out")]


@pytest.mark.parametrize(
    ("setting", "outputs", "allows_text", "declared", "choice"),
    [
        (None, [], True, "a b", "auto"),
        ("auto", OUTPUTS, False, "a b out", "required"),
        ("required", [], True, "a b", "required"),
        ("none", [], True, "a b", "none"),
        ([], OUTPUTS, False, "out", "required"),
        (["a"], [], True, "a", "required"),
        (ToolOrOutput(["b"]), OUTPUTS, True, "b out", "auto"),
        (ToolOrOutput(["b"]), OUTPUTS, False, "b out", "required"),
    ],
)
async def test_tool_choices(setting: Any, outputs: Any, allows_text: bool, declared: str, choice: str) -> None:
    router, provider = router_of([TEXT])
    parameters = ModelRequestParameters(
        function_tools=FUNCTIONS, output_tools=outputs, output_mode="tool", allow_text_output=allows_text
    )
    settings = ModelSettings() if setting is None else ModelSettings(tool_choice=setting)
    await RouterModel(router).request([ModelRequest.user_text_prompt("hi")], settings, parameters)
    (call,) = provider.calls
    assert [tool.function_spec.name for tool in call.tools or ()] == declared.split()
    assert call.tool_choice == choice


async def test_a_choice_among_no_tools_is_refused() -> None:
    router, _ = router_of([TEXT])
    parameters = ModelRequestParameters(function_tools=FUNCTIONS)
    with pytest.raises(REFUSED, match="there are no tools"):
        await RouterModel(router).request(
            [ModelRequest.user_text_prompt("hi")], ModelSettings(tool_choice=["c"]), parameters
        )


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (TextContent("ok ☀", metadata={"secret": 1}), {"type": "text", "text": "ok ☀"}),
        (DocumentUrl("https://e.org/a.pdf"), {"type": "file", "file": {"file_data": "https://e.org/a.pdf"}}),
        (BinaryContent(b"%PDF", media_type="application/pdf", identifier="one"),
         {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "one.pdf"}}),
        (BinaryContent(b"RIFF", media_type="audio/wav"),
         {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        (BinaryContent("naïve".encode(), media_type="text/csv", identifier="one"),
         {"type": "text", "text": '-----BEGIN FILE id="one" type="text/csv"-----\nnaïve\n-----END FILE id="one"-----'}),
    ],
)  # fmt: skip
async def test_content_of_users(item: Any, part: dict[str, Any]) -> None:
    assert await content_of(item) == part


async def content_of(item: Any) -> dict[str, Any]:
    """What the model turns the content of a user's message into."""
    content = await RouterModel(Router.sandbox())._content([item])
    fields: list[dict[str, Any]] = msgspec.to_builtins(content)
    return fields[0]


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (AudioUrl("https://e.org/a.mp3"), "audio/mpeg"),
        (ImageUrl("https://e.org/a.png", force_download=True), "image/png"),
        (DocumentUrl("https://e.org/a.txt"), "text/plain"),
    ],
)
async def test_files_that_no_provider_fetches_are_downloaded(
    item: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def download(url: Any, form: str) -> dict[str, Any]:
        assert (url, form) == (item, "bytes")
        return {"data": b"RIFF", "data_type": kind}

    monkeypatch.setattr(models, "download_item", download)
    assert "RIFF" in str(await content_of(item)) or "UklGRg==" in str(await content_of(item))


@pytest.mark.parametrize(
    "item",
    [
        VideoUrl("https://e.org/a.mp4"),
        BinaryContent(b"", media_type="video/mp4"),
        BinaryContent(b"", media_type="audio/flac"),
        BinaryContent(b"", media_type="application/zip"),
        UploadedFile("file_1", provider_name="openai", media_type="application/pdf"),
    ],
)
async def test_other_files_are_refused(item: Any) -> None:
    with pytest.raises((UserError, ValidationFailed), match="cannot be sent; send"):
        await content_of(item)


async def test_files_of_tools_follow_their_results() -> None:
    image = BinaryContent(PIXEL, media_type="image/png", identifier="chart")
    call = ToolCallPart("draw", "{}", "call_1")
    history = [
        ModelRequest.user_text_prompt("Draw."),
        ModelResponse([call]),
        ModelRequest([ToolReturnPart("draw", ["see", image], "call_1"), UserPromptPart("Thanks.")]),
    ]
    turns = await RouterModel(Router.sandbox())._turns(history, ModelRequestParameters())
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "user", "user"]
    assert turns[2].content == '["see","See file chart."]'
    assert [type(part).__name__ for part in turns[4].content or ()] == ["TextPart", "ImagePart", "TextPart"]


async def test_what_other_models_wrote_for_themselves_is_left_out() -> None:
    foreign = ModelResponse(
        [
            ThinkingPart("hm", signature="c2lnbmVk", provider_name="anthropic"),
            NativeToolCallPart("web_search", {"query": "sky"}, "call_0", provider_name="openai"),
            CompactionPart("old", provider_name="anthropic"),
        ]
    )
    answer = ModelResponse([*foreign.parts, TextPart("Blue."), TextPart("")])
    request = ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("hi"), CompactionPart("They met.")])
    turns = await RouterModel(Router.sandbox())._turns([request, foreign, answer], ModelRequestParameters())
    assert [(turn.role, turn.content, turn.reasoning) for turn in turns] == [
        ("system", "Be brief.", None),
        ("user", "hi", None),
        ("user", "Summary of the conversation so far:\n\nThey met.", None),
        ("assistant", "Blue.", None),
    ]


async def test_parts_for_the_framework_alone_are_refused() -> None:
    part = RetryFeedbackPart("Again.", retry=RetryInfo("no_output"))
    router, provider = router_of([TEXT])
    model, history = RouterModel(router), [ModelRequest([part])]
    with pytest.raises(UserError, match=r"retry-feedback cannot be sent; call model\.prepare_messages"):
        await model.request(history, None, ModelRequestParameters())
    await model.request(model.prepare_messages(history), None, ModelRequestParameters())
    assert "Again." in str(provider.calls[0].messages)


@pytest.mark.parametrize(
    ("script", "kind", "status"),
    [
        ([ProviderFault("auth", status=401)] * 2, exceptions.ModelServerError, 502),
        ([ProviderFault("context_overflow", status=400)] * 2, exceptions.ModelContextWindowExceededError, 502),
        ([ProviderFault("refused", status=400)], exceptions.ContentFilterError, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_faults_of_providers(script: Any, kind: type[Exception], status: int | None, streamed: bool) -> None:
    agent, _ = agent_of(script)
    with pytest.raises(kind) as failed:
        await output_of(agent, streamed)
    assert getattr(failed.value, "status_code", None) == status
    assert isinstance(failed.value.__cause__, RouterError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContentRefused("no"), exceptions.ContentFilterError),
        (InsufficientBalance("empty"), exceptions.ModelQuotaExceededError),
        (RateLimited("wait", detail={"retry_after_seconds": 7}), exceptions.ModelRateLimitError),
        (RouterTimeoutError("late", trace_id="tr_1"), exceptions.ModelServerError),
        (ValidationFailed("bad"), REFUSED),
    ],
)
def test_errors_of_the_router(error: RouterError, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=error.message) as raised, translated("auto"):
        raise error
    assert raised.value.__cause__ is error
    if isinstance(error, RateLimited):
        assert raised.value.retry_after == 7  # type: ignore[attr-defined]
    if isinstance(error, RouterTimeoutError):
        body = {"code": error.code, "message": "late", "type": error.type, "trace_id": "tr_1"}
        assert raised.value.body == body  # type: ignore[attr-defined]


async def test_requests_are_made_only_if_they_are_allowed() -> None:
    agent, _ = agent_of([PLAIN])
    with models.override_allow_model_requests(False):
        with pytest.raises(RuntimeError, match="not allowed"):
            await agent.run(QUESTION)
        assert (await Agent(RouterModel(Router.sandbox())).run(QUESTION)).output, "a sandbox makes none"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_of_the_framework_is_a_run_of_ours(streamed: bool) -> None:
    agent, provider = agent_of([TOOL, PLAIN, TOOL])
    router = agent.model.router
    async with router.run(total_budget_usd=0.05, metadata={"team": "a"}) as run:
        await output_of(agent, streamed)
    trace = await router.trace(run.trace_id)
    assert len(trace.children) == 2
    assert run.cost_usd == pytest.approx(0.000058)

    async with router.run(total_budget_usd=0.0001):
        with pytest.raises(exceptions.ModelQuotaExceededError):
            await output_of(agent, streamed)
    assert len(provider.calls) == 2
