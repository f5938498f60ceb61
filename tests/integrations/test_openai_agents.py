"""Agents of the OpenAI Agents SDK over ``RouterModel`` and ``RouterProvider``, end to end."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import agents
import openai
import pytest
from agents import Agent, ModelRetrySettings, ModelSettings, RunConfig, Runner, retry_policies
from agents.tracing import TracingProcessor
from pydantic import BaseModel

from routewright import BudgetExceeded, Catalogue, ProviderFault, Router, Settings
from routewright.errors import UpstreamFailed
from routewright.integrations.openai_agents import RouterModel, RouterProvider
from routewright.testing import FakeClock
from routewright.testing.provider import Pause
from routewright.wire import Delta, FilePart, Finish, ImagePart, Message, TextPart, Thought, ToolDelta, Usage

from .upstreams import BROKEN, FAULT, PLAIN, RESCUED, SIGNED, STRUCTURED, THOUGHTS, TOOL, TOOLS, router_of

pytestmark = pytest.mark.anyio

TEXT = "Air scatters blue light."
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PDF = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.4").decode()
REFUSED = ProviderFault("refused", "not about this")


class Spans(TracingProcessor):  # type: ignore[misc]
    """Keeps spans of model calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def on_span_end(self, span: Any) -> None:
        if span.span_data.type == "generation":
            self.calls.append(span.export() | {"all": span.span_data})

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.fixture(autouse=True)
def spans() -> Iterator[Spans]:
    spans = Spans()
    agents.set_tracing_disabled(False)  # the page in the docs disables it
    agents.set_trace_processors([spans])
    yield spans
    agents.set_trace_processors([])


@agents.function_tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 21"


class City(BaseModel):
    city: str
    degrees: int


def scripted(script: Any, **options: Any) -> tuple[Any, Any]:
    """A Router and its provider, whose calls are looked into deeply."""
    return router_of(script, **options)


async def run(agent: Agent, sent: Any = "Why is the sky blue?", *, streamed: bool = False, **options: Any) -> Any:
    """Run an agent. Of a stream, the result has the names of its events."""
    if not streamed:
        return await Runner.run(agent, sent, **options)
    result = Runner.run_streamed(agent, sent, **options)
    result.kinds = [getattr(event, "data", event).type async for event in result.stream_events()]
    return result


async def outcome(script: Any, sent: Any = "Hi", *, streamed: bool = False, **fields: Any) -> tuple[Any, Any]:
    """The result of one agent's run, and the provider."""
    router, provider = scripted(script)
    options = fields.pop("options", {})
    async with router:
        agent = Agent("helper", model=RouterModel(router, **options), **fields)
        return await run(agent, sent, streamed=streamed), provider


both = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])


async def test_plain() -> None:
    result, provider = await outcome([PLAIN], "Why?", instructions="Be brief.")
    assert result.final_output == TEXT
    assert provider.calls[0].messages == [Message("system", "Be brief."), Message("user", "Why?")]


async def test_stream() -> None:
    result, _ = await outcome([THOUGHTS], streamed=True)
    assert result.final_output == TEXT
    kinds = Counter(kind.removeprefix("response.") for kind in result.kinds)
    pieces = kinds["output_text.delta"], kinds["reasoning_summary_text.delta"]
    assert (pieces, kinds["created"], kinds["completed"], kinds["output_item.done"]) == ((2, 1), 1, 1, 2)


@both
async def test_tools(streamed: bool) -> None:
    result, provider = await outcome([TOOL, PLAIN], streamed=streamed, tools=[weather])
    assert result.final_output == TEXT
    spec = provider.calls[0].tools[0].function_spec
    assert (spec.name, spec.description, spec.strict) == ("weather", "The weather of a city.", True)
    *_, request, reply = provider.calls[1].messages
    assert [(call.id, call.function.arguments) for call in request.tool_calls] == [("call_1", '{"city":"Rome"}')]
    assert (reply.role, reply.tool_call_id, reply.content) == ("tool", "call_1", "Rome: 21")


@both
async def test_parallel_tools(streamed: bool) -> None:
    _, provider = await outcome([TOOLS, PLAIN], streamed=streamed, tools=[weather])
    _, request, *replies = provider.calls[1].messages
    assert [call.id for call in request.tool_calls] == ["call_1", "call_2"]
    assert [reply.content for reply in replies] == ["Rome: 21", "Oslo: 21"]


@both
async def test_structured(streamed: bool) -> None:
    result, provider = await outcome([STRUCTURED], streamed=streamed, output_type=City)
    assert result.final_output == City(city="Rome", degrees=21)
    form = provider.calls[0].params.response_format
    assert form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"]["required"] == ["city", "degrees"]


