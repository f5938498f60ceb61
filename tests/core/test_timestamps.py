"""Timestamps as text: one canonical form that sorts in time order. Invalid ones are refused."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from routewright.errors import Problem, ValidationFailed
from routewright.wire.timestamps import moment, timestamp
from tests.tables import table

YEAR_1 = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
FORM = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

UNIX = st.floats(0, 253_402_300_799) | st.integers(0, 4 * 10**12).map(lambda ms: ms / 1000)
OFFSETS = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
ZONES = st.just(UTC) | st.builds(timezone, OFFSETS | st.sampled_from([timedelta(hours=h) for h in (-8, 1, 14)]))
TIMES = st.datetimes(timezones=ZONES).filter(lambda at: YEAR_1 <= at <= LAST)


def utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refusal(given_: Any) -> Problem:
    with pytest.raises(ValidationFailed) as caught:
        moment("since", given_)
    (problem,) = caught.value.problems
    assert problem.path == "since"
    return problem


@given(UNIX)
@example(1.001)
@example(1_088_888_888.003)
@example(2_150_000_000.007)
@example(1_795_340_000.999_999_9)
@example(0.999_999_6)
def test_a_unix_time_is_formatted_like_datetime(at: float) -> None:
    assert timestamp(at) == utc(datetime.fromtimestamp(at, UTC))


@given(TIMES)
@example(LAST)
@example(YEAR_1)
@example(datetime(2026, 11, 22, 9, 30, 0, 1, UTC))
@example(datetime(2026, 12, 31, 23, 59, 59, 999_001, UTC))
def test_a_datetime_is_its_moment_in_utc_with_parts_of_a_millisecond_rounded_up(at: datetime) -> None:
    passed = (at - YEAR_1) // timedelta(microseconds=1)
    assert moment("since", at) == utc(YEAR_1 + timedelta(milliseconds=-(-passed // 1000)))


@given(TIMES)
def test_a_text_reads_back_as_its_moment(at: datetime) -> None:
    assume(not at.utcoffset() or at.utcoffset() % timedelta(minutes=1) == timedelta(0))  # type: ignore[operator]
    found = moment("since", at)
    assert moment("since", at.isoformat()) == moment("since", at.isoformat(" ")) == found
    assert moment("since", at.astimezone(UTC).isoformat().replace("+00:00", "Z")) == found
    assert moment("since", found) == found


@table(
    ("given_", "found"),
    [
        ("2026-11-22T09:30:00Z", "2026-11-22T09:30:00.000Z"),
        ("2026-11-22T09:30:00.0001Z", "2026-11-22T09:30:00.001Z"),
        ("2026-11-22T10:30:00+01:00", "2026-11-22T09:30:00.000Z"),
        ("2026-11-22T23:30:00-00:30", "2026-11-23T00:00:00.000Z"),
        ("2026-12-31T23:59:59.999500Z", "2027-01-01T00:00:00.000Z"),
        ("2026-11-22", "2026-11-22T00:00:00.000Z"),
        (date(2026, 11, 22), "2026-11-22T00:00:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("0001-01-01T01:00:00+01:00", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_moments_are_normalised(given_: str | date, found: str) -> None:
    assert moment("since", given_) == found


class Nowhere(tzinfo):
    """A time zone that says nothing: with it a datetime is naive."""

    def utcoffset(self, at: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@table(
    ("given_", "value"),
    [
        ("", "''"),
        ("2026-11-22T09:30:00", "'2026-11-22T09:30:00'"),
        ("2026-11-22T25:00:00Z", "'2026-11-22T25:00:00Z'"),
        ("2026-11-22T09:30:00+25:00", "'2026-11-22T09:30:00+25:00'"),
        ("10000-01-01T00:00:00Z", "'10000-01-01T00:00:00Z'"),
        ("1795340000", "'1795340000'"),
        ("2026-11-22T09:30:00Z\n", r"'2026-11-22T09:30:00Z\n'"),
        ("\ud800", r"'\ud800'"),
        ("x" * 3_000, "'" + "x" * 60 + "'..."),
        (1_795_340_000, "1795340000"),
        (None, "None"),
        (b"2026-11-22", "bytes"),
        ([], "a list"),
        (datetime(2026, 11, 22), "'2026-11-22 00:00:00'"),
        (datetime(2026, 11, 22, tzinfo=Nowhere()), "'2026-11-22 00:00:00'"),
    ],
)
def test_an_invalid_moment_is_refused_with_the_value(given_: object, value: str) -> None:
    problem = refusal(given_)
    assert problem.problem == f"is {value}"
    assert problem.hint == "write a timestamp as 2026-11-22T09:30:00Z, or pass a datetime with a time zone"


@table(
    ("given_", "value"),
    [
        ("9999-12-31T23:59:59.999001Z", "'9999-12-31T23:59:59.999001Z'"),
        ("9999-12-31T23:59:59-01:00", "'9999-12-31T23:59:59-01:00'"),
        ("0001-01-01T00:00:00+01:00", "'0001-01-01T00:00:00+01:00'"),
        (datetime.max.replace(tzinfo=UTC), "'9999-12-31 23:59:59.999999+00:00'"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "'0001-01-01 00:00:00+14:00'"),
    ],
)
def test_years_outside_four_digits_are_refused(given_: Any, value: str) -> None:
    assert refusal(given_) == Problem("since", f"is {value}", "take a year from 1 to 9999")


@given(st.text() | st.text("0123456789-:TZ+. W", max_size=30) | st.integers() | st.floats() | st.binary() | st.none())
def test_any_text_is_normalised_or_refused(given_: Any) -> None:
    try:
        found = moment("since", given_)
    except ValidationFailed:
        return
    assert re.fullmatch(FORM, found)
    assert moment("since", found) == found
