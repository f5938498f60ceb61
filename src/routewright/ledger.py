"""``Ledger``: reads what was paid and billed, without a Router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import date
from functools import cached_property

from msgspec import UNSET, UnsetType

from ._core.accounts.ledger import key_of
from ._core.analytics.report import days_of
from ._engine.storage import GuardedStorage
from ._runtime.blocking import Twin, plain, plain_loop
from ._runtime.worker import Worker
from .backends.clock import SystemClock
from .protocols import Clock, Storage
from .storage import storage_at
from .trace import OfAccount, When
from .wire import LedgerRow, LedgerRows, LedgerSum, LedgerSums
from .wire.ids import normalise_trace_id
from .wire.timestamps import span_of

PIECE = 200
"""Rows per read."""


class Ledger(OfAccount):
    """Reads what was paid and billed.

    ledger = Ledger("sqlite:///calls.db")
    november = await ledger.sums("2026-11-01", "2026-11-30")

    ``storage`` is a storage or its URL. Flush Routers first, to have their last calls written."""

    def __init__(self, storage: Storage | str, *, clock: Clock | None = None) -> None:
        self._storage = storage = storage_at(storage, clock)
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock or SystemClock()

    @cached_property
    def blocking(self) -> BlockingLedger:
        """The same methods for code without ``await``."""
        return BlockingLedger(self, Worker(self._clock))

    def __repr__(self) -> str:
        return f"Ledger({self._storage!r})"

    async def rows(
        self,
        *,
        since: When | None = None,
        until: When | None = None,
        trace_id: str | None = None,
        account: str | UnsetType = UNSET,
    ) -> AsyncGenerator[LedgerRow, None]:
        """Rows of an account, newest first: at or after ``since``, before ``until``, and of one call.

        Raises ``ValidationFailed``."""
        first, last = span_of(since, until)
        query = LedgerRows(first, last, None if trace_id is None else normalise_trace_id(trace_id))
        account = self._of(account)
        after = None
        while True:
            rows = await self._checked.scan(account, query, after=after, limit=PIECE)
            for row in rows:
                yield row
            if len(rows) < PIECE:
                return
            after = key_of(rows[-1])

    async def sums(
        self, first: str | date | None = None, last: str | date | None = None, *, account: str | UnsetType = UNSET
    ) -> list[LedgerSum]:
        """Sums of rows by day, model and kind. Days are UTC and inclusive; the default is the last seven.

        Raises ``ValidationFailed``."""
        days = days_of(first, last, self._clock.time(), ("first", "last"))
        return await self._checked.read(self._of(account), LedgerSums(*days))

    async def aclose(self) -> None:
        """Close the storage."""
        await self._storage.aclose()


class BlockingLedger(Twin[Ledger]):
    """``ledger.blocking``: the methods of ``Ledger`` as plain functions.

    november = Ledger("sqlite:///calls.db").blocking.sums("2026-11-01", "2026-11-30")"""

    rows = plain_loop(Ledger.rows)
    sums = plain(Ledger.sums)
