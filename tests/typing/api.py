"""How the public names look to a type checker. Never executed: mypy reads it as any caller's code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import date
from typing import Any, Literal, TypedDict, assert_never, assert_type

import msgspec
from pydantic import BaseModel

from routewright import (
    Answer,
    Budget,
    CallableProvider,
    Caller,
    Catalogue,
    Console,
    Decision,
    Delta,
    DenyList,
    Event,
    Fallback,
    Finish,
    Ledger,
    MemoryStorage,
    Message,
    Model,
    OpenAIProvider,
    Params,
    PatternGuardrail,
    Pricing,
    ProviderFault,
    Router,
    RouteRequest,
    RouterError,
    SandboxProvider,
    Settings,
    SqliteStorage,
    Stream,
    Tool,
    Trace,
    UpstreamCall,
    Usage,
    WebhookSigner,
    open_storage,
)
from routewright.backends.clock import SystemClock
from routewright.backends.providers.callable import HostedProvider
from routewright.backends.providers.http import HttpRequest
from routewright.protocols import (
    Clock,
    Guardrail,
    Provider,
    Storage,
)
from routewright.router import (
    BlockingPrepared,
    BlockingRouter,
    BlockingStream,
    InputTokens,
    Prepared,
    StepCall,
    StepDone,
    Steps,
    StepWait,
    Subscription,
)
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.webhook import SeenEvents, StandardWebhookSigner, WebhookEvent, verify_request
from routewright.wire import (
    Account,
    Allow,
    Bill,
    Block,
    BudgetDict,
    CacheOptsDict,
    Chunk,
    FallbackDict,
    Key,
    LatencyReport,
    LedgerRow,
    OutputDelta,
    Page,
    ParamsDict,
    ReasoningDelta,
    Redact,
    Redaction,
    RouteCompleted,
    RouteEvent,
    RouteFallback,
    RouteStarted,
    Stage,
    StreamError,
    ToolCallDelta,
    TraceItem,
    Verdict,
)
from routewright.wire.account import Secret


async def a_request_is_a_prompt_messages_a_dict_or_a_struct(router: Router) -> None:
    assert_type(await router.route("hi"), Answer)
    await router.route([Message("user", "hi")])
    await router.route([{"role": "user", "content": "hi"}])
    await router.route({"messages": [{"role": "user", "content": "hi"}], "budget": {"maxCostUsd": 1}})
    await router.route(RouteRequest([Message("user", "hi")], goal="quality"), caller=Caller("acme"))
    await router.route(17)  # type: ignore[call-overload]
    await router.route()  # type: ignore[call-overload]


async def options_are_checked(router: Router) -> None:
    await router.route(
        "hi",
        goal="stability",
        strategy="latency-optimized",
        policy_id="support",
        models=["openai/gpt-4.1"],
        prefer=["openai/gpt-4.1"],
        fallback=Fallback(models=[]),
        budget=Budget(max_cost_usd=0.01, max_tokens=1_000),
        cache=True,
        tools=[Tool(name="look_up")],
        tool_choice="auto",
        params=Params(temperature=0.5),
        metadata={"team": "search"},
        timeout_ms=5_000,
    )
    await router.route("hi", fallback={"maxRetries": 0}, budget={"maxCostUsd": 1}, params={"seed": 1})
    await router.route("hi", prefer="openai/gpt-4.1")
    await router.route("hi", goal="speed")  # type: ignore[call-overload]
    await router.route("hi", gaol="quality")  # type: ignore[call-overload]
    router.decide("hi", budget=0.01)  # type: ignore[arg-type]
    router.stream("hi", models="openai/gpt-4.1", temperature=1)  # type: ignore[call-arg]


async def dicts_of_options_have_keys(router: Router) -> None:
    budget: BudgetDict = {"maxCostUsd": 0.01, "maxTokens": 1_000}
    await router.route("hi", budget=budget, cache={"mode": "exact", "ttl_seconds": 60})
    await router.route("hi", budget={"max_cost_usd": 0.01})  # type: ignore[call-overload]
    await router.route("hi", budget={"maxCostUsd": "0.01"})  # type: ignore[call-overload]
    router.decide("hi", fallback={"models": ["openai/gpt-4.1"], "maxRetries": 0, "on_partial": "error"})
    router.decide("hi", fallback={"max_retries": 0})  # type: ignore[arg-type]
    router.decide("hi", cache={"ttl": 60})  # type: ignore[arg-type]
    router.decide("hi", params={"temprature": 0.5})  # type: ignore[arg-type]
    router.decide("hi", params={"verbosity": "huge"})  # type: ignore[arg-type]
    params: ParamsDict = {
        "temperature": 0.5,
        "stop": ["\n"],
        "reasoning": {"max_tokens": 1_000},
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "verbosity": "low",
        "extra": {"openai": {"user": "u"}},
    }
    router.stream("hi", params=params)
    await router.route_many(["hi"], budget={"maxCost": 1})  # type: ignore[arg-type]
    fallback: FallbackDict = {"models": []}
    cache: CacheOptsDict = {"max_error": 0.01}
    router.blocking.route("hi", fallback=fallback, cache=cache)


def look_up(word: str) -> str:
    return word


async def times_retries_and_functions_are_options(router: Router) -> None:
    await router.route("hi", timeout=20, max_retries=2, tools=[look_up, {"name": "other"}, Tool(name="third")])
    router.stream("hi", timeout=0.5, tools=[look_up])
    router.decide("hi", timeout=None, max_retries=None, tools=(look_up,))
    router.decide("hi", timeout="20")  # type: ignore[arg-type]
    router.decide("hi", tools=["look_up"])  # type: ignore[list-item]
    Router(timeout=20.0, max_retries=0, providers=[OpenAIProvider(timeout=5, max_retries=1)])
    Router.sandbox(timeout=20, max_retries=0)
    Router(timeout="20")  # type: ignore[arg-type]


async def an_answer_says_what_it_holds(router: Router) -> None:
    answer = await router.route("hi")
    answer.output = "mine"  # type: ignore[misc]


async def many_requests_have_a_result_each(router: Router) -> None:
    results = await router.route_many(["hi", {"messages": []}], limit=2, budget={"maxCostUsd": 1}, goal="quality")
    assert_type(results, list[Answer | RouterError])
    assert_type(router.blocking.route_many(iter(["hi"]), budget=Budget(1.0)), list[Answer | RouterError])

    async def made() -> AsyncIterator[str]:
        yield "hi"

    await router.route_many(made())
    await router.route_many([7])  # type: ignore[list-item]
    await router.route_many(["hi"], gaol="quality")  # type: ignore[call-arg]


async def a_run_has_a_cost(router: Router) -> None:
    async with router.run(total_budget_usd=0.05, metadata={"team": "x"}, caller=Caller("acme")) as run:
        assert_type(run.cost_usd, float)
        assert_type(run.left_usd, float | None)
    with router.blocking.run(total_budget_usd=1) as run:
        assert_type(run.trace_id, str)
    router.run(budget=1)  # type: ignore[call-arg]


def hooks_take_one_thing(router: Router) -> None:
    async def hear(trace: Trace) -> None: ...

    def see(event: Event) -> str:
        return event.id

    with router.tags(team="support", nested={"a": [1]}), router.on_trace(hear) as subscription:
        assert_type(subscription, Subscription)
    assert_type(router.on_event(see)(), None)
    router.on_trace(see)  # type: ignore[arg-type]
    router.on_event(lambda: None)  # type: ignore[misc, arg-type]


async def an_answer_holds_a_value_of_the_type_that_was_asked_for(router: Router) -> None:
    assert_type((await router.route("hi")).data, None)
    assert_type(await router.route("hi", output_type=Invoice), Answer[Invoice])
    assert_type((await router.route("hi", output_type=Point, goal="quality")).data, Point)
    assert_type((await router.route("hi", output_type=list[int])).data, list[int])
    assert_type((await router.route("hi", output_type=Address)).data, Address)
    assert_type((await router.route("hi", output_type=Literal["a", "b"])).data, Any)
    assert_type((await router.route("hi", output_type=int | None)).data, Any)
    assert_type(router.blocking.route("hi", output_type=Point), Answer[Point])
    assert_type(router.blocking.route("hi").data, None)
    answers: list[Answer[object]] = [await router.route("hi", output_type=Point), await router.route("hi")]
    assert_type(router.explain(answers[0]), str)
    router.stream("hi", output_type=Point)  # type: ignore[call-arg]


class Invoice(BaseModel):
    total: float


class Point(msgspec.Struct):
    x: int


class Address(TypedDict):
    city: str


async def a_stream_gives_events_or_text(router: Router) -> None:
    async with router.stream("hi") as stream:
        assert_type(stream, Stream)
        async for event in stream:
            tell(event)
        assert_type(stream.result, Answer)
    async for text in router.stream("hi").text():
        assert_type(text, str)


def steps_say_what_to_do_and_are_told_what_came(router: Router, provider: OpenAIProvider) -> None:
    with router.steps("hi", goal="quality") as steps:
        assert_type(steps, Steps)
        match steps.next():
            case StepCall() as call:
                assert_type(call.upstream, UpstreamCall)
                request = provider.request(call.upstream)
                assert_type(request, HttpRequest)
                assert_type(request.reveal(), dict[str, str])
                steps.feed(provider.read(request, 200, {}, b""))
                steps.feed(ProviderFault("timeout"))
                steps.feed([Delta("hi"), Usage(1, 1), Finish("stop")])
                steps.feed("hi")  # type: ignore[arg-type]
            case StepWait(seconds):
                assert_type(seconds, float)
            case StepDone():
                pass
            case other:
                assert_never(other)
    assert_type(steps.result, Answer)


def tell(event: RouteEvent) -> str:
    """Events can be told apart, and none is forgotten."""
    match event:
        case RouteStarted():
            return event.data.routing.selected_model
        case OutputDelta():
            return event.data.text
        case ReasoningDelta():
            return event.data.text
        case ToolCallDelta():
            return event.data.name
        case RouteFallback():
            return event.data.to_model
        case RouteCompleted():
            return event.data.output
        case StreamError():
            return event.data.error.code
        case other:
            assert_never(other)


def plain_code_needs_no_await(router: Router) -> None:
    assert_type(router.blocking, BlockingRouter)
    with router.blocking as blocking:
        assert_type(blocking.route("hi", goal="quality"), Answer)
        with blocking.stream("hi") as stream:
            assert_type(stream, BlockingStream)
            assert_type(stream.text(), Iterator[str])
        assert_type(blocking.trace("tr_1"), Trace)
        blocking.route("hi", goal="speed")  # type: ignore[call-overload]


async def servers_prepare_requests(router: Router, caller: Caller, body: bytes) -> None:
    prepared = router.prepare(body, caller=caller, path="/ask", body=body, traceparent="", idempotency_key="a")
    assert_type(prepared, Prepared)
    assert_type(await prepared.run(), Answer[Any])
    assert_type(prepared.stream(), Stream)
    assert_type(prepared.decision, Decision)
    assert_type(await prepared.decide(), Decision)
    assert_type(await prepared.count_tokens(), InputTokens)
    assert_type(router.blocking.prepare("hi"), BlockingPrepared)
    router.prepare("hi", gaol="cost")  # type: ignore[call-arg]


def routers_are_made_of_parts() -> None:
    Router.sandbox(answers={"hi": "hello"}, faults={"*": ["server"]})
    Router.sandbox(answers=lambda call: call.model.id)
    Router([])  # type: ignore[call-arg]
    Router(provider=[])  # type: ignore[call-arg]


def calls_are_billed_by_the_day(catalogue: Catalogue, day: date) -> None:
    assert_type(catalogue.bill("local/one", Usage(10, 5, cached=2, written=3), on=day, batch=True), Bill)
    catalogue.bill("local/one", 5)  # type: ignore[arg-type]
    catalogue.bill("local/one", Usage(1, 1), "2027-01-01")  # type: ignore[call-arg]


def what_fits_a_protocol_needs_not_inherit() -> None:
    model = Model(id="local/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0))
    clocks: list[Clock] = [SystemClock(), FakeClock()]
    storages: list[Storage] = [MemoryStorage(newest=10), SqliteStorage("traces.db"), open_storage("memory:")]
    providers: list[Provider] = [
        OpenAIProvider(["key", Secret("key")], transport=OwnTransport(), clock=FakeClock()),
        HostedProvider("mine", fetches_urls=True),
        SandboxProvider([model]),
        ScriptedProvider([["hi", Pause(1.0), ProviderFault("reset")]], models=[model], clock=FakeClock()),
        CallableProvider(lambda call: "hi", models=[model]),
        CallableProvider(an_async_function, models=[model], fetches_urls=False, caller_extra={"top_k"}),
        CallableProvider(an_async_generator, models=[model]),
        OwnProvider(),
    ]
    Router(providers=providers, storage=storages[0])
    OpenAIProvider("key", fetches_urls="all")  # type: ignore[arg-type]
    Settings(durability="always")  # type: ignore[arg-type]
    Settings(clock=clocks[0], predictor=OwnPredictor())
    CallableProvider(lambda: "hi", models=[model])  # type: ignore[arg-type, misc]


async def traces_that_are_read(router: Router, day: date) -> None:
    page: Page[TraceItem] = await router.traces.query(filter="status=failed", since=day, until="2026-11-22", limit=5)
    async for trace in router.traces.export():
        assert_type(trace, Trace)
    await router.traces.usage(bucket="year")  # type: ignore[arg-type]
    assert_type(router.blocking.traces.latency_report(start_date=day), LatencyReport)
    router.traces.blocking.query(limits=5)  # type: ignore[call-arg]
    print(page)


async def an_async_function(call: UpstreamCall) -> str:
    return str(call.messages[-1].content)


async def an_async_generator(call: UpstreamCall) -> AsyncIterator[Chunk]:
    yield Delta("hi")
    yield Usage(1, 1)
    yield Finish("stop")


class OwnCall:
    """A call of somebody's own provider."""

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        raise NotImplementedError

    async def __aexit__(self, *error: object) -> None: ...


