"""Upkeep of a store in PostgreSQL: roll-ups, removal of expired rows, and news for all processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import json

from routewright._core.accounts.ledger import WEEK_S
from routewright._runtime.fork import Guard, Renewals
from routewright._runtime.worker import Job, Worker
from routewright.backends.clock import SystemClock
from routewright.backends.coordination.memory import HEAR_S
from routewright.backends.storage.tables import upkeep as cleanup
from routewright.backends.storage.tables.read import DAY_S, retention_of
from routewright.backends.storage.tables.rollup import roll
from routewright.errors import RouterError
from routewright.protocols import Clock
from routewright.wire import Heard, Notice
from routewright.wire.timestamps import timestamp

from .connections import Database, Tables, unescape
from .schema import Store
from .transaction import AccountTransaction

EVERY_S = 2.0
"""Interval of roll-ups while traces are written."""
CLOSE_S = 0.25
"""How long closing waits for a roll-up."""
ROLLING = "_rolling"
"""Lock for roll-ups, and for dropping days."""
_log = logging.getLogger(__name__)
_GROUPED = """
WITH taken AS (DELETE FROM uncounted WHERE n < ? RETURNING *)
SELECT account, shape, sum(traces), sum(cost), sum(charged), sum(input), sum(output), sum(cached)
FROM taken GROUP BY account, shape ORDER BY account
"""
_NAME = """
WITH taken AS (DELETE FROM naming RETURNING *)
INSERT INTO snapshot (id, depth, named, at) SELECT id, 0, sum(named), 0 FROM taken GROUP BY id ORDER BY id
ON CONFLICT (id) DO UPDATE SET named = snapshot.named + excluded.named
"""
_DAYS = """
SELECT substr(relname, 6) FROM pg_class WHERE relname LIKE 'body\\_%' AND relispartition
AND relnamespace = current_schema()::regnamespace ORDER BY 1
"""
_OF_DAYS = "trace", "tag", "body"
_UNNAME = """
UPDATE snapshot SET named = 0
WHERE id IN (SELECT id FROM snapshot WHERE named <> 0 AND at > 0 AND at < ? ORDER BY id FOR UPDATE)
"""
_FORGET_IDLE = """
WITH idle AS (DELETE FROM party WHERE name IN (
    SELECT name FROM party WHERE last < ? AND slots = 0 FOR UPDATE SKIP LOCKED) RETURNING name)
DELETE FROM entry WHERE (party, at) IN (
    SELECT party, at FROM entry JOIN idle ON name = party WHERE at < ? FOR UPDATE OF entry SKIP LOCKED)
