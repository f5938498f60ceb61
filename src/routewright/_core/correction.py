"""By how much was an attempt's row wrong, and how does its trace read once that is put right? Ledger, trace and
analytics say the same before and after, to the nano-dollar."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from routewright.errors import NotFound
from routewright.wire import LedgerRow, ModelSpan, Span, Tokens, Trace, Usage

from .moment import moment
from .money import nanos_of, usd
from .request.json_scan import quoted


class Truth(NamedTuple):
    """What an attempt really came to."""

    cost_nanos: int
    usage: Usage | None
    """None: what is known of its tokens stands."""


def attempt_in(trace: Trace, attempt: int) -> ModelSpan:
    """The span of an attempt. Raises ``NotFound``."""
    found = next((each for each in _attempts(trace) if each.attempt == attempt), None)
    if found is None:
        there = ", ".join(str(each.attempt) for each in _attempts(trace)) or "none"
        raise NotFound(f"the trace {quoted(trace.id)} has no attempt {attempt}; it has: {there}")
    return found


def began_at(trace: Trace, span: ModelSpan, rows: Sequence[LedgerRow]) -> str:
    """When an attempt began, as its row says, if it has one. ``rows``: those of its call."""
    booked = next((row.at for row in rows if row.attempt == span.attempt), None)
    began = datetime.fromisoformat(trace.created_at) + timedelta(milliseconds=span.start_ms)
    return booked or moment("created_at", began)


def correction(
    trace: Trace, span: ModelSpan, truth: Truth, rows: Sequence[LedgerRow], note: str = ""
) -> LedgerRow | None:
    """The row that puts an attempt right; None: it is. ``rows``: those of its call. It stands at the time of what it
    corrects, so that every day and month comes to what its calls came to. Where the cost was not certain its range
    takes that away: to each end it adds what that lacks."""
    was, used = span.tokens or Tokens(), _tokens(span, truth) or Tokens()
    more = truth.cost_nanos - nanos_of(span.cost_usd)
    tokens = Tokens(used.input - was.input, used.output - was.output, used.cached - was.cached)
    if not more and span.cost_range_usd is None and tokens == Tokens():
        return None
    # of a call that came to nothing so far its answer says whether the account pays for it
    pays = bool(trace.charged_usd) or any(row.charge_nanos for row in rows)
    pays = pays or (trace.status == "completed" and not trace.cost_usd)
    ends = span.cost_range_usd
    return LedgerRow(
        request_id=trace.id,
        attempt=min([0, *(row.attempt for row in rows)]) - 1,
        kind="correction",
        at=began_at(trace, span, rows),
        key_id=trace.key_id,
        model=span.model,
        provider=span.provider,
        tokens=tokens,
        cost_nanos=more,
        charge_nanos=more if pays else 0,
        cost_range_nanos=None
        if ends is None
        else (truth.cost_nanos - nanos_of(ends[0]), truth.cost_nanos - nanos_of(ends[1])),
        note=note,
    )


def corrected(trace: Trace, span: ModelSpan, truth: Truth, row: LedgerRow) -> Trace:
    """The trace with an attempt put right by a row."""
    tokens, answers = _tokens(span, truth), [each for each in _attempts(trace) if each.status == "ok"]
    served = [each for each in answers if each.model == trace.selected_model][-1:]  # its tokens are the trace's
    mended = replace(
        span,
        tokens=tokens,
        cost_usd=usd(truth.cost_nanos),
        cost_range_usd=None,
        usage_estimated=span.usage_estimated and truth.usage is None,
    )
    spans = [mended if each is span else each for each in trace.spans]
    return replace(
        trace,
        spans=spans,
        cost_usd=usd(nanos_of(trace.cost_usd) + row.cost_nanos),
        charged_usd=usd(nanos_of(trace.charged_usd) + row.charge_nanos),
        cost_range_usd=_range(spans),
        tokens=(tokens or Tokens()) if any(span is each for each in served) else trace.tokens,
    )


def _tokens(span: ModelSpan, truth: Truth) -> Tokens | None:
    used = truth.usage
    return span.tokens if used is None else Tokens(used.input, used.output, used.cached)


def _range(spans: Sequence[Span]) -> tuple[float, float] | None:
    """Between what the cost of all attempts lies; None where it is known of each."""
    ends = [(each.cost_range_usd, each.cost_usd) for each in spans if isinstance(each, ModelSpan)]
    if not any(between for between, _ in ends):
        return None
    both = [between or (cost, cost) for between, cost in ends]
    return usd(sum(nanos_of(low) for low, _ in both)), usd(sum(nanos_of(high) for _, high in both))


def _attempts(trace: Trace) -> list[ModelSpan]:
    return [each for each in trace.spans if isinstance(each, ModelSpan)]
