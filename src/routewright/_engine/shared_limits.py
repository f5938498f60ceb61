"""State shared by processes: rate limits through a coordination, learned health through the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from cachetools import LRUCache
from msgspec.structs import asdict, replace

from routewright import wire
from routewright._core.accounts.keys import check_key
from routewright._core.accounts.payer import parties_of
from routewright._core.attempts.statistics import EPOCH_S, add_learned
from routewright._core.limits import Window, limit_error
from routewright._core.outage import Outage
from routewright._runtime.fork import Guard
from routewright._runtime.loop import at_once
from routewright._runtime.worker import Job, Worker
from routewright.errors import RateLimited, RouterError, UnsupportedWrite
from routewright.protocols import Accounts, Clock, CountingCoordination, Facts, LocalStorage

from .storage import GuardedStorage


class Sharing:
    """Exchanges one fleet's health with a storage on this machine. ``take`` returns the observations since its last
    call; ``stop`` is called if the storage cannot keep them."""

    take: Callable[[], dict[str, wire.Learned]]
    stop: Callable[[], object]

    def __init__(self, fleet: str, storage: LocalStorage, worker: Worker, clock: Clock) -> None:
        self._fleet = fleet
        self._path = storage.path
        self._storage = GuardedStorage(storage)
        self._clock = clock
        self._job = Job(worker, self._write, EPOCH_S)
        self._unsent: dict[str, wire.Learned] = {}

    def poke(self) -> None:
        """Schedule a write of new observations."""
        self._job.delay = EPOCH_S - (self._clock.time() - EPOCH_S / 2) % EPOCH_S
        self._job.poke()

    def read(self, epoch: int) -> list[wire.LearnedModel] | None:
        """Read what was added since an epoch, without waiting. None: the storage is unavailable."""
        if not self._path.exists():  # a decision does not create the file
            return []
        query = wire.LearnedSince(self._fleet, epoch)
        try:
            models: list[wire.LearnedModel] = at_once(self._storage.read(wire.SYSTEM_ACCOUNT, query))
        except (UnsupportedWrite, RuntimeError):
            self.stop()
            return None
        except RouterError:
            return None
        return models

    async def _write(self) -> None:
        unsent, self._unsent = self._unsent, {}
        models = self.take()
        for model, learned in unsent.items():
            models[model] = add_learned(models[model], learned) if model in models else learned
        if not models:
            return
        try:
            await self._storage.apply(wire.SYSTEM_ACCOUNT, [wire.AddLearned(self._fleet, models)])
        except UnsupportedWrite:
            self.stop()
        except RouterError:
            self._unsent = models


PATIENCE_S, RETRY_S = 0.25, 1.0
"""How long a call waits for the coordination, and how often it is tried while unavailable."""
MOST_WINDOWS = 10_000
_log = logging.getLogger(__name__)


class _Held(NamedTuple):
    takes: wire.Takes
    taken: wire.Taken | None
    """None: the coordination was unavailable."""
    at: float
    windows: list[Window]
    """This process's own counts."""


