"""The providers of one environment, the models they serve, and the snapshots that decisions are made from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from math import inf
from types import MappingProxyType
from typing import TypeVar, get_args

from msgspec.structs import replace

from routewright._core.attempts.breaker import Circuits
from routewright._core.attempts.budgets import ExecutionLimits, RetryBudget
from routewright._core.attempts.health import Health, SharedHealth, health_after, health_snapshot
from routewright._core.attempts.journal import ErrorBursts, Journal
from routewright._core.attempts.learned import EPOCH_S, Entry, epoch_at
from routewright._core.attempts.machine import Rules
from routewright._core.catalogue.models import (
    check_aliases,
    given_fields,
    overlay,
    snapshot,
    unavailable,
    under_catalogue,
)
from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import shown
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.constraints import Kind
from routewright._core.routing.pool import Pool
from routewright.errors import NoProviders, Problem, ProviderFault, RouterError, ValidationFailed
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, ParticularProvider, Provider, RegionalProvider
from routewright.wire import Availability, AvailabilityStatus, Caller, ErrorBurst, Feature, Learned, Model

from .shared_limits import Sharing

T = TypeVar("T")
FEATURES = get_args(Feature)

DAY_S = 86_400
PUBLISH_EVERY_S = 0.25
"""Health reaches decisions at most this often."""

DEGRADED_BELOW = 500
"""A model that is sure to answer fewer of a thousand calls than this is shown as degraded."""

NO_PROVIDER = (
    "no provider is configured: set a provider's key in the environment (OPENAI_API_KEY ...), "
    "pass Router(providers=[...]), or use Router.sandbox() for canned answers"
)


class Fleet:
    """Providers and their models. Safe to use from several threads; snapshots are never changed, only replaced."""

    def __init__(
        self,
        models: Sequence[Model],
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
        """Why a server has no models now, by its provider's name."""
        self.aliases = aliases
        said = [_declared_by(provider, models) for provider in providers]
        models = _overlaid(models, said)
        server = _servers(models, providers, said)
        models = _as_served(models, server)
        catalogue = snapshot(unavailable(models, frozenset(server)), as_of)
        self.pool = Pool(catalogue, self.today())
        """The models at present prices. A request keeps to the pool of its board."""
        self.inline_version = f"inline@{as_of}"
        """What stands as the policy version where no policy is named."""
        self.server: list[Provider | None] = [server.get(model) for model in self.pool.ids]
        """Who serves each row of the pool."""
        self.is_whole = [provider is not None and _is_whole(provider) for provider in self.server]
        self.scoped = [bool(getattr(provider, "needs_scope", False)) for provider in self.server]
        """Of each row, whether waits for its provider are limited by cancel scopes."""
        self.serves = bool(server)
        check_aliases(aliases, self.pool.row)
        self.limits = limits
        retries = [getattr(provider, "max_retries", None) for provider in self.server]
        self.rules = Rules(limits, retries=retries if any(each is not None for each in retries) else None)
        """How requests are carried out that ask for nothing else."""
        self.health = Health(self.pool) if sharing is None else SharedHealth(self.pool)
        self.circuits = Circuits([model.provider for model in self.pool.models], limits)
        self._retries = RetryBudget(limits)
        self._bursts = ErrorBursts()
        self._journal = Journal(self.health, self.circuits, self._retries, self._bursts)
        self.workloads = self._journal.workloads
        self._published = clock.monotonic()
        self.tell: Callable[[str, float], object] | None = None
        """Called with a model that is left alone now, and for how long."""
        self._look_at = inf
        """When there may be something to publish: never, as long as nobody called, here or elsewhere."""
        if sharing is not None:
            self._look_at, sharing.take, sharing.stop = self._published, self._take, self._learn_alone
        self.boards = Boards(self.pool, aliases, variables)
        self._board = self.boards.of(health_snapshot({}))
        """What is published. All of it is one object, of which a call keeps the one that it found."""
        renew_in_children(self)

    def renew(self) -> None:
        """Publish again in a child that was forked from the midst of a publication. What was collected until then, the
        parent shares."""
        self._publishing = False
        if isinstance(self.health, SharedHealth):
            self.health.forget()

    def learn_from(self, before: Fleet) -> None:
        """Go on with what attempts at the same models taught the fleet in whose place this one is put. Circuits begin
        closed."""
        with before._guard.lock:
            before._journal.fold(before._board.outlook)
            self.workloads = self._journal.workloads = before.workloads
            if not isinstance(before.health, SharedHealth):  # the storage tells what those learned
                rows = {self.pool.row[model]: row for model, row in before.pool.row.items() if model in self.pool.row}
                self.health.learn_from(before.health, rows, self._clock.monotonic())
        self._look_at = min(before._look_at, self._published)

    def board(self) -> Board:
        """The present snapshots, at today's prices. Publishes what moved since, where it is time to and nobody else
        does just now."""
        if not 0 < self._midnight - self._clock.time() <= DAY_S:
            self.today()
        if self._look_at != inf:
            now = self._clock.monotonic()
            if now >= self._look_at and (lock := self._guard.lock).acquire(blocking=False):
                try:
                    self._publish(now)
                finally:
                    lock.release()
        board = self._board
        if board.pool.dated and not board.pool.holds(self.day):
            with self._guard.lock:
                if not self._board.pool.holds(self.day):
                    self.boards = self.boards_on(self.day)
                    self.pool = self.boards.pool
                    self._board = self.boards.of(self._board.outlook.health)
                return self._board
        return board

    def boards_on(self, day: str) -> Boards:
        """The boards at the prices of a day, which need not be today."""
        boards = self.boards
        if boards.pool.holds(day):
            return boards
        return Boards(Pool(boards.pool.snapshot, day), self.aliases, boards.variables)

    def models(self) -> list[Model]:
        """Every model of the catalogue, each with whether it can be called now. Costs a walk over the whole pool."""
        board = self._settled()
        called = board.boards.eligible(Kind(0, self.today(), (), named=True)).passed
        short_of_keys = [row for row, each in enumerate(self.server) if getattr(each, "refused_keys", 0)]
        stability, shaky = board.outlook.stability, {*board.outlook.open, *short_of_keys}
        return [
            _at_present(model, called=bool(called[row]), shaky=row in shaky or stability[row] < DEGRADED_BELOW)
            for row, model in enumerate(board.pool.models)
        ]

    @property
    def refused_keys(self) -> int:
        """How many keys are not used, since their vendors refused them."""
        return sum(getattr(each, "refused_keys", 0) for each in self.providers)

    @cached_property
    def names(self) -> Mapping[str, str]:
        return MappingProxyType({**self.aliases, **{model: model for model in self.pool.row}})

    @cached_property
    def candidates(self) -> bytes:
        """Digest of the models that are called, and by whom."""
        served = [(model, server.name) for model, server in zip(self.pool.ids, self.server, strict=True) if server]
        return sha256(repr(sorted(served)).encode()).digest()[:16]

    @property
    def open_circuits(self) -> int:
        return len(self._settled().outlook.open)

    def require_providers(self, caller: Caller) -> None:
        """Raise ``NoProviders`` if nothing can be called. Addresses are told to the owner of the process alone."""
        if self.serves:
            return
        names = ", ".join(provider.name for provider in self.providers)
        said = f"no model is known of {names}: give each its models=[Model(id=...)]" if names else NO_PROVIDER
        faults = self._problems.values()
        own = "; ".join(fault.message for fault in faults) or said
        public = "; ".join(fault.public or fault.message for fault in faults) or said
        told = own if caller.key_id is None else public
        error = NoProviders(told, detail={"rejected_candidates": [], "suggestion": told})
        if told != public:
            error.outside = public, {"rejected_candidates": [], "suggestion": public}
        raise error

    def explained(self, error: ValidationFailed) -> ValidationFailed:
        """An error about unknown models, which says so where the server that may have them has none now."""
        hints = {f"unknown model '{name}": fault.public or fault.message for name, fault in self._problems.items()}
        found = [(each, hints.get(each.problem.partition("/")[0], each.hint)) for each in error.problems]
        return ValidationFailed.of(*(each._replace(hint=hint) for each, hint in found))

    def today(self) -> str:
        now = self._clock.time()
        if not 0 < self._midnight - now <= DAY_S:
            self.day = datetime.fromtimestamp(now, UTC).date().isoformat()
            self._midnight = (now // DAY_S + 1) * DAY_S
        return self.day

    def asked(self, now: float) -> None:
        """A request made its first call, and that failed."""
        with self._guard.lock:
            self._retries.asked(now)

    def spares(self, now: float) -> bool:
        """Whether the retry budget has one more second try (``Traffic``)."""
        with self._guard.lock:
            if self._retries.take(now):  # with more requests booked it would be spared, too
                return True
            self._journal.fold(self._board.outlook)
            return self._retries.take(now)

    def admits(self, row: int, now: float) -> bool | None:
        """Whether a model may be called now; None: as a probe (``Traffic``)."""
        if row not in self.circuits.tripped:
            return True
        with self._guard.lock:
            if not self.circuits.admits(row, now):
                return False
            self._publish(self._clock.monotonic())
        return None

    def due(self, row: int) -> float:
        """When a model that is not admitted may be called again (``Traffic``)."""
        with self._guard.lock:
            return self.circuits.due(row)

    def answered(self, entry: Entry, *, probe: bool = False) -> None:
        if self._sharing is not None and not self._journal:
            self._sharing.poke()
        if self._look_at == inf:
            self._look_at = self._published + PUBLISH_EVERY_S
        if probe:
            with self._guard.lock:
                if self._journal.probed(entry, self._board.outlook):
                    self._publish(self._clock.monotonic())
        elif self._journal.append(entry):
            self.fold()

    def failed(
        self,
        row: int,
        *,
        probe: bool = False,
        retry_after: float | None = None,
        credential: bool = False,
        alone: bool = False,
    ) -> None:
        """Book a fault of the provider's, or of its ``credential``, after the answers that came before it. ``alone``:
        nobody waits its ``retry_after`` out."""
        with self._guard.lock:
            now = self._clock.monotonic()
            if self._look_at == inf:
                self._look_at = self._published + PUBLISH_EVERY_S
            self._journal.heed()
            if not credential:  # which says nothing of the model
                self.health.failed(row, now)
                if self._sharing is not None:
                    self._sharing.poke()
            moved = self.circuits.failed(
                row, now, probe=probe, retry_after=retry_after, credential=credential, alone=alone
            )
            if moved:
                self._publish(now)
        if moved and self.tell is not None and not credential:  # others may have another one
            self.tell(self.pool.ids[row], self.due(row) - now)

    def heard(self, model: str, seconds: float) -> None:
        """Leave a model alone that another process does, if it is called here."""
        row = self.pool.row.get(model)
        with self._guard.lock:
            now = self._clock.monotonic()
            if row is not None and seconds > 0 and self.circuits.heard(row, now, seconds):
                self._publish(now)

    def left(self, row: int) -> None:
        """Book that a probe was left without a word on the provider."""
        with self._guard.lock:
            now = self._clock.monotonic()
            if self.circuits.left(row, now):
                self._publish(now)

    def ended(self, whose: Hashable, *, error: bool) -> ErrorBurst | None:
        """Count a call that ended without an answer, with a 5xx or otherwise. Gives a burst when it begins."""
        with self._guard.lock:
            self._journal.fold(self._board.outlook)
            return self._bursts.ended(whose, self._clock.monotonic(), error=error)

    def fold(self) -> None:
        """Book the answers that wait, unless somebody does just now."""
        if (lock := self._guard.lock).acquire(blocking=False):
            try:
                self._journal.fold(self._board.outlook)
            finally:
                lock.release()

    def _settled(self) -> Board:
        """The present board, once all that is known is published."""
        if self._look_at != inf:
            with self._guard.lock:
                self._publish(self._clock.monotonic())
        return self.board()

    def _publish(self, now: float) -> None:
        """Fold, and publish what moved, if anything did. To be called under the lock; where a garbage collection within
        calls it again, that is left to the next."""
        if self._publishing:
            self._look_at = now
            return
        self._publishing = True
        try:
            board, ids = self._board, self.pool.ids
            self._published, self._look_at = now, now + PUBLISH_EVERY_S
            self._journal.fold(board.outlook)
            if isinstance(self.health, SharedHealth):
                self._look_at = now + self._hear(self.health)
            kept_away = self.circuits.kept_away(now) if self.circuits.tripped else {}
            self._look_at = min([self._look_at, *kept_away.values()])
            ahead_s = self._clock.time() - now
            moved = self.health.publish(now, {row: round((due + ahead_s) * 1000) for row, due in kept_away.items()})
            if moved:
                health = health_after(board.outlook.health, {ids[row]: figures for row, figures in moved.items()})
                self._board = board.moved(health, moved)
        finally:
            self._publishing = False

    def _hear(self, health: SharedHealth) -> float:
        """Go by what all processes know in this epoch; the seconds until the next. As long as the storage is away, it
        stays what was known before."""
        at = self._clock.time()
        epoch = epoch_at(at)
        if epoch != health.epoch and self._sharing is not None:
            rows = self._sharing.read(health.epoch)
            if rows is not None:
                health.know(rows, epoch)
        return max(0.0, (epoch + 1) * EPOCH_S - at)

    def _take(self) -> dict[str, Learned]:
        """What this process learned since it was taken last."""
        with self._guard.lock:
            self._journal.fold(self._board.outlook)
            health = self.health
            return health.take(self._clock.monotonic(), self._clock.time()) if isinstance(health, SharedHealth) else {}

    def _learn_alone(self) -> None:
        """Go by what this process learns: the storage keeps nothing of it."""
        with self._guard.lock:
            self._sharing = None
            self.health = self._journal.health = Health(self.pool)


def declared(models: Sequence[Model], providers: Sequence[Provider]) -> tuple[Model, ...]:
    """A catalogue with what providers say of their models put over it. Raises ``ValidationFailed``."""
    return _overlaid(models, [_declared_by(provider, models) for provider in providers])


def _overlaid(models: Sequence[Model], said: Sequence[Sequence[Model]]) -> tuple[Model, ...]:
    return overlay(models, [given_fields(model) for declared_here in said for model in declared_here])


def _as_served(models: Sequence[Model], server: Mapping[str, Provider]) -> list[Model]:
    """Return the models as their providers serve them: without the features that those do not take, and in their
    regions, which take precedence over the catalogue's."""
    servers = {id(each): each for each in server.values()}.values()
    # asked once each: of protocols it takes its time
    particular = {id(each): each for each in servers if isinstance(each, ParticularProvider)}
    regions = {id(each): _region_of(each) for each in servers}
    made: list[Model] = []
    for model in models:
        key = id(server.get(model.id))
        if key in particular and (lacking := {*(model.unsupported or ()), *_lacking(particular[key], model)}):
            model = replace(model, unsupported=tuple(sorted(lacking)))
        if region := regions.get(key):
            model = replace(model, availability=replace(model.availability, regions=(region,)))
        made.append(model)
    return made


def _lacking(server: ParticularProvider, model: Model) -> set[Feature]:
    asked = f"unsupported() of {shown(server.name)}"
    said: object = _said(asked, lambda: server.unsupported(model))
    if isinstance(said, Collection) and not isinstance(said, str) and all(each in FEATURES for each in said):
        return {*said}
    raise ValidationFailed.of(
        Problem("providers", f"{asked} gave {shown(said)}", f"give some of {', '.join(FEATURES)}")
    )


def _region_of(provider: Provider) -> str | None:
    asked = f"region of {shown(provider.name)}"
    region: object = _said(asked, lambda: provider.region if isinstance(provider, RegionalProvider) else None)
    if region is None or isinstance(region, str):
        return region
    raise ValidationFailed.of(Problem("providers", f"{asked} is {shown(region)}", "make it a string, or None"))


def _is_whole(provider: Provider) -> bool:
    return _said(f"whole of {shown(provider.name)}", lambda: bool(getattr(provider, "whole", False)))


def _said(asked: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except RouterError:
        raise
    except Exception as error:  # its words stay there
        problem = Problem("providers", f"{asked} failed with {type(error).__name__}", "let it answer without a fault")
        raise ValidationFailed.of(problem) from error


def _at_present(model: Model, *, called: bool, shaky: bool) -> Model:
    """The model with its present status, which is never better than what its provider said."""
    said = model.availability
    status: AvailabilityStatus = "unavailable"
    if called:
        status = "degraded" if shaky else said.status
    if model.deprecated_at is not None:  # a date, or a timestamp that may lack its zone
        at = datetime.fromisoformat(model.deprecated_at)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        model = replace(model, deprecated_at=at.isoformat().replace("+00:00", "Z"))
    return model if status == said.status else replace(model, availability=Availability(status, said.regions))


def _declared_by(provider: Provider, known: Sequence[Model]) -> tuple[Model, ...]:
    """What a provider says it serves, asked once: another time it may say something else. What a server says stands
    under what the catalogue does."""
    asked = f"models() of {shown(provider.name)}"
    said: object = _said(asked, provider.models)
    if isinstance(said, Sequence) and not isinstance(said, str):
        listed: Sequence[Model] = said
        declared = _said(asked, lambda: tuple(listed))
        if getattr(provider, "discovers", False):
            return under_catalogue(declared, known)
        return declared
    if isinstance(said, Coroutine):
        said.close()  # else it warns that nobody awaited it
        raise ValidationFailed.of(Problem("providers", f"{asked} is a coroutine", "make it a plain function"))
    raise ValidationFailed.of(Problem("providers", f"{asked} gave {shown(said)}", "give a list of Model"))


def _servers(
    models: Sequence[Model], providers: Sequence[Provider], said: Sequence[Sequence[Model]]
) -> dict[str, Provider]:
    """Who serves which model. Two that serve one model are refused: nobody could say which of them was meant."""
    server: dict[str, Provider] = {}
    for provider, declared_here in zip(providers, said, strict=True):
        ids = [model.id for model in declared_here]
        for model_id in ids or [model.id for model in models if model.provider == provider.name]:
            if model_id in server:
                raise ValidationFailed.of(_served_twice(server[model_id], provider, model_id))
            server[model_id] = provider
    return server


def _served_twice(first: Provider, second: Provider, model_id: str) -> Problem:
    if first is second:
        return Problem("providers", f"models() of {shown(first.name)} gave {quoted(model_id)} twice", "give it once")
    problem = f"{shown(first.name)} and {shown(second.name)} both serve {quoted(model_id)}"
    return Problem("providers", problem, "declare it for one of them")
