"""Puts a Router's parts together, on first use and once."""

from __future__ import annotations

import contextvars
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, TypeVar

import anyio

from ._core.policy import checked_policy, publish
from ._core.problem import shown
from ._core.rules import check_names
from ._core.selector import Known
from ._core.tokens import Vocabulary, count_request
from ._engine.fleet import Fleet, declared
from ._engine.loop import Signal, this_loop
from ._engine.route import Engine
from ._engine.trace import TraceCounts, TraceLog
from ._engine.worker import CLOSE_S, CLOSED, Worker
from .backends.providers.sandbox import Answers, Faults, SandboxProvider
from .backends.storage.memory import MemoryStorage
from .catalogue import Catalogue
from .errors import Problem, RouterClosed, ValidationFailed
from .fork import Guard, importing
from .protocols import ImmediateStorage, Provider, Storage, TokenCounter
from .settings import Settings
from .wire import Environment, Policy, PolicySnapshot, RouteRequest, TokenBounds

T = TypeVar("T")

# seconds after the beginning by which each step of closing ends (contract 1: two in all)
WORKER_BY_S, TRACES_BY_S, PROVIDERS_BY_S, STORAGE_BY_S = 1.0, 1.4, 1.7, 1.9
WORKER_S = 0.8  # it then has 0.2 for what it cancels

_logger = logging.getLogger(__name__)


