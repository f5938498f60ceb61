"""The public door: ``Router`` chooses a model for each request, calls it, and can say why."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from msgspec.structs import replace

from ._core.catalogue.models import resolve_one
from ._core.request.json_scan import decode
from ._core.request.problems import shown
from ._core.request.read import Tags, as_budget, checked_tags, sent_request, tagged
from ._core.routing.budget import SharedBudget, room_of
from ._core.routing.decision import Decision, explain
from ._core.routing.what_if import PolicyCheck, WhyNot, why_not
from ._core.structured_output import Form
from ._core.tokens.estimate import bounds_of
from ._core.trace.ids import normalise_trace_id, parse_traceparent
from ._engine.answer import Answer
from ._engine.context import NO_TAGS, parent_held, parent_here, tags_held, within
from ._engine.hooks import EventHook, HookCounts, Subscription, TraceHook
from ._engine.many import Many
from ._engine.prepared import InputTokens, Prepared
from ._engine.reading import Asked, Read, read_turns
from ._engine.route import Engine
from ._engine.steps import HostedProgress, StepCall, StepDone, Steps, StepWait, begin
from ._engine.stream import Stream
from ._engine.trace_log import TraceCounts
from ._engine.worker import Detached
from .arguments import (
    Options,
    RequestLike,
    RequestsLike,
    SharedOptions,
    check_caller,
    check_many,
    checked_feedback,
    checked_traceparent,
    is_runnable,
)
from .assembly import Parts
from .backends.providers.sandbox import Answers, Faults
from .blocking import BlockingPrepared, BlockingStream, Twin, plain
from .cache import BlockingResponseCache, CacheExplanation, ResponseCache, explain_cache
from .catalogue import Catalogue
from .errors import Problem, RouterClosed, RouterError, ValidationFailed
from .fork import importing
from .policies import PolicyFile
from .protocols import Cache, Clock, Coordination, Guardrail, Provider, Storage
from .replay import input_of
from .settings import Settings
from .trace import BlockingTraceStore, TraceStore
from .wire import Budget, BudgetDict, Caller, DecisionInput, Model, Policy, PolicyChanged, Trace, TraceItem

__all__ = [
    "BlockingRouter",
    "HookCounts",
    "InputTokens",
    "PolicyCheck",
    "Prepared",
    "Router",
    "StepCall",
    "StepDone",
    "StepWait",
    "Steps",
    "Subscription",
    "TraceCounts",
    "WhyNot",
]

_CLOSED = "the router is closed"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Router:
    """Routes chat requests across the models of its providers.

        async with Router() as router:
            answer = await router.route("Why is the sky blue?", goal="quality", budget={"maxCostUsd": 0.01})
            print(answer.output, answer.routing.selected_model)

    Without ``providers`` they are found from the usual environment variables. ``async with`` is optional. One Router
    serves any number of threads and event loops, before and after a fork."""

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
        """``timeout``, in seconds, and ``max_retries`` hold where neither a call nor its policy says; None: 60 and 1.
        A provider's own ``max_retries`` goes before the Router's."""
        self._parts = Parts(
            providers, catalogue, policies, storage, guardrails, settings, coordination, cache,
            timeout=timeout, max_retries=max_retries,
        )  # fmt: skip
        self._caller = Caller()

    @classmethod
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
        """A Router with canned output: no key, no network, never billed, everything else as it is.

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
        # names alone: no keys, and nothing is loaded for it
        return f"<{type(self).__name__} {self._parts.shown(self._caller.environment)}>"

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
    async def route(  # what is no class to a type checker: unions, Literal, Annotated
        self, request: RequestLike, *, output_type: object, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]: ...
    async def route(
        self, request: RequestLike, *, output_type: Any = None, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]:
        """Answer a request, falling back along the chain where a model fails.

        With ``output_type`` the answer is JSON, and ``answer.data`` a value of that type: a pydantic model, a msgspec
        Struct, a dataclass, a TypedDict, or what else these libraries read. A model whose answer does not fit is shown
        what is wrong, once; then the next is asked.

        ``timeout``, in seconds, and ``max_retries`` are the request's ``timeout_ms`` and ``fallback.maxRetries`` by the
        names that vendors' SDKs give them, and go before the Router's own. The time is for everything, fallbacks too; a
        policy may make it shorter.

        Raises ``ValidationFailed``, ``NoCandidates`` (``BudgetExceeded``), ``ContentRefused``, ``UpstreamFailed`` and
        ``RouterTimeoutError``; what it raises names the trace. Without one: of a caller that was set up with a
        ``Console`` also ``RateLimited``, ``InsufficientBalance``, ``QuotaExhausted``, ``AuthenticationFailed``,
        ``PermissionDenied`` and ``StorageUnavailable``; with an idempotency key ``IdempotencyKeyReused``."""
        form = None if output_type is None else _form_of(output_type)
        engine = self._parts.running or await self._parts.begin()
        caller = self._caller if caller is None else self.resolve_caller(caller)
        return await engine.route(self._asked(request, options, form), caller)

    async def route_to_end(
        self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer:
        """Answer a request that is not dropped when whoever asked leaves: for servers, whose clients lose connections.

        The call then goes on in the background, within its ``timeout_ms``; what it brings is there for who asks again
        with the same ``idempotency_key``, which it has to have. Raises what ``route`` does."""
        asked, caller = self._asked(request, options), self._as(caller)
        if isinstance(asked, Read) or asked.read().request.idempotency_key is None:
            hint = "give the request one, so that its answer can be asked for again"
            raise ValidationFailed.of(Problem("idempotency_key", "is missing", hint))
        engine = await self._parts.begin()
        call = Detached(partial(engine.route, asked, caller), self._parts.worker)
        return await call.result()

    async def route_many(
        self,
        requests: RequestsLike,
        *,
        limit: int = 8,
        budget: Budget | BudgetDict | None = None,
        caller: Caller | None = None,
        **options: Unpack[SharedOptions],
    ) -> list[Answer | RouterError]:
        """Answer many requests, at most ``limit`` at a time. Gives what became of each, in their order: its answer, or
        the ``RouterError`` that it ended in.

        ``budget`` is one over them all, beside the budgets of their own; ``options`` hold for each of them."""
        own = _declared(cast("Options", options))
        asked = partial(self._asked, options=own)
        check_many(requests, limit)
        self._read("a request", own)  # a mistake in the options is told once
        shared = None if budget is None else SharedBudget(room_of(as_budget(budget)))
        run = Many(await self._parts.begin(), self._as(caller), asked, limit=limit, budget=shared)
        return await run.run(requests)

    def stream(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Stream:
        """Answer a request piece by piece. Nothing happens before the first piece is asked for, but that a request
        of ordinary size is checked."""
        asked, parts = self._asked(request, options), self._parts
        if not isinstance(asked, Read) and (parts.settings.clock.virtual or not asked.is_large):
            asked = asked.read()
        caller = self._caller if caller is None else self.resolve_caller(caller)
        return Stream(parts.running or parts.engine, asked, caller)

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
        """Check a request and bound its tokens, and leave the call for later: for servers, which answer a mistake
        before they admit anything. Nothing is admitted, and no time limit runs, before the result is used.

        Bytes are the JSON body of ``POST /v1/route``, read strictly. ``path`` and ``body`` say where the request was
        sent, and as what, if it was sent in another form: under one idempotency key another path or body is another
        request. ``traceparent`` is the header that came with it; a malformed one is ignored. An ``idempotency_key`` may
        stand beside the same one in the request, and no other.

        Takes as long as reading the request, some microseconds; call it in a thread for bodies of many kilobytes.
        Raises ``InvalidJson`` and ``ValidationFailed``."""
        parts, held = self._parts, tags_held()
        caller = self._caller if caller is None else self.resolve_caller(caller)
        made = sent_request(request, _declared(options) if "tools" in options else options)
        if held is not NO_TAGS and (tags := held.get(parts.tags)):
            made = tagged(made, tags)
        parent = None if traceparent is None else parse_traceparent(traceparent)
        if parent_held() is not None or "opentelemetry.trace" in sys.modules:
            parent = parent_here(parent)
        sent = None if body is None or made.idempotency_key is None else decode(body)
        return Prepared(parts.running or parts.engine, Read(made, bounds_of(made), path, parent, sent), caller)

    def steps(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Steps:
        """Choose a model and leave the upstream calls to you: the result says step by step what to do.

        Where no ``providers`` were passed, every model of the catalogue is one that you can call. Tokens are counted
        on the spot, as by ``decide``. Raises ``ValidationFailed`` and ``NoCandidates`` (``BudgetExceeded``)."""
        engine, caller, wait = self._parts.engine, self._as(caller), self._parts.wait_long
        fleet, read = self._parts.hosted(caller.environment), self._read(request, options)
        hold = engine.admissions.begin(read, caller, patient=False)
        if hold is None:
            call = engine.admit(read, caller, fleet)
            engine.guard_now(call)
            engine.choose_now(call)
            if call.asks_cache:
                wait(partial(engine.look_up, plain=True), call)
            return Steps(engine, engine.progress(HostedProgress, call), wait)
        return Steps(engine, wait(begin, engine, read, hold, fleet), wait)

    def decide(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Decision:
        """Choose without calling anything. Takes microseconds, unless tokens have to be counted.

        Raises ``ValidationFailed`` and ``NoCandidates`` (``BudgetExceeded``)."""
        engine = self._parts.engine
        call = engine.admit(self._read(request, options), self._as(caller))
        call.explores = False
        call.plan = engine.plan_now(call)
        return Decision(call.plan, call.given, call.board)

    def check_policies(
        self, request: RequestLike = "Hello", *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> list[PolicyCheck]:
        """Say of every policy what routing a request under it would come to: who serves it at what cost, and what
        becomes of it while one of the providers is lost.

        Counts tokens and decides twice a policy, some milliseconds each. Raises ``ValidationFailed``."""
        return self._parts.engine.check(self._read(request, options), self._as(caller))

    def why_not(
        self, request: RequestLike, model: str, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> WhyNot:
        """Say what would have to be true for a model to be chosen: what admits it, which change alone puts it first.

        Counts tokens and decides some fifty times over, a tenth of a second, and more the first time, when the tables
        of tokens are loaded. Raises ``ValidationFailed``."""
        if not isinstance(model, str):
            raise ValidationFailed.at("model", f"must be an id or alias, got {shown(model)}", "models() lists them")
        engine = self._parts.engine
        call = engine.admit(self._read(request, options), self._as(caller))
        model = resolve_one(model, call.fleet.aliases, call.fleet.pool.row, "model")
        return why_not(engine.counted(call), call.board, model, call.laid)

    def explain(self, decided: Decision | Answer[Any] | TraceItem) -> str:
        """The decision as a table: chosen, runner-up, fallbacks, rejected and why."""
        if isinstance(decided, Answer):
            decided = decided.decision
        return explain(decided if isinstance(decided, Decision) else self.replay(decided))

    def replay(self, decided: Answer[Any] | TraceItem | Decision | DecisionInput) -> Decision:
        """Take a decision again from its stored input; it comes out the same, bit for bit.

        Raises ``NotFound`` if a snapshot that the input names is no longer stored."""
        return self._parts.replays.decide(input_of(decided))

    def models(self, *, caller: Caller | None = None) -> list[Model]:
        """Every known model, with today's price, window, abilities and availability (spec 2.3).

        ``availability.status`` is ``unavailable`` for what is not called: no provider serves it, it is disabled, or its
        vendor gave it up; ``degraded`` where most calls of late failed, or one of its provider's keys was refused."""
        return self._parts.fleet(self._as(caller).environment).models()

    def model_names(self, *, caller: Caller | None = None) -> Mapping[str, str]:
        """Every name that a request may give a model, ids and aliases, with the id that it means."""
        return self._parts.fleet(self._as(caller).environment).names

    def policies(self) -> list[Policy]:
        """The policies that ``policy_id`` can name."""
        return [snapshot.policy for snapshot in self._parts.engine.policies]

    def reload_policies(self, policies: Sequence[Policy] | None = None) -> list[PolicyChanged]:
        """Put other policies in force, at once and as a whole; without an argument those of the ``PolicyFile`` as it
        is now. Requests that are on their way keep theirs.

        Raises ``ValidationFailed`` for what is not valid; then those before stay."""
        return self._parts.reload_policies(policies)

    async def feedback(
        self, trace_id: str, score: float, comment: str | None = None, *, caller: Caller | None = None
    ) -> None:
        """Say how good an answer was, 0 to 1. Raises ``NotFound`` if the caller has no such trace."""
        caller, at = self._as(caller), self._parts.settings.clock.time()
        checked = checked_feedback(trace_id, score, comment, at, caller.environment)
        await self._parts.log.feedback(caller, checked)
        await self._parts.tell_cache(caller, checked.trace_id, score)

    async def trace(self, trace_id: str, *, caller: Caller | None = None) -> Trace:
        """Read a trace; that of an agent run with the spans of its model calls, as one tree. Raises ``NotFound`` alike
        for an unknown one and another account's."""
        return await self._parts.log.trace(self._as(caller), normalise_trace_id(trace_id))

    def tags(self, /, **metadata: Any) -> AbstractContextManager[None]:
        """Put these under the metadata of every request that is made inside, and in tasks that are started there.

            with router.tags(team="support"):
                await router.route("Hello")

        They nest; of two under one name the inner holds, and before all what the request itself says. Raises
        ``ValidationFailed`` for what is not JSON, or over 16 KiB."""
        return self._parts.tags.scope(checked_tags(metadata))

    def traceparent(self, header: str) -> AbstractContextManager[None]:
        """Let calls that are made inside, by whatever Router, belong to a trace of your whole system: by its
        ``traceparent``, as W3C Trace Context has it.

            with router.traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
                await router.route("Hello")

        An active span of OpenTelemetry is taken without a word; this goes before it. Raises ``ValidationFailed`` for
        what is no such header."""
        return within(checked_traceparent(header))

    def on_trace(self, hook: TraceHook) -> Subscription:
        """Call ``hook(trace)`` after each call, whoever made it and however it ended, once its trace is in the storage.

        Hooks run in the background, one after the other, plain ones in a thread. What they raise is logged and harms
        nobody. Call what is given back, or leave it as a context manager, to hear no more."""
        return self._parts.hooks.on_trace(hook)

    def on_event(self, hook: EventHook) -> Subscription:
        """Call ``hook(event)``, just as ``on_trace`` does, when a fallback served a request, a budget refused it, many
        of an account's calls failed, what it was charged reached a share of its month's limit, or other policies came
        into force: by calls and policies of this Router. Of incidents no hook hears."""
        return self._parts.hooks.on_event(hook)

    def as_caller(self, caller: Caller) -> Self:
        """The same Router for another caller."""
        view = type(self).__new__(type(self))
        view._parts = self._parts
        view._caller = self.resolve_caller(caller)
        return view

    def resolve_caller(self, caller: Caller) -> Caller:
        """The caller as calls have it: checked, and in a sandbox Router in the sandbox. Raises ``ValidationFailed``."""
        try:
            return self._parts.resolve(caller)
        except TypeError:  # it cannot be hashed, so it is no caller, or holds what it may not
            check_caller(caller)
            raise

    @property
    def clock(self) -> Clock:
        """The clock of ``settings``."""
        return self._parts.settings.clock

    @property
    def storage(self) -> Storage:
        """The storage that was passed, else the one in memory."""
        return self._parts.storage

    @property
    def coordination(self) -> Coordination:
        """What it shares limits and news through. A ``Console`` beside it takes the same:
        ``Console(router.storage, clock=router.clock)``."""
        return self._parts.coordination

    @property
    def caller(self) -> Caller:
        """Who calls, where nobody else is named."""
        return self._caller

    @property
    def tags_here(self) -> Tags:
        """What ``tags`` has set in this context; may be empty."""
        return self._parts.tags.here()

    @property
    def is_sandbox(self) -> bool:
        """True for a Router made by ``sandbox()``."""
        return self._parts.environment == "sandbox"

    @property
    def engine(self) -> Engine:
        """The pipeline, for the other classes of this package."""
        return self._parts.engine

    def run_blocking(self, async_fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await in the Router's background thread, and block until it is done."""
        return self._parts.wait_long(async_fn)

    @property
    def new_id(self) -> Callable[[str], str]:
        """Makes ids: ``router.new_id("req_")``. Later ones are greater, and so are the ids of later traces."""
        return self._parts.ids

    @property
    def open_circuits(self) -> int:
        """How many models are not called for a while, for their faults; in both environments."""
        return sum(fleet.open_circuits for fleet in self._parts.fleets())

    @property
    def refused_keys(self) -> int:
        """How many of several keys of a provider are not used, since its vendor refused them."""
        return sum(fleet.refused_keys for fleet in self._parts.fleets())

    async def problem(self, *, within_s: float = 2.0) -> str | None:
        """What keeps it from serving, in one sentence: it is closed, it is not warm (``warm``) within ``within_s``, or
        its storage cannot be read or written in that time. None: nothing does. For readiness probes."""
        clock = self.clock
        try:
            with clock.deadline(clock.monotonic() + within_s) as limit:
                await self._parts.warm()
            if limit.expired:
                return "the tables that tokens are counted with are being loaded"
            return await self._parts.readiness.problem(within_s)
        except RouterClosed:
            return _CLOSED
        except RouterError as error:  # its message stays out
            return f"it cannot begin: {error.code}"

    @property
    def degraded(self) -> str | None:
        """What it goes on without, and what that means, in one sentence. None: no such part is away."""
        return self._parts.degraded

    async def warm(self) -> None:
        """Do what first calls would wait for: ask servers of your own for their models, and load the tables with which
        tokens are counted exactly, where models can be called (``Settings.preload_tokens``). For programs that serve
        others, before they begin to; ``create_app`` does it where there is a lifespan, and readiness probes do."""
        await self._parts.warm()

    def run_in_background(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run an async function beside the Router's own background work: in its thread, until the Router is closed,
        which cancels it, and anew in forked processes. Raises ``RouterClosed``."""
        self._parts.worker.start_daemon(async_fn, *args)

    @cached_property
    def traces(self) -> TraceStore:
        """The traces of this Router's storage, to be queried, reported on, exported and deleted, at once after the
        answer: those of the account that ``as_caller`` said, unless a method is given another ``account``.
        Of a caller's scopes none is asked for."""
        return self._parts.traces.as_account(self._caller.account)

    @cached_property
    def cache(self) -> ResponseCache:
        """The response cache of this caller's account and environment: stats, explain, invalidate. ``stats``
        counts both environments."""
        parts = self._parts
        return ResponseCache(
            lambda: parts.caching, self._explain_cache, self._caller, parts.settings.clock, parts.worker
        )

    @property
    def trace_counts(self) -> TraceCounts:
        """Traces of this process that are not in the storage: ``waiting``, ``refused`` by it, and ``lost``. Of those
        ``unbilled`` are not in the ledger either."""
        return self._parts.trace_counts

    @property
    def hook_counts(self) -> HookCounts:
        """Calls of this process whose hooks are still to be called (``waiting``) or never will be (``lost``), and how
        often a hook ``failed``."""
        return self._parts.hooks.counts

    async def flush(self) -> None:
        """Write all traces that still wait, and call their hooks. Raises ``StorageUnavailable`` if some
        traces still wait, and ``InternalError`` if some were refused or lost since the last time."""
        try:
            await self._parts.log.flush()
        finally:
            await self._parts.hooks.flush()

    async def aclose(self) -> None:
        """Write what waits and free connections, within two seconds. Twice is once.

        What could not be written is counted and logged. A call after this raises ``RouterClosed``."""
        await self._parts.aclose()

    @cached_property
    def blocking(self) -> BlockingRouter:
        """The same methods for code without ``await``."""
        return BlockingRouter(self, self._parts.worker)

    async def _explain_cache(self, request: RequestLike, **options: Any) -> CacheExplanation:
        engine, read = self._parts.engine, self._read(request, cast("Options", options))
        if read.request.cache is None:
            read = replace(read, request=replace(read.request, cache=True))
        call = engine.admit(read, self._caller)
        call.plan = await engine.plan(call)
        return await explain_cache(engine.caching, call)

    def _asked(self, request: RequestLike, options: Options, form: Form | None = None) -> Asked | Read:
        held = tags_held()
        tags = None if held is NO_TAGS else held.get(self._parts.tags)
        parent = parent_here() if parent_held() is not None or "opentelemetry.trace" in sys.modules else None
        if not options and not tags and form is None and (read := read_turns(request, parent)) is not None:
            return read
        return Asked(request, _declared(options) if "tools" in options else options, tags, form, parent)

    def _read(self, request: RequestLike, options: Options) -> Read:
        asked = self._asked(request, options)
        return asked if isinstance(asked, Read) else asked.read()

    def _as(self, caller: Caller | None) -> Caller:
        return self._caller if caller is None else self.resolve_caller(caller)


def _declared(options: Options) -> Options:
    """The options, with a declaration in the place of each function among the tools."""
    tools: Any = options.get("tools")
    if not isinstance(tools, list | tuple) or not any(map(is_runnable, tools)):
        return options
    with importing.lock:
        from .tools import declaration  # loads pydantic

    return {**options, "tools": [declaration(tool) if is_runnable(tool) else tool for tool in tools]}


def _form_of(output_type: Any) -> Form:
    with importing.lock:
        from .output import form_of  # loads pydantic

    return form_of(output_type)


class BlockingRouter(Twin[Router]):
    """``router.blocking``: the methods of ``Router`` that wait, as plain functions. The others need no twin.

    They run in the Router's background thread: in scripts, threads, notebooks, and inside a running event loop, which
    they block.

    answer = Router.sandbox().blocking.route("Hello")"""

    @property
    def router(self) -> Router:
        """The Router itself, whose other methods are plain already: ``decide``, ``explain``, ``replay`` and more."""
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
        self, request: RequestLike, *, output_type: Any = None, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]:
        """Answer a request (``Router.route``)."""
        return self._wait(partial(self.router.route, request, output_type=output_type, caller=caller, **options))

    route_many = plain(Router.route_many)
    feedback = plain(Router.feedback)
    trace = plain(Router.trace)
    flush = plain(Router.flush)

    def stream(
        self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> BlockingStream:
        """Answer a request piece by piece (``Router.stream``)."""
        return BlockingStream(self.router.stream(request, caller=caller, **options), self._wait)

    def prepare(
        self,
        request: RequestLike | bytes,
        *,
        caller: Caller | None = None,
        path: str = "/v1/route",
        body: bytes | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> BlockingPrepared:
        """Check a request, and leave the call for later (``Router.prepare``)."""
        prepared = self.router.prepare(request, caller=caller, path=path, body=body, traceparent=traceparent, **options)
        return BlockingPrepared(prepared, self._wait)

    @property
    def traces(self) -> BlockingTraceStore:
        """All traces of the Router's storage (``Router.traces``)."""
        return self.router.traces.blocking

    @property
    def cache(self) -> BlockingResponseCache:
        """The response cache (``Router.cache``)."""
        return self.router.cache.blocking

    def close(self) -> None:
        """Write what waits and free connections (``Router.aclose``)."""
        self.router._parts.close()
