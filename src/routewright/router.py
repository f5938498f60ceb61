"""``Router``: chooses a model for each request, calls it, and explains why."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from msgspec.structs import replace

from ._assembly import Parts
from ._core.agent.request import check_run, run_of
from ._core.call import Call
from ._core.catalogue.models import resolve_one
from ._core.permissions import permits
from ._core.request.read import Tags, add_tags, as_budget, decode_request, merge_tags, read_request, read_tags
from ._core.request.rules import CALLER_EXTRA
from ._core.routing.budget import SharedBudget, room_of
from ._core.routing.decision import Decision, explain
from ._core.routing.what_if import PolicyCheck, WhyNot, why_not
from ._core.structured_output import Form
from ._core.tokens.estimate import bounds_of
from ._core.trace.spans import describe_course
from ._engine.answer import Answer
from ._engine.context import current_parent, current_run, current_tags, find_parent, find_run, within
from ._engine.hooks import EventHook, HookCounts, Subscription, TraceHook
from ._engine.many import Many
from ._engine.prepared import InputTokens, Prepared
from ._engine.request_input import RawRequest, Read, read_turns
from ._engine.route import Engine
from ._engine.run import RouterRun
from ._engine.steps import StepCall, StepDone, Steps, StepWait, begin
from ._engine.stream import Stream
from ._engine.trace_writer import TraceCounts
from ._runtime.blocking import PlainClosing, Twin, Wait, plain, plain_result
from ._runtime.constructors import explains
from ._runtime.fork import importing
from ._runtime.loop import at_once
from ._runtime.worker import Detached
from ._setup.arguments import (
    Options,
    RequestLike,
    RequestsLike,
    SharedOptions,
    check_caller,
    is_runnable,
    make_feedback,
)
from .backends.providers.sandbox import Answers, Faults
from .cache import BlockingResponseCache, ResponseCache
from .catalogue import Catalogue
from .errors import NoCandidates, NotFound, RouterClosed, RouterError, ValidationFailed
from .policies import PolicyFile
from .protocols import Cache, Clock, Coordination, Guardrail, Provider, Storage
from .settings import Settings
from .trace import BlockingTraceStore, TraceStore
from .wire import (
    Budget,
    BudgetDict,
    Caller,
    DecisionInput,
    Model,
    OutputDelta,
    Policy,
    PolicyChanged,
    RouteEvent,
    RouteRequest,
    RouterStatus,
    Trace,
    TraceItem,
)
from .wire.ids import is_trace_id, normalise_trace_id, parse_traceparent
from .wire.json_scan import decode
from .wire.problems import listed, shown

__all__ = [
    "CALLER_EXTRA",
    "BlockingPrepared",
    "BlockingRouter",
    "BlockingStream",
    "HookCounts",
    "InputTokens",
    "Options",
    "PolicyCheck",
    "Prepared",
    "RequestLike",
    "Router",
    "RouterRun",
    "StepCall",
    "StepDone",
    "StepWait",
    "Steps",
    "Subscription",
    "TraceCounts",
    "WhyNot",
    "decode_request",
]

_CLOSED = "the router is closed"
_DECIDED = (Answer, TraceItem, Decision, DecisionInput)
Decided = Answer[Any] | TraceItem | Decision | DecisionInput
Past = Decided | str
"""What a decision of the past is known by; a text is a trace id."""
_ABSENT: Any = None  # of a request: so that ``route(messages=...)`` is refused in our words, not in Python's

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Router:
    """Routes chat requests across the models of its providers.

        async with Router() as router:
            answer = await router.route("Why is the sky blue?", goal="quality", budget={"maxCostUsd": 0.01})
            print(answer.output, answer.routing.selected_model)

    Without ``providers`` the Router takes those whose usual environment variables are set. ``async with`` is optional.
    One Router serves any number of threads and event loops, before and after a fork."""

    _is_view = False  # True for results of ``as_caller``

    @explains
    def __init__(
        self,
        *,
        providers: Sequence[Provider] | None = None,
        catalogue: Catalogue | None = None,
        policies: Sequence[Policy] | PolicyFile = (),
        storage: Storage | None = None,
        coordination: Coordination | None = None,
        cache: Cache | None = None,
        guardrails: Sequence[Guardrail] = (),
        settings: Settings | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
    ) -> None:
        """``timeout``, in seconds, and ``max_retries`` are defaults for calls and policies that set none; None: 60 and
        1. A provider's own ``max_retries`` takes precedence."""
        self._parts = Parts(
            providers, catalogue, policies, storage, guardrails, settings, coordination, cache,
            timeout=timeout, max_retries=max_retries,
        )  # fmt: skip
        self._caller = Caller()

    @classmethod
    @explains
    def sandbox(
        cls,
        answers: Answers | None = None,
        faults: Faults | None = None,
        *,
        catalogue: Catalogue | None = None,
        policies: Sequence[Policy] | PolicyFile = (),
        storage: Storage | None = None,
        coordination: Coordination | None = None,
        cache: Cache | None = None,
        guardrails: Sequence[Guardrail] = (),
        settings: Settings | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
    ) -> Self:
        """A Router with canned answers: no keys, no network, no charges; the rest works as usual.

        ``answers`` maps the last user message to its answer, or is a function of the ``UpstreamCall``. ``faults`` maps
        a model id or ``"*"`` to the ``FaultKind`` its calls end in, or to a list of them for its first calls."""
        router = cls.__new__(cls)
        router._parts = Parts(
            (), catalogue, policies, storage, guardrails, settings, coordination, cache,
            environment="sandbox", answers=answers, faults=faults, timeout=timeout, max_retries=max_retries,
        )  # fmt: skip
        router._caller = Caller(environment="sandbox")
        return router

    def __repr__(self) -> str:
        # shows names only, no keys, and loads nothing
        return f"<{type(self).__name__} {self._parts.describe(self._caller.environment)}>"

    async def __aenter__(self) -> Self:
        (await self._parts.begin()).fleet(self._caller.environment)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @overload
    async def route(
        self,
        request: RequestLike,
        *,
        output_type: None = None,
        caller: Caller | None = None,
        **options: Unpack[Options],
    ) -> Answer: ...
    @overload
    async def route(
        self, request: RequestLike, *, output_type: type[T], caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[T]: ...
    @overload
    async def route(  # for types that are no class to a type checker: unions, Literal, Annotated
        self, request: RequestLike, *, output_type: object, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]: ...
    async def route(
        self, request: Any = None, *, output_type: Any = None, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]:
        """Answer a request. If a model fails, the next in the plan is called.

        With ``output_type`` the answer is JSON, and ``answer.data`` a value of that type: a pydantic model, a msgspec
        Struct, a dataclass, a TypedDict, or anything else these libraries read. If an answer does not fit, the model is
        told why and asked once more; then the next model is called.

        ``timeout``, in seconds, and ``max_retries`` set the request's ``timeout_ms`` and ``fallback.maxRetries``, and
        override the Router's defaults. The time includes fallbacks; a policy may shorten it.

        Raises ``ValidationFailed``, ``NoCandidates`` (``BudgetExceeded``), ``ContentRefused``, ``UpstreamFailed`` and
        ``RouterTimeoutError``, with the id of the trace. Raised without a trace: ``IdempotencyKeyReused``, and for
        callers set up with a ``Console`` ``RateLimited``, ``InsufficientBalance``, ``QuotaExhausted``,
        ``AuthenticationFailed``, ``PermissionDenied`` and ``StorageUnavailable``."""
        form = None
        if output_type is not None:
            with importing.lock:
                from ._setup.output import form_of  # loads pydantic

            form = form_of(output_type)
        engine = self._parts.running or await self._parts.begin()
        own = self._caller if current_run() is None else self.caller
        caller = own if caller is None else self.resolve_caller(caller)
        return await engine.route(self._input_of(request, options, form), caller)

    async def route_to_end(
        self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer:
        """Answer a request that goes on if the task is cancelled: for servers, whose clients lose connections.

        The call then continues in the background, within its ``timeout_ms``. A retry with the same ``idempotency_key``
        gets the answer, so the request must have one. Raises as ``route`` does."""
        request_input = self._input_of(request, options)
        caller = self._as(caller)
        if isinstance(request_input, Read) or request_input.read().request.idempotency_key is None:
            raise ValidationFailed.at("idempotency_key", "is missing", "set one, so that a retry can get the answer")
        engine = await self._parts.begin()
        return await Detached(partial(engine.route, request_input, caller), self._parts.worker).result()

    async def route_many(
        self,
        requests: RequestsLike,
        *,
        limit: int = 8,
        budget: Budget | BudgetDict | None = None,
        caller: Caller | None = None,
        **options: Unpack[SharedOptions],
    ) -> list[Answer | RouterError]:
        """Answer many requests, at most ``limit`` at a time. Returns, in order, the answer or the ``RouterError`` of
        each.

        ``budget`` is shared by all of them, beside their own budgets; ``options`` apply to each."""
        own = _declared(cast("Options", options))
        input_of = partial(self._input_of, options=own)
        if isinstance(requests, str | Mapping | RouteRequest):
            raise ValidationFailed.at("requests", f"{type(requests).__name__} is one request, not many", "pass a list")
        if not isinstance(requests, Iterable | AsyncIterable):
            raise ValidationFailed.at("requests", f"{shown(requests)} is not a list of requests", "pass a list")
        maximum: object = limit
        if not isinstance(maximum, int) or isinstance(maximum, bool) or maximum < 1:
            raise ValidationFailed.at("limit", f"must be a whole number of at least 1, got {shown(limit)}", "such as 8")
        self._read("a request", own)  # raise an error in the options once, not per request
        shared = None if budget is None else SharedBudget(room_of(as_budget(budget)))
        run = Many(await self._parts.begin(), self._as(caller), input_of, limit=limit, budget=shared)
        return await run.run(requests)

    def stream(
        self, request: RequestLike = _ABSENT, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Answer a request piece by piece. A request of ordinary size is checked at once; all else happens when the
        first piece is read."""
        request_input = self._input_of(request, options)
        if not isinstance(request_input, Read) and not request_input.is_large:
            request_input = request_input.read()
        own = self._caller if current_run() is None else self.caller
        caller = own if caller is None else self.resolve_caller(caller)
        return Stream(self._parts.running or self._parts.engine, request_input, caller)

    def prepare(
        self,
        request: RequestLike | bytes,
        *,
        caller: Caller | None = None,
        path: str = "/v1/route",
        body: bytes | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> Prepared:
        """Check a request and bound its tokens, but do not call a model yet: for servers, which report mistakes before
        they admit a request. Admission and time limit start when the result is used.

        Bytes are the JSON body of ``POST /v1/route``, read strictly. ``path`` and ``body`` are those of the original
        HTTP request, if it had another form: they are part of its identity under an idempotency key. ``traceparent`` is
        its header; a malformed one is ignored. An ``idempotency_key`` option must equal the one in the request, if both
        are given.

        Images, files and vendor fields are checked as for a caller with a key, even if the caller has none.

        Takes some microseconds; call it in a thread for bodies of many kilobytes. Raises ``InvalidJson`` and
        ``ValidationFailed``."""
        own = self._caller if current_run() is None else self.caller
        caller = own if caller is None else self.resolve_caller(caller)
        route_request = read_request(request, _declared(options) if "tools" in options else options)
        if current_tags() is not None and (tags := self._parts.tags.here()):
            route_request = add_tags(route_request, tags)
        parent = None if traceparent is None else parse_traceparent(traceparent)
        if current_parent() is not None or "opentelemetry.trace" in sys.modules:
            parent = find_parent(parent)
        json_body = None if body is None or route_request.idempotency_key is None else decode(body)
        read = Read(route_request, bounds_of(route_request), path, parent, json_body, is_remote=True)
        return Prepared(self._parts.running or self._parts.engine, read, caller)

    def steps(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Steps:
        """Choose a model, and leave the upstream calls to you: the result says step by step what to do.

        If no ``providers`` were passed, every model of the catalogue is a candidate. Tokens are counted inline, as in
        ``decide``. Raises ``ValidationFailed`` and ``NoCandidates`` (``BudgetExceeded``)."""
        engine = self._parts.engine
        wait = self._parts.wait_long
        caller = self._as(caller)
        fleet = self._parts.hosted(caller.environment)
        read = self._read(request, options)
        if (admission := engine.admissions.begin(read, caller, patient=False)) is None:
            call = engine.make_call(read, caller, fleet)
            start = partial(engine.begin, patient=False)
            return Steps(engine, wait(start, call) if read.request.cache else at_once(start(call)), wait)
        return Steps(engine, wait(begin, engine, read, admission, fleet), wait)

    def decide(
        self, request: RequestLike = _ABSENT, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Decision:
        """Choose a model without calling it. Takes microseconds, unless tokens have to be counted.

        Raises ``ValidationFailed`` and ``NoCandidates`` (``BudgetExceeded``)."""
        engine = self._parts.engine
        return at_once(engine.decision(engine.make_call(self._read(request, options), self._rights(caller))))

    def check_policies(
        self, request: RequestLike = "Hello", *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> list[PolicyCheck]:
        """Try a request under every policy, without calling a model: which model serves it at what cost, and what
        happens if a provider is down.

        Counts tokens and decides twice per policy, some milliseconds each. Raises ``ValidationFailed``."""
        return self._parts.engine.check(self._read(request, options), self._as(caller))

    def why_not(
        self, request: RequestLike | Past, model: str, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> WhyNot:
        """Explain what it would take for a model to be chosen: what would admit it, and which single change would put
        it first.

        Of a request, or, with the prices and the health of that time, of a decision that was taken: an ``Answer``, a
        trace, a ``DecisionInput``, or a trace id. Counts tokens and decides some fifty times: a tenth of a second, more
        if token tables have to be loaded. Raises ``ValidationFailed``, and as ``replay``."""
        if not isinstance(model, str):
            raise ValidationFailed.at("model", f"must be an id or alias, got {shown(model)}", "models() lists them")
        parts = self._parts
        engine = parts.engine
        if isinstance(request, _DECIDED) or (isinstance(request, str) and is_trace_id(request)):
            for name in options:
                raise ValidationFailed.at(name, "cannot change a decision that was taken", "pass the request instead")
            decision_input = self._input(self._past(request, caller))
            board = parts.replays.board(decision_input)
            model = resolve_one(model, board.boards.aliases, board.pool.row, "model")
            counted = replace(decision_input, tokens=replace(decision_input.tokens, counted=True))
            return why_not(counted, board, model, parts.replays.applied_policy(decision_input))
        call = engine.make_call(self._read(request, options), self._rights(caller))
        model = resolve_one(model, call.fleet.aliases, call.board.pool.row, "model")
        return why_not(engine.deciding.count_tokens(call), call.board, model, call.applied_policy)

    def explain(self, decided: Past) -> str:
        """The decision as a table: chosen, runner-up, fallbacks, rejected and why; of an ``Answer``, a trace or a trace
        id also what happened then. Raises as ``replay``."""
        past = self._past(decided)
        try:
            text = explain(past.decision if isinstance(past, Answer) else self.replay(past))
        except NoCandidates as refusal:
            text = refusal.message
        course = past.trace if isinstance(past, Answer) else past
        return "\n".join([text, "", *describe_course(course)]) if isinstance(course, TraceItem) else text

    def replay(self, decided: Past) -> Decision:
        """Repeat a decision from its stored input; the result is the same, bit for bit. A trace id is read from the
        storage, which blocks.

        Raises ``NotFound`` if a snapshot of the input is not known, or the caller has no such trace."""
        return self._parts.replays.decide(self._input(self._past(decided)))

    def _past(self, decided: object, caller: Caller | None = None) -> Decided:
        """What was decided; a trace id as its trace."""
        if isinstance(decided, str):
            trace: Trace = self._parts.wait(self._parts.log.trace, self._as(caller), normalise_trace_id(decided))
            return trace
        if not isinstance(decided, _DECIDED):
            hint = "pass an Answer, a Trace or its id, a Decision or its input"
            raise ValidationFailed.at("", f"{shown(decided)} has no decision", hint)
        return decided

    @staticmethod
    def _input(past: Decided) -> DecisionInput:
        if isinstance(past, Answer):
            past = past.decision
        if not isinstance(past, TraceItem):
            return past.input if isinstance(past, Decision) else past
        if past.decision_input is not None:
            return past.decision_input
        hint = f"; an agent run decides with every model call: {listed(past.children)}" if past.children else ""
        raise NotFound(f"trace {past.id!r} has no decision{hint}")

    def models(self, *, caller: Caller | None = None) -> list[Model]:
        """Every known model that the caller may use, with today's price, window, abilities and availability (spec 2.3).

        ``availability.status`` is ``unavailable`` if no provider serves it, it is disabled, or its vendor withdrew it;
        ``degraded`` if most recent calls failed, or a key of its provider was refused."""
        caller = self._rights(caller)
        fleet = self._parts.fleet(caller.environment)
        ids = None if caller.models is None else fleet.select(caller.models)
        return [model for model in fleet.models() if ids is None or model.id in ids]

    def model_names(self, *, caller: Caller | None = None) -> Mapping[str, str]:
        """Every name of a model, ids and aliases, with its id; also of those that the caller may not use."""
        return self._parts.fleet(self._as(caller).environment).names

    def caller_extra(self, provider: str, *, caller: Caller | None = None) -> frozenset[str]:
        """Fields that callers with a key may send to a provider in ``params.extra``; a name with a dot is a field
        inside an object."""
        return self._parts.fleet(self._as(caller).environment).caller_extra.get(provider, CALLER_EXTRA)

    def policies(self, *, caller: Caller | None = None) -> list[Policy]:
        """The policies that ``policy_id`` can name, and the caller may use."""
        caller = self._rights(caller)
        return [policy.policy for policy in self._parts.engine.policy_table.policies if permits(caller, policy)]

    def reload_policies(self, policies: Sequence[Policy] | None = None) -> list[PolicyChanged]:
        """Replace all policies of this Router at once; without an argument by those now in the ``PolicyFile``. Running
        requests keep theirs; policies that the storage publishes stay.

        Raises ``ValidationFailed`` if one is invalid, or its name is published in the storage; the old policies then
        stay."""
        return self._parts.reload_policies(policies)

    async def feedback(
        self, trace_id: str, score: float, comment: str | None = None, *, caller: Caller | None = None
    ) -> None:
        """Rate an answer from 0 to 1. Raises ``NotFound`` if the caller has no such trace."""
        caller = self._as(caller)
        checked = make_feedback(trace_id, score, comment, self.clock.time(), caller.environment)
        await self._parts.log.feedback(caller, checked)
        await self._parts.tell_cache(caller, checked.trace_id, score)

    async def trace(self, trace_id: str, *, caller: Caller | None = None) -> Trace:
        """Read a trace. An agent run includes the spans of its model calls, as one tree. Raises ``NotFound``, also for
        another account's trace."""
        return await self._parts.log.trace(self._as(caller), normalise_trace_id(trace_id))

    def tags(self, /, **metadata: Any) -> AbstractContextManager[None]:
        """Add metadata to every request made in the block, and in tasks started there.

            with router.tags(team="support"):
                await router.route("Hello")

        Blocks nest: inner values override outer ones, and the request's own metadata overrides both. Raises
        ``ValidationFailed`` for values that are not JSON, or are over 16 KiB."""
        return self._parts.tags.scope(read_tags(metadata))

    def run(
        self, *, total_budget_usd: float | None = None, metadata: Mapping[str, object] | None = None,
        caller: Caller | None = None,
    ) -> RouterRun:  # fmt: skip
        """Make the calls in the block one run, whoever makes them: with one budget, one caller, and one trace that has
        theirs as children.

            async with router.run(total_budget_usd=0.05, metadata={"team": "support"}) as run:
                await router.route("Hello")
            print(run.cost_usd, (await router.trace(run.trace_id)).children)

        Includes streams, agents, runs within it, and calls in tasks and threads that have the block's context.
        ``metadata`` are ``tags`` of all of them. ``caller`` is their default; calls for other accounts are not part of
        the run. A run holds one concurrency slot, for an hour at most, and its calls none.

        A call that does not fit into what is left of the budget raises ``QuotaExhausted``. Raises ``ValidationFailed``,
        and as it begins ``RateLimited``, ``PermissionDenied``, ``AuthenticationFailed`` and ``StorageUnavailable``."""
        tags = self._parts.tags
        merged = merge_tags(tags.here(), read_tags(metadata or {}))
        fields = {"task": "run", "total_budget_usd": total_budget_usd, "metadata": {**merged}}
        engine = self._parts.running or self._parts.engine
        return RouterRun(engine, self._as(caller), check_run(run_of(fields)), tags, self._parts.wait_long)

    def traceparent(self, header: str) -> AbstractContextManager[None]:
        """Make calls in the block, by any Router, part of a distributed trace (the ``traceparent`` header of W3C Trace
        Context).

            with router.traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
                await router.route("Hello")

        Overrides an active OpenTelemetry span, which is picked up automatically. Raises ``ValidationFailed`` for a
        malformed header."""
        text: object = header
        parent = parse_traceparent(text) if isinstance(text, str) else None
        if parent is None:
            hint = "pass version-trace-span-flags in hexadecimal, such as 00-<32 digits>-<16 digits>-01, not all zero"
            raise ValidationFailed.at("traceparent", f"is {shown(header)}", hint)
        return within(parent)

    def on_trace(self, hook: TraceHook) -> Subscription:
        """Call ``hook(trace)`` after every call of this Router, failed ones included, once its trace is stored.

        Hooks run in the background, one after the other; plain functions in a thread. Their errors are logged. To stop,
        call the subscription or leave it as a context manager."""
        return self._parts.hooks.on_trace(hook)

    def on_event(self, hook: EventHook) -> Subscription:
        """Call ``hook(event)``, as ``on_trace`` does, for events of this Router: a fallback served a request, a budget
        refused it, many calls of an account failed, its charges reached a threshold of the month's limit, or policies
        changed. Incidents are not reported."""
        return self._parts.hooks.on_event(hook)

    def as_caller(self, caller: Caller) -> Self:
        """The same Router for another caller."""
        view = type(self).__new__(type(self))
        view._parts = self._parts
        view._caller = self.resolve_caller(caller)
        view._is_view = True
        return view

    def resolve_caller(self, caller: Caller) -> Caller:
        """Check a caller; a sandbox Router puts it in the sandbox. Raises ``ValidationFailed``."""
        try:
            return self._parts.resolve(caller)
        except TypeError:  # not hashable, so not a valid caller
            check_caller(caller)
            raise

    @property
    def clock(self) -> Clock:
        """The clock of ``settings``."""
        return self._parts.settings.clock

    @property
    def storage(self) -> Storage:
        """The storage that was passed, else one in memory."""
        return self._parts.storage

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue that was passed, else the bundled one."""
        return self._parts.catalogue

    @property
    def coordination(self) -> Coordination:
        """Shares limits and notices with other processes. A ``Console`` on the same storage uses the same one:
        ``Console(router.storage, clock=router.clock)``."""
        return self._parts.coordination

    @property
    def caller(self) -> Caller:
        """The default caller: inside a run of this Router the run's, unless ``as_caller`` set one."""
        if current_run() is not None and not self._is_view:
            inside = find_run(self._parts.ids)
            return self._caller if inside is None else inside.scope.caller
        return self._caller

    @property
    def tags_here(self) -> Tags:
        """The ``tags`` set in this context; may be empty."""
        return self._parts.tags.here()

    @property
    def is_sandbox(self) -> bool:
        """True for a Router made by ``sandbox()``."""
        return self._parts.environment == "sandbox"

    @property
    def engine(self) -> Engine:
        """The pipeline, for the other classes of this package."""
        return self._parts.engine

    def run_blocking(self, async_fn: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run ``async_fn`` in the Router's background thread, and block until it is done."""
        return self._parts.wait_long(async_fn)

    @property
    def new_id(self) -> Callable[[str], str]:
        """Makes ids: ``router.new_id("req_")``. They increase over time, like the ids of traces."""
        return self._parts.ids

    def status(self) -> RouterStatus:
        """What is wrong with which part, for the operator: refused keys, open circuits, rate limits, storage and disk,
        refusals, the last failures of parts. Of this process; it loads nothing, and asks no other server. Models of the
        sandbox are left out, unless every call is in the sandbox."""
        return self._parts.status()

    def count_refusal(self, error: RouterError) -> None:
        """Count a request that was refused before it was a call, for ``status``: for servers. An error counts once."""
        self._parts.count_refusal(error)

    async def problem(self, *, within_s: float = 2.0) -> str | None:
        """Why it cannot serve, in one sentence: it is closed, it is not warm (``warm``) within ``within_s``, or its
        storage cannot be read or written in that time. None: it can. For readiness probes."""
        clock = self.clock
        try:
            with clock.deadline(clock.monotonic() + within_s) as limit:
                await self._parts.warm()
            if limit.expired:
                return "the token tables are being loaded"
            return await self._parts.readiness.find_problem(within_s)
        except RouterClosed:
            return _CLOSED
        except RouterError as error:  # the message is not for outsiders
            return f"the router cannot start: {error.code}"

    @property
    def degraded(self) -> str | None:
        """The part that is unavailable and the effect, in one sentence. None: all are available."""
        return self._parts.degraded

    async def warm(self) -> None:
        """Do what first calls would wait for: ask discovering providers for their models, and load the tables for exact
        token counts (see ``Settings.preload_tokens``). For servers, before they accept requests; ``create_app`` does it
        if there is a lifespan, and readiness probes do."""
        await self._parts.warm()

    def run_in_background(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run an async function in the Router's background thread. Closing the Router cancels it; a forked process
        starts it anew. Raises ``RouterClosed``."""
        self._parts.worker.start_daemon(async_fn, *args)

    @cached_property
    def traces(self) -> TraceStore:
        """Query, report on, export and delete the traces of this Router's storage, including those just answered.
        Covers the account of ``as_caller`` unless a method is given another ``account``, and reports on the caller's
        environment; scopes are not checked."""
        traces = self._parts.traces
        if self._is_view:
            traces = traces.as_account(self._caller.account)
            traces._environment = self._caller.environment
        return traces

    @cached_property
    def cache(self) -> ResponseCache:
        """The response cache of this caller's account and environment: stats, explain, invalidate. ``stats`` counts
        both environments."""
        parts = self._parts
        return ResponseCache(lambda: parts.caching, self._decided, self._caller, parts.settings.clock, parts.worker)

    @property
    def trace_counts(self) -> TraceCounts:
        """Traces of this process that are not in the storage: ``waiting``, ``refused`` by it, and ``lost``; of these
        ``unbilled`` are not in the ledger either."""
        return self._parts.trace_counts

    @property
    def hook_counts(self) -> HookCounts:
        """Calls of this process whose hooks are pending (``waiting``) or were dropped (``lost``), and how often a hook
        ``failed``."""
        return self._parts.hooks.counts

    async def flush(self) -> None:
        """Write all pending traces, and call their hooks. Raises ``StorageUnavailable`` if some are still pending, and
        ``InternalError`` if some were refused or lost since the last flush."""
        try:
            await self._parts.log.writer.flush()
        finally:
            await self._parts.hooks.flush()

    async def aclose(self) -> None:
        """Write pending traces and close connections, within two seconds. Safe to call twice.

        Traces that cannot be written are counted and logged. Later calls raise ``RouterClosed``."""
        await self._parts.aclose()

    @cached_property
    def blocking(self) -> BlockingRouter:
        """The same methods for code without ``await``."""
        return BlockingRouter(self, self._parts.worker)

    async def _decided(self, request: RequestLike, options: Options) -> Call:
        """A decided call that uses the cache."""
        engine = self._parts.engine
        read = self._read(request, options)
        if read.request.cache is None:
            read = replace(read, request=replace(read.request, cache=True))
        call = engine.make_call(read, self._rights(self._caller))
        await engine.decision(call)
        return call

    def _input_of(self, request: RequestLike, options: Options, form: Form | None = None) -> RawRequest | Read:
        tags = None if current_tags() is None else self._parts.tags.here()
        parent = find_parent() if current_parent() is not None or "opentelemetry.trace" in sys.modules else None
        if not options and not tags and form is None and (read := read_turns(request, parent)) is not None:
            return read
        return RawRequest(request, _declared(options) if "tools" in options else options, tags, form, parent)

    def _read(self, request: RequestLike, options: Options) -> Read:
        request_input = self._input_of(request, options)
        return request_input if isinstance(request_input, Read) else request_input.read()

    def _as(self, caller: Caller | None) -> Caller:
        return self.caller if caller is None else self.resolve_caller(caller)

    def _rights(self, caller: Caller | None) -> Caller:
        """The caller with what its key may use (``Admissions.known_rights``)."""
        caller = self._as(caller)
        return caller if caller.key_id is None else self._parts.engine.admissions.known_rights(caller)


def _declared(options: Options) -> Options:
    """The options, with functions among the tools replaced by their declarations."""
    tools: Any = options.get("tools")
    if not isinstance(tools, list | tuple) or not any(map(is_runnable, tools)):
        return options
    with importing.lock:
        from .tools import declaration  # loads pydantic

    return {**options, "tools": [declaration(tool) if is_runnable(tool) else tool for tool in tools]}


class BlockingPrepared:
    """``Prepared`` for servers without ``await``, such as WSGI servers."""

    def __init__(self, prepared: Prepared, wait: Wait) -> None:
        self.prepared = prepared
        """The request, its tokens, its decision, and the headers."""
        self._wait = wait

    def run(self) -> Answer[Any]:
        """Admit the request and answer it (``Prepared.run``)."""
        answer: Answer[Any] = self._wait(self.prepared.run)
        return answer

    def stream(self) -> BlockingStream:
        """Answer it piece by piece (``Prepared.stream``)."""
        return BlockingStream(self.prepared.stream(), self._wait)

    def decide(self) -> Decision:
        """Choose a model, counted as a request (``Prepared.decide``)."""
        decision: Decision = self._wait(self.prepared.decide)
        return decision

    def count_tokens(self, model: str | None = None) -> InputTokens:
        """Count the input (``Prepared.count_tokens``)."""
        count: InputTokens = self._wait(partial(self.prepared.count_tokens, model))
        return count


class BlockingStream(PlainClosing):
    """``Stream`` for plain ``for`` loops.

    with router.blocking.stream("Tell me a story") as stream:
        for text in stream.text():
            print(text, end="")

    A loop over events can be left and continued, so without ``with`` the call ends only at ``close``."""

    def __init__(self, stream: Stream, wait: Wait) -> None:
        self._stream = stream
        self._wait = wait

    def __iter__(self) -> Iterator[RouteEvent]:
        while (event := self._wait(partial(anext, self._stream, None))) is not None:
            yield event

    def start(self) -> None:
        """Wait for the first content (``Stream.start``). Raises as ``Router.route`` if the call fails before."""
        self._wait(self._stream.start)

    def sse(self) -> Iterator[bytes]:
        """The events as server-sent events (``Stream.sse``). Leaving the loop ends the call."""
        with self:
            for event in self:
                yield event.to_sse()

    def text(self) -> Iterator[str]:
        """Iterate over the answer's text (``Stream.text``). Leaving the loop ends the call."""
        self._stream.expect_text()
        try:
            for event in self:
                if isinstance(event, OutputDelta):
                    yield event.data.text
        finally:
            self.close()
        self._stream.raise_failure()

    @property
    def headers(self) -> dict[str, str]:
        """HTTP rate-limit headers, set once it has started (``Stream.headers``)."""
        return self._stream.headers

    @property
    def trace_id(self) -> str | None:
        """Id of the call's trace; None before the call is admitted."""
        return self._stream.trace_id

    @property
    def result(self) -> Answer:
        """The answer, once the stream has ended."""
        return self._stream.result

    def close(self) -> None:
        """End the call."""
        with suppress(RouterClosed):  # it has already ended
            self._wait(self._stream.aclose)


class BlockingRouter(Twin[Router]):
    """``router.blocking``: the async methods of ``Router`` as plain functions.

    They run in the Router's background thread. Use them in scripts, threads and notebooks; in a running event loop they
    block it.

    answer = Router.sandbox().blocking.route("Hello")"""

    @property
    def router(self) -> Router:
        """The Router, for methods that are plain already: ``decide``, ``explain``, ``replay`` and more."""
        return self._of

    @overload
    def route(
        self,
        request: RequestLike,
        *,
        output_type: None = None,
        caller: Caller | None = None,
        **options: Unpack[Options],
    ) -> Answer: ...
    @overload
    def route(
        self, request: RequestLike, *, output_type: type[T], caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[T]: ...
    @overload
    def route(
        self, request: RequestLike, *, output_type: object, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]: ...
    def route(
        self, request: Any = None, *, output_type: Any = None, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]:
        """Answer a request (``Router.route``)."""
        return self._wait(partial(self.router.route, request, output_type=output_type, caller=caller, **options))

    route_many = plain(Router.route_many)
    feedback = plain(Router.feedback)
    trace = plain(Router.trace)
    flush = plain(Router.flush)
    stream = plain_result(Router.stream, BlockingStream)
    prepare = plain_result(Router.prepare, BlockingPrepared)

    def run(
        self, *, total_budget_usd: float | None = None, metadata: Mapping[str, object] | None = None,
        caller: Caller | None = None,
    ) -> RouterRun:  # fmt: skip
        """Make the calls in a plain ``with`` block one run (``Router.run``)."""
        return self.router.run(total_budget_usd=total_budget_usd, metadata=metadata, caller=caller)

    def status(self) -> RouterStatus:
        """What is wrong with which part (``Router.status``)."""
        return self.router.status()

    @property
    def traces(self) -> BlockingTraceStore:
        """All traces of the Router's storage (``Router.traces``)."""
        return self.router.traces.blocking

    @property
    def cache(self) -> BlockingResponseCache:
        """The response cache (``Router.cache``)."""
        return self.router.cache.blocking

    def close(self) -> None:
        """Write pending traces and close connections (``Router.aclose``)."""
        self.router._parts.close()
