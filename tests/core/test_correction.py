"""Corrections of an attempt: the ledger row, and the matching change of the trace."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Usage
from routewright._core.statement import Truth, attempt_in, began_at, corrected, correction
from routewright.errors import NotFound
from routewright.wire import LedgerRow, ModelSpan, Tokens, Trace
from tests.contracts.storage.samples import decision_span, make_trace

AT = "2026-11-21T00:00:01.500Z"


def span(attempt: int, cost_nanos: int = 0, **given: Any) -> ModelSpan:
    facts: dict[str, Any] = {"id": attempt + 1, "name": "a/one", "model": "a/one", "provider": "a", "latency_ms": 2.0}
    facts |= {"start_ms": 1500.0, "attempt": attempt, "cost_usd": cost_nanos / 1e9, "tokens": Tokens(10, 5, 0)}
    return ModelSpan(**facts | given)


def call(*spans: ModelSpan, charged: bool = True, **given: Any) -> Trace:
    """A call of which the last attempt brought the answer."""
    cost = sum(round(each.cost_usd * 1e9) for each in spans) / 1e9
    facts: dict[str, Any] = {"cost_usd": cost, "charged_usd": cost if charged else 0.0, "key_id": "key_1"}
    facts |= {"tokens": spans[-1].tokens, "selected_model": "a/one", "spans": [decision_span(), *spans]}
    return make_trace(1, **facts | given)


def row(attempt: int, charge: int = 0) -> LedgerRow:
    return LedgerRow(request_id=call(span(1)).id, attempt=attempt, at=AT, charge_nanos=charge)


def put_right(trace: Trace, attempt: int, truth: Truth, *rows: LedgerRow) -> tuple[LedgerRow, Trace]:
    of = attempt_in(trace, attempt)
    booked = correction(trace, of, truth, rows, "why")
    assert booked is not None
    return booked, corrected(trace, of, truth, booked)


def test_the_row_has_the_difference_and_the_trace_the_true_cost() -> None:
    booked, trace = put_right(call(span(1, 300)), 1, Truth(450, None), row(1, 300))
    assert booked == LedgerRow(
        request_id=trace.id, attempt=-1, kind="correction", at=AT, key_id="key_1", model="a/one", provider="a",
        cost_nanos=150, charge_nanos=150, note="why",
    )  # fmt: skip
    assert (trace.cost_usd, trace.charged_usd, attempt_in(trace, 1).cost_usd) == (4.5e-7, 4.5e-7, 4.5e-7)
    assert (trace.tokens, attempt_in(trace, 1).tokens) == (Tokens(10, 5, 0), Tokens(10, 5, 0))


def test_a_correction_may_be_negative() -> None:
    booked, trace = put_right(call(span(1, 300)), 1, Truth(0, None), row(1, 300))
    assert (booked.cost_nanos, booked.charge_nanos) == (-300, -300)
    assert (trace.cost_usd, trace.charged_usd) == (0.0, 0.0)


def test_tokens_are_corrected_in_the_trace_for_the_serving_attempt() -> None:
    first, served = span(1, 100, status="error"), span(2, 300, usage_estimated=True)
    booked, trace = put_right(call(first, served), 2, Truth(300, Usage(12, 3, 4, 1)), row(2, 300))
    assert booked.tokens == Tokens(2, -2, 4)
    assert (booked.cost_nanos, attempt_in(trace, 2).usage_estimated) == (0, False)
    assert trace.tokens == attempt_in(trace, 2).tokens == Tokens(12, 3, 4)
    _, other = put_right(call(first, served), 1, Truth(100, Usage(12, 3)), row(1, 100))
    assert (other.tokens, attempt_in(other, 1).tokens) == (Tokens(10, 5, 0), Tokens(12, 3, 0))


def test_the_cost_range_disappears_with_its_last_attempt() -> None:
    unsure = [span(1, 100, cost_range_usd=(5e-8, 2e-7)), span(2, 300, cost_range_usd=(1e-7, 9e-7))]
    trace = call(*unsure, cost_range_usd=(1.5e-7, 1.1e-6))
    booked, once = put_right(trace, 1, Truth(120, None), row(1, 100), row(2, 300))
    assert booked.cost_range_nanos == (120 - 50, 120 - 200)
    assert attempt_in(once, 1).cost_range_usd is None
    assert once.cost_range_usd == (2.2e-7, 1.02e-6)
    booked, twice = put_right(once, 2, Truth(300, None), row(1, 100), row(2, 300), row(-1, 20))
    assert (booked.attempt, booked.cost_nanos, booked.cost_range_nanos) == (-2, 0, (200, -600))
    assert twice.cost_range_usd is None


def test_usage_stays_estimated_if_only_the_cost_is_corrected() -> None:
    _, trace = put_right(call(span(1, 300, usage_estimated=True)), 1, Truth(301, None))
    assert attempt_in(trace, 1).usage_estimated


@pytest.mark.parametrize(
    ("status", "trace_cost", "charged", "rows", "follows"),
    [
        ("completed", 300, True, [row(1, 300)], True),
        ("failed", 300, False, [row(1)], False),
        ("completed", 300, False, [row(1)], False),  # another was answered in its place
        ("cancelled", 300, True, [row(1, 300)], True),
        ("completed", 0, False, [], True),
        ("failed", 0, False, [], False),
        ("cancelled", 0, False, [row(1, 300), row(-1, -300)], True),
    ],
)
def test_a_correction_is_charged_if_the_call_was(
    status: Any, trace_cost: int, charged: bool, rows: list[LedgerRow], follows: bool
) -> None:
    trace = call(span(1, trace_cost), charged=charged, status=status)
    booked, mended = put_right(trace, 1, Truth(1_000, None), *rows)
    assert booked.charge_nanos == (1_000 - trace_cost if follows else 0)
    assert mended.charged_usd == (1e-6 if follows else 0.0)


def test_a_right_cost_needs_no_correction() -> None:
    trace = call(span(1, 300))
    of = attempt_in(trace, 1)
    assert correction(trace, of, Truth(300, None), []) is None
    assert correction(trace, of, Truth(300, Usage(10, 5)), []) is None
    unsure = replace(of, cost_range_usd=(0.0, 1.0))
    assert correction(trace, unsure, Truth(300, None), []) is not None, "now it is certain"


def test_an_unbooked_attempt_has_the_time_of_its_span() -> None:
    trace = call(span(1), span(2, start_ms=86_400_000.25))
    assert began_at(trace, attempt_in(trace, 2), [row(1)]) == "2026-11-22T00:00:00.001Z"
    assert began_at(trace, attempt_in(trace, 1), [replace(row(1), at="2026-11-21T00:00:09.000Z")]) == (
        "2026-11-21T00:00:09.000Z"
    )


@pytest.mark.parametrize(("spans", "said"), [([span(1), span(3)], "it has: 1, 3"), ([], "it has: none")])
def test_an_unknown_attempt_is_refused_with_the_known_ones(spans: list[ModelSpan], said: str) -> None:
    with pytest.raises(NotFound, match=f"has no attempt 2; {said}"):
        attempt_in(make_trace(1, spans=spans), 2)


def test_a_span_without_tokens_had_none() -> None:
    booked, trace = put_right(call(span(1, tokens=None), tokens=Tokens()), 1, Truth(70, Usage(9, 1)), row(1))
    assert booked.tokens == Tokens(9, 1, 0)
    assert trace.tokens == Tokens(9, 1, 0)
