"""``Ledger``: what was paid and billed, as its owner reads it, without a Router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from copy import copy
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
from msgspec import UNSET, UnsetType

from ._core.analytics.report import days_of
from ._core.moment import moment, timestamp
from ._core.reconcile import Scope, reconciled
from ._core.request.problems import shown
from ._core.request.rules import Range
from ._core.rows import key_of
from ._core.statement import EPOCH, balance_of, check_by, day_before, days_of_month, statement
from ._core.trace.ids import normalise_trace_id
from ._core.usage_export import checked_export
from ._engine.storage import GuardedStorage
from ._engine.worker import Worker
from .arguments import check_account, check_storage
from .backends.clock import SystemClock
from .catalogue import Catalogue
from .correction import Corrections, checked_correction
from .document import path_of
from .errors import Problem, ValidationFailed
from .protocols import Clock, Storage
from .storage import open_storage
from .trace import When
from .twin import Closing, Twin, plain, plain_loop
from .usage_export import read_usage_export
from .wire import (
    SYSTEM_ACCOUNT,
    Account,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    Reconciliation,
    Standing,
    Stands,
    Statement,
    StatementBy,
    Usage,
    UsageExport,
)

PIECE = 200
"""Rows that are read at a time."""
_SHARE = Range(0, 1)


class Ledger(Closing):
    """Reads what was paid and billed, and puts right what was not known, or wrong, when it was booked.

    ledger = Ledger("sqlite:///calls.db")
    november = await ledger.statement("2026-11")
    await ledger.correct(trace_id, 1, cost_usd=0.0042, note="invoice of November")

    ``storage`` is a storage or its URL. What a Router has not written yet is not there: flush it first.
    """

    def __init__(self, storage: Storage | str, *, clock: Clock | None = None) -> None:
        if isinstance(storage, str):
            storage = open_storage(storage, clock=clock)
        check_storage(storage)
        self._storage = storage
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock or SystemClock()
        self._corrections = Corrections(self._checked, self._clock)
        self._account = "default"

    def as_account(self, account: str) -> Self:
        """That of another account: its methods mean this one where none is named."""
        ledger = copy(self)
        ledger._account = check_account("account", account)
        vars(ledger).pop("blocking", None)
        return ledger

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
        """All rows of an account, newest first: those from ``since`` on and before ``until``, and of one call.

        Raises ``ValidationFailed``.
        """
        first = None if since is None else moment("since", since)
        last = None if until is None else moment("until", until)
        if first is not None and last is not None and first > last:
            raise ValidationFailed.of(Problem("since", f"is {first}, after {last}, the until", ""))
        asked = LedgerRows(first, last, None if trace_id is None else normalise_trace_id(trace_id))
        account, after = self._of(account), None
        while True:
            found = await self._checked.scan(account, asked, after=after, limit=PIECE)
            for row in found:
                yield row
            if len(found) < PIECE:
                return
            after = key_of(found[-1])

    async def sums(
        self,
        first: str | date | None = None,
        last: str | date | None = None,
        *,
        account: str | UnsetType = UNSET,
    ) -> list[LedgerSum]:
        """What the rows of each day, model and kind come to. Days are UTC and inclusive; without them the last seven.

        Raises ``ValidationFailed``.
        """
        days = days_of(first, last, self._clock.time(), ("first", "last"))
        return await self._sums(self._of(account), *days)

    async def statement(
        self, month: str | None = None, *, by: StatementBy = "model", account: str | UnsetType = UNSET
    ) -> Statement:
        """What an account was charged in a month of UTC, ``YYYY-MM``, and for what; without one in the present month.

        ``by="day"``: a line for each model and day. Raises ``ValidationFailed``.
        """
        check_by(by)
        now = timestamp(self._clock.time())
        month = now[: len("YYYY-MM")] if month is None else month
        first, last = days_of_month(month)
        account = self._of(account)
        standing: Standing = await self._read(account, Stands(now))
        owner = standing.account
        opening = None if owner is None or not owner.prepaid else await self._balance_before(owner, first)
        return statement(account, month, by, await self._sums(account, first, last), opening)

    async def correct(
        self,
        trace_id: str,
        attempt: int,
        *,
        cost_usd: float | None = None,
        usage: Usage | None = None,
        note: str = "",
        account: str | UnsetType = UNSET,
    ) -> LedgerRow | None:
        """Say what an attempt of a call really cost, or what it used, which is priced as it was then.

        A row with the difference is booked, and charged where the call was; its trace and the analytics follow with it
        or not at all. The month that pays is that of the call. Gives the row; None: there was nothing to correct, so
        that saying it twice is saying it once. Raises ``ValidationFailed``, and ``NotFound`` where the trace is gone or
        has no such attempt.
        """
        trace_id, account = normalise_trace_id(trace_id), self._of(account)
        said = checked_correction(attempt, cost_usd, usage, note)
        return await self._corrections.put_right(account, trace_id, said)

    async def reconcile(
        self,
        export: str | Path | UsageExport,
        *,
        first: str | date | None = None,
        last: str | date | None = None,
        provider: str | None = None,
        tolerance: float = 0.01,
        catalogue: Catalogue | None = None,
    ) -> Reconciliation:
        """Compare a provider's usage export with what all accounts used: per model and in total.

        ``export``: a file, or what ``read_usage_export`` made of one. The days, UTC and inclusive, are its own if not
        said otherwise, and so is the provider. ``tolerance``: the share of theirs by which ours may be off.
        ``catalogue``: the models whose names it may use, in the place of the bundled ones. Raises ``ValidationFailed``.
        """
        _check_tolerance(tolerance)
        _check_comparison(provider, catalogue)
        found = await self._export(export)
        days = days_of(first or found.first, last or found.last, self._clock.time(), ("first", "last"))
        sums = await self._read(SYSTEM_ACCOUNT, LedgerSumsOfAll(*days))
        known = Catalogue() if catalogue is None else catalogue
        return reconciled(found, sums, known.models, known.aliases, Scope(*days, float(tolerance), provider))

    async def aclose(self) -> None:
        """Free the storage."""
        await self._storage.aclose()

    async def _balance_before(self, owner: Account, day: str) -> int:
        """An account's balance as a day begins: its credit, less what it was charged since it was set up."""
        before, began = await self._sums(owner.name, EPOCH, day_before(day)), owner.created_at[:10]
        unpaid = sum(each.charge_nanos for each in await self._sums(owner.name, EPOCH, day_before(began)))
        until = datetime.fromisoformat(owner.created_at).astimezone(UTC)
        async for row in self.rows(since=began, until=until, account=owner.name):
            unpaid += row.charge_nanos
        return balance_of(before) + unpaid

    async def _export(self, given: object) -> UsageExport:
        if isinstance(given, UsageExport):
            return checked_export(given)
        path = path_of(given)
        if self._clock.virtual:
            return read_usage_export(path)
        return await anyio.to_thread.run_sync(read_usage_export, path)

    async def _sums(self, account: str, first: str, last: str) -> list[LedgerSum]:
        found: list[LedgerSum] = await self._read(account, LedgerSums(first, last))
        return found

    async def _read(self, account: str, query: Any) -> Any:
        return await self._checked.read(account, query)

    def _of(self, account: str | UnsetType) -> str:
        return self._account if account is UNSET else check_account("account", account)


class BlockingLedger(Twin[Ledger]):
    """``ledger.blocking``: the methods of ``Ledger`` as plain functions.

    november = Ledger("sqlite:///calls.db").blocking.statement("2026-11")
    """

    rows = plain_loop(Ledger.rows)
    sums = plain(Ledger.sums)
    statement = plain(Ledger.statement)
    correct = plain(Ledger.correct)
    reconcile = plain(Ledger.reconcile)


def _check_comparison(provider: object, catalogue: object) -> None:
    if provider is not None and not isinstance(provider, str):
        raise ValidationFailed.of(Problem("provider", f"is {shown(provider)}", "pass its name, or leave it out"))
    if catalogue is not None and not isinstance(catalogue, Catalogue):
        problem = Problem("catalogue", f"is {type(catalogue).__name__}", "pass Catalogue.load(path) or a Catalogue")
        raise ValidationFailed.of(problem)


def _check_tolerance(tolerance: object) -> None:
    fits = isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and _SHARE.admits(tolerance)
    if not fits:
        raise ValidationFailed.of(Problem("tolerance", f"must be {_SHARE}, got {shown(tolerance)}", "0.01 is 1 %"))
