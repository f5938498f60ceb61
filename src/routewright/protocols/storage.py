"""Where everything is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

from routewright.wire import (
    Account,
    Accounts,
    CacheCount,
    CacheCounts,
    ClaimByKey,
    CurrentRetention,
    Environment,
    Events,
    FallbackCount,
    FallbackCounts,
    FeedbackByTrace,
    GroupedUsage,
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
    PutFeedback,
    RollupKeys,
    SetRetention,
    Snapshot,
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


@runtime_checkable
class Storage(Protocol):
    """One atomic door to everything that is kept (contract 1). Kinds of write and query are in ``wire/storage.py``.

    Safe to call from any event loop and thread. What ``apply`` returned from is there for every later ``read``.
    A trace stays as it was written, whatever becomes of the object that was given or read; the roll-ups change with it
    or not at all. Nothing of one account is ever seen through another's name. Every method raises ``UnsupportedWrite``
    for a kind that it does not know, and ``StorageUnavailable`` for what may succeed later.
    """

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none, in order. Raises ``PreconditionFailed`` where one does not find what it expects."""
        ...

    @overload
    async def read(self, account: str, query: TraceById) -> Trace | None: ...
    @overload
    async def read(self, account: str, query: FeedbackByTrace) -> PutFeedback | None: ...
    @overload
    async def read(self, account: str, query: SnapshotById) -> Snapshot | None: ...
    @overload
    async def read(self, account: str, query: CurrentRetention) -> SetRetention: ...
    @overload
    async def read(self, account: str, query: RollupKeys) -> list[str]: ...
    @overload
    async def read(self, account: str, query: UsageCounts) -> GroupedUsage: ...
    @overload
    async def read(self, account: str, query: CacheCounts) -> list[CacheCount]: ...
    @overload
    async def read(self, account: str, query: FallbackCounts) -> list[FallbackCount]: ...
    @overload
    async def read(self, account: str, query: LatencyCounts) -> list[LatencyCount]: ...
    @overload
    async def read(self, account: str, query: Stands) -> Standing: ...
    @overload
    async def read(self, account: str, query: LedgerSums) -> list[LedgerSum]: ...
    @overload
    async def read(self, account: str, query: LedgerSumsOfAll) -> list[LedgerSum]: ...
    @overload
    async def read(self, account: str, query: ClaimByKey) -> KeyClaim | None: ...
    @overload
    async def read(self, account: str, query: KeyByDigest) -> Key | None: ...
    @overload
    async def read(self, account: str, query: Keys) -> list[Key]: ...
    @overload
    async def read(self, account: str, query: Accounts) -> list[Account]: ...
    @overload
    async def read(self, account: str, query: Incidents) -> list[Incident]: ...
    async def read(self, account: str, query: Any) -> Any:
        """Answer a query; None where what it asks for is not there. Yours may take ``Query`` and give ``Any``."""
        ...

    @overload
    async def scan(self, account: str, query: TraceItems, *, after: str | None, limit: int) -> list[TraceItem]: ...
    @overload
    async def scan(self, account: str, query: Traces, *, after: str | None, limit: int) -> list[Trace]: ...
    @overload
    async def scan(self, account: str, query: LedgerRows, *, after: str | None, limit: int) -> list[LedgerRow]: ...
    @overload
    async def scan(self, account: str, query: Events, *, after: str | None, limit: int) -> list[StoredEvent]: ...
    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        """Up to ``limit`` things, newest first by their ``key``, from just behind the key ``after``. Of a limit below
        1 none."""
        ...

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``now`` in Unix seconds), over all accounts. Says how many things.

        Removed traces stay in the roll-ups. Snapshots go that no trace names any more, some time after."""
        ...

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""
        ...


class TraceDraft(Protocol):
    """A trace that is made when somebody reads it. Safe to read from any thread."""

    @property
    def id(self) -> str:
        """The trace's id."""
        ...

    @property
    def key(self) -> str:
        """The trace's key."""
        ...

    @property
    def rollup_keys(self) -> Sequence[str]:
        """As in ``PutTrace``."""
        ...

    @property
    def rows(self) -> Sequence[LedgerRow]:
        """What its attempts cost, to be booked with it."""
        ...

    @property
    def environment(self) -> Environment:
        """The trace's environment."""
        ...

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        """The catalogue, health and policy that its decision input names; None if it has none."""
        ...

    @property
    def text_bytes(self) -> int:
        """About how much memory its content takes."""
        ...

    @property
    def trace(self) -> Trace:
        """Make the trace, a new one each time."""
        ...

    @property
    def wordless(self) -> Trace:
        """Make it without its content, which a redactor may take its time for."""
        ...


@runtime_checkable
class LocalStorage(Storage, Protocol):
    """A storage in a file of this machine. What is secret about it stands in a file beside it."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...


@runtime_checkable
class ImmediateStorage(Storage, Protocol):
    """A storage none of whose methods ever waits, so that nothing has to queue in front of it."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace, as ``PutTrace`` does, and under ``SYSTEM_ACCOUNT`` the snapshots that its decision names."""
        ...
