"""A Router as LangChain's chat model: the rows of the table, settings, messages, errors, and LangChain's own tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelInvalidRequestError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
    ModelRefusalError,
    ModelTimeoutError,
)
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from pydantic import BaseModel

from routewright import (
    BudgetExceeded,
    Caller,
    NoCandidates,
    ProviderFault,
    RateLimited,
    Router,
    RouterError,
    RouterTimeoutError,
    ValidationFailed,
)
from routewright.errors import InsufficientBalance
from routewright.integrations.langchain import ChatRoutewright
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import Delta, Finish, Reasoning, ToolDelta, Usage
from tests import frameworks

from .upstreams import BROKEN, PLAIN, RESCUED, SIGNED, STRUCTURED, THOUGHTS, TOOL, TOOLS, router_of

pytestmark = pytest.mark.anyio
PNG = "iVBORw0KGgo="
SUITE = Path(__file__).with_name("langchain_standard.py")
AGENTS = SUITE.with_name("langchain_agents.py")
SKIPPED = {"test_init_from_env": "no variable names a Router", "test_serdes": "a Router cannot be serialised"}


@tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


class Report(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


class ReportDict(TypedDict):
    """The weather in a city."""

    city: str
    degrees: int


def model_of(script: Any, **options: Any) -> tuple[ChatRoutewright, ScriptedProvider]:
    router, provider = router_of(script)
    return ChatRoutewright(router=router, **options), provider


def parts_of(provider: ScriptedProvider) -> Any:
    """The parts of the first message that was sent."""
    return provider.calls[0].messages[0].content


async def run_agent(model: Any, question: str) -> list[BaseMessage]:
    """LangChain's loop: call the tools that the model asks for until it answers."""
    bound = model.bind_tools([weather])
    messages: list[BaseMessage] = [HumanMessage(question)]
    while True:
        answer = await bound.ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        messages += [await weather.ainvoke(call) for call in answer.tool_calls]


async def iterate(items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def gather(stream: Any) -> AIMessageChunk:
    first, *rest = [chunk async for chunk in stream]
    whole: AIMessageChunk = first + rest
    return whole


# --- the rows of the table


async def test_plain() -> None:
    model, provider = model_of([PLAIN])
    chain = ChatPromptTemplate.from_messages([("system", "Be {manner}."), ("human", "{question}")]) | model
    answer = await chain.ainvoke({"manner": "brief", "question": "Why is the sky blue? 🌍"})
    assert answer.content == "Air scatters blue light."
    assert [(turn.role, turn.content) for turn in provider.calls[0].messages] == [
        ("system", "Be brief."),
        ("user", "Why is the sky blue? 🌍"),
    ]


async def test_stream() -> None:
    model, _ = model_of([PLAIN, PLAIN])
    chunks = [chunk async for chunk in model.astream("Why?")]
    assert [chunk.content for chunk in chunks] == ["Air scatters ", "blue light.", ""]
    assert chunks[-1].chunk_position == "last"
    assert [chunk.content for chunk in model.stream("Why?")] == ["Air scatters ", "blue light.", ""]


async def test_tools() -> None:
    model, provider = model_of([TOOL, PLAIN])
    messages = await run_agent(model, "How warm is Rome?")
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    turns = provider.calls[1].messages
    assert [(turn.role, turn.content) for turn in turns[1:]] == [("assistant", ""), ("tool", "21 degrees in Rome")]
    assert turns[1].tool_calls is not None
    assert json.loads(turns[1].tool_calls[0].function.arguments) == {"city": "Rome"}


async def test_parallel_tools() -> None:
    model, provider = model_of([TOOLS, PLAIN, TOOLS])
    await run_agent(model, "Is Rome warmer than Oslo?")
    assert [turn.content for turn in provider.calls[1].messages[2:]] == ["21 degrees in Rome", "21 degrees in Oslo"]
    streamed = await gather(model.bind_tools([weather], parallel_tool_calls=True).astream("And now?"))
    assert [call["args"] for call in streamed.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert provider.calls[2].params.parallel_tool_calls is True


@pytest.mark.parametrize("schema", [Report, ReportDict, Report.model_json_schema()])
@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
async def test_structured(schema: Any, method: Any) -> None:
    arguments = '{"city":"Rome","degrees":21}'
    name = schema["title"] if isinstance(schema, dict) else schema.__name__
    by_tool = [ToolDelta(0, arguments, "call_1", name), Usage(15, 9), Finish("tool_calls")]
    model, provider = model_of([by_tool if method == "function_calling" else STRUCTURED])
    report = await model.with_structured_output(schema, method=method, strict=True).ainvoke("The weather in Rome?")
    assert dict(report) == {"city": "Rome", "degrees": 21}
    assert isinstance(report, Report if schema is Report else dict)
    form = provider.calls[0].params.response_format
    if method == "json_schema":
        assert form is not None
        assert form["json_schema"]["strict"] is True
        assert form["json_schema"]["schema"]["required"] == ["city", "degrees"]
    else:
        assert form == ({"type": "json_object"} if method == "json_mode" else None)


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "url": "https://a.example/b.png"}, {"url": "https://a.example/b.png"}),
        ({"type": "image", "base64": PNG, "mime_type": "image/png"}, {"url": f"data:image/png;base64,{PNG}"}),
        ({"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
         {"url": f"data:image/png;base64,{PNG}"}),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
         {"url": f"data:image/png;base64,{PNG}"}),
        ({"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}},
         {"url": "https://a.example/b.png", "detail": "low"}),
    ],
)  # fmt: skip
async def test_image(block: Any, part: dict[str, str]) -> None:
    model, provider = model_of([PLAIN])
    await model.ainvoke([HumanMessage(["What is this?", block])])
    _, image = parts_of(provider)
    assert {"url": image.image_url.url, "detail": image.image_url.detail} == {"detail": None, **part}


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("streams", [False, True])
async def test_thoughts(version: str, streams: bool) -> None:
    model, provider = model_of([THOUGHTS, PLAIN], output_version=version)
    answer = await (gather(model.astream("Why?")) if streams else model.ainvoke("Why?"))
    blocks = [(block["type"], block.get("reasoning", block.get("text"))) for block in answer.content_blocks]
    assert blocks == [("reasoning", "Light scatters."), ("text", "Air scatters blue light.")]
    assert answer.text == "Air scatters blue light."
    history = messages_from_dict(json.loads(json.dumps(messages_to_dict([answer, HumanMessage("And at night?")]))))
    await model.ainvoke(history)
    turn = provider.calls[1].messages[0]
    assert turn.reasoning == Reasoning("anthropic", [SIGNED])
    assert turn.content == "Air scatters blue light."


