"""``RedisCache``: cached answers that processes on many machines share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from routewright._core.cache.request_key import selects
from routewright.backends.clock import SystemClock
from routewright.backends.redis import Server
from routewright.protocols import BaseCache, Clock, Vector
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats

from .memory import body_of, entry_of, stats_of

ENTRY = "rw:answer:"
LEAD = "rw:lead:"
PAGE = 500
_END = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisCache(BaseCache):
    """Caches answers in Redis or Valkey, for identical requests only.

        router = Router(cache=RedisCache("redis://redis.internal"))

    If several processes miss the same answer, one makes the call and the others wait for it. URLs are those of
    ``open_coordination``. The size is limited by the server's ``maxmemory``: use ``allkeys-lru``, and another server
    for rate limits. ``remove`` and ``stats`` read all entries. ``clock``: with a ``FakeClock`` nothing runs in threads.
    """

    exact = True

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._server = Server(url, inline=self._clock.virtual)
        self._token = os.urandom(16)

    def __repr__(self) -> str:
        return f"RedisCache({self._server!r})"

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        entry = entry_of(await self._server.run(lambda client: client.get(ENTRY + key.hex())) or b"")
        return entry if entry is not None and entry.expires_at > now else None

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """Not supported: returns nothing."""
        return ()

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        body = body_of(entry)
        name = ENTRY + entry.key.hex()
        ms = int(1000 * (entry.expires_at - self._clock.time()))
        await self._server.run(lambda client: client.set(name, body, px=ms) if ms > 0 else client.delete(name))

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and return how many (``protocols.Cache``)."""
        now = self._clock.time()

        def drop(client: Any) -> int:
            entries = (entry for entry, _ in _entries(client) if selects(which, entry))
            names = {ENTRY + entry.key.hex(): entry.expires_at > now for entry in entries}
            with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.delete(name)
                pipe.execute()
            return sum(names.values())

        return await self._server.run(drop)

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count the entries of an account, or of all (``protocols.Cache``)."""
        return await self._server.run(lambda client: stats_of(_entries(client), account, now))

    async def lead(self, key: bytes, seconds: float) -> bool:
        """Begin to make the answer of a request, or end it (``protocols.Cache``)."""
        name = LEAD + key.hex()
        if seconds <= 0:
            return bool(await self._server.run(lambda client: client.eval(_END, 1, name, self._token)))
        ms = max(1, int(seconds * 1000))
        return bool(await self._server.run(lambda client: client.set(name, self._token, nx=True, px=ms)))

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        self._server.close()


def _entries(client: Any) -> Iterator[tuple[CacheEntry, int]]:
    """All entries with their sizes, some possibly twice."""
    names = client.scan_iter(f"{ENTRY}*", count=PAGE)
    while page := [*islice(names, PAGE)]:
        with client.pipeline(transaction=False) as pipe:
            for name in page:
                pipe.get(name)
            for body in pipe.execute():
                if (entry := entry_of(body or b"")) is not None:
                    yield entry, len(body)
