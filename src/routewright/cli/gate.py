"""The conditions of ``--fail-if``, such as ``cost>+5%``. Pure.

A simulation knows a change only as an interval, and the end of the interval on the side of the condition is compared:
the upper one for ``>``, the lower one for ``<``. So a change that is too uncertain fails, until more traffic shows that
it is small enough.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import NamedTuple

from routewright.wire import Estimate, SimulationReport

_FIELD = {"cost": "cost_change", "latency": "latency_change", "refusals": "refused_share", "rerouted": "rerouted_share"}
"""What a metric compares, as the field of a report."""
_FORM = "METRIC>N% or METRIC<N%, with cost, latency, refusals or rerouted, as cost>+5%"
_CONDITION = re.compile(rf"\s*({'|'.join(_FIELD)})\s*([<>])\s*([+-]?\d{{1,6}}(?:\.\d{{1,6}})?)\s*%\s*")


class Condition(NamedTuple):
    """A change that fails the gate."""

    metric: str
    is_above: bool
    """The change fails above the bound, not below it."""
    bound: float
    """A share: 0.05 for ``+5%``."""
    text: str = ""

    def failure(self, report: SimulationReport) -> str:
        """Why the gate fails; empty if it passes. It fails if nothing is claimed."""
        change: Estimate | None = getattr(report, _FIELD[self.metric])
        if change is None or not report.requests:
            problem = report.problem or (report.latency_problem if self.metric == "latency" else None)
            return f"{self.text} fails: nothing is claimed; {problem or 'no request was served before'}"
        if change.high <= self.bound if self.is_above else change.low >= self.bound:  # the whole interval passes
            return ""
        interval = f"95% interval {change.low:+.1%} to {change.high:+.1%}"
        return f"{self.text} fails: {self.metric} {change.value:+.1%}, {interval}"


def condition(text: str) -> Condition:
    """An argument type: a condition as ``cost>+5%``."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not {_FORM}")
    return Condition(match[1], match[2] == ">", float(f"{match[3]}e-2"), text.strip())
