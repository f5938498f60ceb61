"""``PostgresCoordination``: news for all processes that share a database."""

from __future__ import annotations

from msgspec import json

from routewright.backends.clock import SystemClock
from routewright.backends.coordination.memory import HEAR_S
from routewright.protocols import Clock
from routewright.wire import Heard, Notice

from .connection import Database, unsafe
from .schema import Store

FIRST_S, LONGEST_S = 0.25, 1.0
"""How long to wait before looking again. Each time is twice the last."""
_ANNOUNCE = """
WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended('news', 25)))
INSERT INTO notice (topic, said) SELECT $1, $2 FROM turn RETURNING n
"""
"""The lock has numbers appear in their order, so that who listens passes none over."""
_LAST = "SELECT coalesce(max(n), 0) FROM notice"
_SINCE = "SELECT coalesce(json_agg(json_build_array(n, topic, said) ORDER BY n), '[]') FROM notice WHERE n > $1"


class PostgresCoordination:
    """News for all processes that use a PostgreSQL database, which are heard within about a second.

        router = Router(coordination=PostgresCoordination("postgresql://routewright@db.example/routewright"))

    A ``PostgresStorage`` has one, which its users share unless they are given another. ``url``: that of a database
    which ``routewright store create`` has prepared, or a ``Database``. ``clock``: pass a ``FakeClock`` that the Router
    has.
    """

    def __init__(self, url: str | Database, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        inline = self._clock.virtual
        own = url if isinstance(url, Database) else Database(Store(url), "news in PostgreSQL", 4, inline=inline)
        self._database = own

    def __repr__(self) -> str:
        return f"PostgresCoordination({self._database!r})"

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        await self._database.value(_ANNOUNCE, notice.topic, notice.said)

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of about the last minute (``protocols.Coordination``)."""
        if after is None:
            return Heard((), int.from_bytes(await self._database.value(_LAST)))
        until, pause_s = self._clock.monotonic() + HEAR_S, FIRST_S
        while True:
            rows = json.decode(await self._database.value(_SINCE, after), type=list[tuple[int, str, str]])
            left_s = until - self._clock.monotonic()
            if rows or left_s <= 0:
                return Heard(
                    tuple(Notice(topic, unsafe(said)) for _, topic, said in rows), rows[-1][0] if rows else after
                )
            await self._clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_S)

    async def aclose(self) -> None:
        """Give the connections back. They are opened again if it is used again."""
        await self._database.run(self._database.close)