class OwnProvider:
    """Fits without inheriting."""

    name = "own"

    def models(self) -> Sequence[Model]:
        return ()

    def open(self, call: UpstreamCall) -> Any:
        return OwnCall()

    async def aclose(self) -> None: ...


class OwnAnswer:
    """An HTTP answer of somebody's own client."""

    status = 200
    headers: dict[str, str]

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b""

    async def read(self, limit: int) -> bytes:
        return b""


class OwnTransport:
    """Fits without inheriting."""

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[OwnAnswer]:
        yield OwnAnswer()

    async def aclose(self) -> None: ...


class OwnPredictor:
    """Fits without inheriting."""

    def predict(self, request: RouteRequest, models: Sequence[Model]) -> list[float] | None:
        return [0.5] * len(models)


class Moderation:
    """A guardrail of one's own, which waits."""

    name = "moderation"
    stages: tuple[Stage, ...] = ("input", "output")
    holds = None

    async def check(self, text: str, stage: Stage) -> Verdict:
        return Block("hate") if stage == "output" else Redact((Redaction(0, 1, "first"),)) if text else Allow()


def guardrails() -> Sequence[Guardrail]:
    plain = PatternGuardrail("email", "card", action="block", stages=["output"])
    assert_type(plain.check("Hello", "output"), Verdict)
    return [plain, DenyList(["Project Nightjar"], "redact"), Moderation()]


