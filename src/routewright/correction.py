"""Puts right what a call was booked with: ledger, trace and analytics in one batch, a call's corrections one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import SystemRandom
from typing import Any, NamedTuple

from msgspec.structs import replace

from ._core.analytics.rollup import MOST_USD
from ._core.catalogue.prices import Prices, prices_of, pricing_on, usage_nanos
from ._core.correction import Truth, attempt_in, began_at, corrected, correction
from ._core.ledger import THRESHOLDS
from ._core.money import MOST_TOKENS, nanos_of
from ._core.request.json_scan import is_unicode, quoted
from ._core.request.problems import shown
from ._core.request.rules import Range
from ._core.rows import key_of
from ._engine.storage import found_trace
from .catalogue import checked_usage
from .errors import PreconditionFailed, Problem, RouterError, StorageUnavailable, ValidationFailed
from .identity import Ids
from .protocols import Clock, Storage
from .wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    ClaimKey,
    EndClaim,
    LedgerRow,
    LedgerRows,
    ModelSpan,
    PutTrace,
    RollupKeys,
    Settle,
    SnapshotById,
    Trace,
    TraceById,
    Usage,
)

MAX_NOTE_CHARS = 500
LEASE_S = 30.0
"""How long a correction may take before another may take its place."""
WAIT_S = 30.0
"""How long one waits for another of the same call."""
LONGEST_PAUSE_S = 0.1
_PIECE = 200
_COST = Range(0, MOST_USD)
_ATTEMPT = Range(1, 1_000, whole=True)
_CORRECTS = "who corrects this call, under a name that is longer than any idempotency key may be: "


class Said(NamedTuple):
    """What somebody says that an attempt was."""

    attempt: int
    cost_usd: float | None
    usage: Usage | None
    note: str


def checked_correction(attempt: object, cost_usd: object, usage: object, note: object) -> Said:
    """What was said, if it says something, and an attempt can be so. Raises ``ValidationFailed``."""
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not _ATTEMPT.admits(attempt):
        raise ValidationFailed.of(Problem("attempt", f"must be {_ATTEMPT}, got {shown(attempt)}", "as in its span"))
    if cost_usd is None and usage is None:
        raise ValidationFailed.of(Problem("cost_usd", "is missing, and so is usage", "pass one of them, or both"))
    if not (isinstance(note, str) and len(note) <= MAX_NOTE_CHARS and is_unicode(note)):
        problem = f"must be a string of at most {MAX_NOTE_CHARS} characters, got {shown(note)}"
        raise ValidationFailed.of(Problem("note", problem, ""))
    return Said(attempt, _checked_cost(cost_usd), None if usage is None else _checked_tokens(usage), note)


def _checked_cost(given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not _COST.admits(given):
        raise ValidationFailed.of(Problem("cost_usd", f"must be {_COST}, got {shown(given)}", ""))
    return float(given)


def _checked_tokens(given: object) -> Usage:
    usage = checked_usage(given)
    most = max(usage.input, usage.output)
    if most > MOST_TOKENS:
        raise ValidationFailed.of(Problem("usage", f"has {most:,} tokens", f"no call has more than {MOST_TOKENS:,}"))
    return usage


class Corrections:
    """Those of a storage. Safe to use from several loops, threads and processes."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._ids = Ids(clock, SystemRandom())

    async def put_right(self, account: str, trace_id: str, said: Said) -> LedgerRow | None:
        """Book the row that puts an attempt right, and give it; None: it is (``Ledger.correct``)."""
        async with self._alone_with(account, trace_id) as fence:
            trace = _billed(found_trace(await self._read(account, TraceById(trace_id)), trace_id))
            span, rows = attempt_in(trace, said.attempt), await self._rows(account, trace_id)
            truth = await self._truth(trace, span, said, began_at(trace, span, rows)[: len("YYYY-MM-DD")])
            row = correction(trace, span, truth, rows, said.note)
            if row is not None:
                await self._book(account, corrected(trace, span, truth, row), row, fence)
        return row

    async def _book(self, account: str, trace: Trace, row: LedgerRow, fence: EndClaim) -> None:
        """Book a row, and keep the trace as it is now. It is counted by all metadata that the account's usage is."""
        keys = await self._read(account, RollupKeys())
        event_ids = tuple(self._ids("evt_") for _ in THRESHOLDS)
        settle = Settle(id=trace.id, at=trace.created_at, rows=(row,), key_id=trace.key_id, event_ids=event_ids)
        put = PutTrace(trace, expect="present", rollup_keys=tuple(keys))
        try:
            await self._storage.apply(account, [settle, put, fence])
        except PreconditionFailed as error:
            said = f"the trace {quoted(trace.id)} was removed or corrected meanwhile; look at it, and try again"
            raise StorageUnavailable(said) from error

    async def _truth(self, trace: Trace, span: ModelSpan, said: Said, day: str) -> Truth:
        if said.cost_usd is not None:
            return Truth(nanos_of(said.cost_usd), said.usage)
        assert said.usage is not None, "one of them was given"
        return Truth(usage_nanos(await self._prices(trace, span.model, day), said.usage), said.usage)

    async def _prices(self, trace: Trace, model_id: str, day: str) -> Prices:
        """The prices of a day in the catalogue that the call was decided by. Raises ``ValidationFailed``."""
        given = trace.decision_input
        kept = None if given is None else await self._read(SYSTEM_ACCOUNT, SnapshotById(given.catalogue))
        models = kept.models if isinstance(kept, CatalogueSnapshot) else ()
        prices = next((prices_of(pricing_on(model, day)) for model in models if model.id == model_id), ())
        if not prices:
            problem = f"cannot be priced: what {quoted(model_id)} cost on {day} is not known any more"
            raise ValidationFailed.of(Problem("usage", problem, "pass cost_usd, too"))
        return prices

    async def _rows(self, account: str, trace_id: str) -> list[LedgerRow]:
        """Those of a call, the newest first."""
        found: list[LedgerRow] = []
        while True:
            after = key_of(found[-1]) if found else None
            asked = LedgerRows(request_id=trace_id)
            piece = await self._storage.scan(account, asked, after=after, limit=_PIECE)
            found += piece
            if len(piece) < _PIECE:
                return found

    @asynccontextmanager
    async def _alone_with(self, account: str, trace_id: str) -> AsyncIterator[EndClaim]:
        """Let nobody else correct a call meanwhile. Gives what is to be in the batch: it fails that batch if somebody
        else was let in after all."""
        key, call = _CORRECTS + trace_id, self._ids("cor_")
        fence = EndClaim(key=key, environment="production", call=call, result=b"", until=0.0)
        try:
            await self._wait_for(account, fence)
            yield fence
        finally:  # also where it is not known whether it was let in
            with self._clock.deadline(self._clock.monotonic() + WAIT_S, shield=True), suppress(RouterError):
                await self._storage.apply(account, [replace(fence, result=None)])

    async def _wait_for(self, account: str, fence: EndClaim) -> None:
        until, pause_s = self._clock.monotonic() + WAIT_S, 0.01
        while not await self._claims(account, fence):
            if self._clock.monotonic() >= until:
                raise StorageUnavailable("another correction of this call takes its time; try again")
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _claims(self, account: str, fence: EndClaim) -> bool:
        claim = ClaimKey(
            key=fence.key,
            environment=fence.environment,
            fingerprint="",
            call=fence.call,
            owner=fence.call,
            lease_s=LEASE_S,
            clock_s=self._clock.monotonic(),
            at=self._clock.time(),
        )
        (written,) = await self._storage.apply(account, [claim])
        return written.created

    async def _read(self, account: str, query: Any) -> Any:
        return await self._storage.read(account, query)


def _billed(trace: Trace) -> Trace:
    """The trace of a call that may be billed. Raises ``ValidationFailed``."""
    if trace.environment == "sandbox":
        problem = f"{quoted(trace.id)} is of the sandbox, which bills nobody"
        raise ValidationFailed.of(Problem("trace_id", problem, ""))
    return trace
