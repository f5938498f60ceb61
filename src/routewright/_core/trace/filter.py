"""Trace filters, ``term(,term)*`` with terms ``key op value``, and page cursors (contract 9).

    status=failed,metadata.team="search, EU",cost_usd>=0.01

A value in double quotes may contain commas and operators; ``\\"`` is a quote and ``\\\\`` a backslash. A missing field
counts as an empty string; missing metadata is equal to nothing. Parsing takes linear time.

A cursor marks the start of the next page for one query of one account and is valid for 24 hours. It is authenticated: a
changed cursor, or one of another query, is refused.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from json import dumps
from math import isfinite
from operator import eq, ge, gt, le, lt, ne
from typing import Any, get_args

import msgspec

from routewright._core.crypto import mac, same
from routewright.errors import CursorExpired, CursorInvalid, UnsupportedWrite, ValidationFailed
from routewright.wire import Environment, FilterOp, Goal, Selection, Strategy, Term, TraceItem, TraceKind, TraceStatus
from routewright.wire.ids import policy_id
from routewright.wire.json_scan import is_unicode
from routewright.wire.problems import did_you_mean, listed, shown

CURSOR_LIFETIME_S = 24 * 3600
MAX_CURSOR_CHARS = 1_000
MAX_CHARS = 4_096
MAX_TERMS = 32
LARGE = 1e21  # whole floats from here on are written with an exponent
METADATA = "metadata."
TEXTS: dict[str, tuple[str, ...]] = {  # string keys and their possible values; empty: any
    "status": get_args(TraceStatus),
    "kind": get_args(TraceKind),
    "model": (),
    "provider": (),
    "policy_id": (),
    "goal": get_args(Goal),
    "strategy": get_args(Strategy),
    "environment": get_args(Environment),
    "error": (),
}
FLAGS = ("cache_hit", "fallback_used", "compromised")
NUMBERS = ("cost_usd", "duration_ms")
KEYS = (*TEXTS, *FLAGS, *NUMBERS)  # all keys but ``metadata.<key>``
COMPARE: dict[FilterOp, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}

_MAC_BYTES = 16
_OPS: dict[str, FilterOp] = {op: op for op in COMPARE}
_IN_QUOTES = r'"(?:[^"\\]|\\.)*"'
_TERM = re.compile(rf'([^=!<>,"]*)(!=|>=|<=|=|<|>|!)?(\s*{_IN_QUOTES}\s*(?=,|\Z)|[^,]*)', re.DOTALL)
_QUOTED = re.compile(_IN_QUOTES, re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")


def parse_filter(text: str) -> tuple[Term, ...]:
    """Parse a filter. An empty one selects all. Raises ``ValidationFailed`` with the term."""
    if not isinstance(text, str):
        raise ValidationFailed.at("filter", f"must be a string, got {shown(text)}", "write key=value,key>=value")
    if len(text) > MAX_CHARS:
        raise ValidationFailed.at("filter", f"has {len(text)} characters", f"take at most {MAX_CHARS}")
    if not is_unicode(text):
        problem = "holds half of a surrogate pair, which is no character"
        raise ValidationFailed.at("filter", problem, "send the whole character")
    terms: list[Term] = []
    at = 0
    while text and at <= len(text):
        match = _TERM.match(text, at)
        assert match is not None, "the empty text matches"
        terms.append(_term(f"filter[{len(terms)}]", *map(str.strip, match.groups(""))))
        at = match.end() + 1  # after the comma
        if len(terms) > MAX_TERMS:
            raise ValidationFailed.at("filter", f"has more than {MAX_TERMS} terms", "use fewer terms")
    return tuple(terms)


def selects(selection: Selection, trace: TraceItem) -> bool:
    """True if a trace matches a selection."""
    return (
        selection.environment in (None, trace.environment)
        and (selection.since is None or trace.created_at >= selection.since)
        and (selection.until is None or trace.created_at < selection.until)
        and matches(trace, selection.terms)
    )


def check_terms(storage: str, terms: Sequence[Term]) -> None:
    """Raise ``UnsupportedWrite`` for an invalid term."""
    for term in terms:
        if term.op not in COMPARE or not (term.key in KEYS or term.key.startswith(METADATA)):
            raise UnsupportedWrite(f"{storage} knows no term with {shown(term.key)} {shown(term.op)}")


def matches(trace: TraceItem, terms: Sequence[Term]) -> bool:
    """True if a trace matches every term."""
    for term in terms:
        if term.key == "policy_id":
            holds = ((trace.policy_id or "") in policies_meant(str(term.value))) == (term.op == "=")
        elif not term.key.startswith(METADATA):
            value = getattr(trace, term.key)
            holds = COMPARE[term.op]("" if value is None else value, term.value)
        else:
            value = trace.metadata.get(term.key.removeprefix(METADATA))
            if isinstance(term.value, str):
                holds = (text_of(value) in texts_meant(term.value)) == (term.op == "=")
            else:
                number = number_of(value)
                holds = number is not None and COMPARE[term.op](number, term.value)
        if not holds:
            return False
    return True


def text_of(value: object) -> str | None:
    """A metadata scalar as text, for filters and analytics. None for lists, objects and null."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value.bit_length() <= 1_000 else dumps(float(value)) if _fits(value) else "Infinity"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < LARGE else dumps(value)
    return None


