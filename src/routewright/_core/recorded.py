"""May a trace from outside be kept? One that was made elsewhere, or read from a file: every field is looked at."""

from __future__ import annotations

from math import isfinite

import msgspec
from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.wire import Trace

from .moment import moment
from .problem import Problems, problem_of, shown
from .rules import check_metadata
from .scan import beneath, flaw_in

MAX_ID_CHARS = 100
_MOST_USD = 1e6
_MOST_TOKENS = 10**12
_MOST_MS = 1e12


def checked_trace(trace: object) -> Trace:
    """The trace, its time in the one form, if all of it can be stored and counted. Raises ``ValidationFailed``."""
    if not isinstance(trace, Trace):
        raise ValidationFailed.of(Problem("trace", f"{shown(trace)} is not a Trace", "pass a Trace, as answer.trace"))
    flaw = flaw_in(trace.metadata)
    if flaw is not None:
        raise ValidationFailed.of(Problem(beneath("trace.metadata", flaw[0]), flaw[1].problem, flaw[1].hint))
    try:
        plain = msgspec.to_builtins(trace)
        same = msgspec.convert(plain, Trace)
        msgspec.json.encode(plain)
    except msgspec.ValidationError as error:
        raise ValidationFailed.of(problem_of(error, plain, "trace")) from error
    except (TypeError, UnicodeEncodeError) as error:
        raise ValidationFailed.of(Problem("trace", f"cannot be written as JSON: {error}", "")) from error
    found: Problems = []
    if not 1 <= len(same.id) <= MAX_ID_CHARS or not same.id.isprintable():
        found.append(Problem("trace.id", f"must be 1 to {MAX_ID_CHARS} printable characters, got {shown(same.id)}", ""))
    _check_numbers(same, found)
    check_metadata(same.metadata, found)
    if found:
        raise ValidationFailed.of(*found)
    return replace(same, created_at=moment("trace.created_at", same.created_at))


def _check_numbers(trace: Trace, found: Problems) -> None:
    bounds = {
        "cost_usd": (trace.cost_usd, _MOST_USD),
        "charged_usd": (trace.charged_usd, _MOST_USD),
        "duration_ms": (trace.duration_ms, _MOST_MS),
        "tokens.input": (trace.tokens.input, _MOST_TOKENS),
        "tokens.output": (trace.tokens.output, _MOST_TOKENS),
        "tokens.cached": (trace.tokens.cached, _MOST_TOKENS),
    }
    for path, (number, most) in bounds.items():
        if not isfinite(number) or not 0 <= number <= most:
            found.append(Problem(f"trace.{path}", f"must be a number from 0 to {most:g}, got {shown(number)}", ""))
