"""Builds the parts of a Router, each once and on first use."""

from __future__ import annotations

import logging
import os
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from typing import Literal, TypeVar, get_args

import anyio
from msgspec.structs import replace

from . import protocols, wire
from ._core.analytics.report import check_keys
from ._core.attempts.faults import place_of
from ._core.cache.comparators import NormalisedEquality
from ._core.model_selector import ModelIndex
from ._core.outage import Outage
from ._core.policy import find_changes, resolve, version_write, with_version
from ._core.policy_table import PolicyTable
from ._core.request.read import read_retries, timeout_ms_of
from ._core.routing.inputs import Defaults
from ._core.tokens.estimate import VOCABULARIES, Vocabulary, count_request
from ._core.webhooks.endpoint import PURPOSE
from ._engine.admission import Admissions
from ._engine.cache import Caching
from ._engine.context import TagScopes
from ._engine.counting import Counting
from ._engine.declarations import overlay_providers
from ._engine.discovery import ALONE_S, FIRST_S, Discovery
from ._engine.fleet import Fleet
from ._engine.hooks import Hooks
from ._engine.policies import Refresh, StoredPolicies, watch_storage
from ._engine.prompt_caches import Warmth
from ._engine.readiness import Readiness
from ._engine.retention import sweep
from ._engine.route import Engine, Options
from ._engine.shared_limits import SharedLimits, Sharing
from ._engine.trace_log import TraceLog
from ._engine.trace_writer import TraceCounts, TraceWriter
from ._engine.webhooks import Dispatcher, wake
from ._runtime.fork import Guard, importing
from ._runtime.identity import Ids
from ._runtime.loop import Signal, at_once, in_new_loop, in_thread, this_loop
from ._runtime.worker import CLOSE_S, CLOSED, Worker
from ._setup.arguments import check_caller, check_parts, validate_policies
from ._setup.coordination import Hear, coordination_of, listen
from ._setup.replay import Replays
from ._setup.root_secret import RootSecret
from ._setup.status import CIRCUIT, make_status
from .backends.providers.callable import HostedProvider
from .backends.providers.sandbox import Answers, Faults, SandboxProvider
from .backends.storage.memory import MemoryStorage
from .cache import Judge
from .catalogue import Catalogue
from .errors import RouterClosed, RouterError, ValidationFailed
from .guardrail import validate_guardrails
from .policies import PolicyFile, Reload, watch
from .protocols import options_of
from .settings import Settings
from .trace import TraceStore
from .wire.problems import shown

T = TypeVar("T")

# seconds after the start of closing by which each step ends (contract 1: two in all)
WORKER_BY_S = 1.0
CALLS_BY_S = 1.1
TRACES_BY_S = 1.4
PROVIDERS_BY_S = 1.7
STORAGE_BY_S = 1.9
ENVIRONMENTS: frozenset[wire.Environment] = frozenset(get_args(wire.Environment))
CALLERS = 1_024
"""Size of the cache of checked callers."""
SHOWN = 4
"""Names of providers, and of models, in a Router's ``repr``."""
WORKER_S = 0.8  # leaves 0.2 s for the tasks that it cancels

_logger = logging.getLogger(__name__)


