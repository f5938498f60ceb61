"""Constructors whose ``TypeError`` for an unknown or missing argument says what to write here."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from routewright.wire.foreign import HINTS
from routewright.wire.problems import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")

_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'$|required positional argument: '(\w+)'$")


def explains(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator of constructors of the classes that ``HINTS`` names."""

    @wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if name := _ARGUMENT.search(str(error)):
                hints = HINTS[function.__qualname__.partition(".")[0]]
                hint = hints.get(name[1] or name[2]) or did_you_mean(name[1], signature(function).parameters)
                error.args = (f"{error}; {hint}".removesuffix("; "),)
            raise

    return explained
