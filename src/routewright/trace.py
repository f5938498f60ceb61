"""``TraceStore``: reads traces and reports on them, without a Router."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from datetime import date, datetime
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Self, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from . import wire
from ._core.analytics import report
from ._core.analytics.rollup import GROUPS
from ._core.request.rules import Range
from ._core.snapshot_delta import check_trace
from ._core.trace.filter import parse_filter, seal, unseal
from ._engine.storage import read_accounts, read_trace
from ._engine.trace_log import FreshStorage
from ._runtime.blocking import Closing, Twin, plain, plain_loop
from ._runtime.worker import Worker
from ._setup.arguments import check_account, check_choice, check_deletes, check_environment, make_feedback
from ._setup.root_secret import RootSecret
from .backends.clock import SystemClock
from .errors import NotFound, PreconditionFailed, UnsupportedWrite, ValidationFailed
from .protocols import Clock, Storage
from .settings import Retention, Settings
from .storage import storage_at
from .wire.ids import normalise_trace_id
from .wire.problems import shown
from .wire.timestamps import span_of

When = str | datetime | date
"""A timestamp (RFC 3339), a datetime with a time zone, or a date: its start in UTC."""

ReportEnvironment = Literal["production", "sandbox", "all"]

LIMIT = Range(1, 200, whole=True)
PIECE = 200
"""Traces per read of an export."""
DELETE_SIZE = 100


class OfAccount(Closing):
    """Has a default account, which each method may replace."""

    _account: str | None = None
    """None: ``default``, in a view of no one account."""

    def as_account(self, account: str) -> Self:
        """The same with another default account."""
        view = copy(self)
        view._account = check_account("account", account)
        vars(view).pop("blocking", None)
        return view

    def _of(self, account: str | UnsetType) -> str:
        return self._account or wire.DEFAULT_ACCOUNT if account is UNSET else check_account("account", account)


class TraceStore(OfAccount):
    """Stores and reads traces, and reports on them.

    store = TraceStore("sqlite:///traces.db")
    page = await store.query(filter="status=failed,metadata.team=search")
    report = await store.usage(group_by="model")

    ``storage`` is a storage or its URL. ``rollup_keys`` are metadata keys of recorded traces that ``usage`` can group
    by, besides ``tenant`` and ``workflow``. Reads include traces that Routers of this process have yet to write to the
    same storage object. ``router.traces`` also has the Router's settings."""

    def __init__(self, storage: Storage | str, *, rollup_keys: Sequence[str] = (), clock: Clock | None = None) -> None:
        self._storage = storage = storage_at(storage, clock)
        self._rollup_keys = report.check_keys("rollup_keys", rollup_keys)
        self._clock = clock or SystemClock()
        self._checked: Storage = FreshStorage(storage, self._clock)
        self._secret = RootSecret(storage, os.environ)
        self._worker: Worker | None = None
        self._forget_answers: Callable[[str, wire.Environment | None], Awaitable[None]] | None = None
        self._environment: wire.Environment = "production"

    @classmethod
    def of_router(
        cls,
        storage: Storage,
        settings: Settings,
        worker: Worker,
        forget_answers: Callable[[str, wire.Environment | None], Awaitable[None]],
        environment: wire.Environment,
    ) -> Self:
        """The store of a Router, which closes the storage itself. ``forget_answers`` clears its response cache.
        ``environment``: that of its reports."""
        store = cls(storage, rollup_keys=settings.rollup_keys, clock=settings.clock)
        store._worker = worker
        store._forget_answers = forget_answers
        store._environment = environment
        return store

    @cached_property
    def blocking(self) -> BlockingTraceStore:
        """The same methods for code without ``await``."""
        return BlockingTraceStore(self, self._worker or Worker(self._clock))

    def __repr__(self) -> str:
        return f"TraceStore({self._storage!r})"

    async def record(self, trace: wire.Trace) -> None:
        """Store a trace under its account, replacing one with the same id and environment. Raises
        ``ValidationFailed``."""
        trace = check_trace(trace)
        check_account("trace.account", trace.account)
        try:
            await self._checked.apply(trace.account, [wire.PutTrace(trace, rollup_keys=self._rollup_keys)])
        except PreconditionFailed as error:
            problem = f"{shown(trace.id)} exists in another environment than {trace.environment}"
            raise ValidationFailed.at("trace.id", problem, "record it under another id") from error

    async def get(
        self, trace_id: str, *, account: str | UnsetType = UNSET, environment: wire.Environment | None = None
    ) -> wire.Trace:
        """Read one trace. An agent run includes the spans of its model calls, as one tree. Raises ``NotFound``, also
        for another account's trace."""
        query = wire.TraceById(normalise_trace_id(trace_id), check_environment(environment))
        return await read_trace(self._checked, self._of(account), query)

    async def query(
        self,
        *,
        filter: str = "",
        since: When | None = None,
        until: When | None = None,
        limit: int = 50,
        cursor: str | None = None,
        account: str | UnsetType = UNSET,
        environment: wire.Environment | None = None,
    ) -> wire.Page[wire.TraceItem]:
        """A page of traces without spans, newest first, created at or after ``since`` and before ``until``.

        ``cursor`` is the ``next_cursor`` of the previous page, valid for 24 hours with the same arguments (``limit``
        may differ). Raises ``ValidationFailed``, ``CursorInvalid`` and ``CursorExpired``."""
        count: object = limit
        if isinstance(count, bool) or not isinstance(count, int | float) or not LIMIT.admits(count):
            raise ValidationFailed.at("limit", f"must be {LIMIT}, got {shown(limit)}", "for example 50")
        query = wire.TraceItems(**self._selection(filter, since, until, environment))
        account = self._of(account)
        bound = [account, msgspec.to_builtins(query)]
        now = self._clock.time()
        after = None if cursor is None else unseal(cursor, bound, self._secret.derive_keys("cursors"), now)
        entries = await self._checked.scan(account, query, after=after, limit=int(limit) + 1)
        data = entries[: int(limit)]
        if len(entries) == len(data):
            return wire.Page(data)
        return wire.Page(data, seal(data[-1].key, bound, self._secret.derive_keys("cursors")[0], now), has_more=True)

    async def export(
        self,
        *,
        filter: str = "",
        since: When | None = None,
        until: When | None = None,
        account: str | UnsetType = UNSET,
        environment: wire.Environment | None = None,
    ) -> AsyncGenerator[wire.Trace, None]:
        """Complete traces of an account, newest first; the arguments select as in ``query``."""
        query = wire.Traces(**self._selection(filter, since, until, environment))
        account = self._of(account)
        after: str | None = None
        while True:
            traces = await self._checked.scan(account, query, after=after, limit=PIECE)
            for trace in traces:
                yield trace
            if len(traces) < PIECE:
                return
            after = traces[-1].key

    async def delete(
        self,
        *,
        trace_id: str | None = None,
        filter: str = "",
        since: When | None = None,
        until: When | None = None,
        everything: bool = False,
        account: str | UnsetType = UNSET,
        environment: wire.Environment | None = None,
    ) -> int:
        """Delete the traces of an account that match all arguments, with their feedback, also from its reports. Returns
        their number.

        Without a selection ``everything=True`` is required; it also removes answers kept under idempotency keys and in
        the Router's cache. The ledger stays. Raises ``ValidationFailed``."""
        check_deletes(everything, has_selection=trace_id is not None or bool(filter or since or until))
        trace_id = None if trace_id is None else normalise_trace_id(trace_id)
        write = wire.DeleteTraces(id=trace_id, limit=DELETE_SIZE, **self._selection(filter, since, until, environment))
        account = self._of(account)
        if everything:
            with suppress(UnsupportedWrite):  # such a storage has no answers under idempotency keys
                await self._checked.apply(account, [wire.DeleteResults(environment)])
            if self._forget_answers is not None:
                await self._forget_answers(account, environment)
        removed = 0
        while True:
            (written,) = await self._checked.apply(account, [write])
            removed += written.count
            if written.count < DELETE_SIZE:
                return removed

    async def retain(self, retention: Retention) -> int:
        """Set how long all processes keep traces, and remove older ones now, with snapshots that no trace names.
        Returns the number of removed items. Reports still count removed traces."""
        if not isinstance(retention, Retention):
            raise ValidationFailed.at("retention", f"is {shown(retention)}", "pass Retention(production_days=..., ...)")
        await self._checked.apply(wire.SYSTEM_ACCOUNT, [retention.write])
        return await self._checked.sweep(self._clock.time())

    async def retention(self) -> Retention:
        """The present retention."""
        return Retention.of(await self._checked.read(wire.SYSTEM_ACCOUNT, wire.CurrentRetention()))

    async def feedback(
        self,
        trace_id: str,
        score: float,
        comment: str | None = None,
        *,
        account: str | UnsetType = UNSET,
        environment: wire.Environment | None = None,
    ) -> None:
        """Rate an answer from 0 to 1. Raises ``NotFound`` if the account has no such trace."""
        write = make_feedback(trace_id, score, comment, self._clock.time(), check_environment(environment))
        try:
            await self._checked.apply(self._of(account), [write])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {shown(trace_id)}") from error

    async def feedback_of(
        self, trace_id: str, *, account: str | UnsetType = UNSET, environment: wire.Environment | None = None
    ) -> wire.PutFeedback | None:
        """The feedback on an answer: ``score``, ``comment`` and ``at`` (Unix seconds)."""
        query = wire.FeedbackByTrace(normalise_trace_id(trace_id), check_environment(environment))
        return await self._checked.read(self._of(account), query)

    async def usage(
        self,
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        *,
        group_by: str = "model",
        bucket: wire.Bucket = "day",
        account: str | UnsetType = UNSET,
        all_accounts: bool = False,
        environment: ReportEnvironment | None = None,
    ) -> wire.UsageReport:
        """Requests, errors, money and tokens by time and group (spec 4.6).

        Dates are UTC and inclusive; the default is the last seven days. ``environment`` None is ``production``, or for
        a sandbox Router's store ``sandbox``. ``group_by``: ``model``, ``policy_version``, ``shadow`` (``same``, or what
        the shadow of a policy would change: ``openai/x -> anthropic/y``), ``tenant`` or ``workflow`` (metadata keys),
        ``metadata.<key>`` for one of ``rollup_keys``, or ``account``.

        ``all_accounts=True`` covers all accounts that were created, and ``default``, as ``group_by="account"`` always
        does. Neither is possible with ``account``, or in a view of one account. Raises ``ValidationFailed``."""
        first, last = report.days_of(start_date, end_date, self._clock.time())
        report.check_bucket(bucket, first, last)
        if group_by not in GROUPS:
            report.check_group(group_by, await self.usage_groups(account=account, all_accounts=all_accounts))
        by_account = group_by == report.ACCOUNT
        query = wire.UsageCounts(
            first=first,
            last=last,
            environment=self._reported(environment),
            group_by="model" if by_account else group_by,
            hourly=bucket == "hour",
            groups=0 if by_account else report.GROUP_LIMIT,
        )
        uses = await self._read(account, all_accounts or by_account, query)
        return report.usage_report(report.merge_usage(uses, by_account=by_account), first, last, bucket, group_by)

    async def usage_groups(self, *, account: str | UnsetType = UNSET, all_accounts: bool = False) -> list[str]:
        """What ``usage`` can group by."""
        keys = await self._read(account, all_accounts, wire.RollupKeys())
        of_all = account is UNSET and self._account is None
        return report.groups_of({*self._rollup_keys, *chain(*keys.values())}, of_all=of_all)

    async def cache_report(
        self,
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        *,
        account: str | UnsetType = UNSET,
        all_accounts: bool = False,
        environment: ReportEnvironment | None = None,
    ) -> wire.CacheReport:
        """Hits, misses and dollars saved (spec 4.7). Dates and environment as in ``usage``."""
        first, last = report.days_of(start_date, end_date, self._clock.time())
        query = wire.CacheCounts(first=first, last=last, environment=self._reported(environment))
        return report.cache_report(await self._counts(account, all_accounts, query), first, last)

    async def fallback_report(
        self,
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        *,
        account: str | UnsetType = UNSET,
        all_accounts: bool = False,
        environment: ReportEnvironment | None = None,
    ) -> wire.FallbackReport:
        """How often fallbacks served and why, and how attempts ended by model (spec 4.7). Dates and environment as in
        ``usage``."""
        first, last = report.days_of(start_date, end_date, self._clock.time())
        query = wire.FallbackCounts(first=first, last=last, environment=self._reported(environment))
        return report.fallback_report(await self._counts(account, all_accounts, query), first, last)

    async def latency_report(
        self,
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        *,
        account: str | UnsetType = UNSET,
        all_accounts: bool = False,
        environment: ReportEnvironment | None = None,
    ) -> wire.LatencyReport:
        """Latency quantiles by model and strategy, within 1 % (spec 4.7). Dates and environment as in ``usage``."""
        first, last = report.days_of(start_date, end_date, self._clock.time())
        query = wire.LatencyCounts(first=first, last=last, environment=self._reported(environment))
        return report.latency_report(await self._counts(account, all_accounts, query), first, last)

    async def latency_by_day(
        self,
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        *,
        account: str | UnsetType = UNSET,
        all_accounts: bool = False,
        environment: ReportEnvironment | None = None,
    ) -> list[wire.LatencyDay]:
        """Latency quantiles of at most 31 days, oldest first: of all models, then by model, most requests first. Days
        without requests are left out. Dates, accounts and environment as in ``usage``."""
        first, last = report.days_of(start_date, end_date, self._clock.time())
        days = report.dates_between(first, last)
        query = wire.LatencyCounts(first=first, last=last, environment=self._reported(environment))
        counts = await self._read(account, all_accounts, query)
        active = [name for name in counts if counts[name]]  # most accounts may be idle, and a day is a read
        rows = []
        for day in days:
            of_day = replace(query, first=day, last=day)
            uses = [await self._checked.read(name, of_day) for name in active]
            rows += report.latency_of_day([*chain(*uses)], day)
        return rows

    async def aclose(self) -> None:
        """Close the storage, unless it is a Router's."""
        if self._worker is None:
            await self._storage.aclose()

    async def _read(self, account: str | UnsetType, all_accounts: bool, query: Any) -> dict[str, Any]:
        """The storage's answers by account."""
        check_choice("all_accounts", all_accounts, (True, False))
        if not all_accounts:
            names: Iterable[str] = [self._of(account)]
        elif account is UNSET and self._account is None:
            names = await read_accounts(self._checked)
        else:
            raise ValidationFailed.at("all_accounts", "is true for one account", "leave out one of them")
        return {name: await self._checked.read(name, query) for name in names}

    async def _counts(self, account: str | UnsetType, all_accounts: bool, query: Any) -> list[Any]:
        """Rows of counts, of all accounts one after the other."""
        return [*chain(*(await self._read(account, all_accounts, query)).values())]

    def _reported(self, environment: ReportEnvironment | None) -> wire.Environment | None:
        """The environment of a report. None: both."""
        if environment is None:
            return self._environment
        check_choice("environment", environment, get_args(ReportEnvironment))
        return None if environment == "all" else environment

    def _selection(
        self, filter: str, since: When | None, until: When | None, environment: wire.Environment | None
    ) -> dict[str, Any]:
        first, last = span_of(since, until)
        terms = parse_filter(filter)
        return {"environment": check_environment(environment), "since": first, "until": last, "terms": terms}


class BlockingTraceStore(Twin[TraceStore]):
    """``store.blocking``: the methods of ``TraceStore`` as plain functions.

    page = TraceStore("sqlite:///traces.db").blocking.query(filter="status=failed")"""

    record = plain(TraceStore.record)
    get = plain(TraceStore.get)
    query = plain(TraceStore.query)
    export = plain_loop(TraceStore.export)
    delete = plain(TraceStore.delete)
    retain = plain(TraceStore.retain)
    retention = plain(TraceStore.retention)
    feedback = plain(TraceStore.feedback)
    feedback_of = plain(TraceStore.feedback_of)
    usage = plain(TraceStore.usage)
    usage_groups = plain(TraceStore.usage_groups)
    cache_report = plain(TraceStore.cache_report)
    fallback_report = plain(TraceStore.fallback_report)
    latency_report = plain(TraceStore.latency_report)
    latency_by_day = plain(TraceStore.latency_by_day)
