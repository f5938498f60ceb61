"""The same TraceStore for code without ``await``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import date
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, TypeVar, Unpack

from ._engine.worker import Worker
from .settings import Retention
from .wire import (
    Bucket,
    CacheReport,
    Environment,
    FallbackReport,
    LatencyReport,
    Page,
    PutFeedback,
    Trace,
    TraceItem,
    UsageReport,
)

if TYPE_CHECKING:
    from .trace import TraceStore, When

T = TypeVar("T")


class Whose(TypedDict, total=False):
    """Whose traces."""

    account: str
    environment: Environment | None


class Which(Whose, total=False):
    """Which of them."""

    filter: str
    since: When | None
    until: When | None


class WhichPage(Which, total=False):
    """Which page of them."""

    limit: int
    cursor: str | None


class WhichToDelete(Which, total=False):
    """Which are to go."""

    trace_id: str | None
    everything: bool


class Days(Whose, total=False):
    """Which days."""

    start_date: str | date | None
    end_date: str | date | None


class Usage(Days, total=False):
    """Which days, and how they are put together."""

    group_by: str
    bucket: Bucket


class BlockingTraceStore:
    """``store.blocking``: the methods of ``TraceStore`` as plain functions.

    page = TraceStore("sqlite:///traces.db").blocking.query(filter="status=failed")
    """

    def __init__(self, store: TraceStore, worker: Worker) -> None:
        self._store = store
        self._worker = worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, trace: Trace) -> None:
        """Keep a trace (``TraceStore.record``)."""
        self._wait(partial(self._store.record, trace))

    def get(self, trace_id: str, **whose: Unpack[Whose]) -> Trace:
        """Read one trace (``TraceStore.get``)."""
        return self._wait(partial(self._store.get, trace_id, **whose))

    def query(self, **which: Unpack[WhichPage]) -> Page[TraceItem]:
        """A page of traces, newest first (``TraceStore.query``)."""
        return self._wait(partial(self._store.query, **which))

    def export(self, **which: Unpack[Which]) -> Iterator[Trace]:
        """All traces that are asked for, whole (``TraceStore.export``)."""
        traces = self._store.export(**which)
        while (trace := self._wait(partial(anext, traces, None))) is not None:
            yield trace

    def delete(self, **which: Unpack[WhichToDelete]) -> int:
        """Remove traces, and say how many (``TraceStore.delete``)."""
        return self._wait(partial(self._store.delete, **which))

    def retain(self, retention: Retention) -> int:
        """Keep traces for so long from now on (``TraceStore.retain``)."""
        return self._wait(partial(self._store.retain, retention))

    def retention(self) -> Retention:
        """How long traces are kept (``TraceStore.retention``)."""
        return self._wait(self._store.retention)

    def feedback(self, trace_id: str, score: float, comment: str | None = None, **whose: Unpack[Whose]) -> None:
        """Say how good an answer was (``TraceStore.feedback``)."""
        self._wait(partial(self._store.feedback, trace_id, score, comment, **whose))

    def feedback_of(self, trace_id: str, **whose: Unpack[Whose]) -> PutFeedback | None:
        """What was said of an answer (``TraceStore.feedback_of``)."""
        return self._wait(partial(self._store.feedback_of, trace_id, **whose))

    def usage(self, **asked: Unpack[Usage]) -> UsageReport:
        """Requests, money and tokens by time and group (``TraceStore.usage``)."""
        return self._wait(partial(self._store.usage, **asked))

    def cache_report(self, **days: Unpack[Days]) -> CacheReport:
        """Hits, misses and dollars saved (``TraceStore.cache_report``)."""
        return self._wait(partial(self._store.cache_report, **days))

    def fallback_report(self, **days: Unpack[Days]) -> FallbackReport:
        """How often a fallback served (``TraceStore.fallback_report``)."""
        return self._wait(partial(self._store.fallback_report, **days))

    def latency_report(self, **days: Unpack[Days]) -> LatencyReport:
        """Quantiles of the latency (``TraceStore.latency_report``)."""
        return self._wait(partial(self._store.latency_report, **days))

    def close(self) -> None:
        """Free the storage (``TraceStore.aclose``)."""
        self._wait(self._store.aclose)

    def _wait(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        return self._worker.run(async_fn)
