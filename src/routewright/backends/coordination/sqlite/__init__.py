"""``SqliteCoordination``: rate limits, slots and news of all processes of one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

import anyio.to_thread

from routewright._core.window import check_amount, check_seconds
from routewright.backends.clock import SystemClock
from routewright.backends.coordination.memory import HEAR_S
from routewright.backends.storage.sqlite.connection import Connect, Connection, connect, file_of
from routewright.errors import StorageUnavailable
from routewright.fork import renew_in_children
from routewright.protocols import Clock
from routewright.wire import Denied, Heard, Notice, Take, Taken

from .file import Busy, LimitsFile
from .news import announce, since
from .step import end, look, renew, take

T = TypeVar("T")

POLL_S = 0.25
"""How often a listener polls."""
AT_ONCE = 8
"""Retries of a locked file after a mere yield to other tasks: mostly that is enough."""
PAUSE_S = 0.001
"""Then so much later each time."""
LOOK_AT = 32
"""Names looked at at a time, to drop those whose windows are empty."""
LOOK_EVERY = 256
"""Steps after which some are, where no new ones come."""


class _Steps:
    """Numbers for steps: from anywhere on, so that no two processes give the same."""

    def __init__(self) -> None:
        renew_in_children(self)

    def renew(self) -> None:
        """Begin somewhere else."""
        self.next = count(int.from_bytes(os.urandom(8), "big") >> 3).__next__


class SqliteCoordination:
    """Windows, slots and news for all processes of one machine, exact over all of them together.

        coordination = SqliteCoordination("limits.db")

    It needs a file of its own, on a local disk or in memory (``/dev/shm``), and makes it at first use. Nothing in it
    has to last: a damaged one is made anew. Each step is a short transaction in the caller's thread, some tens of
    microseconds; while another process writes it waits, and the event loop goes on. After ``busy_s`` it raises
    ``StorageUnavailable``. ``lease_s``: an owner of slots loses them if it does not renew them for this long.

    It goes by ``time.monotonic()``, which all processes of a machine share, whatever becomes of the time of day.
    ``clock``: pass a ``FakeClock`` that the Router has; it is SQLite then that waits. ``connect``: opens connections in
    the place of ``sqlite3``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        lease_s: float = 30.0,
        busy_s: float = 0.25,
        connect: Connect = connect,
    ) -> None:
        check_seconds(lease_s, "SqliteCoordination.lease_s")
        check_seconds(busy_s, "SqliteCoordination.busy_s")
        self._clock = clock or SystemClock()
        self._now = self._clock.monotonic
        self._lease_s = lease_s
        self._busy_s = 0.0 if self._clock.virtual else busy_s
        self._file = LimitsFile(file_of(path, "limits.db"), connect, busy_s - self._busy_s, self._now)
        self._steps = _Steps()
        self._looked_at = 0
        self._to_look = 0.0

    def __repr__(self) -> str:
        return f"SqliteCoordination({str(self._file.path)!r})"

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        """Take all of it or nothing (``protocols.Coordination``)."""
        for place, each in enumerate(takes):
            check_amount(each.amount, f"takes[{place}].amount")
        return await self._done(partial(self._file.write, partial(self._take, takes, owner)))

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        """Give back its slots, and correct its tokens (``protocols.Coordination``)."""
        check_amount(tokens or 0, "tokens")
        if any(state.resource != "requests" for state in taken.states):
            await self._done(partial(self._file.write, partial(end, step=taken.id, tokens=tokens)))

    async def renew(self, owner: str) -> None:
        """Keep an owner's slots (``protocols.Coordination``)."""
        await self._done(partial(self._file.write, partial(self._renew, owner)))

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        await self._done(partial(self._file.write, partial(self._announce, notice)))

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of at most the last minute (``protocols.Coordination``)."""
        ends = self._now() + HEAR_S
        while True:
            heard = await self._done(partial(self._file.read, partial(self._since, after)))
            if after is None or heard.notices or self._now() >= ends:
                return heard
            await self._clock.sleep(POLL_S)

    async def aclose(self) -> None:
        """Close the file. It is opened again if it is used again."""
        if self._clock.virtual:
            self._file.close()
        else:
            await anyio.to_thread.run_sync(self._file.close, abandon_on_cancel=True)

    async def _done(self, attempt: Callable[[], T | Busy]) -> T:
        """Run it once the file is free. If the wait is cancelled, nothing was done."""
        if not isinstance(done := attempt(), Busy):
            return done
        ends, tries = self._now() + self._busy_s, 0
        while self._now() < ends:
            tries += 1
            await self._clock.sleep(0.0 if tries <= AT_ONCE else PAUSE_S)
            if not isinstance(done := attempt(), Busy):
                return done
        raise StorageUnavailable(f"{self._file.path}: another process has been writing for too long")

    # Inside a transaction, where the time is asked for: between two processes it must not run backwards

    def _take(self, takes: Sequence[Take], owner: str, connection: Connection) -> Taken | Denied:
        now = self._now()
        result, made = take(connection, takes, owner, self._steps.next(), now, self._lease_s)
        self._to_look += 2 * made + LOOK_AT / LOOK_EVERY
        if self._to_look >= LOOK_AT:
            self._to_look -= LOOK_AT
            self._looked_at = look(connection, self._looked_at, LOOK_AT, now)
        return result

    def _renew(self, owner: str, connection: Connection) -> None:
        renew(connection, owner, self._now(), self._lease_s)

    def _announce(self, notice: Notice, connection: Connection) -> None:
        announce(connection, notice, self._now())

    def _since(self, after: int | None, connection: Connection) -> Heard:
        return since(connection, after, self._now())
