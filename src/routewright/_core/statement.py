"""Monthly statements, and corrections of ledger rows and traces. Ledger, trace and analytics agree before and after a
correction, to the nano-dollar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple, get_args

from msgspec.structs import replace

from routewright.errors import NotFound, Problem, ValidationFailed
from routewright.wire import (
    CreditLine,
    LedgerRow,
    LedgerSum,
    ModelSpan,
    RowKind,
    Statement,
    StatementBy,
    StatementLine,
    StatementTotals,
    Tokens,
    Trace,
    UncertainLine,
    Usage,
    in_usd,
)

from .accounts.ledger import grouped, total
from .money import nanos_of, usd
from .request.json_scan import quoted
from .request.problems import shown
from .request.rules import is_day
from .timestamps import moment


class Truth(NamedTuple):
    """The true cost and usage of an attempt."""

    cost_nanos: int
    usage: Usage | None
    """None: its tokens stay as they are."""


def attempt_in(trace: Trace, attempt: int) -> ModelSpan:
    """The span of an attempt. Raises ``NotFound``."""
    found = next((each for each in _attempts(trace) if each.attempt == attempt), None)
    if found is None:
        there = ", ".join(str(each.attempt) for each in _attempts(trace)) or "none"
        raise NotFound(f"the trace {quoted(trace.id)} has no attempt {attempt}; it has: {there}")
    return found


def began_at(trace: Trace, span: ModelSpan, rows: Sequence[LedgerRow]) -> str:
    """Time of an attempt, from its row if it has one. ``rows`` are the call's."""
    booked = next((row.at for row in rows if row.attempt == span.attempt), None)
    began = datetime.fromisoformat(trace.created_at) + timedelta(milliseconds=span.start_ms)
    return booked or moment("created_at", began)


def correction(
    trace: Trace, span: ModelSpan, truth: Truth, rows: Sequence[LedgerRow], note: str = ""
) -> LedgerRow | None:
    """The row that corrects an attempt. None: nothing to correct. ``rows`` are the call's. The correction has the time
    of the attempt, so that sums of days and months are right. If the cost was a range, ``cost_range_nanos`` moves both
    ends to the true cost."""
    was, used = span.tokens or Tokens(), _tokens(span, truth) or Tokens()
    more = truth.cost_nanos - nanos_of(span.cost_usd)
    tokens = Tokens(used.input - was.input, used.output - was.output, used.cached - was.cached)
    if not more and span.cost_range_usd is None and tokens == Tokens():
        return None
    # a completed call without any cost so far is charged, too
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
    """The trace with an attempt corrected by a row."""
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
    ends = [(each.cost_range_usd, each.cost_usd) for each in spans if isinstance(each, ModelSpan)]
    cost_range_usd = None  # all costs are known
    if any(between for between, _ in ends):
        both = [between or (cost, cost) for between, cost in ends]
        cost_range_usd = usd(sum(nanos_of(low) for low, _ in both)), usd(sum(nanos_of(high) for _, high in both))
    return replace(
        trace,
        spans=spans,
        cost_usd=usd(nanos_of(trace.cost_usd) + row.cost_nanos),
        charged_usd=usd(nanos_of(trace.charged_usd) + row.charge_nanos),
        cost_range_usd=cost_range_usd,
        tokens=(tokens or Tokens()) if any(span is each for each in served) else trace.tokens,
    )


def _tokens(span: ModelSpan, truth: Truth) -> Tokens | None:
    used = truth.usage
    return span.tokens if used is None else Tokens(used.input, used.output, used.cached)


def _attempts(trace: Trace) -> list[ModelSpan]:
    return [each for each in trace.spans if isinstance(each, ModelSpan)]


EPOCH = "1970-01-01"  # first possible day of a row
_DAY = timedelta(days=1)


def days_of_month(month: object) -> tuple[str, str]:
    """First and last day of a month ``YYYY-MM``. Raises ``ValidationFailed``."""
    if not isinstance(month, str) or not is_day(f"{month}-01") or not EPOCH[:4] <= month[:4] < "9999":
        raise ValidationFailed.of(Problem("month", f"is {shown(month)}", "write YYYY-MM"))
    first = date.fromisoformat(f"{month}-01")
    return first.isoformat(), ((first + 31 * _DAY).replace(day=1) - _DAY).isoformat()