class SharedLimits:
    """``Accounts`` with the windows and slots of a coordination."""

    def __init__(self, accounts: Accounts, coordination: CountingCoordination, clock: Clock) -> None:
        self._accounts = accounts
        self._coordination = coordination
        self._clock = clock
        self.left = accounts.left
        self.look = accounts.look
        self.spent_shares = accounts.spent_shares
        self.widen = accounts.widen
        self._guard = Guard()
        self.renew()

    def renew(self) -> None:
        """Start with nothing held: after a fork that is the parent's."""
        self._held: dict[str, _Held] = {}
        self._windows: LRUCache[str, Window] = LRUCache(MOST_WINDOWS)
        self._at, self._away_until = 0.0, -inf
        self.is_away = False
        """The coordination did not answer the last call."""
        works = f"{self._coordination!r} is back: rate limits are counted there again"
        self.outage = Outage(_log.warning, works)

    async def admit(self, ask: wire.Ask) -> wire.Grant | wire.Replay | wire.Short:
        accounts, account_ask = self._accounts, replace(ask, windows=False)
        if ask.id in self._held:
            return await accounts.admit(account_ask)
        left = accounts.left(ask.caller) or await accounts.look(ask.caller)
        if left.key is not None:
            check_key(left.key, left.key.id)
        parties, slots = tuple(parties_of(ask.caller, left.account, left.key)), int(ask.slot)
        takes = wire.Takes(ask.id, ask.caller.account, parties, ask.tokens, slots, ask.lasts_s)
        reply: wire.Grant | wire.Replay | wire.Short | None = None
        if ask.claim is None and parties:  # with an idempotency key, look for a replay first: it takes nothing
            windows = await self._take(takes)
            try:
                reply = await accounts.admit(replace(account_ask, waits_s=0.0))
            finally:
                if not isinstance(reply, wire.Grant):
                    self._end(ask.id, 0, void=True)
            if isinstance(reply, wire.Grant):
                reply.windows = windows
            if not isinstance(reply, wire.Short) or not reply.waits or not ask.waits_s:
                return reply
        reply = await accounts.admit(account_ask)  # a call that waits for money is counted after the wait
        if isinstance(reply, wire.Replay):
            return reply
        try:
            windows = await self._take(takes)
        except BaseException:
            if isinstance(reply, wire.Grant):
                accounts.release(reply)
            raise
        if isinstance(reply, wire.Grant):
            reply.windows = windows
        else:  # refused for money, not for its rate limits
            self._end(ask.id, 0, void=True)
        return reply

    async def settle(self, grant: wire.Grant | None, facts: Facts) -> Sequence[wire.StoredEvent]:
        self._end(facts.id, facts.tokens)
        return await self._accounts.settle(grant, facts)

    def release(self, grant: wire.Grant, tokens: int | None = 0) -> None:
        self._end(grant.id, tokens)
        self._accounts.release(grant, tokens)

    async def _take(self, takes: wire.Takes) -> tuple[wire.WindowState, ...]:
        taken = await self._ask_coordination(takes) if takes.parties else None
        states = list[wire.WindowState]()
        with self._guard.lock:
            self._at = now = max(self._at, self._clock.monotonic())
            windows = [self._windows.setdefault(name, Window()) for name, _ in takes.parties]
            for window in windows:
                window.age(now - wire.WINDOW_S)
            if taken is None:
                limited = [
                    (name, window, limits) for (name, limits), window in zip(takes.parties, windows, strict=True)
                ]
                if not all(own.admits(self._part(limits), takes.tokens, takes.slots) for _, own, limits in limited):
                    processes, slots = self._coordination.processes, bool(takes.slots)
                    raise limit_error(limited, takes.tokens, now, self._clock.time(), slots=slots, processes=processes)
            for window, (_, limits) in zip(windows, takes.parties, strict=True):
                window.take(now, takes.tokens)
                window.slots += takes.slots
                states += window.states(self._part(limits), now) if taken is None else ()
            self._held[takes.id] = _Held(takes, taken, now, windows)
        return tuple(states) if taken is None else taken.windows

    async def _ask_coordination(self, takes: wire.Takes) -> wire.Taken | None:
        """Ask the coordination; None: it is unavailable. Raises ``RateLimited``."""
        now = self._clock.monotonic()
        why = f"no answer within {PATIENCE_S:g} s"
        if now < self._away_until:
            return None
        if self.is_away:
            self._away_until = now + RETRY_S  # other calls do not wait for it meanwhile
        try:
            with self._clock.deadline(now + PATIENCE_S):
                taken = await self._coordination.take(takes)
                self._back()
                return taken
        except RateLimited:
            self._back()
            raise
        except Exception as error:  # its message may hold secrets
            why = type(error).__name__
        self._away_until = self._clock.monotonic() + RETRY_S
        self.is_away = True
        part = f"1/{self._coordination.processes} of every rate limit"
        text = f"{self._coordination!r} is away ({why}): this process goes on with {part}"
        self.outage.begin(self._clock.monotonic(), text)
        return None

    def _back(self) -> None:
        if self.is_away or self.outage.flaps:
            self.is_away, self._away_until = False, -inf
            self.outage.end(self._clock.monotonic())

    def _part(self, limits: wire.RateLimits) -> wire.RateLimits:
        """This process's share of the limits; all shares together stay within them."""
        maxima = {name: maximum for name, maximum in asdict(limits).items() if maximum is not None}
        return wire.RateLimits(**{name: maximum // self._coordination.processes for name, maximum in maxima.items()})

    def _end(self, call: str, tokens: int | None, *, void: bool = False) -> None:
        """Release what a call holds, once; the tokens it used stay counted."""
        with self._guard.lock:
            if (held := self._held.pop(call, None)) is None:
                return
            for window in held.windows:
                window.correct(held.at, 0 if tokens is None else tokens - held.takes.tokens, -void)
                window.slots -= held.takes.slots
        if held.taken is not None:
            self._coordination.end(held.taken, tokens, void=void)
