"""Cursors round-trip, and any altered text is refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routewright._core.trace.filter import CURSOR_LIFETIME_S, MAX_CURSOR_CHARS, seal, unseal
from routewright.errors import CursorExpired, CursorInvalid
from routewright.wire import Selection, Term, TraceItems
from tests.tables import table

SECRET = b"s" * 32
NOW = 1_795_340_000.75
AFTER = "2026-11-22T09:30:00.000Ztr_01KB5Z3Q9V7XWNE2YH8RTC4M6D"
ASKED: list[Any] = ["acme", TraceItems(environment="production", terms=(Term("status", "=", "failed"),))]

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | UNICODE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UNICODE, inner, max_size=3),
    max_leaves=8,
)
SECRETS = st.binary(min_size=16, max_size=64)


def refusal(cursor: Any, asked: object = ASKED, secrets: tuple[bytes, ...] = (SECRET,), now: float = NOW) -> type:
    with pytest.raises(CursorInvalid) as caught:
        unseal(cursor, asked, secrets, now)
    return caught.type


@given(UNICODE, JSON, SECRETS, st.floats(0, 4e9), st.integers(0, CURSOR_LIFETIME_S))
def test_seal_then_unseal_is_the_identity(after: str, asked: object, secret: bytes, now: float, later: int) -> None:
    cursor = seal(after, asked, secret, now)
    assert unseal(cursor, asked, [secret], now) == after
    assert unseal(cursor, asked, [secret], now + later) == after


@given(UNICODE, JSON, SECRETS, st.floats(0, 4e9))
def test_a_cursor_never_starts_with_a_dash(after: str, asked: object, secret: bytes, now: float) -> None:
    assert seal(after, asked, secret, now)[0].isalpha()


@table(
    "other",
    [
        ["Acme", ASKED[1]],
        [None, ASKED[1]],
        ["acme", TraceItems()],
        ["acme", TraceItems(environment="sandbox", terms=ASKED[1].terms)],
        ["acme", TraceItems(environment="production", terms=(Term("status", "!=", "failed"),))],
        ["acme", TraceItems(environment="production", terms=(*ASKED[1].terms, Term("kind", "=", "agent")))],
        ["acme", Selection(environment="production", terms=ASKED[1].terms)],
        [*ASKED, None],
        ASKED[1],
    ],
)
def test_a_cursor_is_bound_to_the_account_and_all_of_the_query(other: object) -> None:
    assert refusal(seal(AFTER, ASKED, SECRET, NOW), other) is CursorInvalid


@given(SECRETS, SECRETS)
def test_a_cursor_of_another_secret_is_refused(secret: bytes, other: bytes) -> None:
    assume(secret.rstrip(b"\0") != other.rstrip(b"\0"))  # to HMAC they are one key
    assert refusal(seal(AFTER, ASKED, secret, NOW), secrets=(other,)) is CursorInvalid


def test_a_cursor_of_a_previous_secret_is_accepted() -> None:
    old, oldest, new = b"o" * 32, b"p" * 32, b"n" * 32
    for secret in (old, oldest, new):
        assert unseal(seal(AFTER, ASKED, secret, NOW), ASKED, [new, old, oldest], NOW) == AFTER
    assert refusal(seal(AFTER, ASKED, old, NOW), secrets=(new, oldest)) is CursorInvalid
    assert refusal(seal(AFTER, ASKED, old, NOW), secrets=()) is CursorInvalid


def flips(cursor: str) -> Iterator[str]:
    """The cursor with one bit changed: of each of its characters, then of each byte that they stand for."""
    for at, char in enumerate(cursor):
        for bit in range(8):
            yield cursor[:at] + chr(ord(char) ^ 1 << bit) + cursor[at + 1 :]
    data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            yield urlsafe_b64encode(changed).rstrip(b"=").decode()


def test_ten_thousand_cursors_with_one_bit_changed_are_refused(full: bool) -> None:
    tried = 0
    for length in range(len(AFTER), len(AFTER) - (9 if full else 3), -1):  # every remainder of base 64's three bytes
        cursor = seal(AFTER[:length], ASKED, SECRET, NOW)
        for changed in flips(cursor):
            assert changed != cursor
            assert refusal(changed) is CursorInvalid
            tried += 1
    assert tried > (10_000 if full else 3_000)


@given(st.integers(0, 200), st.integers(1, 40), st.sampled_from(["", "A", "=", "-", "\n", " ", "%", "AAAA", "é"]))
def test_a_cursor_that_was_cut_or_spliced_is_refused(at: int, gone: int, more: str) -> None:
    cursor = seal(AFTER, ASKED, SECRET, NOW)
    changed = cursor[:at] + more + cursor[at + gone :]
    assume(changed != cursor)
    assert refusal(changed) is CursorInvalid


def test_only_canonical_base64_is_accepted() -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for length in range(1, 4):
        cursor = seal(AFTER[:length], ASKED, SECRET, NOW)
        taken = [letter for letter in letters if _is_taken(cursor[:-1] + letter)]
        assert taken == [cursor[-1]]


def _is_taken(cursor: str) -> bool:
    try:
        unseal(cursor, ASKED, [SECRET], NOW)
    except CursorInvalid:
        return False
    return True


ODD: list[Any] = [None, 0, 1.5, True, b"", b"AAAA", bytearray(40), [], ["AAAA"], {}, {"cursor": "A"}, object(), str]
ODD += ["", "=", *("A" * length for length in (1, 2, 3, 4, 21, 22, 24, MAX_CURSOR_CHARS, MAX_CURSOR_CHARS + 1))]
ODD += ["é", "\ud800", "\0", "A" * 40 + "é", "日本", "+/+/", "....", "\uff21" * 40, "A" * 1_000_000, "=" * 1_000]
ODD += [msgspec.json.encode([0, "a"]).decode(), urlsafe_b64encode(bytes(16) + b'[0,"a"]').decode()]


@table("cursor", ODD, ids=range(len(ODD)))
def test_any_other_text_is_refused(cursor: object) -> None:
    assert refusal(cursor) is CursorInvalid
    assert refusal(cursor, secrets=()) is CursorInvalid


@given(st.text() | st.binary() | st.binary().map(lambda data: urlsafe_b64encode(data).decode()) | JSON)
def test_values_of_other_types_are_refused(cursor: object) -> None:
    assert refusal(cursor) is CursorInvalid


@table("part", [0.0, 0.25, 0.5, 0.999])
def test_a_cursor_is_valid_for_24_hours(part: float) -> None:
    issued = 1_795_340_000 + part
    cursor = seal(AFTER, ASKED, SECRET, issued)
    assert CURSOR_LIFETIME_S == 86_400
    assert unseal(cursor, ASKED, [SECRET], issued + 86_400) == AFTER
    assert refusal(cursor, now=issued + 86_401) is CursorExpired


def test_an_old_cursor_of_another_query_is_invalid_and_not_expired() -> None:
    cursor = seal(AFTER, ASKED, SECRET, NOW)
    assert refusal(cursor, now=NOW + 1e6) is CursorExpired
    assert refusal(cursor, "other", now=NOW + 1e6) is CursorInvalid


def test_errors_say_what_to_do_and_hide_the_content() -> None:
    cursor = seal(AFTER, ASKED, SECRET, NOW)
    with pytest.raises(CursorInvalid, match="pass next_cursor unchanged with the same filter") as other:
        unseal(cursor, "other", [SECRET], NOW)
    with pytest.raises(CursorExpired, match="older than 24 hours; start again without a cursor") as old:
        unseal(cursor, ASKED, [SECRET], NOW + 1e6)
    for caught in (other, old):
        assert cursor not in str(caught.value)
        assert AFTER not in str(caught.value)
