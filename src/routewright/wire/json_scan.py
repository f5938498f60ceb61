"""Rejects bodies that are not strict JSON before they are decoded (contract 2), and checks callers' values.
The fast path proves a body valid at C speed. Other bodies go to the standard library's parser, which decides and
reports the place of the error."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from msgspec import MsgspecError, Raw
from msgspec.json import Decoder, encode

from routewright.errors import InvalidJson, Problem, ValidationFailed

from .plain import JsonObject

MAX_DEPTH = 64  # of nested arrays and objects

_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SOUND = frozenset((bool, type(None)))
_LONGEST_INT_BITS = 14_000  # Python writes no integer of more than 4,300 digits
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


def finite(text: str) -> float:
    """Parse a JSON number with a fraction or exponent. msgspec takes 20 µs for some, such as 1e300. Raises
    ``ValueError`` on overflow."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")  # msgspec's own words
    return number


decode = Decoder(float_hook=finite).decode  # JSON to plain values; raises msgspec.DecodeError
_SKIP = Decoder(Raw).decode


class Flaw:
    """Why a value is rejected. Replaces the value in a parsed tree."""

    __slots__ = ("error", "hint", "problem")

    def __init__(self, problem: str, hint: str, error: type[ValidationFailed] = ValidationFailed) -> None:
        self.problem = problem
        self.hint = hint
        self.error = error


_SURROGATE = Flaw("holds an unpaired surrogate, which is not a character", "send the whole character, or leave it out")
_TOO_DEEP = Flaw(f"nests more than {MAX_DEPTH} arrays and objects", "flatten it")


def no_json(value: object) -> Flaw:
    """The flaw of a value that JSON cannot express."""
    more = "; pass functions as route(tools=[...]), and a function's name as tool_choice" if callable(value) else ""
    return Flaw(f"{type(value).__name__} is not JSON", f"pass strings, numbers, bools, None, lists and dicts{more}")


def scan(body: bytes) -> None:
    """Reject a body that is not strict JSON. Takes about as long as decoding it twice. Raises ``InvalidJson`` for an
    empty body, a BOM, bytes that are not UTF-8, bad syntax, NaN and Infinity; ``ValidationFailed`` for a repeated key
    in an object, an unpaired surrogate, and nesting over ``MAX_DEPTH``. Does not check the size of numbers."""
    try:
        tree = decode(body)
        again = encode(tree)
    except (MsgspecError, UnicodeError, RecursionError):
        pass
    else:
        # ``again`` has each repeated key once, so fewer colons. An escaped colon of the body could make up for one.
        has_all_keys = again == body or (
            b"\\u003a" not in body and b"\\u003A" not in body and again.count(b":") == body.count(b":")
        )
        if has_all_keys and (body.count(b"[") + body.count(b"{") <= MAX_DEPTH or not nests_deeper(tree, MAX_DEPTH)):
            return
    _judge(body)


def tree_of(body: bytes) -> object:
    """A body as plain values. Raises as ``scan`` does, and ``ValidationFailed`` for a number that is out of range."""
    scan(body)
    try:
        return decode(body)
    except MsgspecError:
        pass  # its message may contain text of the body
    raise ValidationFailed.at("", "a number is out of range", "send one that fits a double")


