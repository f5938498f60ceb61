"""``--fail-if``: what conditions mean, and when a gate passes."""

from __future__ import annotations

from argparse import ArgumentTypeError
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.analytics.comparison import wilson
from routewright.cli.gate import Condition, condition
from routewright.wire import Estimate, SimulationReport

shares = st.floats(-1, 10, allow_nan=False)


def passes(gate: Condition, change: Estimate) -> bool:
    report = SimpleNamespace(cost_change=change, refused_share=change, requests=1_000)
    return not gate.failure(cast("SimulationReport", report))


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("cost>+5%", Condition("cost", True, 0.05)),
        ("cost>5%", Condition("cost", True, 0.05)),
        ("latency < -2.5 %", Condition("latency", False, -0.025)),
        (" refusals>0% ", Condition("refusals", True, 0.0)),
        ("rerouted>20%", Condition("rerouted", True, 0.2)),
    ],
)
def test_a_condition_is_a_metric_a_side_and_a_bound(text: str, meaning: Condition) -> None:
    assert condition(text)[:3] == meaning[:3]


@pytest.mark.parametrize("text", ["", "cost", "cost>5", "price>5%", "cost=5%", "cost>>5%", "cost>5%%", "cost>1e3%"])
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not METRIC>N%"):
        condition(text)


def test_the_uncertain_end_of_the_interval_is_compared() -> None:
    """An estimate of +3 % that may be +8 % does not pass a bound of +5 %."""
    assert not passes(condition("cost>+5%"), Estimate(0.03, -0.02, 0.08))
    assert passes(condition("cost>+5%"), Estimate(0.03, -0.02, 0.05))
    assert not passes(condition("cost<-50%"), Estimate(-0.4, -0.6, -0.1))
    assert passes(condition("cost<-50%"), Estimate(-0.4, -0.5, 0.1))


@given(st.booleans(), shares, shares, shares, shares)
def test_less_certainty_never_opens_a_gate(is_above: bool, bound: float, low: float, high: float, more: float) -> None:
    gate = Condition("cost", is_above, bound)
    low, high = sorted((low, high))
    if passes(gate, Estimate(low, min(low, more), max(high, more))):
        assert passes(gate, Estimate(low, low, high))


def test_few_requests_prove_no_small_share() -> None:
    assert passes(condition("refusals>0.1%"), Estimate(0.0, *wilson(0.0, 5_000)))
    assert not passes(condition("refusals>0.1%"), Estimate(0.0, *wilson(0.0, 500)))