def webhooks(body: bytes, own: str | None, all_of_them: Mapping[str, str]) -> None:
    signer = WebhookSigner(WebhookSigner.new_secret(), "whsec_...")
    assert_type(signer.sign(body, 1_763_812_800.5), str)
    signer.verify(body, own, 1_763_812_800)
    signer.verify("text", own, 0)  # type: ignore[arg-type]
    standard = StandardWebhookSigner(WebhookSigner.new_secret())
    assert_type(standard.sign(body, 1_763_812_800, "evt_1"), dict[str, str])
    standard.verify(body, all_of_them, 1_763_812_800.5)
    standard.verify(body, own, 0)  # type: ignore[arg-type]
    event: WebhookEvent = verify_request(body, all_of_them, "whsec_...", WebhookSigner.new_secret(), now=1_763_812_800)
    verify_request(body, [(b"service-signature", b"t=1,v1=00")], "whsec_...")
    verify_request("text", all_of_them, "whsec_...")  # type: ignore[arg-type]
    verify_request(body, own, "whsec_...")  # type: ignore[arg-type]
    with SeenEvents(size=100).once(event.id) as is_new:
        assert_type(is_new, bool)
    assert_type(sorted([event]), list[WebhookEvent])


async def accounts(header: str | None) -> None:
    console = Console("sqlite:///traces.db", secret=["new", "before"], recheck_s=1)
    await console.create_account("acme", plan="gold")  # type: ignore[arg-type]
    account: Account = await console.change_account("acme", limits=None, monthly_limit_usd=None)
    await console.create_key("acme", name="website", scopes=["everything"])  # type: ignore[list-item]
    await console.create_key("acme")  # type: ignore[call-arg]
    key: Key = await console.change_key("acme", "key_1", scopes=("route",))
    assert_type(await console.authenticate(header, "sandbox"), Caller)
    assert_type(console.blocking.revoke_key("acme", key.id), Key)
    console.blocking.authenticate(header, "live")  # type: ignore[arg-type]
    with Ledger("sqlite:///calls.db").blocking as ledger:
        assert_type([*ledger.rows(account=account.name)], list[LedgerRow])
