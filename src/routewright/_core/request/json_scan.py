"""Is this one strict JSON text? Asked of every body before it is decoded (contract 2), and of values that callers pass.

The fast path proves a body innocent at C speed. What it cannot prove innocent goes to the standard library's parser,
which has the last word and can say where the fault is.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from msgspec import MsgspecError, Raw
from msgspec.json import Decoder, encode

from routewright.errors import InvalidJson, Problem, ValidationFailed

MAX_DEPTH = 64
"""Arrays and objects inside each other."""

_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SOUND = frozenset((bool, type(None)))
_LONGEST_INT_BITS = 14_000  # Python writes no integer of more than 4,300 digits
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


def finite(text: str) -> float:
    """Read a number that has no whole digits alone, for decoders: they take 20 microseconds for some, such as 1e300.

    Raises ``ValueError`` for one that no float holds.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")  # as msgspec has it
    return number


decode = Decoder(float_hook=finite).decode
"""Read JSON without a shape. Raises ``msgspec.DecodeError``."""
_SKIP = Decoder(Raw).decode


class Flaw:
    """Why a value is not JSON that we take; in a parsed tree it stands where the value was."""

    __slots__ = ("error", "hint", "problem")

    def __init__(self, problem: str, hint: str, error: type[ValidationFailed] = ValidationFailed) -> None:
        self.problem = problem
        self.hint = hint
        self.error = error


_SURROGATE = Flaw("holds half of a surrogate pair, which is no character", "send the whole character, or leave it out")
_TOO_DEEP = Flaw(f"nests more than {MAX_DEPTH} arrays and objects", "flatten it")


def no_json(value: object) -> Flaw:
    """Make the flaw of what no JSON can stand for."""
    return Flaw(f"{type(value).__name__} is not JSON", "pass strings, numbers, booleans, null, lists and dicts")


def scan(body: bytes) -> None:
    """Refuse a body that is not strict JSON. Costs about what decoding it twice does.

    Raises ``InvalidJson`` for an empty body, a BOM, bytes that are not UTF-8, bad syntax, NaN and Infinity;
    ``ValidationFailed`` for a key twice in one object, half a surrogate pair, and nesting over ``MAX_DEPTH``.
    Numbers may be of any size: whether one fits its field is the decoder's question.
    """
    if not _is_innocent(body):
        _judge(body)


def nests_deeper(tree: object, depth: int) -> bool:
    """Say whether plain values have more than ``depth`` dicts and lists inside each other. Never recurses."""
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


def flaw_in(value: object, depth: int = MAX_DEPTH) -> tuple[str, Flaw] | None:
    """Find the first thing in a value that JSON cannot say, and its path; None where all is well."""
    if isinstance(value, (dict, list, tuple)):
        if not depth:
            return "", _TOO_DEEP
        return _flaw_in_dict(value, depth - 1) if isinstance(value, dict) else _flaw_in_list(value, depth - 1)
    flaw = _flaw_of(value)
    return None if flaw is None else ("", flaw)


def object_in(text: str) -> Raw | None:
    """The JSON object that a text is, letter for letter; None for anything else. Nothing is made of what it holds."""
    try:
        _SKIP(text)
    except (MsgspecError, UnicodeError, RecursionError):  # what was raised may hold the text
        return None
    return Raw(text.encode()) if text.lstrip().startswith("{") else None


def is_unicode(text: str) -> bool:
    """Say whether the text can be encoded: no half of a surrogate pair. Free for ASCII."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def joined(path: str, key: str | int) -> str:
    """Append a key or an index to a path; keys that are not plain words are quoted and cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{quoted(key)}]"


def beneath(path: str, inner: str) -> str:
    """Put a path under another."""
    return f"{path}.{inner}" if path and inner and not inner.startswith("[") else path + inner


