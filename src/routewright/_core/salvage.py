"""What is settled of a finished call that the storage refuses? Ever less of it, but never nothing of what it cost.

whole -refused-> without its trace -refused-> without detail, within what was reserved -refused-> lost
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from routewright.protocols import Facts
from routewright.wire import LedgerRow

_CUT = "the storage refused to book it as it was"


def without_trace(facts: Facts) -> Facts:
    """Its bill and its answer alone."""
    return replace(facts, trace=None, snapshots=(), events=())


def bounded(facts: Facts, most_nanos: int) -> Facts:
    """What its attempts cost, at most so much together, and nothing else of them."""
    run_nanos = None if facts.run_nanos is None else min(facts.run_nanos, most_nanos)
    rows = _bounded(facts.rows, most_nanos)
    return replace(without_trace(facts), rows=rows, run_nanos=run_nanos, claim=None, result=None, event_ids=())


def _bounded(rows: Sequence[LedgerRow], most_nanos: int) -> tuple[LedgerRow, ...]:
    found = []
    for row in rows:
        cost = min(row.cost_nanos, most_nanos)
        most_nanos -= cost
        plain = LedgerRow(request_id=row.request_id, attempt=row.attempt, at=row.at, key_id=row.key_id, note=_CUT)
        found.append(replace(plain, cost_nanos=cost, charge_nanos=min(row.charge_nanos, cost)))
    return tuple(found)
