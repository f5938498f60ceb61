"""``Ledger``: reads and corrects what was paid and billed, without a Router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from datetime import UTC, date, datetime
from functools import cached_property, partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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
    Account,
    CatalogueSnapshot,
    Correct,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    ModelSpan,
    PutTrace,
    RollupKeys,
    SnapshotById,
    Standing,
    Stands,
    Statement,
    StatementBy,
    Trace,
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
        """Correct the cost of an attempt: pass its true cost, or its usage, priced as of that day.

        Books a row with the difference, charged if the call was, and updates trace and analytics, all or nothing. It
        counts in the month of the call. Returns the row; None if there was nothing to correct, so repeating it has no
        effect. Raises ``ValidationFailed``, and ``NotFound`` if the trace is gone or has no such attempt."""
        trace_id, account = normalise_trace_id(trace_id), self._of(account)
        said = _checked_correction(attempt, cost_usd, usage, note)
        return await _Correction(self._checked, self._clock, account, trace_id).put_right(said)

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

    async def _balance_before(self, owner: Account, day: str) -> int:
        """An account's balance at the start of a day: its credit less its charges since it was created."""
        before, began = await self._sums(owner.name, EPOCH, day_before(day)), owner.created_at[:10]
        unpaid = sum(each.charge_nanos for each in await self._sums(owner.name, EPOCH, day_before(began)))
        until = datetime.fromisoformat(owner.created_at).astimezone(UTC)
        async for row in self.rows(since=began, until=until, account=owner.name):
            unpaid += row.charge_nanos
        return balance_of(before) + unpaid

    async def _sums(self, account: str, first: str, last: str) -> list[LedgerSum]:
        found: list[LedgerSum] = await self._read(account, LedgerSums(first, last))
        return found

    async def _read(self, account: str, query: Any) -> Any:
        return await self._checked.read(account, query)

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


class _Said(NamedTuple):
    """What an attempt came to, as the caller says."""

    attempt: int
    cost_usd: float | None
    usage: Usage | None
    note: str


def _checked_correction(attempt: object, cost_usd: object, usage: object, note: object) -> _Said:
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not _ATTEMPT.admits(attempt):
        raise ValidationFailed.at("attempt", f"must be {_ATTEMPT}, got {shown(attempt)}", "as in its span")
    if cost_usd is None and usage is None:
        raise ValidationFailed.at("cost_usd", "is missing, and so is usage", "pass one of them, or both")
    if not (isinstance(note, str) and len(note) <= MAX_NOTE_CHARS and is_unicode(note)):
        problem = f"must be a string of at most {MAX_NOTE_CHARS} characters, got {shown(note)}"
        raise ValidationFailed.at("note", problem, "keep longer ones elsewhere")
    if cost_usd is not None:
        if isinstance(cost_usd, bool) or not isinstance(cost_usd, int | float) or not _COST.admits(cost_usd):
            raise ValidationFailed.at("cost_usd", f"must be {_COST}, got {shown(cost_usd)}", "give US dollars")
        cost_usd = float(cost_usd)
    used = None if usage is None else checked_usage(usage)
    most = 0 if used is None else max(used.input, used.output)
    if most > MOST_TOKENS:
        raise ValidationFailed.at("usage", f"has {most:,} tokens", f"no call has more than {MOST_TOKENS:,}")
    return _Said(attempt, cost_usd, used, note)


class _Correction:
    """Corrects an attempt of one call: ledger, trace and analytics in one batch, which fails if another correction of
    the call came first."""

    def __init__(self, storage: Storage, clock: Clock, account: str, trace_id: str) -> None:
        self._storage = storage
        self._clock = clock
        self._account = account
        self._trace_id = trace_id
        self._ids = Ids(clock, SystemRandom())

    async def put_right(self, said: _Said) -> LedgerRow | None:
        """Book the correction and return its row; None if the attempt is already right."""
        try:
            return await unhindered(partial(self._try, said), f"the call {quoted(self._trace_id)}")
        except PreconditionFailed as error:
            raise StorageUnavailable(error.message) from error

    async def _try(self, said: _Said) -> LedgerRow | None:
        # rows before the trace: a row added in between fails the batch
        asked = LedgerRows(request_id=self._trace_id)
        rows = [row async for row in _rows(self._storage, self._account, asked)]
        trace = await read_trace(self._storage, self._account, TraceById(self._trace_id), depth=0)
        if trace.environment == "sandbox":
            problem = f"{quoted(trace.id)} is a sandbox call, which is not billed"
            raise ValidationFailed.at("trace_id", problem, "pass a production call")
        span = attempt_in(trace, said.attempt)
        truth = await self._truth(trace, span, said, began_at(trace, span, rows)[: len("YYYY-MM-DD")])
        row = correction(trace, span, truth, rows, said.note)
        if row is not None:
            await self._book(corrected(trace, span, truth, row), row, len(rows))
        return row

    async def _truth(self, trace: Trace, span: ModelSpan, said: _Said, day: str) -> Truth:
        """The given cost, or the cost of the given usage at that day's prices in the catalogue of the call's decision.
        Raises ``ValidationFailed``."""
        if said.cost_usd is not None:
            return Truth(nanos_of(said.cost_usd), said.usage)
        assert said.usage is not None, "either cost or usage is given"
        given = trace.decision_input
        kept = None if given is None else await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(given.catalogue))
        models = kept.models if isinstance(kept, CatalogueSnapshot) else ()
        prices = next((prices_of(pricing_on(model, day)) for model in models if model.id == span.model), ())
        if not prices:
            problem = f"cannot be priced: the price of {quoted(span.model)} on {day} is no longer stored"
            raise ValidationFailed.at("usage", problem, "pass cost_usd, too")
        return Truth(usage_nanos(prices, said.usage), said.usage)

    async def _book(self, trace: Trace, row: LedgerRow, after: int) -> None:
        """Book a row and store the corrected trace, counted by all roll-up keys of the account."""
        keys = await self._storage.read(self._account, RollupKeys())
        event_ids = tuple(self._ids("evt_") for _ in THRESHOLDS)
        correct = Correct(row=row, after=after, event_ids=event_ids)
        put = PutTrace(trace, expect="present", rollup_keys=tuple(keys))
        await self._storage.apply(self._account, [correct, put])