def quoted(text: str) -> str:
    """Show a text in quotes, escaped, and cut at 60 characters."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."


def _is_innocent(body: bytes) -> bool:
    """Say at C speed that nothing is wrong; False means that somebody has to look."""
    try:
        tree = decode(body)
        again = encode(tree)
    except (MsgspecError, UnicodeError, RecursionError):
        return False
    # Of a key that came twice only one is left in ``again``, so a colon is missing there.
    if again != body and again.count(b":") != _colons(body):
        return False
    return body.count(b"[") + body.count(b"{") <= MAX_DEPTH or not nests_deeper(tree, MAX_DEPTH)


def _flaw_in_dict(value: dict[Any, Any], depth: int) -> tuple[str, Flaw] | None:
    for key, child in value.items():
        if not isinstance(key, str):
            return "", Flaw(f"has a key that is not a string but {type(key).__name__}", "JSON keys are strings")
        if not is_unicode(key):
            return joined("", key), _SURROGATE
        found = None if _is_sound(child) else flaw_in(child, depth)
        if found is not None:
            return beneath(joined("", key), found[0]), found[1]
    return None


def _flaw_in_list(value: list[Any] | tuple[Any, ...], depth: int) -> tuple[str, Flaw] | None:
    for index, child in enumerate(value):
        found = None if _is_sound(child) else flaw_in(child, depth)
        if found is not None:
            return beneath(joined("", index), found[0]), found[1]
    return None


def _is_sound(value: object) -> bool:
    """Say quickly that there is no flaw, for what most values are."""
    return value.isascii() if type(value) is str else type(value) in _SOUND


def _flaw_of(value: object) -> Flaw | None:
    if isinstance(value, str):
        return None if is_unicode(value) else _SURROGATE
    if isinstance(value, float):
        return None if math.isfinite(value) else Flaw(f"{value} is not JSON", "send null, or leave it out")
    if value is None:
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= _LONGEST_INT_BITS else Flaw("is too long a number", "send it as a string")
    if isinstance(value, Flaw):
        return value
    return no_json(value)


def _colons(body: bytes) -> int:
    """Count colons, escaped ones too. One that only looks escaped counts as well: that errs on the slow side."""
    plain = body.count(b":")
    if b"\\" not in body or b"\\u003" not in body:
        return plain
    return plain + body.count(b"\\u003a") + body.count(b"\\u003A")


def _judge(body: bytes) -> None:
    """Refuse what is wrong, with its place; return where nothing is."""
    tree = _parsed(_text_of(body))
    found = None if _encodes(tree) else flaw_in(tree)
    if found is not None:
        path, flaw = found
        raise flaw.error.of(Problem(path, flaw.problem, flaw.hint))


def _encodes(tree: object) -> bool:
    """Say at C speed whether there is nothing to look for: a ``Flaw`` or half a surrogate pair does not encode."""
    try:
        encode(tree)
    except (TypeError, UnicodeError, RecursionError):
        return False
    return not nests_deeper(tree, MAX_DEPTH)


def _text_of(body: bytes) -> str:
    if not body.strip():
        raise InvalidJson.of(Problem("", "the body is empty", "send one JSON object"))
    if body.startswith(_BOMS):
        raise InvalidJson.of(Problem("", "the body begins with a byte order mark", "send UTF-8 without it"))
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        problem = f"the body is not UTF-8: {error.reason} at byte {error.start}"
    raise InvalidJson.of(Problem("", problem, "encode it as UTF-8"))


def _parsed(text: str) -> object:
    """Parse into plain values, with a ``Flaw`` in place of each object or constant that is refused."""
    kind: type[ValidationFailed]
    try:
        # Numbers stay text: their size is not asked here, and the longest would not convert.
        return json.loads(
            text, object_pairs_hook=_object_of, parse_constant=_constant_of, parse_int=str, parse_float=str
        )
    except json.JSONDecodeError as error:
        said = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        kind, problem = InvalidJson, Problem("", said, "")
    except RecursionError:
        kind, problem = ValidationFailed, Problem("", _TOO_DEEP.problem, _TOO_DEEP.hint)
    raise kind.of(problem)  # behind the ``except``, so that it does not keep the parser's error, which holds the text


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Flaw:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    return Flaw(f"has the key {quoted(key)} twice", "keep one of them")


def _constant_of(name: str) -> Flaw:
    return Flaw(f"{name} is not JSON", "send null, or leave it out", InvalidJson)
