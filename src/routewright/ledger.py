"""``Ledger``: reads and corrects what was paid and billed, without a Router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from datetime import UTC, date, datetime
from functools import cached_property, partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Self

from msgspec import UNSET, UnsetType

from ._core.accounts.ledger import THRESHOLDS, key_of
from ._core.analytics.report import days_of
from ._core.analytics.rollup import MOST_USD
from ._core.catalogue.prices import prices_of, pricing_on, usage_nanos
from ._core.money import MOST_TOKENS, nanos_of
from ._core.request.json_scan import is_unicode, quoted
from ._core.request.problems import shown
from ._core.request.rules import Range
from ._core.statement import (
    EPOCH,
    Truth,
    attempt_in,
    balance_of,
    began_at,
    check_by,
    corrected,
    correction,
    day_before,
    days_of_month,
    statement,
)
from ._core.timestamps import moment, timestamp
from ._core.trace.ids import normalise_trace_id
from ._engine.storage import GuardedStorage, read_trace, unhindered
from ._engine.worker import Worker
from .arguments import check_account, check_storage
from .backends.clock import SystemClock
from .blocking import Closing, Twin, plain, plain_loop
from .catalogue import Catalogue, checked_usage
from .errors import PreconditionFailed, StorageUnavailable, ValidationFailed
from .identity import Ids
from .protocols import Clock, Storage
from .storage import open_storage
from .trace import When
from .wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    Correct,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    PutTrace,
    RollupKeys,
    SnapshotById,
    Stands,
    Statement,
    StatementBy,
    TraceById,
    Usage,
)

if TYPE_CHECKING:
    from .contrib.invoices import Reconciliation
    from .contrib.usage_exports import UsageExport

PIECE = 200
"""Rows per read."""
MAX_NOTE_CHARS = 500
_COST = Range(0, MOST_USD)
_ATTEMPT = Range(1, 1_000, whole=True)


class Ledger(Closing):
    """Reads what was paid and billed, and corrects costs that were unknown or wrong when they were booked.

    ledger = Ledger("sqlite:///calls.db")
    november = await ledger.statement("2026-11")
    await ledger.correct(trace_id, 1, cost_usd=0.0042, note="invoice of November")

    ``storage`` is a storage or its URL. Flush Routers first, to have their last calls written."""

    def __init__(self, storage: Storage | str, *, clock: Clock | None = None) -> None:
        if isinstance(storage, str):
            storage = open_storage(storage, clock=clock)
        check_storage(storage)
        self._storage = storage
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock or SystemClock()
        self._account = "default"

    def as_account(self, account: str) -> Self:
        """The same ledger with another default account."""
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
        """Rows of an account, newest first: at or after ``since``, before ``until``, and of one call.

        Raises ``ValidationFailed``."""
        first = None if since is None else moment("since", since)
        last = None if until is None else moment("until", until)
        if first is not None and last is not None and first > last:
            raise ValidationFailed.at("since", f"is {first}, after until ({last})", "swap them")
        asked = LedgerRows(first, last, None if trace_id is None else normalise_trace_id(trace_id))
        async with aclosing(_rows(self._checked, self._of(account), asked)) as found:
            async for row in found:
                yield row

    async def sums(
        self, first: str | date | None = None, last: str | date | None = None, *, account: str | UnsetType = UNSET
    ) -> list[LedgerSum]:
        """Sums of rows by day, model and kind. Days are UTC and inclusive; the default is the last seven.

        Raises ``ValidationFailed``."""
        days = days_of(first, last, self._clock.time(), ("first", "last"))
        return await self._sums(self._of(account), *days)

    async def statement(
        self, month: str | None = None, *, by: StatementBy = "model", account: str | UnsetType = UNSET
    ) -> Statement:
        """The charges of an account in a month, ``YYYY-MM`` in UTC; the default is the present month.

        ``by="day"``: a line for each model and day. Raises ``ValidationFailed``."""
        check_by(by)
        now = timestamp(self._clock.time())
        month = now[: len("YYYY-MM")] if month is None else month
        first, last = days_of_month(month)
        account = self._of(account)
        owner = (await self._checked.read(account, Stands(now))).account
        opening = None
        if owner is not None and owner.prepaid:
            # the balance at the start of the month: the credit less the charges since the account was created
            began = owner.created_at[:10]
            unpaid = sum(each.charge_nanos for each in await self._sums(account, EPOCH, day_before(began)))
            until = datetime.fromisoformat(owner.created_at).astimezone(UTC)
            async for row in self.rows(since=began, until=until, account=account):
                unpaid += row.charge_nanos
            opening = balance_of(await self._sums(account, EPOCH, day_before(first))) + unpaid
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
        """Correct the cost of an attempt: pass its true cost, or its usage, priced as of that day.

        Books a row with the difference, charged if the call was, and updates trace and analytics, all or nothing. It
        counts in the month of the call. Returns the row; None if there was nothing to correct, so repeating it has no
        effect. Raises ``ValidationFailed``, and ``NotFound`` if the trace is gone or has no such attempt."""
        trace_id, account = normalise_trace_id(trace_id), self._of(account)
        number: object = attempt
        if isinstance(number, bool) or not isinstance(number, int) or not _ATTEMPT.admits(number):
            raise ValidationFailed.at("attempt", f"must be {_ATTEMPT}, got {shown(attempt)}", "as in its span")
        if cost_usd is None and usage is None:
            raise ValidationFailed.at("cost_usd", "is missing, and so is usage", "pass one of them, or both")
        said: object = note
        if not (isinstance(said, str) and len(said) <= MAX_NOTE_CHARS and is_unicode(said)):
            problem = f"must be a string of at most {MAX_NOTE_CHARS} characters, got {shown(note)}"
            raise ValidationFailed.at("note", problem, "keep longer ones elsewhere")
        if cost_usd is not None:
            given: object = cost_usd
            if isinstance(given, bool) or not isinstance(given, int | float) or not _COST.admits(given):
                raise ValidationFailed.at("cost_usd", f"must be {_COST}, got {shown(given)}", "give US dollars")
        if usage is not None:
            usage = checked_usage(usage)
            most = max(usage.input, usage.output)
            if most > MOST_TOKENS:
                raise ValidationFailed.at("usage", f"has {most:,} tokens", f"no call has more than {MOST_TOKENS:,}")
        book = partial(self._book, account, trace_id, attempt, cost_usd, usage, note)
        try:
            return await unhindered(book, f"the call {quoted(trace_id)}")
        except PreconditionFailed as error:
            raise StorageUnavailable(error.message) from error

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
        """Compare a provider's usage export with the usage of all accounts, by model and in total.

        ``export`` is a file, or the result of ``read_usage_export``. Days (UTC, inclusive) and provider default to the
        export's. ``tolerance``: the largest relative difference. ``catalogue`` names the models, in place of the
        bundled one. Raises ``ValidationFailed``."""
        from .contrib.invoices import reconcile  # needed by this method only

        return await reconcile(
            self._checked,
            self._clock,
            export,
            first=first,
            last=last,
            provider=provider,
            tolerance=tolerance,
            catalogue=catalogue,
        )

    async def aclose(self) -> None:
        """Close the storage."""
        await self._storage.aclose()

    async def _book(
        self, account: str, trace_id: str, attempt: int, cost_usd: float | None, usage: Usage | None, note: str
    ) -> LedgerRow | None:
        """Correct ledger, trace and analytics in one batch, which fails if another correction of the call came first.
        Returns the row; None if the attempt is already right."""
        # rows before the trace: a row added in between fails the batch
        rows = [row async for row in _rows(self._checked, account, LedgerRows(request_id=trace_id))]
        trace = await read_trace(self._checked, account, TraceById(trace_id), depth=0)
        if trace.environment == "sandbox":
            problem = f"{quoted(trace.id)} is a sandbox call, which is not billed"
            raise ValidationFailed.at("trace_id", problem, "pass a production call")
        span = attempt_in(trace, attempt)
        if cost_usd is not None:
            truth = Truth(nanos_of(float(cost_usd)), usage)
        else:  # by the prices of that day in the catalogue of the call's decision
            assert usage is not None, "either cost or usage is given"
            day, decided = began_at(trace, span, rows)[: len("YYYY-MM-DD")], trace.decision_input
            kept = None
            if decided is not None:
                kept = await self._checked.read(SYSTEM_ACCOUNT, SnapshotById(decided.catalogue))
            models = kept.models if isinstance(kept, CatalogueSnapshot) else ()
            prices = next((prices_of(pricing_on(model, day)) for model in models if model.id == span.model), ())
            if not prices:
                problem = f"cannot be priced: the price of {quoted(span.model)} on {day} is no longer stored"
                raise ValidationFailed.at("usage", problem, "pass cost_usd, too")
            truth = Truth(usage_nanos(prices, usage), usage)
        row = correction(trace, span, truth, rows, note)
        if row is not None:
            ids = Ids(self._clock, SystemRandom())
            correct = Correct(row=row, after=len(rows), event_ids=tuple(ids("evt_") for _ in THRESHOLDS))
            keys = tuple(await self._checked.read(account, RollupKeys()))
            put = PutTrace(corrected(trace, span, truth, row), expect="present", rollup_keys=keys)
            await self._checked.apply(account, [correct, put])
        return row

    async def _sums(self, account: str, first: str, last: str) -> list[LedgerSum]:
        return await self._checked.read(account, LedgerSums(first, last))

    def _of(self, account: str | UnsetType) -> str:
        return self._account if account is UNSET else check_account("account", account)


class BlockingLedger(Twin[Ledger]):
    """``ledger.blocking``: the methods of ``Ledger`` as plain functions.

    november = Ledger("sqlite:///calls.db").blocking.statement("2026-11")"""

    rows = plain_loop(Ledger.rows)
    sums = plain(Ledger.sums)
    statement = plain(Ledger.statement)
    correct = plain(Ledger.correct)
    reconcile = plain(Ledger.reconcile)


async def _rows(storage: Storage, account: str, asked: LedgerRows) -> AsyncGenerator[LedgerRow, None]:
    """Rows, newest first."""
    after = None
    while True:
        found = await storage.scan(account, asked, after=after, limit=PIECE)
        for row in found:
            yield row
        if len(found) < PIECE:
            return
        after = key_of(found[-1])
