"""The providers of one environment, the models they serve, and the snapshots that decisions are made from."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from math import inf
from types import MappingProxyType

from msgspec.structs import replace

from routewright import wire
from routewright._core.alerts import ErrorBursts
from routewright._core.attempts.breaker import Circuits
from routewright._core.attempts.health import Health, SharedHealth, health_after, health_snapshot
from routewright._core.attempts.journal import FOLDED_AT, MOST_WAITING, Journal
from routewright._core.attempts.machine import Rules
from routewright._core.attempts.record import Attempt
from routewright._core.attempts.retry import RetryBudget
from routewright._core.attempts.statistics import EPOCH_S, Entry, epoch_at
from routewright._core.attempts.timeouts import ExecutionLimits
from routewright._core.catalogue.models import check_aliases, mark_unavailable, snapshot
from routewright._core.model_selector import ModelIndex, match_models
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.constraints import Kind
from routewright._core.routing.pool import Pool
from routewright._runtime.fork import Guard
from routewright.errors import NoProviders, ProviderFault, ValidationFailed
from routewright.protocols import BaseProvider, Clock, Provider, options_of
from routewright.wire.timestamps import timestamp

from .declarations import as_served, caller_extra_of, is_whole, overlay_declared, read_models, servers_of
from .outages import Outages
from .shared_limits import Sharing

_log = logging.getLogger(__name__)
DAY_S = 86_400
MOST_SELECTIONS = 1_000
"""Keys whose words are resolved only once."""
PUBLISH_EVERY_S = 0.25
"""Least interval between two publications of health."""

DEGRADED_BELOW = 500
"""A model that answers fewer than this of a thousand calls, with confidence, is shown as degraded."""

_OVERRUN = (
    "%s billed %s tokens more than were admitted; budgets cover as much from now on: "
    "leave the model out of calls with a budget if that reserves too much"
)
NO_PROVIDER = (
    "no provider is configured; set a provider's key in the environment (OPENAI_API_KEY ...), "
    "pass Router(providers=[...]), or use Router.sandbox() for canned answers"
)


class Fleet:
    """Providers and their models. Safe to use from several threads; snapshots are immutable."""

    def __init__(
        self,
        models: Sequence[wire.Model],
        aliases: Mapping[str, str],
        providers: Sequence[Provider],
        *,
        variables: Mapping[str, str] | None = None,
        as_of: str,
        clock: Clock,
        limits: ExecutionLimits,
        sharing: Sharing | None = None,
        problems: Mapping[str, ProviderFault] | None = None,
    ) -> None:
        self._clock = clock
        self._sharing = sharing
        self._guard = Guard()
        self._midnight = -inf
        self.day = ""
        self.providers = providers
        self._problems = {} if problems is None else problems
        """Why a server lists no models now, by its provider's name."""
        self.aliases = aliases
        declarations = [read_models(provider, models) for provider in providers]
        models = overlay_declared(models, declarations)
        server = servers_of(models, providers, declarations)
        models = as_served(models, server)
        catalogue = snapshot(mark_unavailable(models, frozenset(server)), as_of)
        self.pool = Pool(catalogue, self.today())
        """The models at present prices. A running request uses the pool of its own board."""
        self.inline_version = f"inline@{as_of}"
        """The policy version of requests without a policy."""
        self.server: list[Provider | None] = [server.get(model) for model in self.pool.ids]
        """The provider of each row of the pool."""
        self.is_whole = [provider is not None and is_whole(provider) for provider in self.server]
        own = [options_of(provider, BaseProvider) for provider in self.server]
        self.needs_scope = [bool(provider.needs_scope) for provider in own]
        """For each row, True if its provider is limited by cancel scopes."""
        self.serves = bool(server)
        abilities = zip(self.pool.able.tolist(), self.server, strict=True)
        self.fetches_http = any(provider is not None and able & wire.Need.HTTP_URL for able, provider in abilities)
        """True if a provider supports images by URLs that begin with ``http://``."""
        self.caller_extra = caller_extra_of(server)
        check_aliases(aliases, self.pool.row)
        find_ids = partial(match_models, index=ModelIndex(catalogue.models, aliases))
        self.select: Callable[[tuple[str, ...]], tuple[str, ...]] = lru_cache(MOST_SELECTIONS)(find_ids)
        """Ids of the models that the words of a key match."""
        self.limits = limits
        retries = [provider.max_retries for provider in own]
        self.rules = Rules(limits, retries=retries if any(number is not None for number in retries) else None)
        """The default rules for attempts."""
        self.health = Health(self.pool) if sharing is None else SharedHealth(self.pool)
        self.circuits = Circuits([model.provider for model in self.pool.models], limits)
        self._retries = RetryBudget(limits)
        self._bursts = ErrorBursts()
        self._journal = Journal(self.health, self.circuits, self._retries, self._bursts)
        self.workloads = self._journal.workloads
        self._published = clock.monotonic()
        self.announce: Callable[[str, float], object] | None = None
        """Called when a circuit opens, with the model and the seconds."""
        self.outages = Outages()
        self.last_faults: dict[str, wire.LastFault] = {}
        """By model."""
        self._warned: set[str] = set()
        """Texts that were logged, and models whose overrun was."""
        self._look_at = inf
        """When to publish next; infinity before the first call."""
        if sharing is not None:
            self._look_at = self._published
            sharing.take = self._take
            sharing.stop = self._learn_alone
        self.boards = Boards(self.pool, aliases, variables)
        self._board = self.boards.of(health_snapshot({}))
        """The published state, replaced as a whole. A call keeps the one it started with."""
        self.renew()

    def renew(self) -> None:
        """After a fork: a publication that was running is over, and unshared observations are the parent's."""
        self._publishing = False
        self.outages.rescues.clear()
        if isinstance(self.health, SharedHealth):
            self.health.forget()

    def learn_from(self, before: Fleet) -> None:
        """Take over the health of common models from the fleet that this one replaces. Circuits start closed."""
        with before._guard.lock:
            before._journal.fold(before._board.forecast)
            self.workloads = self._journal.workloads = before.workloads
            self._warned = before._warned
            self._guard = before._guard  # calls of both use what follows
            self.outages = before.outages
            self.last_faults = before.last_faults
            self.outages.close_all(self._clock.monotonic())
            rows = {self.pool.row[model]: row for model, row in before.pool.row.items() if model in self.pool.row}
            overruns = before.health.overruns
            self.health.overruns = {row: overruns[theirs] for row, theirs in rows.items() if theirs in overruns}
            if not isinstance(before.health, SharedHealth):  # shared health is read from the storage
                self.health.learn_from(before.health, rows, self._clock.monotonic())
        self._look_at = min(before._look_at, self._published)
        self.outages.log()

    def board(self) -> Board:
        """The present snapshots, at today's prices. Publishes changes if they are due and no other thread does."""
        if not 0 < self._midnight - self._clock.time() <= DAY_S:
            self.today()
        if self._look_at != inf:
            now = self._clock.monotonic()
            if now >= self._look_at and (lock := self._guard.lock).acquire(blocking=False):
                try:
                    self._publish(now)
                finally:
                    lock.release()
                if self.outages.lines:
                    self.outages.log()
        board = self._board
        if board.pool.dated and not board.pool.holds(self.day):
            with self._guard.lock:
                if not self._board.pool.holds(self.day):
                    self.boards = self.boards_on(self.day)
                    self.pool = self.boards.pool
                    self._board = self.boards.of(self._board.forecast.health)
                return self._board
        return board

    def boards_on(self, day: str) -> Boards:
        """The boards at the prices of a day."""
        boards = self.boards
        if boards.pool.holds(day):
            return boards
        return Boards(Pool(boards.pool.snapshot, day), self.aliases, boards.variables)

    def models(self) -> list[wire.Model]:
        """Every model of the catalogue with its present status. Walks over the whole pool."""
        board = self._settled()
        eligible = board.boards.eligible(Kind(0, self.today(), (), is_named=True)).passed
        keyless = [row for row, provider in enumerate(self.server) if options_of(provider, BaseProvider).refused_keys]
        degraded = {*board.forecast.open, *keyless}
        models = list[wire.Model]()
        for row, model in enumerate(board.pool.models):
            availability = model.availability
            status: wire.AvailabilityStatus = "unavailable"
            if eligible[row]:  # never better than its provider declared
                status = (
                    "degraded"
                    if row in degraded or board.forecast.stability[row] < DEGRADED_BELOW
                    else availability.status
                )
            if model.deprecated_at is not None:  # a date, or a timestamp that may lack its zone
                at = datetime.fromisoformat(model.deprecated_at)
                at = at if at.tzinfo else at.replace(tzinfo=UTC)
                model = replace(model, deprecated_at=at.isoformat().replace("+00:00", "Z"))
            if status != availability.status:
                model = replace(model, availability=wire.Availability(status, availability.regions))
            models.append(model)
        return models

    @cached_property
    def names(self) -> Mapping[str, str]:
        return MappingProxyType({**self.aliases, **{model: model for model in self.pool.row}})

    @cached_property
    def candidates(self) -> bytes:
        """Digest of the served models and their providers."""
        served = [(model, server.name) for model, server in zip(self.pool.ids, self.server, strict=True) if server]
        return sha256(repr(sorted(served)).encode()).digest()[:16]

    def circuit_status(self) -> list[wire.CircuitStatus]:
        """The models that are not called for a while."""
        rows = self._settled().forecast.open
        now = self._clock.monotonic()
        statuses = list[wire.CircuitStatus]()
        for row in rows:
            model = self.pool.models[row]
            fault = self.last_faults.get(model.id)
            with self._guard.lock:
                probe_in_s = round(max(0.0, self.circuits.due(row) - now), 1)
            statuses.append(
                wire.CircuitStatus(model.id, model.provider, None if fault is None else fault.kind, probe_in_s)
            )
        return statuses

    def provider_status(self) -> list[wire.ProviderStatus]:
        """The state of the providers."""
        closed = self._settled().forecast.open
        rows_of = defaultdict[str, list[int]](list)
        for row, server in enumerate(self.server):
            if server is not None:
                rows_of[server.name].append(row)
        statuses = list[wire.ProviderStatus]()
        for provider in self.providers:
            name = provider.name
            own = options_of(provider, BaseProvider)
            rows = rows_of[name]
            with self._guard.lock:
                is_refused = any(self.circuits.is_tripped(row, credential=True) for row in rows)
            problem = self._problems.get(name)
            faults = (fault for row in rows if (fault := self.last_faults.get(self.pool.ids[row])) is not None)
            statuses.append(
                wire.ProviderStatus(
                    name=name,
                    models=len(rows),
                    keys=own.keys,
                    keys_refused=own.refused_keys or int(is_refused),
                    circuits_open=sum(row in closed for row in rows),
                    last_fault=max(faults, key=lambda fault: fault.at, default=None),
                    problem=None if problem is None else problem.message,
                )
            )
        return statuses

    def require_providers(self, caller: wire.Caller) -> None:
        """Raise ``NoProviders`` if no model can be called. Callers with a key do not see addresses of servers."""
        if self.serves:
            return
        names = ", ".join(provider.name for provider in self.providers)
        reason = f"no models are known for {names}; pass models=[Model(id=...)] to each" if names else NO_PROVIDER
        faults = self._problems.values()
        own = "; ".join(fault.message for fault in faults) or reason
        public = "; ".join(fault.public or fault.message for fault in faults) or reason
        text = own if caller.key_id is None else public
        error = NoProviders(text, detail={"rejected_candidates": [], "suggestion": text})
        if text != public:
            error.outside = public, {"rejected_candidates": [], "suggestion": public}
        raise error

    def explain(self, error: ValidationFailed) -> ValidationFailed:
        """An error about unknown models, with the server's failure as hint where its list is missing."""
        hints = {f"unknown model '{name}": fault.public or fault.message for name, fault in self._problems.items()}
        problems = [(problem, hints.get(problem.problem.partition("/")[0], problem.hint)) for problem in error.problems]
        return ValidationFailed.of(*(problem._replace(hint=hint) for problem, hint in problems))

    def today(self) -> str:
        now = self._clock.time()
        if not 0 < self._midnight - now <= DAY_S:
            self.day = datetime.fromtimestamp(now, UTC).date().isoformat()
            self._midnight = (now // DAY_S + 1) * DAY_S
        return self.day

    def count_request(self, now: float) -> None:
        """Count a request whose first attempt failed."""
        with self._guard.lock:
            self._retries.count_requests(now)

    def spares(self, now: float) -> bool:
        """True if the retry budget allows one more retry (``Traffic``)."""
        with self._guard.lock:
            if self._retries.take(now):  # folding could only raise the budget
                return True
            self._journal.fold(self._board.forecast)
            return self._retries.take(now)

    def record_overrun(self, attempt: Attempt, overrun: wire.Overrun) -> None:
        """Cover with budgets what the provider of an attempt has billed, from the next admission on."""
        with self._guard.lock:
            self.health.record_overrun(attempt.leg.row, overrun)
            if self._sharing is not None:
                self._sharing.poke()
            self._publish(self._clock.monotonic())
        excess = zip(attempt.excess, ("input", "output"), strict=True)
        parts = [f"{tokens:,} {side}" for tokens, side in excess if tokens > 0]
        if parts and attempt.model not in self._warned:
            self._warned.add(attempt.model)
            _log.warning(_OVERRUN, attempt.model, " and ".join(parts))

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text)

    def admits(self, row: int, now: float) -> bool | None:
        """True if a model may be called now; None: as a probe (``Traffic``)."""
        if row not in self.circuits.tripped:
            return True
        with self._guard.lock:
            if not self.circuits.admits(row, now):
                return False
            self._publish(self._clock.monotonic())
        return None

    def due(self, row: int) -> float:
        """When a refused model may be called again (``Traffic``)."""
        with self._guard.lock:
            return self.circuits.due(row)

    def record_answer(self, entry: Entry, *, probe: bool = False) -> None:
        entries = self._journal.entries
        waiting = len(entries)
        if self._sharing is not None and not waiting:
            self._sharing.poke()
        if self._look_at == inf:
            self._look_at = self._published + PUBLISH_EVERY_S
        if probe:
            with self._guard.lock:
                if self._journal.book_probe(entry, self._board.forecast):
                    now = self._clock.monotonic()
                    self._publish(now)
                    self.outages.close(self.pool.models[entry.row], now)
            self.outages.log()
            return
        if waiting < MOST_WAITING:
            entries.append(entry)
        if waiting >= FOLDED_AT - 1:
            self.fold()

    def record_fault(
        self,
        row: int,
        *,
        probe: bool = False,
        retry_after: float | None = None,
        credential: bool = False,
        alone: bool = False,
        kind: wire.FaultKind = wire.FaultKind.SERVER,
    ) -> None:
        """Book a fault of the provider, or of its ``credential``, after the answers before it. ``alone``: no call waits
        out its ``retry_after``."""
        model = self.pool.ids[row]
        with self._guard.lock:
            now = self._clock.monotonic()
            if self._look_at == inf:
                self._look_at = self._published + PUBLISH_EVERY_S
            self.last_faults[model] = wire.LastFault(model, kind.value, timestamp(self._clock.time()))
            self._journal.report_pending()
            if not credential:  # a credential says nothing about the model
                self.health.record_fault(row, now)
                if self._sharing is not None:
                    self._sharing.poke()
            moved = self.circuits.record_fault(
                row, now, probe=probe, retry_after=retry_after, credential=credential, alone=alone
            )
            if moved:
                self._publish(now)
                if self.circuits.is_tripped(row, credential=credential):
                    keys = options_of(self.server[row], BaseProvider).refused_keys if credential else 0
                    self.outages.open_circuit(self.pool.models[row], kind, self.circuits.due(row) - now, now, keys=keys)
        self.outages.log()
        if moved and self.announce is not None and not credential:  # other processes may have another credential
            self.announce(self.pool.ids[row], self.due(row) - now)

    def record_rescue(self, provider: str, kind: wire.FaultKind, model: str) -> None:
        """Count a call that a model answered after a provider's fault."""
        with self._guard.lock:
            self.outages.count_rescue(provider, kind, model, self._clock.monotonic())
            self._look_at = min(self._look_at, self.outages.due)
        self.outages.log()

    def open_circuit(self, model: str, seconds: float) -> None:
        """Open the circuit of a model because another process did."""
        row = self.pool.row.get(model)
        with self._guard.lock:
            now = self._clock.monotonic()
            if row is not None and seconds > 0 and self.circuits.open_for(row, now, seconds):
                self._publish(now)

    def release_probe(self, row: int) -> None:
        """Book a probe that ended without a verdict on the provider."""
        with self._guard.lock:
            now = self._clock.monotonic()
            if self.circuits.abandon_probe(row, now):
                self._publish(now)

    def count_end(self, account: Hashable, *, error: bool) -> wire.ErrorBurst | None:
        """Count a call that ended without an answer; ``error``: with a 5xx. Returns a burst of errors when it
        starts."""
        with self._guard.lock:
            self._journal.fold(self._board.forecast)
            return self._bursts.count_call(account, self._clock.monotonic(), error=error)

    def fold(self) -> None:
        """Book the answers in the journal, unless another thread is doing so."""
        if (lock := self._guard.lock).acquire(blocking=False):
            try:
                self._journal.fold(self._board.forecast)
            finally:
                lock.release()

    def _settled(self) -> Board:
        """The present board, with everything published."""
        if self._look_at != inf:
            with self._guard.lock:
                self._publish(self._clock.monotonic())
        return self.board()

    def _publish(self, now: float) -> None:
        """Fold the journal, take in the health that processes share, and publish changes. Call under the lock. If a
        garbage collection reenters it, the inner call is postponed."""
        if self._publishing:
            self._look_at = now
            return
        self._publishing = True
        try:
            board, ids = self._board, self.pool.ids
            self._published, self._look_at = now, now + PUBLISH_EVERY_S
            self._journal.fold(board.forecast)
            if isinstance(self.health, SharedHealth):
                at, health = self._clock.time(), self.health
                epoch = epoch_at(at)
                if epoch != health.epoch and self._sharing is not None:
                    rows = self._sharing.read(health.epoch)
                    if rows is not None:  # otherwise the storage is unavailable: the old figures stay
                        health.know(rows, epoch)
                self._look_at = now + max(0.0, (epoch + 1) * EPOCH_S - at)
            refusing = self.circuits.find_refusing(now) if self.circuits.tripped else {}
            if now >= self.outages.due:
                self.outages.look(now)
            self._look_at = min([self._look_at, self.outages.due, *refusing.values()])
            ahead_s = self._clock.time() - now
            moved = self.health.publish(now, {row: round((due + ahead_s) * 1000) for row, due in refusing.items()})
            if moved:
                after = health_after(board.forecast.health, {ids[row]: figures for row, figures in moved.items()})
                self._board = board.with_health(after, moved)
        finally:
            self._publishing = False

    def _take(self) -> dict[str, wire.Learned]:
        """The observations of this process since the last call."""
        with self._guard.lock:
            self._journal.fold(self._board.forecast)
            health = self.health
            return health.take(self._clock.monotonic(), self._clock.time()) if isinstance(health, SharedHealth) else {}

    def _learn_alone(self) -> None:
        """Use the health of this process only: the storage cannot share it."""
        with self._guard.lock:
            self._sharing = None
            overruns = self.health.overruns
            self.health = self._journal.health = Health(self.pool)
            self.health.overruns = overruns