async def test_image() -> None:
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PNG},
        {"type": "input_image", "image_url": "https://example.com/sky.png", "detail": "high"},
        {"type": "input_file", "file_data": PDF, "filename": "sky.pdf"},
    ]
    _, provider = await outcome([PLAIN], [{"role": "user", "content": parts}])
    text, image, linked, file = provider.calls[0].messages[0].content
    assert (text, type(file), file.file.filename) == (TextPart("What is it?"), FilePart, "sky.pdf")
    assert type(image) is type(linked) is ImagePart
    assert image.image_url.url == PNG
    assert (linked.image_url.url, linked.image_url.detail) == ("https://example.com/sky.png", "high")


@both
async def test_thoughts(streamed: bool) -> None:
    """They go back unchanged, also from a history that was stored as JSON."""
    router, provider = scripted([[*THOUGHTS[:1], *TOOL], PLAIN, PLAIN])
    async with router:
        agent = Agent("helper", model=RouterModel(router), tools=[weather])
        result = await run(agent, "Hi", streamed=streamed)
        assert provider.calls[1].messages[1].reasoning.items == [SIGNED]
        history = json.loads(json.dumps(result.to_input_list()))
        await run(agent, [*history, {"role": "user", "content": "And now?"}])
    assert provider.calls[2].messages[1] == provider.calls[1].messages[1]
    thought = result.raw_responses[0].output[0]
    assert thought.summary[0].text == "Light scatters."


async def test_thoughts_without_text_go_back_too() -> None:
    hidden = {"type": "redacted_thinking", "data": "c2Vj"}
    for streamed in (False, True):
        _, provider = await outcome([[Thought("", hidden), *TOOL], PLAIN], streamed=streamed, tools=[weather])
        assert provider.calls[1].messages[1].reasoning.items == [hidden]


async def test_cancel() -> None:
    clock = FakeClock()
    router, provider = scripted([PLAIN], settings=Settings(clock=clock))
    provider._clock = clock
    provider._turns = iter([[Delta("Air"), Pause(5), *PLAIN]])
    async with router:
        result = Runner.run_streamed(Agent("helper", model=RouterModel(router)), "Hi")
        async for event in result.stream_events():
            if getattr(event, "data", event).type == "response.output_text.delta":
                assert provider.open_calls == 1
                result.cancel()
        assert provider.open_calls == 0


@both
async def test_budget_refusal(streamed: bool, spans: Spans) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="budget") as caught:
        await outcome([PLAIN], streamed=streamed, options={"budget": {"maxCostUsd": 1e-9}})
    error = caught.value
    assert isinstance(error.__cause__, BudgetExceeded)
    assert (error.code, error.request_id) == ("router.budget_exceeded", error.__cause__.trace_id)
    assert spans.calls[0]["error"]["message"] == "UnprocessableEntityError"


@both
async def test_rescue_midway(streamed: bool) -> None:
    result, provider = await outcome(RESCUED, streamed=streamed)
    assert result.final_output == TEXT
    assert result.raw_responses[0].output[0].provider_data["model"] == "anthropic/two"
    assert len(provider.calls) == 3


async def test_a_stream_that_breaks_after_its_first_text_raises() -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await outcome([BROKEN, PLAIN], streamed=True)
    assert isinstance(caught.value.__cause__, UpstreamFailed)
    result, _ = await outcome([BROKEN, PLAIN, PLAIN])
    assert result.final_output == TEXT


@both
async def test_usage(streamed: bool) -> None:
    pieces = [*THOUGHTS[:3], Usage(12, 9, cached=4, reasoning=4), Finish("stop")]
    result, _ = await outcome([pieces], streamed=streamed)
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 12, 9, 21)
    assert usage.input_tokens_details.cached_tokens == usage.output_tokens_details.reasoning_tokens == 4
    (response,) = result.raw_responses
    facts = response.output[-1].provider_data
    assert facts["cost_usd"] == pytest.approx(30e-6)
    assert facts["cache_hit"] is False
    assert facts["response_id"] == response.response_id
    assert response.response_id.startswith("tr_")


async def test_a_provider_resolves_names_of_models() -> None:
    router, _ = scripted([PLAIN] * 4)
    async with router:
        config = RunConfig(model_provider=RouterProvider(router, goal="quality"))
        served = []
        for name in (None, "auto", "anthropic/two"):
            result = await run(Agent("helper", model=name), run_config=config)
            served.append(result.raw_responses[0].output[0].provider_data["model"])
        with pytest.raises(openai.BadRequestError, match="anthropic/three"):
            await run(Agent("helper", model="anthropic/three"), run_config=config)
    assert served == ["anthropic/one", "anthropic/one", "anthropic/two"]


