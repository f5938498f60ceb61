"""Constructors whose ``TypeError`` for an unknown keyword says what it is here."""

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

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'$")


def explains(place: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator of constructors. ``place``: the hints for names of other libraries (``HINTS``)."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def explained(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if name := _UNEXPECTED.search(str(error)):
                    hint = HINTS[place].get(name[1]) or did_you_mean(name[1], signature(function).parameters)
                    error.args = (f"{error}; {hint}".removesuffix("; "),)
                raise

        return explained

    return decorate
