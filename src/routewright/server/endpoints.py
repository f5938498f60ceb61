"""The endpoints of ``/v1`` (spec 4): each reads the request, calls the Router, and answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from routewright import Agent, Stream, wire
from routewright.agent import AgentStream, decode_run
from routewright.console import Console
from routewright.errors import AuthenticationFailed, PermissionDenied, ValidationFailed
from routewright.router import Options, Prepared, Router
from routewright.trace import TraceStore
from routewright.wire.timestamps import span_of

from .bodies import Bodies
from .errors import fit, to_client_error
from .exchange import JSON, Exchange, while_connected
from .exchange import Scope as AsgiScope
from .sse import EventStream, Frame, Frames

_BEFORE_CONTENT = (wire.RunStarted, wire.StepStarted)
"""Events that wait for the first content. Those of a call come with it."""
Decode = Callable[[bytes], wire.RouteRequest]
"""Makes a request from the body of another API. Raises ``ValidationFailed``."""
Authenticate = Callable[[AsgiScope], wire.Caller | Awaitable[wire.Caller]]
"""Returns the caller for an ASGI scope. Raises ``AuthenticationFailed``."""


class Auth:
    """Authenticates the requests of one application."""

    def __init__(
        self,
        router: Router,
        console: Console | None,
        authenticate: Authenticate | None,
        environment: wire.Environment | None,
    ) -> None:
        self._router = router
        self._authenticate = authenticate
        self._environment = environment
        self.takes_keys = authenticate is None
        """True if callers authenticate with API keys of routewright."""
        if console is None and self.takes_keys:
            console = Console(router.storage, clock=router.clock)
        self._console = console

    async def caller(self, exchange: Exchange, scope: wire.Scope, key: str | None = None) -> wire.Caller:
        """Authenticate the caller and check its scope. ``key`` replaces the header ``Authorization``. Raises
        ``AuthenticationFailed``, ``PermissionDenied`` and ``StorageUnavailable``."""
        identity: object
        if self._authenticate is not None:
            identity = self._authenticate(exchange.scope)
            if not isinstance(identity, wire.Caller) and isawaitable(identity):
                identity = await identity
        else:
            assert self._console is not None, "set if keys are accepted"
            authorization = exchange.sent.get(b"authorization")
            header = key if key is not None or authorization is None else authorization.decode("latin-1")
            identity = await self._console.authenticate(header, self._environment)
        exchange.caller = caller = self._router.resolve_caller(identity)
        if self._environment is not None and caller.environment != self._environment:
            exchange.caller = None
            problem = f"this address serves the {self._environment} environment, but your key is for the other one"
            raise AuthenticationFailed(f"{problem}; use the {caller.environment} address")
        if caller.scopes is not None and scope not in caller.scopes:
            raise PermissionDenied(f"the API key lacks the scope {scope!r}; use one that has it")
        return caller


class Service(Struct, frozen=True):
    """Shared by all endpoints: the Router, authentication, and request bodies."""

    router: Router
    auth: Auth
    bodies: Bodies
    agent: Agent
    """Runs the tasks of ``/v1/agents/run``."""

    def prepare(
        self, exchange: Exchange, caller: wire.Caller, decode: Decode | None = None, path: str = "/v1/route"
    ) -> Awaitable[Prepared]:
        """Read the request, with the idempotency key of its header. ``decode`` reads the body of another API. Raises
        what ``Bodies.read``, ``decode`` and ``Router.prepare`` raise."""
        key = exchange.sent.get(b"idempotency-key")
        parent = exchange.sent.get(b"traceparent")
        options: Options = {} if key is None else {"idempotency_key": _text(key)}
        traceparent = None if parent is None else parent.strip().decode("latin-1")
        make = partial(self.router.prepare, caller=caller, path=path, traceparent=traceparent, **options)
        return self.bodies.read(exchange, make if decode is None else lambda body: make(decode(body), body=body))

    async def answer(self, exchange: Exchange, prepared: Prepared) -> tuple[wire.RouteResponse, dict[str, str]]:
        """Run the call. Returns the response and the headers about its limits. The call is cancelled when the client
        disconnects, except with an idempotency key, so that the client can ask again (contract 7). Raises
        ``ClientLeft``."""
        # Without a key nobody can ever read the answer of a client that is gone: to go on would only cost money. With
        # one the client will ask again, and cancelling would waste what the model has written: each retry of a client
        # with a bad connection would start at the beginning and pay the vendor once more (P1: at most one execution
        # and one billed result for a key). So the call goes on in the task of this request, without a watcher, until
        # its own deadline, and its answer is stored before it is sent to a closed connection, which is no error. A
        # client that returns early joins the running call.
        # test_with_an_idempotency_key_it_finishes_and_is_replayed, test_a_client_that_returns_joins_the_call
        if prepared.request.idempotency_key is None:
            answer = await while_connected(exchange, prepared.run)
        else:
            answer = await prepared.run()
        response = answer.response
        exchange.trace_id = response.trace_id
        return response, answer.headers

    async def send(self, exchange: Exchange, prepared: Prepared, frames: Frames) -> None:
        """Send a stream. With an idempotency key the call finishes even if the client disconnects."""
        await EventStream(exchange, frames).run(finishes=prepared.request.idempotency_key is not None)


def _text(key: bytes) -> str:
    """Decode the header ``Idempotency-Key`` (spec 4.1). Raises ``ValidationFailed``."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValidationFailed.at("Idempotency-Key", "is not UTF-8", "take a new random key") from None


