"""Puts a Router's parts together, on first use and once."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, TypeVar

import anyio
from msgspec.structs import replace

from ._core.analytics.report import checked_keys
from ._core.attempts.faults import raised_in
from ._core.cache.answers import NormalisedEquality
from ._core.policy import changes_between, drawn, published, version_asked
from ._core.selector import Known
from ._core.webhooks.endpoint import PURPOSE
from ._engine.admission import Admissions
from ._engine.cache import Caching
from ._engine.context import TagScopes
from ._engine.fleet import Fleet, declared
from ._engine.hooks import Hooks
from ._engine.readiness import Readiness
from ._engine.record import Records
from ._engine.retention import sweep
from ._engine.route import Engine
from ._engine.sharing import Sharing
from ._engine.trace_log import TraceCounts, TraceLog
from ._engine.versions import PolicyNames
from ._engine.webhooks import Dispatcher, wake
from ._engine.worker import CLOSE_S, CLOSED, Worker
from .arguments import check_cache, check_caller, check_coordination, check_parts, check_replaceable, checked_policies
from .backends.providers.callable import HostedProvider
from .backends.providers.sandbox import Answers, Faults, SandboxProvider
from .backends.storage.memory import MemoryStorage
from .cache import Judge
from .catalogue import Catalogue
from .coordination import coordination_of
from .counting import Counter
from .errors import RouterClosed, RouterError
from .fork import Guard, importing, renew_in_children
from .guardrail import checked_guardrails
from .identity import Ids
from .loop import Signal, at_once, this_loop
from .policies import PolicyFile, Reload, watch
from .protocols import (
    Cache,
    Coordination,
    Guardrail,
    ImmediateStorage,
    LocalStorage,
    Provider,
    Storage,
)
from .replay import Replays
from .root_secret import RootSecret
from .settings import Settings
from .trace import TraceStore
from .wire import CacheSelection, Caller, Environment, Model, Policy, PolicyChanged, PolicySnapshot

T = TypeVar("T")

# seconds after the beginning by which each step of closing ends (contract 1: two in all)
WORKER_BY_S, CALLS_BY_S, TRACES_BY_S, PROVIDERS_BY_S, STORAGE_BY_S = 1.0, 1.1, 1.4, 1.7, 1.9
CALLERS = 1_024
"""Callers that need not be checked again."""
WORKER_S = 0.8  # it then has 0.2 for what it cancels

_logger = logging.getLogger(__name__)


class Parts:
    """What the views of one Router share. Nothing is read or made before it is asked for."""

    def __init__(
        self,
        providers: Sequence[Provider] | None,
        catalogue: Catalogue | None,
        policies: Sequence[Policy] | PolicyFile,
        storage: Storage | None,
        guardrails: Sequence[Guardrail],
        settings: Settings | None,
        coordination: Coordination | None = None,
        cache: Cache | None = None,
        *,
        environment: Environment = "production",
        answers: Answers | None = None,
        faults: Faults | None = None,
    ) -> None:
        settings = Settings() if settings is None else settings
        check_parts(providers, catalogue, policies, storage, settings)
        check_coordination(coordination)
        check_cache(cache)
        self._policy_file = policies if isinstance(policies, PolicyFile) else None
        self._policies = () if isinstance(policies, PolicyFile) else checked_policies(policies)
        self._published: list[PolicySnapshot] = []
        self._guardrails = checked_guardrails(guardrails)
        self.settings = settings
        self.environment: Environment = environment
        """Where callers are who do not say otherwise."""
        self.catalogue = Catalogue() if catalogue is None else catalogue
        self.storage: Storage = MemoryStorage(clock=settings.clock) if storage is None else storage
        self.worker = Worker(settings.clock)
        retry = weakref.WeakMethod(self.name_policies)
        self._versions = PolicyNames(self.storage, self.worker, settings.clock, retry)
        self.ids = Ids(settings.clock, settings.rng)
        self.resolve: Callable[[Caller], Caller] = lru_cache(CALLERS)(partial(_resolved, environment))
        """A checked caller in its environment; in a sandbox Router everybody is in the sandbox."""
        self.tags = TagScopes()
        self.hooks = Hooks(self.worker, settings.clock)
        self._webhooks: Dispatcher | None = None
        if settings.webhooks.deliver:
            root = RootSecret(self.storage, os.environ)
            self._webhooks = Dispatcher(
                self.storage,
                settings.webhooks.open_transport,
                partial(root.keys, PURPOSE),
                settings.clock,
                start=weakref.WeakMethod(self.worker.start_daemon),
                max_attempts=settings.webhooks.max_attempts,
            )
        self._log = TraceLog(
            self.storage,
            self.worker,
            self.hooks,
            settings.clock,
            settings.durability,
            emitted=partial(wake, self.storage),
        )
        self._coordination = coordination
        self._cache = cache
        self._records: Records | None = None
        self._given = providers
        self._variables: Mapping[str, str] = {}
        """What would have a provider found, by its name; nothing where they were given."""
        self._named = bool(providers)
        self._answers = answers
        self._faults = faults
        self._guard = Guard()
        self._reloading = Guard()
        self._fleets: dict[str, Fleet] = {}
        self.running: Engine | None = None
        """The pipeline, once it was asked for, until the Router is closed."""
        self._closed = False
        self._freed = Signal()
        if self._policy_file is not None:
            renew_in_children(self)

    def renew(self) -> None:
        """Begin as at first use: in a child nobody watches the file of policies yet."""
        self.running = None

    @property
    def engine(self) -> Engine:
        """The pipeline."""
        engine = self.running
        if engine is None:
            with self._guard.lock:
                self._refuse_if_closed()
                engine = self.running = self.running or self._make_engine()
        return engine

    def fleet(self, environment: Environment | Literal["hosted"]) -> Fleet:
        """Providers and models of an environment, or those of a host that has named none."""
        fleet = self._fleets.get(environment)
        if fleet is None:
            with self._guard.lock:
                self._refuse_if_closed()
                fleet = self._fleets.get(environment) or self._make_fleet(environment)
                self._fleets[environment] = fleet
        return fleet

    def hosted(self, environment: Environment) -> Fleet:
        """What a host may call that makes its calls itself: all that is in the catalogue, unless providers were
        passed."""
        if self._named or environment == "sandbox":
            return self.fleet(environment)
        return self.fleet("hosted")

    def fleets(self) -> list[Fleet]:
        """The fleets that were asked for so far."""
        return list(self._fleets.values())

    @cached_property
    def coordination(self) -> Coordination:
        """How this Router hears news from others: as was passed, else as all in this process do that share its
        storage."""
        return self._coordination or coordination_of(self.storage, self.settings.clock)

    @cached_property
    def caching(self) -> Caching:
        """The response cache, with what it learns: made when the first request asks for it."""
        settings, clock = self.settings.cache, self.settings.clock
        with importing.lock:
            from .backends.cache.memory import MemoryCache
            from .backends.embed.hashed import HashedEmbedder
        judge = None
        if settings.judge_usd_a_day:
            judge = Judge(lambda: self.engine, settings.judge_usd_a_day, clock).compare
        comparators = settings.comparators
        return Caching(
            MemoryCache(clock=clock) if self._cache is None else self._cache,
            embedder=HashedEmbedder() if settings.embedder is None else settings.embedder,
            comparators=(NormalisedEquality(),) if comparators is None else comparators,
            judge=judge,
            evicted_below=settings.low_hit_rate,
            clock=clock,
            rng=self.settings.rng,
            worker=self.worker,
        )

    @property
    def used_cache(self) -> Caching | None:
        """The response cache, if one was passed or a request has asked for it."""
        return self.caching if self._cache is not None or "caching" in vars(self) else None

    async def tell_cache(self, caller: Caller, trace_id: str, score: float) -> None:
        """Pass feedback on an answer to the response cache."""
        trace = None if self.used_cache is None else await self.engine.records.find(caller, trace_id)
        if trace is not None:
            await self.caching.feedback(caller, trace, score)

    async def forget_answers(self, account: str, environment: Environment | None) -> None:
        """Remove an account's entries from the response cache."""
        if self.used_cache is not None:
            await self.caching.remove(CacheSelection(account=account, environment=environment))

    @property
    def is_closed(self) -> bool:
        """No call is admitted any more."""
        return self._closed

    @property
    def log(self) -> TraceLog:
        """The way to the traces."""
        self._refuse_if_closed()
        self._keep_dropped()
        return self._log

    @cached_property
    def traces(self) -> TraceStore:
        """The traces of this Router's storage, with those that it has not written yet."""
        return TraceStore.of_router(self.storage, self.settings, self.worker, self.forget_answers)

    @cached_property
    def replays(self) -> Replays:
        """Decisions taken again from snapshots of this Router, or of its storage."""

        def fleets() -> Sequence[Fleet]:
            self.fleet(self.environment)
            return self.fleets()

        return Replays(fleets, lambda snapshot_id: self.wait(self.log.snapshot, snapshot_id))

    @cached_property
    def readiness(self) -> Readiness:
        """Whether its storage can be read and written."""
        return Readiness(self.storage, lambda: self.log.is_stuck, self.worker, self.settings.clock)

    @property
    def trace_counts(self) -> TraceCounts:
        """What is not in the storage."""
        return self._log.counts

    def wait(self, async_fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await something of the storage in a plain function: at once if it never waits, else by the worker."""
        if not isinstance(self.storage, ImmediateStorage):
            return self.worker.run(async_fn, *args)
        return at_once(async_fn(*args))

    def wait_long(self, async_fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await in a plain function what may wait: by the worker, but where virtual time would stand still."""
        return at_once(async_fn(*args)) if self.settings.clock.virtual else self.worker.run(async_fn, *args)

    def reload_policies(self, policies: Sequence[Policy] | None) -> list[PolicyChanged]:
        """Put policies, or those of the file as it is now, in force at once. What is not valid changes nothing."""
        engine = self.engine
        if policies is not None:
            check_replaceable(policies, self._policy_file)
            policies = checked_policies(policies)
        with self._reloading.lock:  # closing and first uses never wait for a file
            before = self._published
            engine.publish(self._publish() if policies is None else self._put_in_force(policies))
            changes = changes_between(before, self._published)
        engine.records.announce(changes, self.environment)
        return changes

    def close(self) -> None:
        """Do what ``aclose`` does from plain code. Raises ``RuntimeError`` where that would wait for itself."""
        self.worker.check_blocking()
        fleets, began = self._leave(), self.settings.clock.monotonic()
        if fleets is None:
            self._freed.block(CLOSE_S)
            return
        with ExitStack() as closing:
            closing.callback(self._freed.set)
            closing.callback(_run_apart, partial(self._free, fleets, began))
            self.worker.close(WORKER_S)

    async def aclose(self) -> None:
        """Refuse calls, let the worker and the calls under way end, write what waits, free providers and, last, the
        storage. Who closes again waits for the first to end."""
        fleets, began = self._leave(), self.settings.clock.monotonic()
        if fleets is None:
            with self.settings.clock.deadline(began + CLOSE_S):
                await self._freed.wait()
            return
        async with AsyncExitStack() as closing:  # goes on when it is cancelled, too
            closing.callback(self._freed.set)
            closing.push_async_callback(self._free, fleets, began)
            await self._by(began + WORKER_BY_S, partial(self.worker.aclose, WORKER_S))

    def _leave(self) -> list[Fleet] | None:
        """Begin to refuse calls. None: that had happened before."""
        with self._guard.lock:
            if self._closed:
                return None
            self._keep_dropped()
            fleets = self.fleets()
            self._fleets.clear()  # an engine that a stream still holds finds none either
            self.running, self._closed = None, True
            self._log.retries = False
            if self._webhooks is not None:
                self._webhooks.stop(self.worker.start)
            return fleets

    def _keep_dropped(self) -> None:
        if self._records is not None:
            self._records.keep_dropped()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RouterClosed(CLOSED)

    async def _free(self, fleets: list[Fleet], began: float) -> None:
        """Do each thing by its time, whatever became of those before it. What fails is logged: the answers are out."""
        providers = [provider for fleet in fleets for provider in fleet.providers]
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._by, began + STORAGE_BY_S, self.storage.aclose)
            if self.used_cache is not None:
                closing.push_async_callback(self._by, began + STORAGE_BY_S, self.caching.cache.aclose)
                closing.push_async_callback(self._by, began + PROVIDERS_BY_S, self.caching.share)
            if "coordination" in vars(self):
                closing.push_async_callback(self._by, began + STORAGE_BY_S, self.coordination.aclose)
            closing.push_async_callback(self._close_all, began + PROVIDERS_BY_S, providers)
            closing.callback(self.hooks.close)
            closing.callback(self._log.close)
            if self._records is not None:
                await self._by(began + CALLS_BY_S, self._records.all_ended)
            await self._by(began + TRACES_BY_S, self._log.write)

    async def _close_all(self, at: float, providers: list[Provider]) -> None:
        async with anyio.create_task_group() as group:
            for provider in providers:
                group.start_soon(self._by, at, provider.aclose)

    async def _by(self, at: float, close: Callable[[], Awaitable[object]]) -> None:
        name = getattr(close, "__qualname__", "the background thread")
        try:
            with self.settings.clock.deadline(at, shield=True) as limit:
                await close()
        except Exception as error:  # its words may be a key
            _logger.error("closing goes on after a fault of %s: %s", name, raised_in(error))
        else:
            if limit.expired:
                _logger.warning("closing goes on without waiting for %s", name)

    def _make_engine(self) -> Engine:
        settings, ids = self.settings, self.ids
        capture = None if settings.capture is None else settings.capture.started
        self._records = records = Records(self._log, self.hooks, self.worker, ids, settings.clock, capture)
        engine = Engine(
            ids=ids,
            records=records,
            admissions=Admissions(self.storage, self._log, self.worker, ids, settings.clock),
            fleet=self.fleet,
            fleets=self._fleets,
            policies=self._publish(),
            clock=settings.clock,
            rng=settings.rng,
            count=Counter(settings.tokens),
            predictor=settings.quality,
            default_output_cap=settings.limits.default_max_output_tokens,
            guardrails=self._guardrails,
            rollup_keys=checked_keys("rollup_keys", settings.rollup_keys),
            traceparent_to=settings.traceparent_to,
            decide_again=self.replays.decide,
            caching=lambda: self.caching,
        )
        if settings.retention is not None or not isinstance(self.storage, ImmediateStorage):
            retention = None if settings.retention is None else settings.retention.write
            self.worker.start_daemon(sweep, self.storage, retention, settings.clock)
        if self._policy_file is not None:
            reload: weakref.WeakMethod[Reload] = weakref.WeakMethod(self.reload_policies)
            self.worker.start_daemon(watch, self._policy_file, reload, settings.clock)
        if self._webhooks is not None and isinstance(self.storage, LocalStorage | MemoryStorage):
            self._webhooks.wake()  # a host's own storage is asked when the first event is there
        return engine

    def _make_fleet(self, environment: Environment | Literal["hosted"]) -> Fleet:
        models = self.catalogue.models
        providers = _hosted(models) if environment == "hosted" else self._providers
        if environment == "production":
            self._warn_if_stale()
        if environment == "sandbox":
            models = declared(models, providers)
            providers = [SandboxProvider(models, self._answers, self._faults)]
        sharing = None
        if isinstance(self.storage, LocalStorage):
            sharing = Sharing(environment, self.storage, self.worker, self.settings.clock)
        return Fleet(
            models,
            self.catalogue.aliases,
            providers,
            variables=self._variables,
            as_of=self.catalogue.as_of,
            clock=self.settings.clock,
            limits=self.settings.execution,
            sharing=sharing,
        )

    def _warn_if_stale(self) -> None:
        """Say that prices are old. Called once, since there is one fleet an environment."""
        today = datetime.fromtimestamp(self.settings.clock.time(), UTC).date().isoformat()
        said = stale(self.catalogue, today, self.settings.stale_after_days)
        if said:
            _logger.warning("%s, or raise settings.stale_after_days", said)

    @property
    def _providers(self) -> Sequence[Provider]:
        if self._given is None:
            with importing.lock:
                from .backends.providers.environment import providers_from_environment, variables_to_set

            self._given, self._variables = providers_from_environment(os.environ), variables_to_set()
        return self._given

    def _publish(self) -> list[PolicySnapshot]:
        if self._policy_file is None:
            return self._put_in_force(self._policies)
        with self._policy_file.policies() as policies:
            return self._put_in_force(policies)

    def _put_in_force(self, policies: Sequence[Policy]) -> list[PolicySnapshot]:
        fleet = self.fleet(self.environment)
        known = Known(fleet.pool.models, fleet.aliases)
        found = drawn(policies, known)
        versions = self._versions.of([version_asked(each, fleet.today()) for each in found])
        self._published = [*map(published, found, versions)]
        return self._published

    async def name_policies(self) -> bool:
        """Put the storage's versions in the place of this process's own. False: ask again later."""
        asked, engine = self._versions.unnamed, self.running
        if not asked:
            return True
        try:
            versions = await self._versions.ask(asked)
        except RouterError:
            return False
        with self._reloading.lock:
            if engine is None or asked is not self._versions.unnamed:
                return False
            self._published = [*map(published, self._published, versions)]
            self._versions.unnamed = []
            engine.publish(self._published)
        return True


def _hosted(models: Sequence[Model]) -> Sequence[Provider]:
    """Everybody's models, to be called by somebody else."""
    return [HostedProvider(name) for name in dict.fromkeys(model.provider for model in models)]


def _resolved(environment: Environment, caller: Caller) -> Caller:
    check_caller(caller)
    if environment == "sandbox" and caller.environment != "sandbox":
        return replace(caller, environment="sandbox")
    return caller


def _run_apart(async_fn: Callable[[], Awaitable[object]]) -> None:
    """Run it in an event loop of its own: in this thread, or else beside the loop that runs here."""
    if this_loop() is None:
        contextvars.Context().run(anyio.run, async_fn)  # a context may name a kind of loop that is not here
        return
    thread = threading.Thread(target=anyio.run, args=[async_fn], name="routewright-close", daemon=True)
    thread.start()
    thread.join(CLOSE_S)


def stale(catalogue: Catalogue, today: str, after_days: int | None) -> str:
    """What to say of a catalogue that is old; nothing of one that is not."""
    age = catalogue.age_days(today)
    if age is None or after_days is None or age <= after_days:
        return ""
    return f"the prices are of {catalogue.as_of}, {age} days ago: renew them with 'routewright catalogue import FILE'"