def number_of(value: object) -> float | None:
    """A metadata number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if _fits(value) else None


@lru_cache(maxsize=256)
def texts_meant(value: str) -> tuple[str, ...]:
    """Texts that a filter's metadata value equals: itself, and the same number in its shortest form."""
    if _NUMBER.fullmatch(value) is None:
        return (value,)
    shortest = text_of(float(value) if "." in value or "e" in value.lower() else int(value))
    return (value,) if shortest in (None, value) else (value, str(shortest))


@lru_cache(maxsize=256)
def policies_meant(value: str) -> tuple[str, str]:
    """Ids that a filter's ``policy_id`` equals: itself, and the default id of the policy of that name."""
    return value, policy_id(value)


def _term(path: str, key: str, sign: str, written: str) -> Term:
    if (op := _OPS.get(sign)) is None:
        text = shown(key + sign + written)
        raise ValidationFailed.at(path, f"{text} is not a term", f"write key=value;  operators are {' '.join(COMPARE)}")
    value = written
    if not written:
        raise ValidationFailed.at(path, f"{shown(key)} has no value", 'write "" for an empty one')
    if written[0] in "=<>!":
        problem = f"the value of {shown(key)} is {shown(written)}"
        raise ValidationFailed.at(path, problem, "put the value in quotes if this is intended")
    if written[0] == '"':
        if _QUOTED.fullmatch(written) is None:
            problem = f"the quotes of {shown(written)} are not closed"
            raise ValidationFailed.at(path, problem, 'close them; write \\" for a quote inside')
        value = _ESCAPED.sub(r"\1", written[1:-1])
    if key.startswith(METADATA) and len(key) > len(METADATA):
        return Term(key, op, value if op in ("=", "!=") else _number(path, key, value))
    if key in NUMBERS:
        return Term(key, op, _number(path, key, value))
    if key not in KEYS:
        near = did_you_mean(key, KEYS) or (f"is it {METADATA + key!r}?" if _WORD.fullmatch(key) else "")
        hint = f"{near} the keys are {', '.join(KEYS)} and metadata.<key>".lstrip()
        raise ValidationFailed.at(path, f"unknown key {shown(key)}", hint)
    if op not in ("=", "!="):
        hint = f"compare {', '.join(NUMBERS)} or metadata"
        raise ValidationFailed.at(path, f"{key} cannot be compared with {op}", hint)
    if key in FLAGS:
        if value not in ("true", "false"):
            raise ValidationFailed.at(path, f"{key} is {shown(value)}", "write true or false")
        return Term(key, op, value == "true")
    known = TEXTS[key]
    if known and value not in known:
        raise ValidationFailed.at(path, f"{key} is {shown(value)}", f"it is one of {listed(known)}")
    return Term(key, op, value)


def _number(path: str, key: str, value: str) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else None
    if number is None or not isfinite(number):
        raise ValidationFailed.at(path, f"{shown(key)} is compared with {shown(value)}", "write a number such as 0.5")
    return number


def _fits(value: float) -> bool:
    try:
        return isfinite(float(value))
    except OverflowError:
        return False


class _Content(msgspec.Struct, frozen=True, array_like=True):
    issued_at: int
    """Unix seconds."""
    after: str
    """Key of the last item of the previous page."""


def seal(after: str, query: object, secret: bytes, now: float) -> str:
    """Create the cursor for the page after the key ``after``. ``query`` is account and query, JSON-encodable."""
    content = msgspec.json.encode(_Content(int(now), after))
    return _written(content + _mac(content, query, secret))


def unseal(cursor: object, query: object, secrets: Sequence[bytes], now: float) -> str:
    """Return the key that a page starts after. ``secrets``: the current one, then previous ones. Raises
    ``CursorInvalid`` and ``CursorExpired``."""
    data = b""
    if isinstance(cursor, str) and len(cursor) <= MAX_CURSOR_CHARS and cursor.isascii():
        try:
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except ValueError:
            data = b""
    if _written(data) != cursor:  # not canonical
        data = b""
    content = data[:-_MAC_BYTES]
    if not any(same(data[-_MAC_BYTES:], _mac(content, query, secret)) for secret in secrets):
        raise CursorInvalid("the cursor does not belong to this query; pass next_cursor unchanged with the same filter")
    read = msgspec.json.decode(content, type=_Content)  # authenticated, so it decodes
    if int(now) - read.issued_at > CURSOR_LIFETIME_S:
        raise CursorExpired("the cursor is older than 24 hours; start again without a cursor")
    return read.after


def _mac(content: bytes, query: object, secret: bytes) -> bytes:
    return mac(secret, msgspec.json.encode(query) + b"\n" + content)[:_MAC_BYTES]


def _written(data: bytes) -> str:
    """Encode a cursor. The content, a JSON array, comes first, so that no cursor starts with a dash like an option."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()