class NoQuery(Struct, frozen=True):
    """No parameters."""


class TracesQuery(Struct, frozen=True, omit_defaults=True):
    """The parameters of ``GET /v1/traces`` (spec 4.5)."""

    since: str | None = field(default=None, name="from")
    """RFC 3339: traces that began then or later."""
    until: str | None = field(default=None, name="to")
    """RFC 3339: traces that began before then."""
    filter: str = ""
    """``term(,term)*``, of which all hold: key, one of ``= != >= <= > <``, value."""
    limit: int = 50
    """1 to 200."""
    cursor: str | None = None
    """``next_cursor`` of the page before, with the same parameters."""


class DatesQuery(Struct, frozen=True, omit_defaults=True):
    """The parameters of the reports of cache, fallback and latency: days in UTC, both of them in it."""

    start_date: str | None = None
    """``YYYY-MM-DD``; default: six days before the last."""
    end_date: str | None = None
    """``YYYY-MM-DD``; default: today."""


class UsageQuery(DatesQuery, frozen=True, omit_defaults=True):
    """The parameters of ``GET /v1/analytics/usage`` (spec 4.6)."""

    group_by: str = "model"
    """``model``, ``tenant``, ``workflow``, ``policy_version``, ``shadow``, or ``metadata.<key>`` of the keys that this
    service groups by."""
    bucket: wire.Bucket = "day"
    """``hour``, ``day``, ``week`` or ``month``."""


class ListedModel(wire.Model, frozen=True, kw_only=True):
    """A model as ``GET /v1/models`` lists it, with the fields that OpenAI's clients read."""

    created: int
    """Day of its release in Unix seconds; 0: not known."""
    owned_by: str
    """Its provider."""
    object: Literal["model"] = "model"

    @classmethod
    def of(cls, model: wire.Model) -> ListedModel:
        """List a model. ``Pricing.exact`` is for those who set prices, and not listed (spec 2.3)."""
        changes = model.price_changes and tuple(
            replace(step, pricing_per_1m=replace(step.pricing_per_1m, exact=False)) for step in model.price_changes
        )
        price = model.pricing_per_1m and replace(model.pricing_per_1m, exact=False)
        model = replace(model, pricing_per_1m=price, price_changes=changes)
        return cls(**asdict(model), created=released(model.released_at), owned_by=model.provider)


def released(date: str | None) -> int:
    """Day of a model's release in Unix seconds; 0: not known."""
    if not date:
        return 0
    try:
        day = datetime.fromisoformat(date if len(date) > len("YYYY-MM") else f"{date}-01")
    except ValueError:
        return 0
    return int(day.replace(tzinfo=UTC).timestamp())


class Models(Struct, frozen=True):
    """Answer of ``GET /v1/models`` (spec 4.2)."""

    models: list[ListedModel]