async def test_cancel() -> None:
    clock = FakeClock(autojump=False)
    slow = ScriptedProvider(
        [[Delta("Air "), Pause(50), Finish("stop")]] * 3, models=router_of([])[1].models(), clock=clock
    )
    model = ChatRoutewright(router=Router(providers=[slow]))
    stream = model.astream("Why?")
    async for chunk in stream:
        assert chunk.content == "Air "
        break
    await stream.aclose()
    await anyio.wait_all_tasks_blocked()
    assert slow.open_calls == 0
    task = asyncio.create_task(model.ainvoke("Why?"))
    await anyio.wait_all_tasks_blocked()
    assert slow.open_calls == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.open_calls == 0
    for chunk in model.stream("Why?"):
        assert chunk.content == "Air "
        break
    assert slow.open_calls == 0


async def test_budget_refusal() -> None:
    model, provider = model_of([PLAIN], budget={"maxCostUsd": 0.000001})
    with pytest.raises(ModelInvalidRequestError, match="2 budget_cost; raise budget") as refused:
        await model.ainvoke("Why?")
    assert isinstance(refused.value.__cause__, BudgetExceeded)
    assert (refused.value.is_retryable, provider.calls) == (False, [])


async def test_rescue_midway() -> None:
    model, provider = model_of([*RESCUED, BROKEN, PLAIN])
    answer = await gather(model.astream("Why?"))
    assert (answer.text, answer.response_metadata["model_name"]) == ("Air scatters blue light.", "anthropic/two")
    assert [call.model.id for call in provider.calls] == ["anthropic/one"] * 2 + ["anthropic/two"]
    stream = model.astream("Why?")
    assert (await anext(stream)).content == "Air scat"
    with pytest.raises(ModelAPIError):
        await anext(stream)
    assert len(provider.calls) == 4


