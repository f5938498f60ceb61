"""What does the query of an address ask for? Reads its parameters into a shape, and refuses all others."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.read import converted
from routewright.errors import Problem, ValidationFailed

T = TypeVar("T")

_MOST_PARAMETERS = 64


def parameters(raw: bytes, shape: type[T], most_bytes: int) -> T:
    """The parameters of a query. Raises ``ValidationFailed`` for what the shape does not have."""
    if not raw:
        return shape()
    if len(raw) > most_bytes:
        raise ValidationFailed.of(Problem("query", f"is {len(raw)} bytes long", f"send at most {most_bytes}"))
    given = _pairs(raw)
    known = _names(shape)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or (f"known: {', '.join(known)}" if known else "it takes none")
            raise ValidationFailed.of(Problem(quoted(name), "is not a parameter of this address", hint))
    return converted(_numbers(given, shape), shape, "")


def _pairs(raw: bytes) -> dict[str, str]:
    """The names and values. Raises ``ValidationFailed``."""
    given: dict[str, str] = {}
    pairs = [pair for pair in raw.split(b"&") if pair]
    if len(pairs) > _MOST_PARAMETERS:
        raise ValidationFailed.of(Problem("query", f"has {len(pairs)} parameters", f"send at most {_MOST_PARAMETERS}"))
    for pair in pairs:
        name, _, value = (_unquoted(part) for part in pair.partition(b"="))
        if name in given:
            raise ValidationFailed.of(Problem(quoted(name), "is given twice", "give it once"))
        given[name] = value
    return given


def _unquoted(part: bytes) -> str:
    try:
        return unquote_to_bytes(part.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        pass
    raise ValidationFailed.of(Problem("query", "is not UTF-8 behind its percent signs", "encode it as UTF-8"))


def _names(shape: type[Any]) -> tuple[str, ...]:
    assert issubclass(shape, Struct)
    return shape.__struct_encode_fields__


def _numbers(given: dict[str, str], shape: type[Any]) -> dict[str, Any]:
    """The values with numbers where the shape has numbers: an address knows text alone."""
    told: dict[str, Any] = dict(given)
    for field in msgspec.structs.fields(shape):
        text = given.get(field.encode_name)
        if text is not None and field.type in (int, int | None):
            told[field.encode_name] = _whole(field.encode_name, text)
    return told


def _whole(name: str, text: str) -> int:
    if len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal():
        return int(text)
    raise ValidationFailed.of(Problem(name, f"must be a whole number, got {shown(text)}", ""))