async def test_names_without_a_vendor_are_openais_unless_they_are_aliases() -> None:
    router = Router.sandbox(catalogue=Catalogue(aliases={"gpt-4o": "anthropic/claude-sonnet-5"}))
    provider = RouterProvider(router)
    names = ("gpt-4.1", "gpt-4.1-2025-04-14", "gpt-4o", "auto:cost", "policy:house", "gpt-0")
    resolved = [provider.get_model(name).model for name in names]
    assert resolved == ["openai/gpt-4.1", "openai/gpt-4.1", "gpt-4o", "auto:cost", "policy:house", "gpt-0"]


async def test_an_agent_without_a_model_has_no_settings_of_the_sdks_default_model() -> None:
    router, provider = scripted([PLAIN] * 3)
    high = ModelSettings(reasoning={"effort": "high"}, verbosity="low")
    async with router:
        config = RunConfig(model_provider=RouterProvider(router))
        for agent in (Agent("a"), Agent("a", model_settings=high), Agent("a", model="auto", model_settings=high)):
            await run(agent, run_config=config)
    efforts = [(call.params.reasoning, call.params.verbosity) for call in provider.calls]
    assert efforts == [(None, None), ("high", None), ("high", "low")]


async def test_settings_become_options() -> None:
    own = {"metadata": {"ticket": 7}, "prefer": "anthropic/two", "params": {"stop": "."}}
    settings = ModelSettings(
        temperature=0.5,
        top_p=0.9,
        max_tokens=99,
        reasoning={"effort": "high", "summary": "auto"},
        verbosity="low",
        metadata={"team": "red"},
        timeout=9,
        tool_choice="weather",
        parallel_tool_calls=True,
        extra_body={"seed": 3},
        extra_args={"service_tier": "flex", "routewright": own},
    )
    router, provider = scripted([PLAIN])
    async with router:
        model = RouterModel(router, metadata={"app": "a"})
        result = await run(Agent("helper", model=model, model_settings=settings, tools=[weather]))
        trace = await router.traces.get(result.raw_responses[0].response_id)
    call = provider.calls[0]
    params = call.params
    assert (params.temperature, params.top_p, params.max_output_tokens, params.verbosity) == (0.5, 0.9, 99, "low")
    assert (params.reasoning, params.seed, params.service_tier, params.stop) == ("high", 3, "flex", ".")
    assert (call.tool_choice.function.name, params.parallel_tool_calls) == ("weather", True)
    assert trace.metadata == {"app": "a", "team": "red", "ticket": 7}
    assert (trace.selected_model, trace.decision_input.timeout_ms) == ("anthropic/two", 9000)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"effort": "low", "mode": "pro"}}, "reasoning.mode"),
        ({"extra_args": {"logit_bias": {}}}, "logit_bias"),
        ({"extra_body": {"safety_settings": 1}}, "safety_settings"),
    ],
)
async def test_a_setting_without_counterpart_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(agents.UserError, match=name):
        await outcome([PLAIN], model_settings=ModelSettings(**settings))


async def test_tools_that_openai_runs_are_refused_by_name() -> None:
    with pytest.raises(agents.UserError, match="WebSearchTool"):
        await outcome([PLAIN], tools=[weather, agents.WebSearchTool()])


@pytest.mark.parametrize("name", ["previous_response_id", "conversation_id"])
async def test_histories_that_openai_keeps_are_refused(name: str) -> None:
    options: dict[str, Any] = {name: "resp_1"}
    router, _ = scripted([PLAIN])
    async with router:
        with pytest.raises(agents.UserError, match=name):
            await run(Agent("helper", model=RouterModel(router)), **options)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "item_reference"),
        ({"type": "computer_call", "id": "c", "call_id": "c", "status": "completed"}, "computer_call"),
        ({"role": "user", "content": [{"type": "input_file", "file_url": "https://example.com/a.pdf"}]}, "file_url"),
    ],
)
async def test_items_that_cannot_be_sent_are_refused(item: Any, problem: str) -> None:
    with pytest.raises(agents.UserError, match=problem):
        await outcome([PLAIN], [{"role": "user", "content": "Hi"}, item])


async def test_a_file_that_openai_stores_is_refused() -> None:
    part = {"type": "input_file", "file_id": "file_1"}
    with pytest.raises(openai.BadRequestError, match="file_id"):
        await outcome([PLAIN], [{"role": "user", "content": [part]}])


