"""``RedisCache``: cached answers that processes on many machines share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec import DecodeError, msgpack
from msgspec.structs import replace

from routewright._core.cache.selection import selects
from routewright.backends.clock import SystemClock
from routewright.backends.redis import Server
from routewright.protocols import Clock, Vector
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats

ENTRY, LEAD, PAGE = "rw:answer:", "rw:lead:", 500
_END = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisCache:
    """Keeps answers in Redis or Valkey. Only the same request finds its answer: similar ones are not looked for.

        router = Router(cache=RedisCache("redis://redis.internal"))

    Of several processes that miss the same answer one makes the call, and the others wait for it. URLs are those of
    ``open_coordination``. The server's ``maxmemory`` is the bound: let it evict with ``allkeys-lru``, and count rate
    limits in another one. ``remove`` and ``stats`` read all entries. ``clock``: with a ``FakeClock`` nothing runs in
    threads.
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
        entry = _decoded(await self._server.run(lambda client: client.get(ENTRY + key.hex())))
        return entry if entry is not None and entry.expires_at > now else None

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """Nothing."""
        return ()

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        body, name = msgpack.encode(replace(entry, vector=None)), ENTRY + entry.key.hex()
        left_ms = int(1000 * (entry.expires_at - self._clock.time()))
        await self._server.run(
            lambda client: client.set(name, body, px=left_ms) if left_ms > 0 else client.delete(name)
        )

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and return how many (``protocols.Cache``)."""
        return await self._server.run(partial(_remove, which, self._clock.time()))

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count the entries of an account, or of all (``protocols.Cache``)."""
        kept = await self._server.run(lambda client: dict(_entries(client)))
        mine = [each for each in kept.values() if account in (None, each[0].account) and each[0].expires_at > now]
        return CacheStats(
            entries=len(mine),
            size_bytes=sum(size for _, size in mine),
            partitions=len({entry.partition for entry, _ in mine}),
            oldest_at=min((entry.created_at for entry, _ in mine), default=None),
            saves_nanos=sum(entry.cost_nanos for entry, _ in mine),
        )

    async def lead(self, key: bytes, seconds: float) -> bool:
        """Begin to make the answer of a request, or end it (``protocols.Cache``)."""
        name, token = LEAD + key.hex(), self._token
        if seconds <= 0:
            return bool(await self._server.run(lambda client: client.eval(_END, 1, name, token)))
        ms = max(1, int(seconds * 1000))
        return bool(await self._server.run(lambda client: client.set(name, token, nx=True, px=ms)))

    async def aclose(self) -> None:
        """Close the connections. They are opened again if it is used again."""
        self._server.close()


def _decoded(body: bytes | None) -> CacheEntry | None:
    try:
        return None if body is None else msgpack.decode(body, type=CacheEntry)
    except DecodeError:  # of another version
        return None


def _entries(client: Any) -> Iterator[tuple[bytes, tuple[CacheEntry, int]]]:
    """All entries with their names and sizes, some perhaps twice."""
    names = client.scan_iter(f"{ENTRY}*", count=PAGE)
    while page := [*islice(names, PAGE)]:
        with client.pipeline(transaction=False) as pipe:
            for name in page:
                pipe.get(name)
            for name, body in zip(page, pipe.execute(), strict=True):
                if (entry := _decoded(body)) is not None:
                    yield name, (entry, len(body))


def _remove(which: CacheSelection, now: float, client: Any) -> int:
    meant = {name: entry for name, (entry, _) in _entries(client) if selects(which, entry)}
    with client.pipeline(transaction=False) as pipe:
        for name in meant:
            pipe.delete(name)
        pipe.execute()
    return sum(entry.expires_at > now for entry in meant.values())