"""
"""Skips rows in use by a call, to avoid a deadlock."""
_RESULTS = "DELETE FROM kept WHERE (account, claim) IN (SELECT account, claim FROM kept WHERE until <= ? LIMIT ?)"


Transact = Callable[..., Any]
"""``Server.transact``: runs work in a transaction with locked accounts, and returns its result."""


def count(transact: Transact) -> None:
    """Count all uncounted traces."""
    while transact(_count, [ROLLING]):
        pass


def _count(tables: Tables, _: AccountTransaction) -> bool:
    tables.execute(_NAME)
    return roll(tables, _GROUPED)


_worker = Worker(SystemClock(), "routewright-postgres-keeper", may_be_dropped=True)
"""A thread of their own for all databases of the process: one whose server does not answer blocks it for seconds."""


class BackgroundWork:
    """Counts traces in the background, so that reports are fast, and creates the next day's partitions. Only one
    process counts at a time."""

    def __init__(self, transact: Transact, clock: Clock, renewals: Renewals, *, inline: bool) -> None:
        self._transact = transact
        self._clock = clock
        self._inline = inline
        self._guard = Guard()
        """Held by a turn of the work."""
        self._job = Job(_worker, self._turn, EVERY_S)
        renewals.add(self)

    def renew(self) -> None:
        """Start without work."""
        self._is_closed = False
        self._day = ""

    def note_write(self) -> None:
        """Called after traces were written."""
        if not self._inline:
            self._is_closed = False
            self._job.poke()

    def close(self) -> None:
        """End the work until the next write."""
        self._is_closed = True
        if not self._inline:
            self._job.drop()
        if self._guard.lock.acquire(timeout=CLOSE_S):
            self._guard.lock.release()

    async def _turn(self) -> None:
        with self._guard.lock:
            tomorrow = timestamp(self._clock.time() + DAY_S)[:10]
            try:
                while not self._is_closed and self._transact(_count_alone):
                    pass
                if not self._is_closed and tomorrow != self._day:
                    self._transact(lambda tables, _: tables.execute("SELECT make_days(?)", ([tomorrow],)))
                    self._day = tomorrow
            except RouterError as error:
                _log.debug("cannot count traces: %s", error)


def _count_alone(tables: Tables, transaction: AccountTransaction) -> bool:
    """Count some traces, unless another process does. True: there are more."""
    sql = "SELECT pg_try_advisory_xact_lock(hashtextextended(?, 25))"
    ((is_alone,),) = tables.execute(sql, (ROLLING,)).fetchall()
    return is_alone and _count(tables, transaction)


def sweep(transact: Transact, now: float) -> int:
    """Remove expired rows in pieces, and return how many. ``now``: Unix seconds."""
    count(transact)
    transact(partial(_forget, now))
    removed: int = 0
    while rows := transact(lambda tables, _: tables.execute(_RESULTS, (now, cleanup.ROWS_AT_ONCE)).rowcount):
        removed += rows
    while rows := transact(lambda tables, _: cleanup.remove_events(now, tables)):
        removed += rows
    for day, kind in transact(partial(_find_old_days, now)):
        removed += transact(partial(_drop_day, kind, day), [ROLLING])
    while pieces := transact(lambda tables, _: cleanup.find_old_traces(now, tables, WEEK_S)):
        for piece in pieces:
            removed += transact(lambda tables, _, piece=piece: cleanup.remove_old(piece, tables))
    count(transact)
    while freed := transact(lambda tables, _: cleanup.remove_snapshots(now, tables)):
        removed += sum(freed)
    return removed


def _forget(now: float, tables: Tables, _: AccountTransaction) -> None:
    cleanup.forget_unseen(now, tables)
    cleanup.remove_marks(now, tables)
    before = now - 3_600.0
    tables.execute(_FORGET_IDLE, (before, before))
    tables.execute("DELETE FROM notice WHERE at < now() - interval '1 minute'")
    tables.execute("DELETE FROM cache_lead WHERE until < now()")


def _find_old_days(now: float, tables: Tables, _: AccountTransaction) -> list[tuple[str, str]]:
    """Partitions of expired days, those of traces first."""
    limits = retention_of(tables)
    if limits.production_s is None or limits.sandbox_s is None or max(limits.production_s, limits.sandbox_s) < WEEK_S:
        return []
    first = now - max(limits.production_s, limits.sandbox_s)
    until = timestamp(max(0.0, first))[:10].replace("-", "_")
    days = [day.replace("_", "-") for (day,) in tables.execute(_DAYS).fetchall() if day < until]
    if days:  # snapshots are put within the six hours before their call
        tables.execute(_UNNAME, (first - 2 * DAY_S,))
    return [(day, kind) for day in days for kind in _OF_DAYS]


def _drop_day(kind: str, day: str, tables: Tables, _: AccountTransaction) -> int:
    ((rows,),) = tables.execute("SELECT drop_day(?, ?)", (kind, day)).fetchall()
    return int(rows) if kind == "trace" else 0


FIRST_S = 0.25
LONGEST_S = 1.0
"""First and longest pause between two polls; it doubles each time."""
_ANNOUNCE = """
WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended('news', 25)))
INSERT INTO notice (topic, said) SELECT $1, $2 FROM turn RETURNING n
"""
"""The lock makes numbers appear in order, so that listeners miss none."""
_LAST = "SELECT coalesce(max(n), 0) FROM notice"
_SINCE = "SELECT coalesce(json_agg(json_build_array(n, topic, said) ORDER BY n), '[]') FROM notice WHERE n > $1"


class PostgresCoordination:
    """News for all processes of a PostgreSQL database, received within about a second.

        router = Router(coordination=PostgresCoordination("postgresql://routewright@db.example/routewright"))

    The default with a ``PostgresStorage``. ``url``: a database prepared with ``routewright store create``, or a
    ``Database``. ``clock``: pass the Router's ``FakeClock``.
    """

    def __init__(self, url: str | Database, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        if isinstance(url, str):
            url = Database(Store(url), "news in PostgreSQL", 4, inline=self._clock.virtual)
        self._database = url

    def __repr__(self) -> str:
        return f"PostgresCoordination({self._database!r})"

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        await self._database.value(_ANNOUNCE, notice.topic, notice.message)

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of about the last minute (``protocols.Coordination``)."""
        if after is None:
            return Heard((), int.from_bytes(await self._database.value(_LAST)))
        until = self._clock.monotonic() + HEAR_S
        pause_s = FIRST_S
        while True:
            rows = json.decode(await self._database.value(_SINCE, after), type=list[tuple[int, str, str]])
            left_s = until - self._clock.monotonic()
            if rows or left_s <= 0:
                return Heard(
                    tuple(Notice(topic, unescape(text)) for _, topic, text in rows), rows[-1][0] if rows else after
                )
            await self._clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_S)

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        await self._database.run(self._database.close)