class Parts:
    """What the views of one Router share. Nothing is read or made before it is asked for."""

    def __init__(
        self,
        providers: Sequence[Provider] | None,
        catalogue: Catalogue | None,
        policies: Sequence[Policy],
        storage: Storage | None,
        settings: Settings | None,
        *,
        environment: Environment = "production",
        answers: Answers | None = None,
        faults: Faults | None = None,
    ) -> None:
        settings = Settings() if settings is None else settings
        _check(providers, catalogue, policies, storage, settings)
        self._policies = tuple(checked_policy(policy, place) for place, policy in enumerate(policies))
        self.settings = settings
        self.environment: Environment = environment
        """Where callers are who do not say otherwise."""
        self.catalogue = Catalogue() if catalogue is None else catalogue
        self.storage: Storage = MemoryStorage() if storage is None else storage
        self.worker = Worker(settings.clock)
        self._log = TraceLog(self.storage, self.worker)
        self._given = providers
        self._missed = ""
        self._answers = answers
        self._faults = faults
        self._guard = Guard()
        self._fleets: dict[Environment, Fleet] = {}
        self._engine: Engine | None = None
        self._closed = False
        self._freed = Signal()

    @property
    def engine(self) -> Engine:
        """The pipeline."""
        engine = self._engine
        if engine is None:
            with self._guard.lock:
                self._refuse_if_closed()
                engine = self._engine = self._engine or self._make_engine()
        return engine

    def fleet(self, environment: Environment) -> Fleet:
        """Providers and models of an environment."""
        fleet = self._fleets.get(environment)
        if fleet is None:
            with self._guard.lock:
                self._refuse_if_closed()
                fleet = self._fleets.get(environment) or self._make_fleet(environment)
                self._fleets[environment] = fleet
        return fleet

    def fleets(self) -> list[Fleet]:
        """The fleets that were asked for so far."""
        return list(self._fleets.values())

    @property
    def log(self) -> TraceLog:
        """The way to the traces."""
        self._refuse_if_closed()
        self._keep_dropped()
        return self._log

    @property
    def trace_counts(self) -> TraceCounts:
        """What is not in the storage."""
        return self._log.counts

    def wait(self, async_fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await something of the storage in a plain function: at once if it never waits, else by the worker."""
        if not isinstance(self.storage, ImmediateStorage):
            return self.worker.run(async_fn, *args)
        waiting = async_fn(*args)
        try:
            waiting.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        waiting.close()
        raise RuntimeError(f"{type(self.storage).__name__} says that it is immediate and yet waits")

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
        """Refuse calls, let the worker end, write what waits, free providers and, last, the storage. Who closes again
        waits for the first to end."""
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
            fleets, self._fleets = self.fleets(), {}
            self._engine, self._closed = None, True
            self._log.retries = False
            return fleets

    def _keep_dropped(self) -> None:
        if self._engine is not None:
            self._engine.keep_dropped()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RouterClosed(CLOSED)

    async def _free(self, fleets: list[Fleet], began: float) -> None:
        """Do each thing by its time, whatever became of those before it. What fails is logged: the answers are out."""
        providers = [provider for fleet in fleets for provider in fleet.providers]
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._by, began + STORAGE_BY_S, self.storage.aclose)
            closing.push_async_callback(self._close_all, began + PROVIDERS_BY_S, providers)
            closing.callback(self._log.close)
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
        except Exception:
            _logger.exception("closing goes on after a fault of %s", name)
        else:
            if limit.expired:
                _logger.warning("closing goes on without waiting for %s", name)

    def _make_engine(self) -> Engine:
        settings = self.settings
        return Engine(
            fleet=self.fleet,
            policies=self._published(),
            log=self._log,
            clock=settings.clock,
            rng=settings.rng,
            count=Counter(settings.tokens),
            predictor=settings.quality,
            default_output_cap=settings.limits.default_max_output_tokens,
        )

    def _make_fleet(self, environment: Environment) -> Fleet:
        models, providers = self.catalogue.models, self._providers
        if environment == "sandbox":
            models = declared(models, providers)
            providers = [SandboxProvider(models, self._answers, self._faults)]
        return Fleet(
            models,
            self.catalogue.aliases,
            providers,
            as_of=self.catalogue.as_of,
            clock=self.settings.clock,
            missed=self._missed,
        )

    @property
    def _providers(self) -> Sequence[Provider]:
        if self._given is None:
            with importing.lock:
                from .backends.providers.environment import providers_from_environment, unspoken

            self._missed = unspoken(os.environ)
            self._given = providers_from_environment(os.environ)
        return self._given

    def _published(self) -> list[PolicySnapshot]:
        fleet = self.fleet(self.environment)
        return publish(self._policies, fleet.today(), Known(fleet.pool.models, fleet.aliases))


def _run_apart(async_fn: Callable[[], Awaitable[object]]) -> None:
    """Run it in an event loop of its own: in this thread, or else beside the loop that runs here."""
    if this_loop() is None:
        contextvars.Context().run(anyio.run, async_fn)  # a context may name a kind of loop that is not here
        return
    thread = threading.Thread(target=anyio.run, args=[async_fn], name="routewright-close", daemon=True)
    thread.start()
    thread.join(CLOSE_S)


def check_storage(storage: object) -> None:
    """Refuse what is no storage. Raises ``ValidationFailed``."""
    if isinstance(storage, type) or not isinstance(storage, Storage):
        raise ValidationFailed.of(Problem("storage", f"{shown(storage)} is not a storage", "pass MemoryStorage()"))


def _check(providers: object, catalogue: object, policies: object, storage: object, settings: object) -> None:
    """Refuse what is not of its kind: the name of a file, say, or one thing in the place of a list."""
    if providers is not None:
        _check_providers(providers)
    if catalogue is not None and not isinstance(catalogue, Catalogue):
        problem = Problem("catalogue", f"is {type(catalogue).__name__}", "pass Catalogue.load(path) or a Catalogue")
        raise ValidationFailed.of(problem)
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        problem = Problem("policies", "is not a list of Policy", "pass read_policies(path) or [Policy(...)]")
        raise ValidationFailed.of(problem)
    if storage is not None:
        check_storage(storage)
    if not isinstance(settings, Settings):
        raise ValidationFailed.of(Problem("settings", f"{shown(settings)} is not Settings", "pass Settings(...)"))


def _check_providers(providers: object) -> None:
    if isinstance(providers, Provider):
        problem = f"{shown(providers)} is one provider, not a list"
        raise ValidationFailed.of(Problem("providers", problem, "put it into one: providers=[...]"))
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        hint = "pass [OpenAIProvider(...)]; without the argument they are found from the environment"
        raise ValidationFailed.of(Problem("providers", f"{shown(providers)} is not a list of providers", hint))
    for place, provider in enumerate(providers):
        if not isinstance(provider, Provider) or not isinstance(provider.name, str):
            hint = "pass an OpenAIProvider, a CallableProvider, or what has name, models, open and aclose as they do"
            raise ValidationFailed.of(Problem(f"providers[{place}]", f"{shown(provider)} is not a provider", hint))
        check_names({f"providers[{place}].name": provider.name})
        if inspect.iscoroutinefunction(provider.open) or inspect.isasyncgenfunction(provider.open):
            problem = f"open() of {provider.name!r} is a coroutine or generator"
            hint = "decorate it with @asynccontextmanager, and yield an async iterator of chunks"
            raise ValidationFailed.of(Problem(f"providers[{place}]", problem, hint))


class Counter:
    """Counts a request's tokens exactly, with tables that are loaded when they are first needed."""

    def __init__(self, counter: TokenCounter | None) -> None:
        self._counter = counter

    def __call__(self, request: RouteRequest, bounds: TokenBounds, encodings: Sequence[Vocabulary]) -> TokenBounds:
        """Narrow the bounds of a request as far as counting can."""
        if self._counter is None:
            with importing.lock:
                from .backends.tokens import PackedTokenCounter  # loads the tables' library

            self._counter = PackedTokenCounter()
        return count_request(self._counter, request, bounds, encodings)
