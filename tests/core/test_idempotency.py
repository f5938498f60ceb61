"""When a request counts as a repeat of an earlier one, and whose its key is."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from routewright._core.accounts.holds import Hold
from routewright._core.idempotency import Claims, KeptResult, fingerprint
from routewright.errors import IdempotencyKeyReused
from routewright.wire import Claim, Replay
from tests.tables import table

from .account_state import Paper

NUMBERS = (
    st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((0, -0.0, 0.0))
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(TEXTS, VALUES, min_size=1, max_size=6)


def of(body: Any) -> str:
    return fingerprint("POST", "/v1/route", body)


def written(value: Any, rng: Random) -> str:
    """The value as JSON, in one of the many ways."""

    def space() -> str:
        return rng.choice(("", "", " ", "\n\t"))

    match value:
        case dict():
            pairs = [f"{written(key, rng)}{space()}:{space()}{written(each, rng)}" for key, each in value.items()]
            rng.shuffle(pairs)
            return "{" + space() + f"{space()},{space()}".join(pairs) + space() + "}"
        case list():
            return "[" + space() + f"{space()},{space()}".join(written(each, rng) for each in value) + space() + "]"
        case str():
            return '"' + "".join(_letter(letter, rng) for letter in value) + '"'
        case bool() | None:
            return json.dumps(value)
    return _number(value, rng)


def _letter(letter: str, rng: Random) -> str:
    pairs = letter.encode("utf-16-be").hex()
    units = [pairs[place : place + 4] for place in range(0, len(pairs), 4)]
    escaped = "".join(f"\\u{rng.choice((unit, unit.upper()))}" for unit in units)
    return rng.choice((escaped, json.dumps(letter)[1:-1], json.dumps(letter, ensure_ascii=False)[1:-1]))


def _number(value: float, rng: Random) -> str:
    """A whole number below 2^53 is the same with a point and nothing behind it."""
    whole = isinstance(value, int) or value.is_integer()
    if whole and abs(value) < 2**53:
        return rng.choice((str(int(value)), f"{int(value)}.0", f"{int(value)}.000", f"{int(value)}e0"))
    return json.dumps(value)


def test_a_fingerprint_depends_on_values_and_not_on_spelling(full: bool) -> None:
    seen = [0]

    @settings(max_examples=10_000 if full else 20, suppress_health_check=list(HealthCheck))
    @given(BODIES, st.randoms(use_true_random=False))
    def check(body: dict[str, Any], rng: Random) -> None:
        assert of(json.loads(written(body, rng))) == of(body)
        other = changed(deepcopy(body), rng)
        assume(json.dumps(_as_written(other), sort_keys=True) != json.dumps(_as_written(body), sort_keys=True))
        assert of(other) != of(body)
        seen[0] += 1

    check()
    assert seen[0] >= (9_000 if full else 10)


def changed(value: Any, rng: Random) -> Any:
    """The value with one thing in it that is another."""
    match value:
        case dict() if value:
            key = rng.choice(sorted(value))
            match rng.randrange(4):
                case 0:
                    del value[key]
                case 1:
                    value[key + "x"] = value.pop(key)
                case _:
                    value[key] = changed(value[key], rng)
            return value
        case list() if value and rng.random() < 0.8:
            place = rng.randrange(len(value))
            if rng.random() < 0.3:
                return [*value[:place], *value[place + 1 :]]
            return [*value[:place], changed(value[place], rng), *value[place + 1 :]]
        case bool():
            return not value
        case int() | float():
            return value + 1 if abs(value) < 2**50 else value * 2
        case str():
            return value + "x"
    return rng.choice(([value], {"x": value}, "null", 0))


def _as_written(value: Any) -> Any:
    """Numbers that are meant alike, alike."""
    match value:
        case dict():
            return {key: _as_written(each) for key, each in value.items()}
        case list():
            return [_as_written(each) for each in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value


@table(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": 2**53 + 1}, {"a": 2**53}),
        ({"a": 0.1}, {"a": 0.10000000000000002}),
        ({"metadata": {"idempotency_key": "x"}}, {"metadata": {"idempotency_key": "y"}}),
    ],
)
def test_different_requests_have_different_fingerprints(one: Any, other: Any) -> None:
    assert of(one) != of(other)


def test_the_key_is_not_part_of_the_fingerprint_but_method_and_path_are() -> None:
    assert of({"input": "hi", "idempotency_key": "x"}) == of({"input": "hi"})
    assert len({fingerprint(method, path, {}) for method in ("POST", "PUT") for path in ("/v1/route", "/v1/runs")}) == 4
    assert fingerprint("POST", "/a", ["idempotency_key"]) != fingerprint("POST", "/a", [])


# Whose a key is


@pytest.fixture
def claims() -> Claims:
    """One key of the running call ``new``, and one with the answer of ``old`` until second 10."""
    paper = Paper()
    paper.answers[b"kept"] = "acme", "production", 10.0, KeptResult("f", "old", b"answer")
    claims = Claims(paper)
    claims.running[b"taken"] = Hold("new", "acme", None, 0.0, 60.0, (), 0, 0, 0, (), b"taken", "f")
    return claims


def test_a_key_is_free_taken_or_answered(claims: Claims) -> None:
    asked = Claim("i", "f")
    assert claims.taken("acme", b"free", asked, 9.0) is None
    assert claims.taken("acme", b"taken", asked, 9.0) is claims.running[b"taken"]
    assert claims.taken("acme", b"kept", asked, 9.0) == Replay(b"answer")
    assert claims.taken("acme", b"kept", asked, 10.0) is None


def test_a_different_request_may_not_use_a_key(claims: Claims) -> None:
    for scope in (b"taken", b"kept"):
        with pytest.raises(IdempotencyKeyReused, match="'i' was used with a different request"):
            claims.taken("acme", scope, Claim("i", "another"), 9.0)
