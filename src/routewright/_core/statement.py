"""What do the sums of a month's rows say? Makes an account's statement of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import get_args

from routewright.errors import Problem, ValidationFailed
from routewright.wire import (
    CreditLine,
    LedgerSum,
    RowKind,
    Statement,
    StatementBy,
    StatementLine,
    StatementTotals,
    UncertainLine,
)

from .money import usd
from .request.problems import shown
from .request.rules import is_day
from .rows import grouped, total

EPOCH = "1970-01-01"  # no row is older
_DAY = timedelta(days=1)


def days_of_month(month: object) -> tuple[str, str]:
    """The first and the last day of a month, ``YYYY-MM``. Raises ``ValidationFailed``."""
    if not isinstance(month, str) or not is_day(f"{month}-01") or not EPOCH[:4] <= month[:4] < "9999":
        raise ValidationFailed.of(Problem("month", f"is {shown(month)}", "write YYYY-MM"))
    first = date.fromisoformat(f"{month}-01")
    return first.isoformat(), ((first + 31 * _DAY).replace(day=1) - _DAY).isoformat()


def day_before(day: str) -> str:
    """The day before one, ``YYYY-MM-DD``."""
    return (date.fromisoformat(day) - _DAY).isoformat()


def check_by(by: object) -> None:
    """Refuse what lines are not put together by. Raises ``ValidationFailed``."""
    known = get_args(StatementBy)
    if by not in known:
        raise ValidationFailed.of(Problem("by", f"is {shown(by)}", f"one of {', '.join(known)}"))


def statement(
    account: str, month: str, by: StatementBy, sums: Sequence[LedgerSum], opening_nanos: int | None
) -> Statement:
    """An account's statement from a month's sums. ``opening_nanos``: its balance before; None: it has none."""
    totals = _totals(sums)
    balance = totals.credited_nanos - totals.charged_nanos
    closing_nanos = None if opening_nanos is None else opening_nanos + balance
    found = grouped((each for each in sums if each.kind == "credit"), lambda each: each.day)
    return Statement(
        account=account,
        month=month,
        by=by,
        opening_nanos=opening_nanos,
        opening_usd=_usd(opening_nanos),
        charges=_lines(sums, "attempt", by),
        corrections=_lines(sums, "correction", by),
        credits=[
            CreditLine(day=day, rows=each.rows, credited_nanos=each.credit_nanos, credited_usd=usd(each.credit_nanos))
            for day, each in sorted(found.items())
        ],
        uncertain=_uncertain(sums),
        totals=totals,
        closing_nanos=closing_nanos,
        closing_usd=_usd(closing_nanos),
    )


def balance_of(sums: Iterable[LedgerSum]) -> int:
    """What came in, less what was charged."""
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


def _uncertain(sums: Sequence[LedgerSum]) -> list[UncertainLine]:
    """Between what costs lie. A correction says what its call came to, so it counts with it."""
    found = grouped(sums, lambda each: (each.provider, each.model))
    unsure = [(names, each) for names, each in found.items() if each.least_nanos != each.most_nanos]
    unsure.sort(key=lambda each: (each[1].least_nanos - each[1].most_nanos, *each[0]))
    return [
        UncertainLine(
            provider=provider,
            model=model,
            least_nanos=each.least_nanos,
            least_usd=usd(each.least_nanos),
            most_nanos=each.most_nanos,
            most_usd=usd(each.most_nanos),
        )
        for (provider, model), each in unsure
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


def _usd(nanos: int | None) -> float | None:
    return None if nanos is None else usd(nanos)
