"""Where does a row stand in its ledger, and what do rows come to?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from routewright.wire import LedgerRow, LedgerSum, Tokens

K = TypeVar("K")
NOTHING = LedgerSum("", "", "", "attempt", 0, Tokens(), 0, 0, 0, 0, 0)  # the sum of no rows


def summed(there: LedgerSum, row: LedgerRow, sign: int = 1) -> LedgerSum:
    """The sum with a row in it, or without it."""
    low, high = row.cost_range_nanos or (row.cost_nanos, row.cost_nanos)
    was, used = there.tokens, row.tokens
    return replace(
        there,
        rows=there.rows + sign,
        tokens=Tokens(was.input + sign * used.input, was.output + sign * used.output, was.cached + sign * used.cached),
        cost_nanos=there.cost_nanos + sign * row.cost_nanos,
        charge_nanos=there.charge_nanos + sign * row.charge_nanos,
        credit_nanos=there.credit_nanos + sign * row.credit_nanos,
        least_nanos=there.least_nanos + sign * low,
        most_nanos=there.most_nanos + sign * high,
    )


def added(there: LedgerSum, more: LedgerSum) -> LedgerSum:
    """The sum of both, by the names of the first."""
    was, used = there.tokens, more.tokens
    return replace(
        there,
        rows=there.rows + more.rows,
        tokens=Tokens(was.input + used.input, was.output + used.output, was.cached + used.cached),
        cost_nanos=there.cost_nanos + more.cost_nanos,
        charge_nanos=there.charge_nanos + more.charge_nanos,
        credit_nanos=there.credit_nanos + more.credit_nanos,
        least_nanos=there.least_nanos + more.least_nanos,
        most_nanos=there.most_nanos + more.most_nanos,
    )


def total(sums: Iterable[LedgerSum]) -> LedgerSum:
    """What sums come to, whatever they are of."""
    found = NOTHING
    for each in sums:
        found = added(found, each)
    return found


def grouped(sums: Iterable[LedgerSum], name: Callable[[LedgerSum], K]) -> dict[K, LedgerSum]:
    """One sum for each name."""
    found: dict[K, LedgerSum] = {}
    for each in sums:
        key = name(each)
        found[key] = added(found[key], each) if key in found else each
    return found


def together(sums: Iterable[LedgerSum]) -> list[LedgerSum]:
    """One sum for each day, provider, model and kind, in their order."""
    found = grouped(sums, lambda each: (each.day, each.provider, each.model, each.kind))
    return [each for _, each in sorted(found.items())]


def key_of(row: LedgerRow) -> str:
    """Where a row stands among those of its account."""
    return f"{row.at}{row.request_id}/{row.attempt}"
