"""Shares what attempts of a fleet taught with the other processes of a store.

What this process learned is written in the middle of an epoch, long before the next one begins, from which on it is
known to all. What all know is read by the first request of each epoch: a process without requests does nothing."""

from __future__ import annotations

from collections.abc import Callable

from routewright._core.attempts.learned import EPOCH_S, plus
from routewright.errors import RouterError, UnsupportedWrite
from routewright.loop import at_once
from routewright.protocols import Clock, LocalStorage
from routewright.wire import SYSTEM_ACCOUNT, AddLearned, Learned, LearnedModel, LearnedSince

from .storage import GuardedStorage
from .worker import Job, Worker


class Sharing:
    """The way of one fleet to a storage of this machine. ``take`` gives what was learned since it was called last, and
    ``stop`` is called once the storage turns out to keep nothing of the kind."""

    take: Callable[[], dict[str, Learned]]
    stop: Callable[[], object]

    def __init__(self, fleet: str, storage: LocalStorage, worker: Worker, clock: Clock) -> None:
        self._fleet = fleet
        self._path = storage.path
        self._storage = GuardedStorage(storage)
        self._clock = clock
        self._job = Job(worker, self._write, EPOCH_S)
        self._unsent: dict[str, Learned] = {}

    def poke(self) -> None:
        """Say that something was learned."""
        self._job.delay = EPOCH_S - (self._clock.time() - EPOCH_S / 2) % EPOCH_S
        self._job.poke()

    def read(self, epoch: int) -> list[LearnedModel] | None:
        """What was added since an epoch, at once: a few pages, as a read by id. None: the storage is away."""
        if not self._path.exists():  # nothing is made for a decision
            return []
        try:
            found: list[LearnedModel] = at_once(self._storage.read(SYSTEM_ACCOUNT, LearnedSince(self._fleet, epoch)))
        except (UnsupportedWrite, RuntimeError):
            self.stop()
            return None
        except RouterError:
            return None
        return found

    async def _write(self) -> None:
        unsent, self._unsent = self._unsent, {}
        models = self.take()
        for model, learned in unsent.items():
            models[model] = plus(models[model], learned) if model in models else learned
        if not models:
            return
        try:
            await self._storage.apply(SYSTEM_ACCOUNT, [AddLearned(self._fleet, models)])
        except UnsupportedWrite:
            self.stop()
        except RouterError:
            self._unsent = models
