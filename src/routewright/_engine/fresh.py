"""A Router's storage as its own process sees it: with the traces that still wait to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright.protocols import Storage
from routewright.wire import Query, Scan, TraceById, Write, Written

from .trace import TraceLog


class FreshStorage:
    """Reads the queue before the storage. What a query by id does not settle is written first."""

    def __init__(self, storage: Storage, log: TraceLog) -> None:
        self._storage: Any = storage  # whose overloads are the caller's matter
        self._log = log

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        await self._log.write()
        result: list[Written] = await self._storage.apply(account, writes)
        return result

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query (``protocols.Storage``)."""
        if isinstance(query, TraceById):
            waiting = self._log.waiting(account, query.id, query.environment)
            if waiting is not None:
                return waiting
        else:
            await self._log.write()
        return await self._storage.read(account, query)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        """Traces behind the key ``after`` (``protocols.Storage``)."""
        await self._log.write()
        return await self._storage.scan(account, query, after=after, limit=limit)

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``protocols.Storage``)."""
        swept: int = await self._storage.sweep(now)
        return swept

    async def aclose(self) -> None:
        """Nothing: the Router closes its storage."""