async def route(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """Answer a request, falling back along the chain where a model fails."""
    prepared = await service.prepare(exchange, caller)
    if prepared.request.stream:
        await service.send(exchange, prepared, EventFrames(exchange, prepared.stream()))
        return
    response, headers = await service.answer(exchange, prepared)
    await exchange.respond(msgspec.json.encode(response), 200, JSON, headers)


async def run_agent(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """Work on a task in steps, with tools, within limits of steps, time and money."""
    key = exchange.sent.get(b"idempotency-key")
    make = partial(decode_run, idempotency_key=None if key is None else _text(key))
    request = await service.bodies.read(exchange, make)
    run = service.agent.prepare(request, caller)
    finishes = request.idempotency_key is not None
    if request.stream_steps:
        await EventStream(exchange, EventFrames(exchange, AgentStream(run))).run(finishes=finishes)
        return
    response = await (run.finish() if finishes else while_connected(exchange, run.finish))
    exchange.trace_id = response.trace_id
    await exchange.respond(msgspec.json.encode(response), 200, JSON, run.headers)


class EventFrames:
    """The events of a call or an agent run as server-sent events (contract 5; ``sse.Frames``)."""

    def __init__(self, exchange: Exchange, events: Stream | AgentStream) -> None:
        self.headers: dict[str, str] = {}
        self.stream = events if isinstance(events, Stream) else events.run
        self._events = events
        self._exchange = exchange
        self._last_id = 0

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises the error that refuses or ends the call."""
        async with self._events as events:
            async for event in events:
                if isinstance(event, wire.StreamError) and isinstance(self.stream, Stream):
                    self.stream.raise_failure()
                self._last_id = event.id
                yield Frame(event.to_sse(), not isinstance(event, _BEFORE_CONTENT))

    def error_frame(self, error: Exception) -> bytes:
        """The event ``error``."""
        client_error = to_client_error(error, self._exchange.request_id)
        return fit(wire.StreamError(self._last_id + 1, wire.error_envelope(client_error)).to_sse())


async def decide(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """Choose without calling anything. It counts as a request, and as no tokens."""
    prepared = await service.prepare(exchange, caller)
    decision = await while_connected(exchange, prepared.decide)
    await exchange.respond(decision.to_json().encode(), 200, JSON, prepared.headers)


async def models(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """The models that can be routed to, with price, window, abilities and availability."""
    await exchange.json(Models([ListedModel.of(model) for model in service.router.models(caller=caller)]))


async def policies(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """The policies that ``policy_id`` can name."""
    # guardrails stay hidden: callers who know them can write around them
    await exchange.json([replace(policy, guardrails=None) for policy in service.router.policies(caller=caller)])


def _traces(service: Service, caller: wire.Caller) -> TraceStore:
    return service.router.as_caller(caller).traces


async def trace(service: Service, exchange: Exchange, caller: wire.Caller, _: NoQuery) -> None:
    """One trace with its spans."""
    await exchange.json(await _traces(service, caller).get(exchange.parameter, environment=caller.environment))


async def traces(service: Service, exchange: Exchange, caller: wire.Caller, query: TracesQuery) -> None:
    """A page of traces without their spans, newest first."""
    since, until = span_of(query.since, query.until, ("from", "to"))
    terms = asdict(query) | {"since": since, "until": until}
    await exchange.json(await _traces(service, caller).query(**terms, environment=caller.environment))


async def usage(service: Service, exchange: Exchange, caller: wire.Caller, query: UsageQuery) -> None:
    """Requests, money and tokens by time and group."""
    await exchange.json(await _traces(service, caller).usage(**asdict(query), environment=caller.environment))


async def cache(service: Service, exchange: Exchange, caller: wire.Caller, query: DatesQuery) -> None:
    """Hit rate, dollars saved, hits by the age of their entries."""
    await exchange.json(await _traces(service, caller).cache_report(**asdict(query), environment=caller.environment))


async def fallback(service: Service, exchange: Exchange, caller: wire.Caller, query: DatesQuery) -> None:
    """How often a fallback served, why, and how attempts at each model ended."""
    await exchange.json(await _traces(service, caller).fallback_report(**asdict(query), environment=caller.environment))


async def latency(service: Service, exchange: Exchange, caller: wire.Caller, query: DatesQuery) -> None:
    """Quantiles of the latency by model and strategy."""
    await exchange.json(await _traces(service, caller).latency_report(**asdict(query), environment=caller.environment))