async def test_handoffs_are_tools() -> None:
    router, provider = scripted([[ToolDelta(0, "{}", "call_1", "transfer_to_clerk"), *TOOL[2:]], PLAIN])
    async with router:
        model = RouterModel(router)
        result = await run(Agent("desk", model=model, handoffs=[Agent("clerk", model=model)]))
    assert result.last_agent.name == "clerk"
    assert provider.calls[0].tools[0].function_spec.name == "transfer_to_clerk"


@both
async def test_refused_content_is_a_refusal(streamed: bool) -> None:
    with pytest.raises(agents.ModelRefusalError):
        await outcome([REFUSED], streamed=streamed)


async def test_a_refusal_in_the_history_is_sent_as_text() -> None:
    item = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
    turns = [{"role": "user", "content": "Hi"}, item | {"content": [{"type": "refusal", "refusal": "I cannot."}]}]
    _, provider = await outcome([PLAIN], [*turns, {"role": "user", "content": "Why?"}])
    assert provider.calls[0].messages[1] == Message("assistant", "I cannot.")


async def test_thoughts_of_others_are_left_out() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo"}
    turns = [{"role": "user", "content": "Hi"}, thought, {"role": "assistant", "content": "Yes?"}]
    _, provider = await outcome([PLAIN], [*turns, {"role": "user", "content": "Why?"}])
    assert provider.calls[0].messages[1] == Message("assistant", "Yes?")


@both
async def test_an_answer_cut_before_its_first_word_is_an_error(streamed: bool) -> None:
    with pytest.raises(agents.ModelBehaviorError, match="max_tokens"):
        await outcome([[Usage(12, 5), Finish("length")]], streamed=streamed)


@both
async def test_an_empty_answer_is_an_empty_output(streamed: bool) -> None:
    result, _ = await outcome([[Usage(12, 0), Finish("stop")]], streamed=streamed)
    assert result.final_output == ""


async def test_failures_are_retried_as_the_sdk_is_told() -> None:
    policy = retry_policies.provider_suggested()
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, backoff={"initial_delay": 0}, policy=policy))
    options = {"max_retries": 0, "models": ["anthropic/one"]}
    result, provider = await outcome([FAULT, PLAIN], model_settings=settings, options=options)
    assert (result.final_output, len(provider.calls)) == (TEXT, 2)
    with pytest.raises(openai.UnprocessableEntityError):
        await outcome([PLAIN], model_settings=settings, options={"budget": {"maxCostUsd": 1e-9}})


async def test_every_turn_of_a_run_has_a_key_of_its_own() -> None:
    router, provider = scripted([TOOL, PLAIN])
    async with router:
        agent = Agent("helper", model=RouterModel(router, idempotency_key="run-1"), tools=[weather])
        first = await run(agent)
        again = await run(agent, streamed=True)
    assert len(provider.calls) == 2
    assert again.final_output == first.final_output
    assert [r.response_id for r in again.raw_responses] == [r.response_id for r in first.raw_responses]
    assert [r.raw_responses[-1].output[-1].provider_data["replayed"] for r in (first, again)] == [False, True]


@both
async def test_spans_have_usage_and_texts_only_if_allowed(streamed: bool, spans: Spans) -> None:
    router, _ = scripted([PLAIN, PLAIN])
    async with router:
        stop = {"stop": ["secret"], "seed": 3}
        settings = ModelSettings(extra_args=stop, reasoning={"effort": "high"})
        agent = Agent("helper", model=RouterModel(router), model_settings=settings)
        await run(agent, "Why?", streamed=streamed)
        await run(agent, "Why?", streamed=streamed, run_config=RunConfig(trace_include_sensitive_data=False))
    full, bare = [call["all"] for call in spans.calls]
    assert full.input == [{"role": "user", "content": "Why?"}]
    assert full.output[0]["content"][0]["text"] == TEXT
    assert bare.input is bare.output is None
    assert full.model_config == {**stop, "reasoning": "high"}
    assert bare.model_config == {"seed": 3, "reasoning": "high"}
    assert bare.usage["input_tokens"] == 12
    assert bare.model == "anthropic/one"


async def test_an_agents_run_shares_the_purse_and_trace_of_a_run() -> None:
    router, provider = scripted([TOOL, PLAIN, PLAIN])
    async with router:
        agent = Agent("helper", model=RouterModel(router), tools=[weather])
        async with router.run(total_budget_usd=0.05) as block:
            await run(agent)
            await run(agent, streamed=True)
        trace = await router.trace(block.trace_id)
    assert len(trace.children) == len(provider.calls) == 3
    assert block.cost_usd == pytest.approx((20 + 16 + 2 * (12 + 10)) * 1e-6)