@pytest.mark.parametrize("streams", [False, True])
async def test_usage(streams: bool) -> None:
    model, _ = model_of([PLAIN])
    counter = UsageMetadataCallbackHandler()
    config: Any = {"callbacks": [counter]}
    answer = await (gather(model.astream("Why?", config)) if streams else model.ainvoke("Why?", config))
    assert answer.usage_metadata == {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_token_details": {"cache_read": 4, "cache_creation": 0},
        "output_token_details": {"reasoning": 0},
    }
    facts = answer.response_metadata
    trace = await model.router.trace(facts["trace_id"])
    assert facts["cost_usd"] == trace.cost_usd == 0.000022
    assert (facts["model_name"], facts["finish_reason"], facts["cache_hit"]) == ("anthropic/one", "stop", False)
    if not streams:
        assert counter.usage_metadata["anthropic/one"]["total_tokens"] == 17


async def test_the_calls_of_a_run_share_its_purse_and_trace() -> None:
    model, _ = model_of([TOOL, PLAIN, PLAIN])
    async with model.router.run(total_budget_usd=0.05) as run:
        messages = await run_agent(model, "How warm is Rome?")
    answers = [message.response_metadata for message in messages if isinstance(message, AIMessage)]
    assert run.cost_usd == pytest.approx(sum(facts["cost_usd"] for facts in answers))
    assert (await model.router.trace(run.trace_id)).children == [facts["trace_id"] for facts in answers]
    async with model.router.run(total_budget_usd=0.000001):
        with pytest.raises(ModelPermissionDeniedError):
            await model.ainvoke("?")


# --- settings


async def test_settings_of_the_object_and_of_a_call_are_options() -> None:
    model, provider = model_of(
        [PLAIN],
        model="anthropic/one",
        temperature=0.5,
        max_tokens=100,
        timeout=30,
        top_p=0.9,
        metadata={"team": "a"},
        routewright={"metadata": {"env": "test"}, "caller": Caller(environment="production")},
    )
    call = model.bind(
        model="auto:quality", seed=7, stop=["END"], routewright={"goal": "quality", "prefer": ["anthropic/two"]}
    )
    answer = await call.ainvoke("Why?", max_tokens=50, reasoning_effort="low")
    params = provider.calls[0].params
    assert (params.temperature, params.max_output_tokens, params.top_p, params.seed) == (0.5, 50, 0.9, 7)
    assert (params.stop, params.reasoning) == (["END"], "low")
    trace = await model.router.trace(answer.response_metadata["trace_id"])
    assert (trace.goal, trace.selected_model) == ("quality", "anthropic/two")
    assert trace.metadata == {"team": "a", "env": "test"}


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "abatch", "stream", "astream"])
async def test_options_are_bound_for_every_way_to_call(way: str) -> None:
    model, provider = model_of([PLAIN])
    bound = model.bind(goal="cost", temperature=0.2, metadata={"team": "a"}, idempotency_key="k")
    if way in ("stream", "astream"):
        call = bound.astream("?") if way == "astream" else iterate(bound.stream("?"))
        answer = await gather(call)
    else:
        result = getattr(bound, way)(["?"] if "batch" in way else "?")
        result = await result if way.startswith("a") else result
        answer = result[0] if "batch" in way else result
    trace = await model.router.trace(answer.response_metadata["trace_id"])
    assert (trace.goal, trace.metadata, provider.calls[0].params.temperature) == ("cost", {"team": "a"}, 0.2)
    again = await bound.ainvoke("?", routewright={"metadata": {"team": "a"}})
    assert again.response_metadata["replayed"]


async def test_the_tags_of_langchain_are_no_option() -> None:
    model, _ = model_of([PLAIN])
    with pytest.raises(ModelInvalidRequestError, match="tags: is not an argument"):
        await model.ainvoke("?", tags=["a"])


async def test_levels_of_reasoning_have_the_names_of_langchain() -> None:
    model, provider = model_of([PLAIN], reasoning_effort="xhigh")
    await model.ainvoke("?")
    assert provider.calls[0].params.reasoning == "max"


async def test_a_repeated_run_with_a_key_gets_the_answers_of_the_first() -> None:
    model, provider = model_of([TOOL, PLAIN])
    runs = [await run_agent(model.model_copy(update={"routewright": {"idempotency_key": "run-7"}}), "?") for _ in "12"]
    assert len(provider.calls) == 2
    assert runs[0][-1].content == runs[1][-1].content


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("any", "required"),
        (True, "required"),
        (None, None),
        (False, None),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
        ("weather", "weather"),
    ],
)
async def test_a_choice_of_tools_is_sent_in_our_form(choice: Any, sent: str | None) -> None:
    model, provider = model_of([PLAIN])
    await model.bind_tools([weather], tool_choice=choice).ainvoke("?")
    choice = provider.calls[0].tool_choice
    assert (choice if choice is None or isinstance(choice, str) else choice.function.name) == sent


