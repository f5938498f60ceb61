"""Several storages on one file, which stand in for processes that share a store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from routewright._core.accounts.log import Tick
from routewright.backends.storage.sqlite import SqliteStorage, log
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.sqlite.transaction import AccountTransaction
from routewright.backends.storage.sqlite.upkeep import check
from routewright.testing import FakeClock
from routewright.wire import WINDOW_S
from tests.contracts.storage.samples import AT_S, Till

LEASE_S = 30.0


class Machine(FakeClock):
    """A clock of one start of a machine: ``up_s`` seconds after it. ``step_s`` is added to the wall clock."""

    def __init__(self, up_s: float = 1_000.0, wall: float = AT_S, name: str = "first") -> None:
        super().__init__(wall, autojump=False)
        self.name = name
        self.step_s = 0.0
        self._up_s = up_s

    def time(self) -> float:
        return super().time() + self.step_s

    def monotonic(self) -> float:
        return self._up_s + super().monotonic()


class Site:
    """One file, and the processes that use it. All of them run in this thread, one after another."""

    def __init__(self, path: Path, monkeypatch: Any) -> None:
        self.path = path
        self.patch = monkeypatch
        self._storages: list[SqliteStorage] = []
        self._ticks: dict[int, tuple[Any, ...]] = {}
        self.start(Machine())

    def start(self, machine: Machine) -> None:
        """Start the machine anew: its processes are gone."""
        for storage in self._storages:
            storage._close()
        self._storages.clear()
        self.machine = machine
        self.patch.setattr(log, "read_boot_name", lambda: machine.name)

    def process(self) -> Till:
        """One more process."""
        self._storages.append(SqliteStorage(self.path, clock=self.machine, lease_s=LEASE_S))
        return Till(self._storages[-1])

    def close(self) -> None:
        """End all processes. What they wrote has to add up."""
        for storage in self._storages:
            storage._close()
        assert check(self.path).problems == []

    def look(self) -> None:
        """Read the log as it is now. No number ever stands for another tick."""
        with closing(connect(str(self.path))) as connection:
            rows = connection.execute("SELECT n, owner, at, ops FROM tick ORDER BY n").fetchall()
        assert [at for _, _, at, _ in rows] == sorted(at for _, _, at, _ in rows), "the log's time runs backwards"
        for n, *row in rows:
            assert self._ticks.setdefault(n, tuple(row)) == tuple(row), f"number {n} is of two ticks"

    def ask(self, sql: str, *parameters: Any) -> list[Any]:
        """Ask the file itself."""
        with closing(connect(str(self.path))) as connection:
            return connection.execute(sql, parameters).fetchall()


def desk_of(till: Till) -> AccountTransaction:
    """The accounts of a process."""
    assert isinstance(till.storage, SqliteStorage)
    return till.storage._writer.transaction


class Audit:
    """Folds the log by itself, from the first tick on, and holds it to the limits: what an auditor would write who read
    the description of a tick alone."""

    def __init__(self, limits: dict[str, int], tokens: dict[str, int] | None = None) -> None:
        self.limits = limits
        self._token_limits = tokens or {}
        self._tokens: dict[str, dict[str, tuple[float, int]]] = {}
        """When each call was admitted, and for how many tokens, by party."""
        self.most_tokens: Counter[str] = Counter()
        self._holds: dict[str, tuple[int, int, tuple[str, ...], tuple[str, ...], int]] = {}
        self.n = 0
        self.spent: Counter[str] = Counter()
        self.reserved: Counter[str] = Counter()
        self.slots: Counter[str] = Counter()
        self.admitted: dict[str, list[float]] = {}
        """When, by party."""
        self.most: Counter[str] = Counter()
        self.most_slots: Counter[str] = Counter()
        self.expired: list[str] = []
        self.late: Counter[str] = Counter()
        """What calls were charged whose holds had expired: nobody can keep that within a limit."""
        self.ended: Counter[str] = Counter()
        self.times: dict[str, float] = {}
        """When each call was admitted."""

    def read(self, connection: sqlite3.Connection) -> int:
        """Fold what is new, and say how much that was. Nothing may be missing."""
        rows = connection.execute("SELECT n, owner, at, ops FROM tick WHERE n > ? ORDER BY n", (self.n,)).fetchall()
        for n, owner, at, ops in rows:
            assert n == self.n + 1, f"ticks {self.n + 1} to {n - 1} were removed before the auditor saw them"
            self.n = n
            self.fold(owner, at, msgspec.msgpack.decode(ops, type=Tick))
        return len(rows)

    def fold(self, owner: int, at: float, tick: Tick) -> None:
        """Fold a tick."""
        for call in tick.expired:
            assert call in self._holds, f"{call} expired, and held nothing"
            nanos = self._holds[call][1]
            names = self._free(call)
            self.expired.append(call)
            self.spent.update({name: nanos for name in names if name.startswith("run:")})
        for end in tick.ends:
            is_late = end.id not in self._holds
            if not is_late and end.tokens is not None:
                for party in self._holds[end.id][3]:
                    taken = self._tokens[party]
                    if end.id in taken:
                        taken[end.id] = taken[end.id][0], end.tokens
            names = end.purses if is_late else self._free(end.id)
            self.late.update(dict.fromkeys(names, end.charge if is_late else 0))
            self.ended[end.id] += 1
            self.spent.update({name: end.run_nanos if name.startswith("run:") else end.charge for name in names})
        for widened in tick.widened:
            if widened.id in self._holds:
                held = self._holds[widened.id]
                self.reserved.update(dict.fromkeys(held[2], widened.nanos - held[1]))
                self._holds[widened.id] = (held[0], widened.nanos, *held[2:])
        for hold in tick.admits:
            assert hold.id not in self._holds, f"{hold.id} was admitted twice"
            self.times[hold.id] = at
            self._holds[hold.id] = (owner, hold.nanos, hold.purses, hold.parties, hold.slots)
            self.reserved.update(dict.fromkeys(hold.purses, hold.nanos))
            for party in hold.parties:
                self.admitted.setdefault(party, []).append(at)
                self._take_tokens(party, hold.id, at, hold.tokens)
            self.slots.update(dict.fromkeys(hold.parties, hold.slots))
        self._check()

    def _take_tokens(self, party: str, call: str, at: float, tokens: int) -> None:
        """Count what a call may come to. One above the whole limit is admitted alone."""
        taken = self._tokens.setdefault(party, {})
        for old in [old for old, (then, _) in taken.items() if then <= at - WINDOW_S]:
            del taken[old]
        used, limit = sum(each for _, each in taken.values()), self._token_limits.get(party)
        assert limit is None or not used or used + tokens <= limit, f"{party} has {used} and {tokens} tokens of {limit}"
        taken[call] = at, tokens
        self.most_tokens[party] = max(self.most_tokens[party], used + tokens)

    def _free(self, call: str) -> tuple[str, ...]:
        _, nanos, names, parties, slots = self._holds.pop(call)
        self.reserved.subtract(dict.fromkeys(names, nanos))
        self.slots.subtract(dict.fromkeys(parties, slots))
        return names

    def _check(self) -> None:
        self.most_slots |= self.slots
        for name in self.reserved:
            total = self.spent[name] + self.reserved[name]
            self.most[name] = max(self.most[name], total)
            limit = self.limits.get(name)
            assert limit is None or total <= limit + self.late[name], f"{name} has {total} of {limit}"

    def most_in_a_window(self, seconds: float) -> dict[str, int]:
        """The most calls of each party that any window of the log's time has: (t - seconds, t]."""
        most: dict[str, int] = {}
        for party, times in self.admitted.items():
            first = 0
            for last, at in enumerate(times):
                while times[first] <= at - seconds:
                    first += 1
                most[party] = max(most.get(party, 0), last - first + 1)
        return most

    @property
    def held(self) -> list[str]:
        """Calls that hold something."""
        return [*self._holds]
