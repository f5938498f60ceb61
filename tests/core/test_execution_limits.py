"""Invalid execution limits are refused."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from routewright import ExecutionLimits, Settings, ValidationFailed
from tests.tables import table


@table("value", [-1, nan, inf, True, "10", None])
def test_a_limit_is_a_finite_number_of_at_least_nothing(value: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"ExecutionLimits\.idle_s: is .*; use a finite number, 0 or more"):
        ExecutionLimits(idle_s=value)


@table("value", [0, -1, 2.0, True, None])
def test_a_circuit_opens_after_a_whole_number_of_faults(value: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"ExecutionLimits\.open_after: is .*; use a whole number"):
        ExecutionLimits(open_after=value)


def test_settings_take_limits_and_nothing_else_for_execution() -> None:
    with pytest.raises(ValidationFailed, match=r"Settings\.execution: is 10; pass ExecutionLimits\(\.\.\.\)"):
        Settings(execution=10)  # type: ignore[arg-type]
