"""One place where accounts, ledger and traces are asked of a storage, which may be anybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from routewright.protocols import Storage
from routewright.wire import (
    Account,
    Accounts,
    CacheCount,
    CacheCounts,
    CatalogueSnapshot,
    ClaimByKey,
    CurrentRetention,
    Events,
    FallbackCount,
    FallbackCounts,
    FeedbackByTrace,
    GroupedUsage,
    HealthSnapshot,
    Incident,
    Incidents,
    Key,
    KeyByDigest,
    KeyClaim,
    Keys,
    LatencyCount,
    LatencyCounts,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    PolicySnapshot,
    PutFeedback,
    Query,
    RollupKeys,
    Scan,
    SetRetention,
    SnapshotById,
    Standing,
    Stands,
    StoredEvent,
    Trace,
    TraceById,
    TraceItem,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
    Written,
)

from .stored import applied, storage_faults, unfit

_ONE: Final[dict[type, tuple[type, ...]]] = {
    ClaimByKey: (KeyClaim, type(None)),
    CurrentRetention: (SetRetention,),
    FeedbackByTrace: (PutFeedback, type(None)),
    KeyByDigest: (Key, type(None)),
    SnapshotById: (CatalogueSnapshot, PolicySnapshot, HealthSnapshot, type(None)),
    Stands: (Standing,),
    TraceById: (Trace, type(None)),
    UsageCounts: (GroupedUsage,),
}
"""What a query is answered with."""
_MANY: Final[dict[type, type]] = {
    Accounts: Account,
    CacheCounts: CacheCount,
    Events: StoredEvent,
    FallbackCounts: FallbackCount,
    Incidents: Incident,
    Keys: Key,
    LatencyCounts: LatencyCount,
    LedgerRows: LedgerRow,
    LedgerSums: LedgerSum,
    LedgerSumsOfAll: LedgerSum,
    RollupKeys: str,
    TraceItems: TraceItem,
    Traces: Trace,
}
"""Where that is a list, of what."""


class CheckedStorage:
    """A storage of which all that comes is what was asked for, or a ``RouterError``: ``InternalError`` where it gives
    or raises what it may not."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage  # whose overloads are the caller's matter

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        return await applied(self._storage, account, writes)

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query (``protocols.Storage``)."""
        with storage_faults():
            found = await self._storage.read(account, query)
        if type(query) in _MANY:
            return self._list("read", found, _MANY[type(query)])
        kinds = _ONE[type(query)]
        if isinstance(found, kinds):
            return found
        named = " or ".join(kind.__name__.removesuffix("Type") for kind in kinds)
        raise unfit(self._storage, "read", named, found)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        """Up to ``limit`` things behind the key ``after`` (``protocols.Storage``)."""
        with storage_faults():
            found = await self._storage.scan(account, query, after=after, limit=limit)
        return self._list("scan", found, _MANY[type(query)])

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``protocols.Storage``)."""
        with storage_faults():
            swept: object = await self._storage.sweep(now)
        if isinstance(swept, int):
            return swept
        raise unfit(self._storage, "sweep", "a number", swept)

    async def aclose(self) -> None:
        """Free the storage."""
        await self._storage.aclose()

    def _list(self, method: str, found: object, kind: type) -> list[Any]:
        if isinstance(found, list | tuple) and all(isinstance(each, kind) for each in found):
            return [*found]
        raise unfit(self._storage, method, f"a list of {kind.__name__}", found)
