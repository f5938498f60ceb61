"""Converts plain values to structs. A subclass of a string, number or mapping counts as the plain type, and None as
absent where a field may only be absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import TypeVar
from uuid import UUID

import msgspec

from routewright.errors import Problem, ValidationFailed

from .json_scan import Flaw, beneath, find_flaw, no_json, quoted
from .problems import STEP, problem_of

T = TypeVar("T")

_NO_JSON = (Flaw, bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)


def convert_value(value: object, shape: type[T], path: str) -> T:
    """Convert a value to ``shape``, accepting subclasses of plain types. Raises ``ValidationFailed`` with the path."""
    try:
        if type(value) is not list:
            msgspec.to_builtins(value)  # refuses objects that convert() would read by attribute, such as numpy scalars
        return msgspec.convert(value, shape)
    except Exception:  # a misfit, or whatever an object of the caller raises when msgspec reads its items or attributes
        pass  # may still be valid: a subclass of a number, string or mapping
    return rebuild(value, shape, path)


def rebuild(value: object, shape: type[T], path: str) -> T:
    """Convert a struct to plain values and back, which checks all types and copies everything. ``path`` is its place in
    errors. Raises ``ValidationFailed``."""
    try:
        tree: object = msgspec.to_builtins(value, builtin_types=_NO_JSON, enc_hook=_stand_in)
    except RecursionError:
        raise ValidationFailed.at(path, "is nested too deeply, or contains itself", "flatten it") from None
    except TypeError as error:  # a struct as a key
        raise ValidationFailed.at(path, f"is not JSON: {error}", "make every key a string") from None
    except Exception as error:  # raised by a class of the caller
        problem = f"holds a value that raised {type(error).__name__}"
        raise ValidationFailed.of(Problem(path, problem, "pass plain dicts, strings and numbers")) from error
    flaw = find_flaw(tree)
    if flaw is not None:
        raise ValidationFailed.of(Problem(beneath(path, flaw[0]), flaw[1].problem, flaw[1].hint))
    try:
        return msgspec.convert(tree, shape)
    except msgspec.ValidationError as misfit:
        return without_nulls(tree, shape, path, misfit)
    except UnicodeEncodeError as misfit:
        wrong = Problem(path, f"holds an unpaired surrogate: {quoted(misfit.object)}", "send valid Unicode")
    raise ValidationFailed.of(wrong)


def without_nulls(tree: object, shape: type[T], path: str, misfit: msgspec.ValidationError) -> T:
    """Convert again without fields that are None but may only be absent: None means the same. Raises
    ``ValidationFailed`` for the first other ``misfit``."""
    while True:
        where = str(misfit).rpartition(" - at ")[2].strip("`")
        *outer, last = [name for name, _ in STEP.findall(where)] or [""]
        holders = [tree]  # all objects at this place
        for name in outer:
            if name:
                holders = [holder.get(name) for holder in holders if isinstance(holder, dict)]
            else:
                holders = [entry for holder in holders if isinstance(holder, list) for entry in holder]
        nulls = [holder for holder in holders if isinstance(holder, dict) and last in holder and holder[last] is None]
        if "got `null` - at " not in str(misfit) or not nulls:
            raise ValidationFailed.of(problem_of(misfit, tree, path))
        for entry in nulls:
            del entry[last]
        try:
            return msgspec.convert(tree, shape)
        except msgspec.ValidationError as next_misfit:
            misfit = next_misfit


def _stand_in(value: object) -> object:
    """The plain value of a subclass, numpy scalar or mapping; for any other object a ``Flaw``."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return dict(value) if isinstance(value, Mapping) else no_json(value)
