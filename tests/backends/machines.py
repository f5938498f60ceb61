"""What state machines over a storage share: it is made without a loop, and never waits."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.backends.storage.sqlite.books.audit import problems_of
from routewright.backends.storage.sqlite.connection import connect
from routewright.protocols import Storage
from routewright.testing import FakeClock

T = TypeVar("T")


def now(asked: Coroutine[Any, Any, T]) -> T:
    """What a storage says that never waits."""
    try:
        asked.send(None)
    except StopIteration as answer:
        result: T = answer.value
        return result
    raise AssertionError("it waits")


class Place:
    """Where storages are made, one after another."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._path = folder / "machine.db"

    def make(self) -> Storage:
        """An empty one."""
        if self._kind == "memory":
            return MemoryStorage()
        self._remove()
        return SqliteStorage(self._path, clock=FakeClock())

    def again(self, storage: Storage) -> Storage:
        """The same as another process finds it."""
        return storage if self._kind == "memory" else SqliteStorage(self._path, clock=FakeClock())

    def close(self, storage: Storage) -> None:
        """The books must add up."""
        now(storage.aclose())
        if self._kind == "sqlite" and self._path.exists():
            with closing(connect(str(self._path))) as connection:
                assert list(problems_of(connection)) == []
        self._remove()

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self._path}{end}").unlink(missing_ok=True)


def run(machine: type[RuleBasedStateMachine], *, full: bool) -> None:
    """5,000 runs of 50 steps, or fewer."""
    chosen = settings(
        max_examples=5_000 if full else 30, stateful_step_count=50 if full else 30, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)
