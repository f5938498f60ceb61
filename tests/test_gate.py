"""``--fail-if``: what conditions mean, and when a gate passes."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.analytics.comparison import wilson
from routewright.cli.gate import Condition, condition
from routewright.wire import Estimate

shares = st.floats(-1, 10, allow_nan=False)


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
    assert not condition("cost>+5%").admits(Estimate(0.03, -0.02, 0.08))
    assert condition("cost>+5%").admits(Estimate(0.03, -0.02, 0.05))
    assert not condition("cost<-50%").admits(Estimate(-0.4, -0.6, -0.1))
    assert condition("cost<-50%").admits(Estimate(-0.4, -0.5, 0.1))


@given(st.booleans(), shares, shares, shares, shares)
def test_less_certainty_never_opens_a_gate(is_above: bool, bound: float, low: float, high: float, more: float) -> None:
    gate = Condition("cost", is_above, bound)
    low, high = sorted((low, high))
    if gate.admits(Estimate(low, min(low, more), max(high, more))):
        assert gate.admits(Estimate(low, low, high))


def test_few_requests_prove_no_small_share() -> None:
    assert condition("refusals>0.1%").admits(Estimate(0.0, *wilson(0.0, 5_000)))
    assert not condition("refusals>0.1%").admits(Estimate(0.0, *wilson(0.0, 500)))
