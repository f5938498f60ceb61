"""Account storages without an event loop: no call waits, and tests advance the time."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.backends.storage.sqlite.file import connect, make_file
from routewright.backends.storage.sqlite.schema import prepare
from routewright.backends.storage.sqlite.upkeep import check
from routewright.protocols import LimitingStorage
from routewright.testing import FakeClock
from routewright.wire import AddCredit, PutAccount, PutKey, Stands
from tests.contracts.storage.samples import AT, AT_S, Till, make_account, make_key

T = TypeVar("T")
LEASE_S = 30.0
LONG_S = 1e9
KINDS = ["memory", "sqlite"]


def at_once(asked: Coroutine[Any, Any, T]) -> T:
    """What comes of something that never waits."""
    try:
        asked.send(None)
    except StopIteration as answer:
        result: T = answer.value
        return result
    raise AssertionError("it waits")


@cache
def empty_store() -> bytes:
    """A file to copy, since creating its tables takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        make_file(path)
        with closing(connect(str(path))) as connection:
            prepare(connection, path)
        return path.read_bytes()


class SetClock(FakeClock):
    """A clock that is set. ``step_s`` is added to the wall clock."""

    def __init__(self) -> None:
        super().__init__(autojump=False)
        self.now = 0.0
        self.step_s = 0.0

    def time(self) -> float:
        return AT_S + self.now + self.step_s

    def monotonic(self) -> float:
        return self.now


class Place:
    """A storage in memory, or two processes that share a file."""

    def __init__(self, kind: str, path: Path, *, lease_s: float = LEASE_S) -> None:
        self.clock = SetClock()
        self.is_shared = kind == "sqlite"
        self.lasts_s = LONG_S if self.is_shared else 0.0
        """How long to say that a call takes: in memory, calls that should have ended a lease ago are lost."""
        self._path, self._lease_s = path, lease_s
        self._opened: list[LimitingStorage] = []
        for end in ("", "-wal", "-shm", "-keep"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        if self.is_shared:
            path.write_bytes(empty_store())
        self.processes = [self._open(), self._open()] if self.is_shared else [self._open()]

    def die(self, process: int) -> None:
        """Start another in the place of one that is gone, whatever it holds; in memory nothing outlives that."""
        if self.is_shared:
            self.processes[process] = self._open()

    def pause(self, seconds: float) -> None:
        """Let time pass, and every process say that it lives."""
        self.clock.now += seconds
        for process in self.processes:
            self.touch(process)

    def touch(self, process: LimitingStorage) -> None:
        """Have a process look what there is, and say that it lives."""
        at_once(process.read("acme", Stands(AT)))

    def sweep(self) -> None:
        """In memory, calls are lost that should have ended a lease ago."""
        at_once(self.processes[0].sweep(self.clock.time()))

    def close(self) -> None:
        """End all processes. The books have to add up."""
        for storage in self._opened:
            at_once(storage.aclose())
        assert not self.is_shared or check(self._path).problems == []

    def _open(self) -> LimitingStorage:
        made: LimitingStorage = MemoryStorage(clock=self.clock)
        if self.is_shared:
            made = SqliteStorage(self._path, clock=self.clock, lease_s=self._lease_s)
        self._opened.append(made)
        return made


def tills_of(place: Place, account: str) -> list[Till]:
    """An account in each process, whose limits are far away."""
    tills = [Till(storage, account) for storage in place.processes]
    terms = make_account(name=account, prepaid=True, monthly_nanos=10**9)
    key = make_key(account=account, digest=account, budget_nanos=10**9, monthly_nanos=10**9)
    at_once(tills[0].storage.apply(account, [PutAccount(terms), PutKey(key), AddCredit("opening", 10**9, AT)]))
    return tills
