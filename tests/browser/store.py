"""Stores for the tests of views: one of a small company, one of somebody who means harm, and an empty one.

They hold something of every kind that a view shows, up to ``NOW``, and are the same in every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import anyio
from msgspec import convert
from msgspec.inspect import (
    AnyType,
    BoolType,
    DictType,
    ListType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)
from msgspec.structs import replace

from routewright import Agent, Console, MemoryStorage, Router, TraceStore
from routewright.backends.clock import SystemClock
from routewright.cache import MemoryCache
from routewright.errors import ProviderFault, RouterError, ValidationFailed
from routewright.protocols import Clock
from routewright.settings import Capture, Settings, WebhookSettings
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Availability,
    Caller,
    Delta,
    Finish,
    Incident,
    Model,
    OutputDelta,
    Policy,
    PolicyClass,
    PolicyFallback,
    PolicyGuardrail,
    PolicyMatch,
    PolicyWeights,
    PriceChange,
    Pricing,
    PutEndpoint,
    PutIncident,
    RateLimits,
    ToolDelta,
    Trace,
    UpstreamCall,
    Usage,
    WebhookAnswer,
)
from tests.sample_store import NOON

NOW = NOON.timestamp()
DAYS = 14
DAY_S = 24 * 3600.0
MODELS = {
    "anthropic": ["claude-sonnet-5", "claude-opus-5-5"],
    "google": ["gemini-3.5-flash", "gemini-3.1-flash-lite"],
    "mistral": ["mistral-large-4", "mistral-medium-2604"],
    "openai": ["gpt-6.1-terra", "gpt-5.4-mini", "gpt-4.1"],
}
QUESTIONS = [
    "How do I reset my password?", "Where can I find last month's invoice?", "Can I change my delivery address?",
    "Summarise this thread for the on-call engineer.", "Which plan includes single sign-on?",
    "Translate the release notes into German.", "Why was my card charged twice?", "Draft a reply to this complaint.",
]  # fmt: skip
SMALL = "google/gemini-3.1-flash-lite"
BROKEN = "mistral/mistral-large-4"
ANSWER = (
    "Open the settings, choose the section that you need, and confirm. The change applies at once. If it does not, "
    "sign out and in again, and tell us the time at which you tried it."
)


class Store:
    """A storage, and who serves it from ``NOW`` on."""

    def __init__(self, cache: MemoryCache | None = None, models: Sequence[Model] = ()) -> None:
        self.storage = MemoryStorage()
        self.cache = cache or MemoryCache()
        self.traces: dict[str, str] = {}
        """Ids by what the traces show."""
        clock = LaterClock()
        self.vendors = Vendors(clock, pace=0.0)
        self.console = Console(self.storage, clock=clock)
        self.router = Router(
            providers=[*self.vendors.providers(), ScriptedProvider([], name="mallory", models=models)],
            storage=self.storage,
            cache=self.cache,
            settings=Settings(clock=clock, rng=random.Random(3), webhooks=WebhookSettings(deliver=False)),
        )


class LaterClock(SystemClock):
    """Real time, but for the date: it begins at ``NOW``."""

    def __init__(self) -> None:
        self._start = self.monotonic()

    def time(self) -> float:
        """Unix seconds."""
        return NOW + self.monotonic() - self._start


class Vendors:
    """The models, which answer at a usual pace, but for those that are down."""

    def __init__(self, clock: Clock, pace: float = 1.0) -> None:
        self._clock = clock
        self._pace = pace
        self._random = random.Random(1)
        self.faults: dict[str, ProviderFault] = {}
        """By model."""

    def providers(self) -> list[ScriptedProvider]:
        """One for each vendor."""
        return [
            ScriptedProvider(
                self._turn, name=vendor, models=[Model(id=f"{vendor}/{name}") for name in names], clock=self._clock
            )
            for vendor, names in MODELS.items()
        ]

    def _turn(self, call: UpstreamCall) -> Sequence[Line]:
        fault = self.faults.get(call.model.id)
        if fault is not None:
            return [Pause(0.3 * self._pace), fault]
        start_s = self._random.uniform(0.05, 0.2) * (call.model.ttft_s or 1.0)
        question = call.messages[-1]
        wants_tool = bool(call.tools) and question.role == "user"
        if wants_tool:
            arguments = '{"expression": "0.175 * 2340"}'
            pieces: list[Line] = [ToolDelta(0, arguments, "call_1", "calculator")]
        else:
            pieces = [Delta(ANSWER[:60]), Pause(self._random.uniform(0.5, 2.0) * self._pace), Delta(ANSWER[60:])]
        usage = Usage(self._random.randrange(300, 6_000), self._random.randrange(80, 900), cached=128)
        return [Pause(start_s * self._pace), *pieces, usage, Finish("tool_calls" if wants_tool else "stop")]


class Receivers:
    """The endpoints of webhooks: those of ``globex`` are down."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """Answer a delivery."""
        await self._clock.sleep(0.2)
        if "globex" in url:
            raise ConnectionRefusedError("the endpoint refused the connection")
        return WebhookAnswer(503 if "default" in url and self._clock.time() % 3600 < 1200 else 204)

    async def aclose(self) -> None:
        """Nothing is open."""


def empty() -> Store:
    """Of somebody who has just begun."""
    return Store()


@cache
def plain() -> Store:
    """Of a small company, with two weeks of calls. By now a vendor refuses its key."""
    store = anyio.run(Company(FakeClock(NOW - DAYS * DAY_S)).build)
    store.vendors.faults[BROKEN] = ProviderFault("auth", status=401)
    store.router.blocking.route("Hello", prefer=[BROKEN])
    store.router.blocking.flush()
    return store


@cache
def hostile() -> Store:
    """Of somebody who writes what is no text into every field that takes one."""
    return anyio.run(_hostile)


async def _hostile() -> Store:
    clock = FakeClock(NOW - 3600)
    store = Store(models=[model_of(text) for text in TEXTS.values()])
    console = Console(store.storage, clock=clock)
    traces = TraceStore(store.storage, rollup_keys=("team", "__proto__"), clock=clock)
    await console.create_account(MALLORY, plan="pro", monthly_limit_usd=3)
    for index, (name, text) in enumerate(TEXTS.items()):
        await clock.advance(60)
        line = printable(text)
        with suppress(ValidationFailed):  # not each is the name of an account
            await console.create_account(line, plan="free", daily_limit_usd=1)
        await console.create_key(MALLORY, name=line, budget_usd=1)
        for policy in (
            Policy(name=f"{index}{line}", id=line),
            Policy(name=f"{index}{line}", goal="cost", classes=[of_text(line)]),
        ):
            await console.policies.draft(policy, by=line)
            if policy.goal is None:
                await console.policies.publish(policy.name, by=line, note=line)
        incident = Incident(
            id=f"inc_{index}", title=text, severity="minor", status_url=text, started_at="2026-11-22T11:00:00.000Z"
        )
        await store.storage.apply(SYSTEM_ACCOUNT, [PutIncident(incident)])
        endpoint = (await console.create_endpoint(MALLORY, f"https://a.example/{index}")).endpoint
        await store.storage.apply(MALLORY, [PutEndpoint(replace(endpoint, url=text), at=clock.time())])
        store.traces[name] = f"tr_{index}"
        created_at = f"2026-11-22T11:{index:02}:00.000Z"
        fixed: dict[str, Any] = {
            "id": store.traces[name],
            "account": MALLORY,
            "environment": "production",
            "created_at": created_at,
            "kind": "agent" if name == "markup" else "route",
            "status": "failed" if index % 3 else "completed",
        }
        trace = {
            **plain_of(type_info(Trace), text),
            **fixed,
            "decision_input": None,
            "metadata": {"team": text[:5_000], text[:100]: 1},
        }
        spans = [{**span, "id": number + 1, "parent_id": None} for number, span in enumerate(trace["spans"])]
        await traces.record(convert({**trace, "spans": spans}, Trace))
        await traces.feedback(store.traces[name], 0.5, text, account=MALLORY)
    return store


STORES: Mapping[str, Callable[[], Store]] = {"plain": plain, "hostile": hostile, "empty": empty}
"""The tests of a process share them, so they change nothing."""
MALLORY = "<img src=x onerror=alert(1)>/?#%2F&'\""
TEXTS = {
    "markup": "<img src=x onerror=alert(1)><b>bold</b>",
    "script": "</script></textarea><script>alert(1)</script><!--",
    "attribute": '"\'><svg onload=alert(1)> onmouseover=alert(1) x="',
    "address": "javascript:alert(1)",
    "template": "${alert(1)} {{constructor.constructor('alert(1)')()}} <%= 1 %> %s",
    "direction": "\u202egnp.exe\u202c \u2066x\u2069",
    "zero width": "a\u200b\u200d\ufeffb" + "\u0301" * 30,
    "lines": "one\n\ttwo\r\nthree\u2028four",
    "word": "W" * 10_000,
    "prototype": "__proto__",
    "path": "../../a?b=c#d%2F%",
}
"""Texts that are no names."""


def printable(text: str) -> str:
    """What names can hold of a text."""
    return "".join(character if character.isprintable() else " " for character in text)[:90]


def model_of(text: str) -> Model:
    """A model that is described by a text, which is its name as far as a name can be it."""
    line = printable(text)
    prices = Pricing(1.0, 2.0)
    return Model(
        id=f"mallory/{line.replace(' ', '')}", provider_model_id=line, display_name=line, quality=0.5, tags=(line,),
        pricing_per_1m=prices, availability=Availability(regions=(line,)),
        price_changes=(PriceChange("2027-01-01", prices),),
    )  # fmt: skip


def of_text(text: str) -> PolicyClass:
    """The class of requests with a text in their metadata."""
    return PolicyClass(name=text, match=PolicyMatch(metadata={text: text}))


def plain_of(shape: Type, text: str) -> Any:
    """A JSON value of a type, with ``text`` for each text in it, and of a union of structs one of each in a list."""
    match shape:
        case StrType() | AnyType():
            return text
        case StructType(tag=tag, tag_field=tag_field):
            fields = {field.encode_name: plain_of(field.type, text) for field in shape.fields}
            return fields if tag_field is None else {**fields, tag_field: tag}
        case ListType(item_type=item) | VarTupleType(item_type=item):
            kinds = item.types if isinstance(item, UnionType) else (item,)
            return [plain_of(kind, text) for kind in kinds]
        case TupleType(item_types=items):
            return [plain_of(item, text) for item in items]
        case DictType(value_type=value):
            return {text: plain_of(value, text)}
        case LiteralType(values=values):
            return values[0]
        case UnionType(types=types):
            return plain_of(next(kind for kind in types if not isinstance(kind, NoneType)), text)
        case BoolType():
            return True
    return 1


class Company:
    """Fills a store, in the order in which it happened."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._store = Store(cache=MemoryCache(clock=clock))
        self._console = Console(self._store.storage, clock=clock)
        self._vendors = Vendors(clock)
        self._random = random.Random(2)
        self._traces = self._store.traces
        self._keys: dict[str, str] = {}

    async def build(self) -> Store:
        """Everything."""
        await self._set_up()
        async with self._router() as router:
            for day in range(DAYS):
                await self._publish(day)
                await self._work(router, day)
        async with self._router(Capture()) as router:
            await self._show(router)
            await self._until(NOW)
        return self._store

    def _router(self, capture: Capture | None = None) -> Router:
        settings = Settings(
            clock=self._clock, rng=random.Random(4), rollup_keys=("team",), capture=capture,
            webhooks=WebhookSettings(transport=Receivers(self._clock)),
        )  # fmt: skip
        return Router(
            providers=self._vendors.providers(),
            storage=self._store.storage,
            cache=self._store.cache,
            settings=settings,
        )

    async def _until(self, time: float) -> None:
        await self._clock.advance(max(0.0, time - self._clock.time()))

    async def _set_up(self) -> None:
        console = self._console
        await console.create_account(
            "acme", plan="pro", daily_limit_usd=0.5, monthly_limit_usd=2,
            tag_limits=[{"key": "team", "value": "search", "monthly_limit_usd": 1}],
        )  # fmt: skip
        await console.create_account("globex", plan="team", prepaid=True, limits=RateLimits(requests_per_min=90))
        await console.credit("globex", 20, note="Invoice 2026-114", id="inv_114")
        for account, name, terms in KEYS:
            key = await console.create_key(account, name=name, **terms)
            self._keys[name] = key.key.id
        await console.create_endpoint("acme", "https://hooks.acme.example/routewright")
        await console.create_endpoint("globex", "https://globex.example/hooks", events=["router.fallback_triggered"])
        await console.create_endpoint("default", "https://default.example/hooks", profile="standard")
        await console.create_key("_system", name="ada", scopes=["console:write"])
        await console.create_key("_system", name="grace", scopes=["console:read"])

    async def _publish(self, day: int) -> None:
        if day in DRAFTS:
            policy, by, note, share = DRAFTS[day]
            await self._console.policies.draft(policy, by=by)
            if note:
                await self._console.policies.publish(policy.name, by=by, note=note, share=share)

    async def _work(self, router: Router, day: int) -> None:
        """A day of calls: fewer at the weekend, and a vendor is down on some days."""
        start = NOW - (DAYS - day) * DAY_S
        calls = 8 if day % 7 in (0, 6) else 20
        self._vendors.faults = {BROKEN: ProviderFault("server", status=503)} if day in (9, 12) else {}
        for index in range(calls):
            await self._until(start + index * 20 * 3600 / calls + self._random.uniform(0, 1800))
            await self._call(router, day * 20 + index)
        if day == 9:
            incident = await self._console.open_incident(
                "Answers of Mistral end early", severity="major", status_url="https://status.mistral.example/"
            )
            await self._clock.advance(2 * 3600)
            await self._console.resolve_incident(incident.id)
        await self._until(start + DAY_S - 3600)

    async def _call(self, router: Router, number: int) -> None:
        account, environment, team, options = KINDS[number % len(KINDS)]
        key = "old website" if number % 5 == 0 else "website"
        caller = Caller(account, environment, key_id=self._keys[key] if account == "acme" else None)
        metadata = {"team": team, "tenant": f"tenant-{number % 3}"}
        question = QUESTIONS[number % len(QUESTIONS)]
        await router.route(question, caller=caller, metadata=metadata, **options)

    async def _show(self, router: Router) -> None:
        """One of each kind of trace, in the last hour."""

        async def call(name: str, request: str, **options: Any) -> None:
            try:
                answer = await router.route(request, metadata={"team": "support"}, **options)
                self._traces[name] = answer.trace_id
            except RouterError as error:
                self._traces[name] = error.trace_id or ""
            await self._clock.advance(90)

        await call("answered", "Which plan includes single sign-on?", policy_id="desk")
        await call("redacted", "My address is ada@example.com; please change it.", policy_id="desk")
        await call("asked", "What does the standard plan cost?", cache=True)
        await call("cached", "What does the standard plan cost?", cache=True)
        await call("refused", "Translate this book.", goal="quality", budget={"maxCostUsd": 0.000001})
        self._vendors.faults = {BROKEN: ProviderFault("server", status=503)}
        await call("rescued", "Why was my card charged twice?", prefer=[BROKEN])
        await call("failed", "Why was my card charged twice?", models=[BROKEN])
        self._vendors.faults = {}
        async with router.stream("Tell me a long story.", goal="quality") as stream:
            async for event in stream:
                if isinstance(event, OutputDelta):
                    break
        self._traces["cancelled"] = stream.trace_id or ""
        for name, steps in (("run", 8), ("partial run", 1)):
            run = await Agent(router, tools=["calculator"], max_steps=steps).run("What is 17.5 % of 2,340?")
            self._traces[name] = run.trace_id
        sandbox = Caller(environment="sandbox")
        self._traces["sandbox"] = (await router.route("Hello", caller=sandbox)).trace_id
        await router.flush()
        await router.traces.feedback(self._traces["answered"], 1.0, "Right, and short")
        await router.traces.feedback(self._traces["rescued"], 0.0, "It took too long")
        await self._console.open_incident("Slow first tokens in Frankfurt", severity="minor")
        await self._console.revoke_key("acme", self._keys["old website"])


