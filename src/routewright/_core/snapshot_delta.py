"""Stored form of health snapshots (the first of a chain complete, later ones as changes), and checks of traces before
they are stored."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.wire import HealthSnapshot, ModelHealth, Trace
from routewright.wire.json_scan import MAX_DEPTH, Flaw, beneath, find_flaw, joined
from routewright.wire.problems import Problems, problem_of, shown
from routewright.wire.timestamps import moment

from .analytics.rollup import MOST_MS, MOST_TOKENS, MOST_USD
from .request.rules import check_metadata, refuse


class HealthChange(Struct, frozen=True, omit_defaults=True):
    """Difference between two successive snapshots."""

    models: dict[str, ModelHealth] = {}
    gone: tuple[str, ...] = ()


def find_change(before: HealthSnapshot, after: HealthSnapshot) -> HealthChange:
    """The difference from ``before`` to ``after``."""
    other = {name: health for name, health in after.models.items() if before.models.get(name) != health}
    return HealthChange(other, tuple(name for name in before.models if name not in after.models))


def apply_change(before: HealthSnapshot, change: HealthChange, snapshot_id: str) -> HealthSnapshot:
    """Apply a difference. ``snapshot_id`` is the id of the result."""
    left = {name: health for name, health in before.models.items() if name not in change.gone}
    return HealthSnapshot(snapshot_id, left | change.models)


MAX_ID_CHARS = 100
_MOST: dict[str, float] = {  # upper bounds of amounts by field name at any depth; the lower bound is 0
    **dict.fromkeys(("cost_usd", "charged_usd", "saved_usd", "cost_range_usd"), MOST_USD),
    **dict.fromkeys(("duration_ms", "start_ms", "latency_ms", "ttft_ms"), MOST_MS),
    **dict.fromkeys(("age_s", "latency_s"), MOST_MS / 1000),
    **dict.fromkeys(("input", "output", "cached", "reasoning", "written"), MOST_TOKENS),
}
_MOST_ELSE = 2.0**63


def check_trace(trace: object) -> Trace:
    """Check that a trace can be stored and counted, and normalize its time. Raises ``ValidationFailed``."""
    if not isinstance(trace, Trace):
        raise ValidationFailed.of(Problem("trace", f"{shown(trace)} is not a Trace", "pass a Trace, as answer.trace"))
    _check_flaw("trace.metadata", find_flaw(trace.metadata))
    problems: Problems = []
    try:
        plain = msgspec.to_builtins(trace)
        same = msgspec.convert(plain, Trace)
        _check_numbers("trace", {name: held for name, held in plain.items() if name != "metadata"}, "", problems)
        refuse(problems)
        _check_flaw("trace", find_flaw(plain, MAX_DEPTH + 1))
        read = msgspec.json.decode(msgspec.json.encode(plain), type=Trace)
    except msgspec.ValidationError as error:
        raise ValidationFailed.of(problem_of(error, plain, "trace")) from error
    except (TypeError, UnicodeEncodeError) as error:
        raise ValidationFailed.at("trace", f"cannot be written as JSON: {error}", "pass plain values") from error
    if read != same:
        raise ValidationFailed.of(Problem("trace", "changes in a round trip through JSON", "pass plain values"))
    if not 1 <= len(same.id) <= MAX_ID_CHARS or not same.id.isprintable():
        problem = f"must be 1 to {MAX_ID_CHARS} printable characters, got {shown(same.id)}"
        problems.append(Problem("trace.id", problem, "keep the id from the Router"))
    check_metadata(same.metadata, problems)
    refuse(problems)
    return replace(same, created_at=moment("trace.created_at", same.created_at))


def _check_flaw(path: str, located: tuple[str, Flaw] | None) -> None:
    if located is not None:
        inner, flaw = located
        raise ValidationFailed.of(Problem(beneath(path, inner), flaw.problem, flaw.hint))


def _check_numbers(path: str, value: object, name: str, problems: Problems) -> None:
    """Check all numbers against the bounds of their field names."""
    match value:
        case dict():
            for key, inner in value.items():
                _check_numbers(joined(path, key), inner, key, problems)
        case list() | tuple():
            for place, inner in enumerate(value):
                _check_numbers(joined(path, place), inner, name, problems)
        case bool():
            return
        case int() | float():
            most = _MOST.get(name, _MOST_ELSE)
            least = 0.0 if name in _MOST else -_MOST_ELSE
            if not least <= value <= most:
                problem = f"must be a number from {least:g} to {most:g}, got {shown(value)}"
                problems.append(Problem(path, problem, "pass the measured value"))
