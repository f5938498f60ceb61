"""The log of ticks that the processes of a store share, and the state that each process folds from it.

Inside SQLite's write lock a process first folds the ticks of others; then its state is current while it has the lock.
If the last tick that it has seen is missing, it folds everything again, starting from ``fold``, a copy of the state
that is written every few seconds. Older ticks are removed.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from routewright._core.accounts.holds import Hold
from routewright._core.accounts.log import Tick, dump, fold, load
from routewright._core.accounts.state import State, StoredAccounts
from routewright.errors import StorageCorrupt, StorageVersion
from routewright.protocols import Clock

from .file import Connection

FORMAT = 1
"""Format of written ticks, and the newest readable one."""
FOLD_S = 5.0
"""Interval of copies of the state while there are ticks."""
SHARE = 50
"""Copies take at most this fraction of the time."""
_SINCE = "SELECT n, owner, at, until, format, ops FROM tick WHERE n >= ? ORDER BY n"
_APPEND = "INSERT INTO tick (owner, at, until, format, ops) VALUES (?, ?, ?, ?, ?)"
_PUT_FOLD = "INSERT OR REPLACE INTO fold (one, n, at, body) VALUES (1, ?, 0, ?)"
_PRUNE = "DELETE FROM tick WHERE n < ? AND n < (SELECT max(n) FROM tick)"
_PUT_BOOT = "INSERT OR REPLACE INTO boot (one, name, ahead) VALUES (1, ?, ?)"

_encode = msgspec.msgpack.Encoder().encode
_tick = msgspec.msgpack.Decoder(Tick).decode
_dump = msgspec.msgpack.Decoder(
    tuple[float, list[tuple[int, float]], dict[str, tuple[list[float], list[int], list[int]]], list[Hold]]
).decode


class Log:
    """One process's view of the log. For the thread that holds the write lock."""

    def __init__(self, path: Path, books: StoredAccounts, clock: Clock, lease_s: float) -> None:
        self._path = path
        self._books = books
        self._clock = clock
        self._lease_s = lease_s
        self.owner = int.from_bytes(os.urandom(7), "big")
        self.state = State(books)
        self._last_tick: tuple[int, int, float] | None = None
        """Number, owner and time of the last folded tick. None: fold everything."""
        self._ahead = 0.0
        self._boot = read_boot_name()
        self._copy: tuple[int, bytes] | None = None
        """Last tick of a copy of the state, and the copy, to be written with the next tick."""
        self._copied_n = 0
        self._copy_at = 0.0

    def forget(self) -> None:
        """Fold everything next time, since the result of a transaction is unknown."""
        self._last_tick = None

    def has_news(self, connection: Connection) -> bool:
        """True if there are new ticks. Takes no lock."""
        row = connection.execute("SELECT max(n) FROM tick").fetchone()
        return self._last_tick is None or row[0] != self._last_tick[0]

    def catch_up(self, connection: Connection) -> list[Hold]:
        """Fold all new ticks and set the state's time, inside the write lock. Returns holds that a reboot has ended."""
        holds = [] if self._fold_new(connection) else self._fold_all(connection)
        at = self.now
        self.state.begin(self.owner, at, at + self._lease_s)
        return holds

    @property
    def now(self) -> float:
        """The log's own time, which never decreases."""
        return max(self.state.at, self._clock.monotonic() + self._ahead)

    def _fold_new(self, connection: Connection) -> bool:
        """Fold new ticks. False: the last seen tick is missing."""
        # To fold the ticks with a greater number than the last seen one is not enough. A process that was idle may have
        # missed ticks that others have pruned since, and a restored backup has ticks of the same numbers with other
        # contents. Either way the state would look current and admit what is already spent. So the query includes the
        # last seen tick: if it is there with its owner and time, nothing between it and the next rows is missing. Else
        # `_fold_all` starts again. `test_an_idle_process_recovers_from_pruned_ticks` and
        # `test_a_restored_backup_is_folded_from_scratch` rely on it.
        if self._last_tick is None:
            return False
        ticks = connection.execute(_SINCE, (self._last_tick[0],)).fetchall()
        if not ticks or ticks[0][:3] != self._last_tick:
            return False
        for tick in ticks[1:]:
            self._fold(*tick)
        return True

    def _fold_all(self, connection: Connection) -> list[Hold]:
        """Fold everything, starting from the copy of the state."""
        state = self.state
        expired = dict.fromkeys(state.owners.get(self.owner, ()), state.at) | state.expired
        state.clear()
        state.expired = expired  # holds of this owner may have expired in ticks that were pruned
        self._last_tick = self._copy = None
        first_n = 0
        self._copied_n = 0  # the file may be an older copy
        copy = connection.execute("SELECT n, body FROM fold").fetchone()
        if copy is not None:
            first_n = copy[0]
            try:
                load(state, *_dump(copy[1]))
            except msgspec.MsgspecError as error:
                raise StorageCorrupt(f"{self._path}: the accounts' state is damaged; restore a backup") from error
        for row in connection.execute(_SINCE, (first_n,)).fetchall():
            if copy is not None and row[0] == first_n:
                self._last_tick = tuple(row[:3])
            else:
                self._fold(*row)
        return self._take_clock(connection)

    def _take_clock(self, connection: Connection) -> list[Hold]:
        """Set the log's clock, which continues over reboots. After a reboot all holds are lost: returns them."""
        # Wall clocks are stepped, and monotonic ones begin anew with each boot, so neither can date leases and windows
        # in a file that outlives both. The log's time is the monotonic one plus `ahead`, which is set such that time
        # continues where the last tick was. The boot's id tells a reboot from a restarted process; where it is unknown,
        # a clock behind the log's does. Both are proved by `test_a_reboot_ends_all_holds_whatever_the_clock_says` and
        # `test_without_boot_ids_a_younger_clock_reveals_a_reboot`.
        row = connection.execute("SELECT name, ahead FROM boot").fetchone()
        monotonic = self._clock.monotonic()
        if row is not None and row[0] == self._boot and monotonic + row[1] >= self.state.at - 1.0:
            self._ahead = row[1]
            return []
        self._ahead = self.state.at - monotonic
        connection.execute(_PUT_BOOT, (self._boot, self._ahead))
        return list(self.state.holds.values())

    def _fold(self, n: int, owner: int, at: float, until: float, version: int, ops: bytes) -> None:
        if version > FORMAT:
            self._last_tick = None
            raise StorageVersion(f"{self._path} was written by a newer routewright; install that version")
        fold(self.state, owner, at, until, _tick(ops))
        self._last_tick = n, owner, at

    def append(self, connection: Connection, tick: Tick) -> None:
        """Write this owner's changes, and sometimes a copy of the state before them."""
        self._write(connection, tick)
        if self._copy is not None:
            row = connection.execute("SELECT n FROM fold").fetchone()
            if row is None or row[0] < self._copy[0]:
                connection.execute(_PUT_FOLD, self._copy)
                connection.execute(_PRUNE, (0 if row is None else row[0],))
            self._copy = None

    def clear(self, connection: Connection) -> None:
        """Replace the log by a copy of the state, so that it names no ended call."""
        n = self._write(connection, Tick())
        connection.execute(_PUT_FOLD, (n, _encode(dump(self.state))))
        connection.execute(_PRUNE, (n,))

    def _write(self, connection: Connection, tick: Tick) -> int:
        at = self.state.at
        connection.execute(_APPEND, (self.owner, at, at + self._lease_s, FORMAT, _encode(tick)))
        n: int = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
        self._last_tick = n, self.owner, at
        return n

    def copy(self) -> None:
        """Make a copy of the state for the next tick if one is due. Called outside the lock."""
        now = self._clock.monotonic()
        if self._last_tick is None or now < self._copy_at:
            return
        if self._last_tick[0] > self._copied_n:
            began = time.perf_counter()
            self._copied_n = self._last_tick[0]
            self._copy = self._copied_n, _encode(dump(self.state))
            self._copy_at = now + max(FOLD_S, SHARE * (time.perf_counter() - began))


def read_boot_name() -> str:
    """Id of the present boot; empty if unknown."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""
