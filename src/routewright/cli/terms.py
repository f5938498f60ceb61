"""Which terms of an account or a key does a command line give? What is not given stays as it is, limit by limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from routewright._core.terms import SomeLimits
from routewright.errors import Problem, ValidationFailed
from routewright.wire import RateLimits

from .options import Arguments

LIMITS = RateLimits.__struct_fields__


def given_terms(args: Arguments, names: Mapping[str, str]) -> dict[str, Any]:
    """Those that are given, as a ``Console`` calls them. ``names``: that, by argument."""
    limits = RateLimits(**_given_limits(args))
    return _given(args, names) | ({} if limits == RateLimits() else {"limits": limits})


def given_changes(args: Arguments, names: Mapping[str, str]) -> dict[str, Any]:
    """The same of what is there. Limits that are not given stay as they are when the others are written."""
    told = _given_limits(args)
    return _given(args, names) | ({"limits": SomeLimits(**told, told=frozenset(told))} if told else {})


def check_changes(args: Arguments, names: Iterable[str]) -> None:
    """Refuse to change nothing: a script's variable may have been empty. Raises ``ValidationFailed``."""
    known = [*names, *LIMITS]
    if not any(name in args for name in known):
        options = ", ".join("--" + name.replace("_", "-") for name in known)
        raise ValidationFailed.of(Problem("", "nothing is given that would change", f"give some of {options}"))


def _given(args: Arguments, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(args, argument) for argument, name in names.items() if argument in args}


def _given_limits(args: Arguments) -> dict[str, int | None]:
    return {name: getattr(args, name) for name in LIMITS if name in args}