def day_before(day: str) -> str:
    """The previous day, ``YYYY-MM-DD``."""
    return (date.fromisoformat(day) - _DAY).isoformat()


def check_by(by: object) -> None:
    """Raise ``ValidationFailed`` for an unknown grouping."""
    known = get_args(StatementBy)
    if by not in known:
        raise ValidationFailed.of(Problem("by", f"is {shown(by)}", f"one of {', '.join(known)}"))


def statement(
    account: str, month: str, by: StatementBy, sums: Sequence[LedgerSum], opening_nanos: int | None
) -> Statement:
    """Build an account's statement from a month's sums. ``opening_nanos`` is None without a balance."""
    totals = _totals(sums)
    balance = totals.credited_nanos - totals.charged_nanos
    closing_nanos = None if opening_nanos is None else opening_nanos + balance
    credits = grouped((each for each in sums if each.kind == "credit"), lambda each: each.day)
    models = grouped(sums, lambda each: (each.provider, each.model))  # corrections included
    unsure = [(names, each) for names, each in models.items() if each.least_nanos != each.most_nanos]
    unsure.sort(key=lambda each: (each[1].least_nanos - each[1].most_nanos, *each[0]))
    return Statement(
        account=account,
        month=month,
        by=by,
        opening_nanos=opening_nanos,
        opening_usd=in_usd(opening_nanos),
        charges=_lines(sums, "attempt", by),
        corrections=_lines(sums, "correction", by),
        credits=[
            CreditLine(day=day, rows=each.rows, credited_nanos=each.credit_nanos, credited_usd=usd(each.credit_nanos))
            for day, each in sorted(credits.items())
        ],
        uncertain=[
            UncertainLine(
                provider=provider,
                model=model,
                least_nanos=each.least_nanos,
                least_usd=usd(each.least_nanos),
                most_nanos=each.most_nanos,
                most_usd=usd(each.most_nanos),
            )
            for (provider, model), each in unsure
        ],
        totals=totals,
        closing_nanos=closing_nanos,
        closing_usd=in_usd(closing_nanos),
    )


def balance_of(sums: Iterable[LedgerSum]) -> int:
    """Credit minus charges."""
    return sum(each.credit_nanos - each.charge_nanos for each in sums)


def _lines(sums: Sequence[LedgerSum], kind: RowKind, by: StatementBy) -> list[StatementLine]:
    of_kind = [each for each in sums if each.kind == kind]
    found = grouped(of_kind, lambda each: (each.day if by == "day" else None, each.provider, each.model))
    in_order = sorted(found.items(), key=lambda each: (each[0][0] or "", -each[1].charge_nanos, *each[0][1:]))
    return [
        StatementLine(
            day=day,
            provider=each.provider,
            model=each.model,
            rows=each.rows,
            tokens=each.tokens,
            cost_nanos=each.cost_nanos,
            cost_usd=usd(each.cost_nanos),
            charged_nanos=each.charge_nanos,
            charged_usd=usd(each.charge_nanos),
        )
        for (day, _, _), each in in_order
    ]


def _totals(sums: Sequence[LedgerSum]) -> StatementTotals:
    all_rows = total(sums)
    corrections = total(each for each in sums if each.kind == "correction")
    return StatementTotals(
        attempts=sum(each.rows for each in sums if each.kind == "attempt"),
        corrections=corrections.rows,
        tokens=all_rows.tokens,
        cost_nanos=all_rows.cost_nanos,
        cost_usd=usd(all_rows.cost_nanos),
        charged_nanos=all_rows.charge_nanos,
        charged_usd=usd(all_rows.charge_nanos),
        corrected_nanos=corrections.charge_nanos,
        corrected_usd=usd(corrections.charge_nanos),
        credited_nanos=all_rows.credit_nanos,
        credited_usd=usd(all_rows.credit_nanos),
        least_nanos=all_rows.least_nanos,
        least_usd=usd(all_rows.least_nanos),
        most_nanos=all_rows.most_nanos,
        most_usd=usd(all_rows.most_nanos),
    )