def nests_deeper(tree: object, depth: int) -> bool:
    """True if dicts and lists are nested more than ``depth`` levels. Does not recurse."""
    level: list[Any] = [[tree]]
    for _ in range(depth + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def is_shallow(raw: str, tree: object) -> bool:
    """True if ``tree``, decoded from ``raw``, nests at most ``MAX_DEPTH`` levels."""
    return raw.count("[") + raw.count("{") <= MAX_DEPTH or not nests_deeper(tree, MAX_DEPTH)


def find_flaw(value: object, depth: int = MAX_DEPTH) -> tuple[str, Flaw] | None:
    """The path and flaw of the first part of a value that JSON cannot express; None if all is valid."""
    if value is None:
        return None
    if isinstance(value, str):
        return None if is_unicode(value) else ("", _SURROGATE)
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", Flaw(f"{value} is not JSON", "send None, or leave it out"))
    if isinstance(value, int):
        is_long = value.bit_length() > _LONGEST_INT_BITS
        return ("", Flaw("is a number with too many digits", "send it as a string")) if is_long else None
    if not isinstance(value, (dict, list, tuple)):
        return "", value if isinstance(value, Flaw) else no_json(value)
    if not depth:
        return "", _TOO_DEEP
    is_dict = isinstance(value, dict)
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(key, str):
            if is_dict:
                return "", Flaw(f"has a key that is not a string but {type(key).__name__}", "make every key a string")
        elif not (key.isascii() or is_unicode(key)):
            return joined("", key), _SURROGATE
        if child.isascii() if type(child) is str else type(child) in _SOUND:  # the common case
            continue
        flaw = find_flaw(child, depth - 1)
        if flaw is not None:
            return beneath(joined("", key), flaw[0]), flaw[1]
    return None


def is_json(text: str) -> bool:
    """True if the text is one JSON value."""
    try:
        _SKIP(text)
    except (MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def object_in(text: str) -> Raw | None:
    """The text as ``Raw`` if it is a JSON object, else None."""
    is_object = text[:1] == "{" or text.lstrip()[:1] == "{"
    return Raw(text.encode()) if is_object and is_json(text) else None


def is_unicode(text: str) -> bool:
    """True if the text has no unpaired surrogates, so that it can be encoded."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def joined(path: str, key: str | int) -> str:
    """Append a key or index to a path. Keys that are not plain words are quoted and cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{quoted(key)}]"


def beneath(path: str, inner: str) -> str:
    """Append a relative path to a path."""
    return f"{path}.{inner}" if path and inner and not inner.startswith("[") else path + inner


def quoted(text: str) -> str:
    """The text quoted, escaped, and cut at 60 characters."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."


def _judge(body: bytes) -> None:
    """Raise for the first error in a body, with its place. Returns if there is none."""
    if not body.strip():
        raise InvalidJson.at("", "the body is empty", "send one JSON object")
    if body.startswith(_BOMS):
        raise InvalidJson.at("", "the body begins with a byte order mark", "send UTF-8 without it")
    tree: object = None
    refused: tuple[type[ValidationFailed], Problem] | None = None
    try:
        # Numbers stay text: their size does not matter here, and the longest would not convert.
        tree = json.loads(
            body.decode(),
            object_pairs_hook=_object_of,
            parse_constant=lambda name: Flaw(f"{name} is not JSON", "send null, or leave it out", InvalidJson),
            parse_int=str,
            parse_float=str,
        )
    except UnicodeDecodeError as error:
        problem = f"the body is not UTF-8: {error.reason} at byte {error.start}"
        refused = InvalidJson, Problem("", problem, "encode it as UTF-8")
    except json.JSONDecodeError as error:
        problem = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        refused = InvalidJson, Problem("", problem, "send one JSON object, with keys and texts in double quotes")
    except RecursionError:
        refused = ValidationFailed, Problem("", _TOO_DEEP.problem, _TOO_DEEP.hint)
    if refused is not None:  # raised outside ``except``: the caught error's frames hold the body
        raise refused[0].of(refused[1])
    try:
        encode(tree)  # fails on a ``Flaw`` or unpaired surrogate, at C speed
        is_sound = not nests_deeper(tree, MAX_DEPTH)
    except (TypeError, UnicodeError, RecursionError):
        is_sound = False
    finding = None if is_sound else find_flaw(tree)
    if finding is not None:
        path, flaw = finding
        raise flaw.error.of(Problem(path, flaw.problem, flaw.hint))


def _object_of(pairs: list[tuple[str, object]]) -> JsonObject | Flaw:
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    return Flaw(f"has the key {quoted(key)} twice", "keep one of them")