class Parts:
    """The parts that the views of one Router share. Nothing is read or made before its first use."""

    def __init__(
        self,
        providers: Sequence[protocols.Provider] | None,
        catalogue: Catalogue | None,
        policies: Sequence[wire.Policy] | PolicyFile,
        storage: protocols.Storage | None,
        guardrails: Sequence[protocols.Guardrail],
        settings: Settings | None,
        coordination: protocols.Coordination | None = None,
        cache: protocols.Cache | None = None,
        *,
        timeout: float | None = None,
        max_retries: int | None = None,
        environment: wire.Environment = "production",
        answers: Answers | None = None,
        faults: Faults | None = None,
    ) -> None:
        settings = Settings() if settings is None else settings
        if catalogue is not None and not isinstance(catalogue, Catalogue):
            raise ValidationFailed.at("catalogue", f"is {type(catalogue).__name__}", "pass Catalogue.load(path)")
        if not isinstance(settings, Settings):
            raise ValidationFailed.at("settings", f"{shown(settings)} is not Settings", "pass Settings(...)")
        check_parts(providers, storage, coordination, cache)
        self._defaults = Defaults(settings.limits.default_max_output_tokens, predicts=settings.predictor is not None)
        if timeout is not None:
            self._defaults = self._defaults._replace(timeout_ms=timeout_ms_of(timeout))
        if max_retries is not None:
            self._defaults = self._defaults._replace(max_retries=read_retries(max_retries))
        self._policy_file = policies if isinstance(policies, PolicyFile) else None
        self._policies = () if isinstance(policies, PolicyFile) else validate_policies(policies)
        self._published: list[wire.PolicySnapshot] = []
        self._discovery: Discovery | None = None
        self._in_force: Sequence[wire.Policy] = ()
        """The policies of ``_published``, as they were passed."""
        self._listing = Outage(_logger.warning, "the models that servers list are used again")
        self._guardrails = validate_guardrails(guardrails)
        self.settings = settings
        self.environment: wire.Environment = environment
        """The environment of callers that name none."""
        self.catalogue = Catalogue() if catalogue is None else catalogue
        self.storage: protocols.Storage = MemoryStorage(clock=settings.clock) if storage is None else storage
        self.worker = Worker(settings.clock)
        self._is_shared = storage is not None
        """True: others may publish policies in the storage."""
        owner = "code" if self._policy_file is None else f"file {self._policy_file.path.absolute()}"
        self._stored = StoredPolicies(self.storage, settings.clock, owner if self._is_shared else None)
        self.ids = Ids(settings.clock, settings.rng)
        self.resolve: Callable[[wire.Caller], wire.Caller] = lru_cache(CALLERS)(partial(_resolve, environment))
        """Check a caller; a sandbox Router puts every caller in the sandbox."""
        self.tags = TagScopes()
        self.hooks = Hooks(self.worker, settings.clock)
        self._webhooks: Dispatcher | None = None
        if settings.webhooks.deliver:
            root = RootSecret(self.storage, os.environ)
            self._webhooks = Dispatcher(
                self.storage,
                settings.webhooks.open_transport,
                partial(root.derive_keys, PURPOSE),
                settings.clock,
                start=weakref.WeakMethod(self.worker.start_daemon),
                max_attempts=settings.webhooks.max_attempts,
            )
            self.worker.renewals.add(self._webhooks)
        own = options_of(self.storage, protocols.BaseStorage)
        accounts = own.accounts
        if accounts is not None and isinstance(coordination, protocols.CountingCoordination):
            accounts = SharedLimits(accounts, coordination, settings.clock)
            self.worker.renewals.add(accounts)
        writer = TraceWriter(
            self.storage, self.hooks, settings.clock, settings.durability, accounts, partial(wake, self.storage)
        )
        capture = None if settings.capture is None else settings.capture.started
        warmth = Warmth(self.storage, self.worker) if settings.warm_prefixes else None
        self._log = TraceLog(writer, self.worker, self.ids, capture, warmth)
        self.count_refusal = self._log.count_refusal
        self._coordination = coordination or own.coordination
        self._cache = cache
        self._provider_list = providers
        self._variables: Mapping[str, str] = {}
        """The environment variable that would enable each provider, by name; empty if providers were passed."""
        self._has_providers = bool(providers)
        self._answers = answers
        self._faults = faults
        self._guard = Guard()
        self._reloading = Guard()
        self._fleets: dict[str, Fleet] = {}
        self.running: Engine | None = None
        """The pipeline, from its first use until the Router is closed."""
        self._closed = False
        self._freed = Signal()
        if self._policy_file is not None or self._is_shared:
            self.worker.renewals.add(self)

    def renew(self) -> None:
        """Start as at first use: a forked child does not watch the policies yet."""
        self.running = None

    @property
    def engine(self) -> Engine:
        """The pipeline."""
        return self.running or self._after_discovery(self._ensure_engine)

    async def begin(self) -> Engine:
        """The pipeline. Waits for servers to list their models without blocking the event loop."""
        if self.running is None and not self._closed:
            self.discovery.begin(self.worker)
            await self.discovery.wait()
        return self.engine

    def _after_discovery(self, make: Callable[[], T]) -> T:
        """Call ``make`` under the lock, once servers have listed their models. In an event loop it does not block for
        them, unless a policy or alias names an unknown model."""
        self._refuse_if_closed()
        self.discovery.begin(self.worker)
        is_patient = this_loop() is None
        while True:
            if is_patient:
                self.discovery.block()
            with self._guard.lock:
                self._refuse_if_closed()
                try:
                    return make()
                except ValidationFailed:
                    if is_patient or self.discovery.ready.is_set:
                        raise
            is_patient = True

    async def warm(self) -> None:
        """Do what first calls would wait for. Token tables are loaded in a thread, once."""
        engine = await self.begin()
        fleet = engine.fleet(self.environment)
        served = zip(fleet.pool.models, fleet.server, strict=True)
        kinds = {model.tokenizer for model, server in served if server is not None}
        settings = self.settings
        if not kinds or self.environment == "sandbox" or not settings.preload_tokens or settings.clock.virtual:
            return
        needed = VOCABULARIES[:1] if kinds == {*VOCABULARIES[:1]} else VOCABULARIES
        if not engine.counting.loaded.issuperset(needed):

            def load() -> None:
                for encoding in needed:
                    options_of(self._token_counter, protocols.BaseTokenCounter).load(encoding)

            await in_thread(settings.clock, load)
            engine.counting.loaded.update(needed)

    def fleet(self, environment: wire.Environment | Literal["hosted"]) -> Fleet:
        """The fleet of an environment; ``hosted``: of a host that makes its own calls and named no providers."""
        return self._fleets.get(environment) or self._after_discovery(lambda: self._ensure_fleet(environment))

    def _ensure_fleet(self, environment: wire.Environment | Literal["hosted"]) -> Fleet:
        if (fleet := self._fleets.get(environment)) is None:
            if environment == "production":
                today = datetime.fromtimestamp(self.settings.clock.time(), UTC).date().isoformat()
                warning = self.catalogue.stale(today, self.settings.stale_after_days)
                if warning:
                    _logger.warning("%s, or raise settings.stale_after_days", warning)
            fleet = self._fleets[environment] = self._make_fleet(environment)
        return fleet

    def hosted(self, environment: wire.Environment) -> Fleet:
        """The fleet of a host that makes its own calls: the whole catalogue, unless providers were passed."""
        return self.fleet(environment if self._has_providers or environment == "sandbox" else "hosted")

    def describe(self, environment: wire.Environment) -> str:
        """Providers and models for ``repr``: the first few, and only those known without loading anything."""
        fleet = self._fleets.get(environment)
        providers = self._provider_list if fleet is None else fleet.providers
        if environment == "sandbox":
            summary = "in the sandbox"
        elif providers is None:
            summary = "with the providers of the environment"
        else:
            summary = f"with {_join([provider.name for provider in providers])}" if providers else "without providers"
        if fleet is None:
            return summary
        models = [model for model, server in zip(fleet.pool.ids, fleet.server, strict=True) if server is not None]
        return f"{summary}, {len(models)} models: {_join(models)}" if models else f"{summary}, no models"

    def fleets(self) -> list[Fleet]:
        """The fleets in use so far."""
        return list(self._fleets.values())

    @property
    def degraded(self) -> str | None:
        """The part that is unavailable and the effect, in a sentence; None if all are available."""
        share = self._limits().share
        return share and f"the coordination did not answer the last call; this process uses {share} of every rate limit"

    def _limits(self) -> wire.LimitsStatus:
        limits = self._log.writer.accounts
        shared = self._coordination
        if isinstance(limits, SharedLimits) and isinstance(shared, protocols.CountingCoordination):
            return wire.LimitsStatus("coordination", f"1/{shared.processes}" if limits.is_away else None)
        own = "process" if isinstance(self.storage, MemoryStorage) else "storage"
        return wire.LimitsStatus("none" if limits is None else own, None)

    def status(self) -> wire.RouterStatus:
        """The state of all parts in use; those of the sandbox, which injects faults, only if all calls are in it."""
        in_sandbox = self.environment == "sandbox"
        fleets = [fleet for name, fleet in [*self._fleets.items()] if in_sandbox or name != "sandbox"]
        limits = self._log.writer.accounts
        cache = self.used_cache
        webhooks = self._webhooks
        outages = {"storage": self._log.writer.outage}
        for fleet in fleets:
            outages |= {CIRCUIT + name: outage for name, outage in [*fleet.outages.parts.items()]}
        outages["policies"] = self._stored.outage
        outages |= {f"policy {label}": outage for label, outage in self._stored.refused.items()}
        if self._discovery is not None:
            outages |= {f"models of {name}": outage for name, outage in self._discovery.outages.items()}
        if isinstance(limits, SharedLimits):
            outages["coordination"] = limits.outage
        if cache is not None:
            outages |= cache.outages
        if webhooks is not None:
            outages |= webhooks.outages
        deliveries = Counter[wire.DeliveryState]() if webhooks is None else webhooks.attempts
        return make_status(self._log, fleets, self._limits(), self.hooks, outages, deliveries)

    @cached_property
    def coordination(self) -> protocols.Coordination:
        """The coordination that was passed, else the one of the storage, else one for this process."""
        return self._coordination or coordination_of(self.storage, self.settings.clock)

    @cached_property
    def caching(self) -> Caching:
        """The response cache, made for the first request that uses it."""
        settings = self.settings.cache
        clock = self.settings.clock
        with importing.lock:
            from .backends.cache.memory import MemoryCache
            from .backends.embed import HashedEmbedder
        judge_usd = settings.judge_usd_a_day
        judge = Judge(lambda: self.engine, judge_usd, clock).compare if judge_usd else None
        return Caching(
            MemoryCache(clock=clock) if self._cache is None else self._cache,
            embedder=HashedEmbedder() if settings.embedder is None else settings.embedder,
            comparators=(NormalisedEquality(),) if settings.comparators is None else settings.comparators,
            judge=judge,
            evicted_below=settings.low_hit_rate,
            clock=clock,
            rng=self.settings.rng,
            worker=self.worker,
        )

    @cached_property
    def _token_counter(self) -> protocols.TokenCounter:
        if self.settings.tokens is not None:
            return self.settings.tokens
        with importing.lock:
            from .backends.tokens import PackedTokenCounter  # loads the tables' library

        return PackedTokenCounter()

    def _counter(
        self, request: wire.RouteRequest, bounds: wire.TokenBounds, encodings: Sequence[Vocabulary]
    ) -> wire.TokenBounds:
        with (
            importing.lock
        ):  # else a fork may come while Python 3.11's ``cached_property`` is locked, as in its child then
            counter = self._token_counter
        return count_request(counter, request, bounds, encodings)

    @property
    def used_cache(self) -> Caching | None:
        """The response cache, if one was passed or a request has used it."""
        return self.caching if self._cache is not None or "caching" in vars(self) else None

    async def tell_cache(self, caller: wire.Caller, trace_id: str, score: float) -> None:
        """Pass feedback on an answer to the response cache."""
        trace = None if self.used_cache is None else await self.engine.log.find(caller, trace_id)
        if trace is not None:
            await self.caching.feedback(caller, trace, score)

    async def forget_answers(self, account: str, environment: wire.Environment | None) -> None:
        """Remove an account's entries from the response cache."""
        if self.used_cache is not None:
            await self.caching.remove(wire.CacheSelection(account=account, environment=environment))

    @property
    def log(self) -> TraceLog:
        """The trace log. Raises ``RouterClosed``."""
        self._refuse_if_closed()
        self._log.keep_dropped()
        return self._log

    @cached_property
    def traces(self) -> TraceStore:
        """The traces of this Router's storage, including those not written yet."""
        return TraceStore.of_router(self.storage, self.settings, self.worker, self.forget_answers, self.environment)

    @cached_property
    def replays(self) -> Replays:
        """Replays decisions from snapshots of this Router or its storage."""

        def fleets() -> Sequence[Fleet]:
            self.fleet(self.environment)
            return self.fleets()

        def policies() -> Sequence[wire.PolicySnapshot]:
            return self.engine.policy_table.versions

        return Replays(fleets, policies, lambda snapshot_id: self.wait(self.log.snapshot, snapshot_id))

    @cached_property
    def readiness(self) -> Readiness:
        """Checks that the storage can be read and written."""
        return Readiness(self.storage, self.log.writer, self.worker, self.settings.clock)

    @property
    def trace_counts(self) -> TraceCounts:
        """Counts of traces that are not in the storage."""
        return self._log.writer.counts

    def wait(self, async_fn: Callable[..., Coroutine[object, object, T]], *args: object) -> T:
        """Run a storage operation from plain code: inline if the storage never waits, else in the worker."""
        if not isinstance(self.storage, protocols.ImmediateStorage):
            return self.worker.run(async_fn, *args)
        return at_once(async_fn(*args))

    def wait_long(self, async_fn: Callable[..., Coroutine[object, object, T]], *args: object) -> T:
        """Run something that may wait from plain code: in the worker, or inline on a virtual clock."""
        return at_once(async_fn(*args)) if self.settings.clock.virtual else self.worker.run(async_fn, *args)

    def reload_policies(self, policies: Sequence[wire.Policy] | None) -> list[wire.PolicyChanged]:
        """Publish policies, or those now in the file, at once. If any is invalid, nothing changes."""
        engine = self.engine
        if policies is not None:
            if self._policy_file is not None:
                problem = f"come from {self._policy_file.path}"
                raise ValidationFailed.at("policies", problem, "change the file, then call reload_policies()")
            policies = validate_policies(policies)
        with self._reloading.lock:  # not `_guard`: closing and first uses never wait for a file
            before = self._published
            engine.policy_table = self._publish() if policies is None else self._draw_policies(policies)
            changes = find_changes(before, self._published)
        engine.log.announce(changes, self.environment)
        return changes

    def close(self) -> None:
        """``aclose`` for plain code. Raises ``RuntimeError`` where it would wait for itself."""
        self.worker.check_blocking()
        fleets = self._leave()
        started_at = self.settings.clock.monotonic()
        if fleets is None:
            self._freed.block(CLOSE_S)
            return
        free = partial(self._free, fleets, started_at)
        with ExitStack() as closing:
            closing.callback(self._freed.set)
            try:
                self.worker.close(WORKER_S)
            finally:
                try:
                    in_new_loop(free, started_at + CLOSE_S - self.settings.clock.monotonic())
                except TimeoutError:
                    _logger.warning("closing continues without waiting for what blocks its event loop")

    async def aclose(self) -> None:
        """Refuse calls, let the worker and running calls end, write pending traces, and close providers and, last, the
        storage. A second call waits for the first."""
        fleets = self._leave()
        started_at = self.settings.clock.monotonic()
        if fleets is None:
            with self.settings.clock.deadline(started_at + CLOSE_S):
                await self._freed.wait()
            return
        async with AsyncExitStack() as closing:  # continues even if cancelled
            closing.callback(self._freed.set)
            closing.push_async_callback(self._free, fleets, started_at)
            await self._by(started_at + WORKER_BY_S, partial(self.worker.aclose, WORKER_S))

    def _leave(self) -> list[Fleet] | None:
        """Start to refuse calls. Returns the fleets to close, or None if it was closed before."""
        with self._guard.lock:
            if self._closed:
                return None
            self._log.keep_dropped()
            fleets = self.fleets()
            self._fleets.clear()  # so that the engine of a running stream finds none either
            self.running = None
            self._closed = True
            self._log.retries = False
            if self._webhooks is not None:
                self._webhooks.stop(self.worker.start)
            return fleets

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RouterClosed(CLOSED)

    async def _free(self, fleets: list[Fleet], started_at: float) -> None:
        """Close each part by its time, even if others fail. Failures are logged."""
        # Closing takes two seconds in all (contract 1), even if a provider hangs. With one deadline for everything the
        # first part that hangs would use it up, and the storage would never be closed. So each step has its own time,
        # and the stack runs the steps after one that failed, was late, or was cancelled. Last in is first out: calls
        # end and their traces are written before providers are closed, and the storage, which all of them use, comes
        # last.
        # Tests: test_everything_is_closed_even_where_closing_fails,
        # test_the_trace_of_a_call_that_outlives_the_router_is_lost_and_counted.

        async def close_providers() -> None:
            async with anyio.create_task_group() as group:
                for provider in providers:
                    group.start_soon(self._by, started_at + PROVIDERS_BY_S, provider.aclose)

        providers = [provider for fleet in fleets for provider in fleet.providers]
        providers += () if self._discovery is None else self._discovery.providers
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._by, started_at + STORAGE_BY_S, self.storage.aclose)
            if self.used_cache is not None:
                closing.push_async_callback(self._by, started_at + STORAGE_BY_S, self.caching.cache.aclose)
                closing.push_async_callback(self._by, started_at + PROVIDERS_BY_S, self.caching.calibrations.share)
            if self._coordination is not None or "coordination" in vars(self):
                closing.push_async_callback(self._by, started_at + STORAGE_BY_S, self.coordination.aclose)
            closing.push_async_callback(close_providers)
            closing.callback(self.hooks.close)
            closing.push_async_callback(self._log.writer.close)
            await self._by(started_at + CALLS_BY_S, self._log.all_ended)
            await self._by(started_at + TRACES_BY_S, self._log.writer.write)

    async def _by(self, at: float, close: Callable[[], Awaitable[object]]) -> None:
        name = getattr(close, "__qualname__", "the background thread")
        try:
            with self.settings.clock.deadline(at, shield=True) as limit:
                await close()
        except Exception as error:  # its message may contain a key
            _logger.error("closing continues after %s failed: %s", name, place_of(error))
        else:
            if limit.expired:
                _logger.warning("closing continues without waiting for %s", name)

    def _ensure_engine(self) -> Engine:
        if self.running is not None:
            return self.running
        settings = self.settings
        ids = self.ids
        admissions = Admissions(
            self.storage, self._log, self.worker, ids, settings.clock, self._defaults.timeout_ms,
            settings.unknown_accounts,
        )  # fmt: skip
        engine = Engine(
            log=self._log,
            admissions=admissions,
            fleet=self.fleet,
            fleets=self._fleets,
            servers=self.discovery,
            policies=self._publish(),
            counting=Counting(self._counter, settings.predictor, settings.clock),
            rng=settings.rng,
            decide_again=self.replays.decide,
            caching=lambda: self.caching,
            options=Options(
                self._defaults,
                self._guardrails,
                check_keys("rollup_keys", settings.rollup_keys),
                tuple(settings.workload_keys),
                settings.traceparent_to,
            ),
        )
        if settings.retention is not None or not isinstance(self.storage, protocols.ImmediateStorage):
            retention = None if settings.retention is None else settings.retention.write
            self.worker.start_daemon(sweep, self.storage, retention, settings.clock)
        if self._policy_file is not None:
            reload: weakref.WeakMethod[Reload] = weakref.WeakMethod(self.reload_policies)
            self.worker.start_daemon(watch, self._policy_file, reload, settings.clock)
        if self._is_shared:
            refresh: weakref.WeakMethod[Refresh] = weakref.WeakMethod(self._refresh_policies)
            self.worker.start_daemon(watch_storage, refresh, settings.clock)
        if self._coordination is not None:
            hear: weakref.WeakMethod[Hear] = weakref.WeakMethod(self._hear_circuit)
            self.worker.start_daemon(listen, self._coordination, hear, settings.clock)
        if self._webhooks is not None and options_of(self.storage, protocols.BaseStorage).accounts is not None:
            self._webhooks.wake()  # with other storages the first event wakes it
        self.running = engine
        return engine

    def _make_fleet(self, environment: wire.Environment | Literal["hosted"]) -> Fleet:
        models = self.catalogue.models
        providers: Sequence[protocols.Provider] = self._providers if environment != "hosted" else ()
        if environment == "hosted":  # a stand-in for every provider, for models that the host calls itself
            providers = [HostedProvider(name) for name in dict.fromkeys(model.provider for model in models)]
        if environment == "sandbox":
            models = overlay_providers(models, providers)
            providers = [SandboxProvider(models, self._answers, self._faults)]
        sharing = None
        if isinstance(self.storage, protocols.LocalStorage):
            sharing = Sharing(environment, self.storage, self.worker, self.settings.clock)
        fleet = Fleet(
            models,
            self.catalogue.aliases,
            providers,
            variables=self._variables,
            as_of=self.catalogue.as_of,
            clock=self.settings.clock,
            limits=self.settings.execution,
            sharing=sharing,
            problems=self.discovery.problems,
        )
        self.worker.renewals.add(fleet)
        coordination = self._coordination
        if coordination is not None:

            def tell(model: str, seconds: float) -> None:
                notice = wire.Notice(wire.CIRCUIT_TOPIC, f"{environment} {seconds:.3f} {model}")
                self.worker.start_if_open(coordination.announce, notice)

            fleet.announce = tell
        return fleet

    def _hear_circuit(self, message: str) -> None:
        words = message.split(" ", 2)  # environment, seconds and model, as ``tell`` writes them
        if words[0] in self._fleets:
            self._fleets[words[0]].open_circuit(words[2], float(words[1]))

    @property
    def _providers(self) -> Sequence[protocols.Provider]:
        if self._provider_list is None:
            with importing.lock:
                from .backends.providers.environment import providers_from_environment, variables_to_set

            self._provider_list = providers_from_environment(os.environ)
            self._variables = variables_to_set()
        return self._provider_list

    def _publish(self) -> PolicyTable:
        if self._policy_file is None:
            return self._draw_policies(self._policies)
        with self._policy_file.policies() as policies:
            return self._draw_policies(policies)

    def _draw_policies(self, policies: Sequence[wire.Policy], fleet: Fleet | None = None) -> PolicyTable:
        fleet = self._ensure_fleet(self.environment) if fleet is None else fleet
        index = ModelIndex(fleet.pool.models, fleet.aliases)
        drawn_policies = resolve(policies, index)
        versions = self._stored.load([version_write(policy, fleet.today()) for policy in drawn_policies])
        self._published = [*map(with_version, drawn_policies, versions)]
        self._in_force = policies
        return self._stored.table(self._published, index)

    @property
    def discovery(self) -> Discovery:
        """Asks the providers whose servers list their models."""
        if self._discovery is None:
            with self._guard.lock:
                if self._discovery is None:
                    providers = self._providers
                    servers = [server for server in providers if isinstance(server, protocols.DiscoveringProvider)]
                    servers = [server for server in servers if server.discovers]
                    patience_s = FIRST_S if len(servers) < len(providers) else ALONE_S
                    take = weakref.WeakMethod(self._take_discovered)
                    self._discovery = Discovery(servers, self.settings.clock, patience_s, take)
        return self._discovery

    def _take_discovered(self) -> bool:
        """Use the models that servers list now; running calls keep theirs. False: the list was refused and is to be
        tried again."""
        with self._reloading.lock, self._guard.lock:
            before = self._published
            engine = self.running
            fleets = dict[str, Fleet]()
            try:
                for name in ENVIRONMENTS & {*self._fleets}:
                    fleet = self._make_fleet(name)
                    if fleet.pool.snapshot != self._fleets[name].pool.snapshot:
                        fleets[name] = fleet
                if engine is not None and self.environment in fleets:
                    engine.policy_table = self._draw_policies(self._in_force, fleets[self.environment])
            except RouterError as error:
                text = f"the models that servers list are not used: {error}"
                self._listing.begin(self.settings.clock.monotonic(), text)
                return False
            self._listing.end(self.settings.clock.monotonic())
            for environment, fleet in fleets.items():
                fleet.learn_from(self._fleets[environment])
            self._fleets.update(fleets)
        if engine is not None:
            engine.log.announce(find_changes(before, self._published), self.environment)
        return True

    async def _refresh_policies(self) -> None:
        """Put in force what the storage publishes now, and replace provisional versions by its own."""
        unnamed = self._stored.provisional
        engine = self.running
        versions = await self._stored.refresh()
        if engine is None or versions is None:
            return
        with self._reloading.lock:
            fleet = self._fleets[self.environment]
            if versions and unnamed is self._stored.provisional:  # else they were reloaded meanwhile
                self._published = [*map(with_version, self._published, versions)]
                self._stored.provisional = ()
            engine.policy_table = self._stored.table(self._published, ModelIndex(fleet.pool.models, fleet.aliases))


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _resolve(environment: wire.Environment, caller: wire.Caller) -> wire.Caller:
    check_caller(caller)
    if environment == "sandbox" and caller.environment != "sandbox":
        return replace(caller, environment="sandbox")
    return caller
