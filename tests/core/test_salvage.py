"""What is still settled when the storage refuses a settlement: less each time, and never more than the cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts.ledger import bounded, without_trace
from routewright.protocols import Facts
from routewright.wire import Caller, Claim, LedgerRow, RunLimit

AT = "2026-11-01T00:00:00.000Z"


def facts(*costs: int, run_nanos: int | None = None) -> Facts:
    """Of a call with an attempt of each cost, which were charged."""
    rows = [
        LedgerRow(request_id="tr_1", attempt=n, at=AT, model="a/b", cost_nanos=cost, charge_nanos=cost)
        for n, cost in enumerate(costs, start=1)
    ]
    claim, run = Claim("k", "f"), None if run_nanos is None else RunLimit("run_1", 10**9)
    return Facts("tr_1", Caller("acme"), AT, rows=rows, claim=claim, result=b"", run=run, run_nanos=run_nanos)


def test_without_its_trace_a_call_keeps_its_bill_and_its_answer() -> None:
    whole = facts(5, 7)
    whole.trace = whole  # type: ignore[assignment]  # anything
    less = without_trace(whole)
    assert (less.trace, less.rows, less.claim, less.result) == (None, whole.rows, whole.claim, b"")


@given(st.lists(st.integers(0, 100), max_size=4), st.integers(0, 150))
def test_a_bounded_bill_is_the_cost_up_to_the_reservation(costs: list[int], most: int) -> None:
    less = bounded(facts(*costs, run_nanos=sum(costs)), most)
    assert sum(row.cost_nanos for row in less.rows) == min(sum(costs), most)
    assert all(0 <= row.charge_nanos <= row.cost_nanos for row in less.rows)
    assert less.run_nanos == min(sum(costs), most)
    assert (less.claim, less.result, {row.model for row in less.rows} <= {""}) == (None, None, True)
    assert [row.attempt for row in less.rows] == [*range(1, len(costs) + 1)]