KEYS: list[tuple[str, str, dict[str, Any]]] = [
    ("acme", "website", {"monthly_limit_usd": 8}),
    ("acme", "old website", {}),
    ("acme", "staging", {"environment": "sandbox", "scopes": ["route", "traces:read"]}),
    ("globex", "batch jobs", {"budget_usd": 10, "limits": RateLimits(concurrency=4), "models": ["provider:openai"]}),
]
DRAFTS: dict[int, tuple[Policy, str, str, float | None]] = {
    0: (Policy(name="desk", goal="quality", models=["openai/*", "anthropic/*"]), "ada", "First version", None),
    3: (
        Policy(
            name="desk", weights=PolicyWeights(quality=50, cost=30, latency=10, stability=10),
            guardrails=[PolicyGuardrail(patterns=["email", "card"], action="redact")],
        ),
        "grace", "Cheaper, and without addresses", None,
    ),
    8: (Policy(name="search", goal="cost", cache=True, fallback=PolicyFallback(hedge=True)), "ada", "For search", None),
    11: (Policy(name="search", goal="cost", strategy="latency-optimized", cache=True), "grace", "A tenth first", 0.1),
    12: (Policy(name="desk", goal="cost", exclude=["provider:mistral"]), "grace", "", None),
    13: (Policy(name="triage", goal="cost", min_quality=0.5), "ada", "", None),
}  # fmt: skip
"""By day: a policy, its author, and if it is published, the note and the share."""
KINDS: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("default", "production", "support", {"policy_id": "desk"}),
    ("acme", "production", "search", {"goal": "cost", "cache": True}),
    ("acme", "production", "support", {"policy_id": "desk"}),
    ("default", "production", "support", {"policy_id": "desk"}),
    ("acme", "production", "support", {"goal": "quality"}),
    ("globex", "production", "batch", {"goal": "cost", "models": ["mistral/mistral-medium-2604", SMALL]}),
    ("default", "production", "search", {"prefer": [BROKEN]}),
    ("default", "sandbox", "support", {"goal": "stability"}),
    ("acme", "production", "search", {"goal": "quality", "strategy": "latency-optimized"}),
]
"""Account, environment, team, and options of a call."""
