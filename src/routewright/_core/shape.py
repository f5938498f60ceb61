"""Are the types right? Structs check nothing when they are made, so what callers hand in is held to its shape here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import TypeVar
from uuid import UUID

import msgspec

from routewright.errors import Problem, ValidationFailed

from .problem import problem_of
from .scan import Flaw, beneath, flaw_in, no_json, quoted

T = TypeVar("T")

MISFITS = (msgspec.ValidationError, AttributeError, TypeError, UnicodeEncodeError, RecursionError)
"""What ``msgspec.convert`` raises."""
_NO_JSON = (Flaw, bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)


def rebuilt(value: object, shape: type[T], path: str) -> T:
    """Take a struct apart and put it together again, which checks all types and parts it from the caller's objects.

    ``path`` is where it stands. Raises ``ValidationFailed``.
    """
    return _made(_plain(value, path), shape, path)


def converted(value: object, shape: type[T], path: str) -> T:
    """Make the shape of plain values, or of what stands for some. Raises ``ValidationFailed`` naming the place."""
    try:
        if type(value) is not list:  # the structs in lists have fields that must be there
            msgspec.to_builtins(
                value
            )  # knows what only looks like a mapping, a number of numpy's say: it would convert
        return msgspec.convert(value, shape)
    except MISFITS:
        pass  # perhaps only since a number, string or mapping is of a kind of its own
    return rebuilt(value, shape, path)


def _plain(value: object, path: str) -> object:
    """The value as JSON could hold it."""
    try:
        tree: object = msgspec.to_builtins(value, builtin_types=_NO_JSON, enc_hook=_stand_in)
    except RecursionError:
        problem = "nests too deep to be read, or holds a value that contains itself"
        raise ValidationFailed.of(Problem(path, problem, "flatten it")) from None
    except TypeError as error:  # a struct as a key
        raise ValidationFailed.of(Problem(path, f"holds what is not JSON: {error}", "JSON keys are strings")) from None
    except Exception as error:  # of a class of the caller's
        problem = f"holds a value that fails with {type(error).__name__}"
        raise ValidationFailed.of(Problem(path, problem, "pass plain dicts, strings and numbers")) from error
    found = flaw_in(tree)
    if found is not None:
        raise ValidationFailed.of(Problem(beneath(path, found[0]), found[1].problem, found[1].hint))
    return tree


def _made(value: object, shape: type[T], path: str) -> T:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        problem = problem_of(error, value, path)
    except UnicodeEncodeError as error:
        problem = Problem(path, f"holds half of a surrogate pair: {quoted(error.object)}", "send valid Unicode")
    raise ValidationFailed.of(problem)


def _stand_in(value: object) -> object:
    """Make plain what is of a subclass, of numpy or a mapping; of everything else what ``flaw_in`` reports."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    return no_json(value)