async def test_no_tools_are_no_tools() -> None:
    model, provider = model_of([PLAIN])
    await model.bind_tools([]).ainvoke("?")
    assert provider.calls[0].tools is None


async def test_the_cache_of_langchain_tells_accounts_apart() -> None:
    router, _ = router_of([PLAIN] * 2)
    cache = InMemoryCache()
    callers = [Caller("acme"), Caller("globex"), Caller("acme"), Caller("acme", "sandbox")]
    models = [ChatRoutewright(router=router.as_caller(caller), cache=cache) for caller in callers]
    traces = [(await model.ainvoke("?")).response_metadata["trace_id"] for model in models]
    assert (len({*traces}), traces[2]) == (3, traces[0])


def test_the_router_is_not_serialised() -> None:
    model, _ = model_of([])
    dumped = dumpd(model)
    assert dumped["type"] == "not_implemented"
    assert "router" not in model.model_dump()


# --- messages


async def test_each_kind_of_message_has_its_role() -> None:
    model, provider = model_of([PLAIN])
    kinds = [SystemMessage("s"), ChatMessage("d", role="developer"), HumanMessage("u", name="ann"), AIMessage("a")]
    await model.ainvoke([*kinds, HumanMessage("v")])
    turns = [(turn.role, turn.name) for turn in provider.calls[0].messages]
    assert turns == [("system", None), ("developer", None), ("user", "ann"), ("assistant", None), ("user", None)]


async def test_documents_are_files_and_marks_stay() -> None:
    model, provider = model_of([PLAIN])
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}
    marked = {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}, "id": "lc_1"}
    await model.ainvoke([HumanMessage([marked, pdf, {"type": "file", "url": "https://a.example/b.pdf"}])])
    text, file, remote = parts_of(provider)
    assert text.cache_control is not None
    assert (file.file.file_data, file.file.filename) == ("data:application/pdf;base64,JVBERi0=", "a.pdf")
    assert remote.file.file_data == "https://a.example/b.pdf"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text-plain", "text": "Long.", "mime_type": "text/plain"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Long."}},
        {"type": "file", "base64": "TG9uZy4=", "mime_type": "text/csv"},
    ],
)
async def test_a_file_of_text_is_sent_as_text(block: Any) -> None:
    model, provider = model_of([PLAIN])
    await model.ainvoke([HumanMessage([block])])
    assert [part.text for part in parts_of(provider)] == ["Long."]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (HumanMessage([{"type": "video", "url": "https://a.example/b.mp4"}]), "messages[0].content[0].type"),
        (HumanMessage([{"type": "image", "file_id": "file-1"}]), "messages[0].content[0].type"),
        (HumanMessage([{"type": "image", "source": "https://a.example/b.png"}]), "messages: cannot be read"),
        (HumanMessage([{"type": "audio", "base64": "AAAA", "mime_type": "audio/ogg"}]), "a file of type 'audio/ogg'"),
        (AIMessage([{"type": "reasoning", "extras": ["routewright"]}]), "messages: cannot be read"),
        (AIMessage("", tool_calls=[{"name": "f", "args": {"a": object()}, "id": "1"}]), "messages: cannot be read"),
        (AIMessage("", tool_calls=[{"name": "f", "args": {"a": "\ud800"}, "id": "1"}]), "messages: cannot be read"),
        (FunctionMessage("1", name="f"), "messages[0].role"),
    ],
    ids=["video", "file id", "source", "ogg", "extras", "object", "surrogate", "function"],
)
async def test_what_cannot_be_sent_is_refused(message: BaseMessage, problem: str) -> None:
    model, provider = model_of([PLAIN])
    with pytest.raises(ModelInvalidRequestError) as refused:
        await model.ainvoke([message])
    assert problem in str(refused.value)
    assert provider.calls == []


DEEP = '{"a":' + "[" * 5_000 + "]" * 5_000 + "}"
CUT = ['{"a": ', '{"a":[1,', '{"a":[{"b":"c', '{"a":["b', '{"a":"b\\', '{"a":[{"b":"\\', '{"a":{"b":[1]}', '{"a":NaN}']


