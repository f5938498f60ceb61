"""Traces from outside: accepted values are counted, stored and read back; others are refused by field name."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.analytics.rollup import Rollups
from routewright._core.snapshot_delta import check_trace
from routewright.errors import ValidationFailed
from routewright.wire import CacheSpan, Span, Tokens, Trace
from tests.contracts.storage.samples import decision_span, make_trace, model_span, spans_of_each_kind
from tests.tables import table

FULL = make_trace(
    1,
    spans=[*spans_of_each_kind(), model_span("a/one", ttft_ms=2.0)],
    cost_range_usd=(0.01, 0.02),
    metadata={"deep": [{"number": 1.5, "whole": 2**70}]},
)
Place = tuple[str | int, ...]


def numbers(plain: Any, place: Place = ()) -> Iterator[Place]:
    """Where numbers stand."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, (list, tuple)) else ()
    for name, held in inner:
        yield from numbers(held, (*place, name))
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        yield place


def changed(place: Place, number: float) -> Trace:
    """The full trace with this number there, whatever the types say."""
    plain = held = msgspec.json.decode(msgspec.json.encode(FULL))
    for name in place[:-1]:
        held = held[name]
    held[place[-1]] = number
    return msgspec.convert(plain, Trace)


PLACES = list(numbers(msgspec.json.decode(msgspec.json.encode(FULL))))
ODD = [nan, inf, -inf, -1.0, 1e300, 1e21, 2.0**63, 1e12, 0.5, 0.0]
WHOLE = [-1, 2**53, 2**63, 2**64, 10**400, 0, 7]


@given(st.sampled_from(PLACES), st.sampled_from([*ODD, *WHOLE]))
def test_any_number_in_a_trace_is_refused_or_stored_and_counted(place: Place, number: float) -> None:
    try:
        trace = changed(place, number)
    except msgspec.ValidationError:
        return  # of another type
    try:
        taken = check_trace(trace)
    except ValidationFailed as error:
        (problem,) = error.problems
        assert problem.path.startswith(f"trace.{place[0]}")
        return
    assert msgspec.json.decode(msgspec.json.encode(taken), type=Trace) == taken == trace
    counted = Rollups()
    counted.add(taken)
    for rows in (counted.usage, counted.cache, counted.fallback):
        assert all(abs(amount) < 2**53 for sums in rows.values() for amount in sums)


def cache_span(**given_: Any) -> Span:
    return CacheSpan(id=2, name="cache", start_ms=0.0, hit=True, **given_)


@table(
    ("path", "trace"),
    [
        ("trace.cost_range_usd[1]", make_trace(1, cost_range_usd=(0.0, nan))),
        ("trace.decision_input.budget_nanos", make_trace(1, decision_input=msgspec.structs.replace(
            make_trace(1).decision_input, budget_nanos=10**400))),  # type: ignore[type-var]
        ("trace.spans[0].saved_usd", make_trace(1, spans=[cache_span(saved_usd=nan)])),
        ("trace.spans[0].age_s", make_trace(1, spans=[cache_span(age_s=inf)])),
        ("trace.spans[0].similarity", make_trace(1, spans=[cache_span(similarity=nan)])),
        ("trace.spans[1].cost_usd", make_trace(1, spans=[decision_span(), model_span("a/one", cost_usd=-0.1)])),
        ("trace.spans[0].tokens.output", make_trace(1, spans=[model_span("a/one", tokens=Tokens(1, 10**13))])),
        ("trace.spans[0].duration_ms", make_trace(1, spans=[model_span("a/one", duration_ms=1e13)])),
        ("trace.error", make_trace(1, error="\ud800")),
        ("trace.spans[0].finish_reason", make_trace(1, spans=[model_span("a/one", finish_reason="\ud800")])),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_stored_is_refused_with_the_path(path: str, trace: Trace) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_trace(trace)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_the_largest_accepted_amounts_are_counted_exactly() -> None:
    spans = [cache_span(saved_usd=1e6, age_s=1e9), model_span("a/one", cost_usd=1e6, cost_range_usd=(0.0, 1e6))]
    tokens = Tokens(10**12, 10**12, 10**12)
    trace = make_trace(1, spans=spans, cost_usd=1e6, charged_usd=1e6, duration_ms=1e12, tokens=tokens)
    counted = Rollups()
    counted.add(check_trace(trace))
    assert [*counted.usage.values()] == [[1, 0, 10**15, 10**15, 10**12, 10**12, 10**12]]
    assert [*counted.cache.values()] == [[1, 10**15]]
