"""A Router's storage as its own process sees it: with the traces that still wait to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright.errors import StorageUnavailable
from routewright.protocols import Storage
from routewright.wire import DeleteTraces, Query, Scan, TraceById, Write, Written

from .trace import TraceLog


class FreshStorage:
    """Reads the queue before the storage. What a query by id does not settle is written first."""

    def __init__(self, storage: Storage, log: TraceLog) -> None:
        self._storage: Any = storage  # whose overloads are the caller's matter
        self._log = log

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``). A deletion raises ``StorageUnavailable`` while a trace of the
        account cannot be written: behind it, that one would come back."""
        left = await self._log.write_of(account)
        if left and any(isinstance(write, DeleteTraces) for write in writes):
            said = f"traces of this account that cannot be written for now: {left}"
            raise StorageUnavailable(f"{said}; nothing is deleted before they are, so try again")
        result: list[Written] = await self._storage.apply(account, writes)
        return result

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query (``protocols.Storage``)."""
        if isinstance(query, TraceById):
            waiting = await self._log.waiting(account, query.id, query.environment)
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