@pytest.mark.parametrize("way", ["ainvoke", "astream", "streaming"])
@pytest.mark.parametrize("arguments", ["[1]", "Rome", DEEP, *CUT], ids=lambda text: text[:20])
async def test_arguments_that_are_no_object_are_an_invalid_call_that_can_be_answered(arguments: str, way: str) -> None:
    good = ToolDelta(3, '{"city":"Rome"}', "call_2", "weather")
    broken = [ToolDelta(1, arguments[:5], "call_1", "weather"), ToolDelta(1, arguments[5:]), good]
    model, provider = model_of(
        [[*broken, Usage(1, 1), Finish("length")], PLAIN], **({"streaming": True} if way == "streaming" else {})
    )
    bound = model.bind_tools([weather])
    answer = await (gather(bound.astream("?")) if way == "astream" else bound.ainvoke("?"))
    assert [call["id"] for call in answer.tool_calls] == ["call_2"]
    ((text, id),) = [(call["args"], call["id"]) for call in answer.invalid_tool_calls]
    assert text.startswith(arguments)
    assert id == "call_1"
    results = [ToolMessage("no", tool_call_id=f"call_{number}") for number in (1, 2)]
    await model.bind_tools([weather]).ainvoke([HumanMessage("?"), answer, *results])
    assert [turn.role for turn in provider.calls[1].messages] == ["user", "assistant", "tool", "tool"]


async def test_raw_and_parsed_come_together_also_if_the_answer_is_no_json() -> None:
    model, _ = model_of([STRUCTURED, PLAIN])
    both = model.with_structured_output(Report, include_raw=True)
    fits = await both.ainvoke("?")
    assert (fits["parsed"], fits["parsing_error"]) == (Report(city="Rome", degrees=21), None)
    assert fits["raw"].response_metadata["cost_usd"] > 0
    fails = await both.ainvoke("?")
    assert (fails["parsed"], fails["raw"].content) == (None, "Air scatters blue light.")
    assert fails["parsing_error"] is not None


async def test_an_unknown_method_of_structured_output_is_refused() -> None:
    model, _ = model_of([])
    with pytest.raises(ModelInvalidRequestError, match="response_format"):
        await model.with_structured_output(Report, method="yaml").ainvoke("?")


# --- errors


REASONS = ("context", "provider_unavailable", "whitelist")
REJECTED = {"rejected_candidates": [{"model": "a/x", "reason": reason} for reason in REASONS]}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValidationFailed.at("model", "is wrong", "fix it"), ModelInvalidRequestError),
        (InsufficientBalance("no money"), ModelPermissionDeniedError),
        (RateLimited("slow down", detail={"retry_after_seconds": 3}), ModelRateLimitError),
        (RouterTimeoutError("too late"), ModelTimeoutError),
        (NoCandidates("too long", detail=REJECTED), ContextOverflowError),
        (NoCandidates("no tools"), ModelInvalidRequestError),
    ],
)
async def test_an_error_is_of_langchains_class_with_ours_as_its_cause(
    error: RouterError, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    model, _ = model_of([])
    monkeypatch.setattr(Router, "route", fail)
    with pytest.raises(kind, match=error.message) as raised:
        await model.ainvoke("?")
    assert raised.value.__cause__ is error


async def test_a_refusal_of_the_provider_is_a_refusal() -> None:
    model, _ = model_of([ProviderFault("refused")])
    with pytest.raises(ModelRefusalError):
        await model.ainvoke("?")


# --- LangChain's own tests, and its agents, which are not installed beside the others


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    plugins = ["pytest_asyncio.plugin", "pytest_benchmark.plugin", "pytest_recording.plugin", "syrupy"]
    files = [str(SUITE), str(AGENTS)]
    return frameworks.outcomes(*files, "--noconftest", "-o", "asyncio_mode=auto", plugins=plugins)


def test_langchains_standard_tests_pass(outcomes: dict[str, str]) -> None:
    assert len(outcomes) > 75
    failures = {name: outcome for name, outcome in outcomes.items() if outcome != frameworks.PASSED}
    assert {name: outcome for name, outcome in failures.items() if name not in SKIPPED} == {}
    assert all(failures[name].startswith("skipped") for name in SKIPPED)


@pytest.mark.parametrize("name", frameworks.list_tests(AGENTS))
def test_with_an_agent(name: str, outcomes: dict[str, str]) -> None:
    own = {case: outcome for case, outcome in outcomes.items() if name in (case, case.partition("[")[0])}
    assert own, "it was not run"
    assert {*own.values()} == {frameworks.PASSED}
