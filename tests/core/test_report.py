"""Reports: which days they cover, what is refused, and that their numbers add up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import wire
from routewright._core.analytics.report import (
    MAX_DAYS,
    MAX_HOURLY_DAYS,
    cache_report,
    check_bucket,
    check_group,
    check_keys,
    days_of,
    fallback_report,
    groups_of,
    latency_report,
    usage_report,
)
from routewright._core.analytics.rollup import AGES_S, bucket_of
from routewright.errors import Problem, ValidationFailed
from routewright.wire.timestamps import time_short
from tests.tables import table

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC).timestamp()
FIRST, LAST = "2026-11-16", "2026-11-22"
KNOWN = groups_of(["team", "x.y"], of_all=False)


def refusal(check: Callable[..., object], *given_: Any) -> Problem:
    with pytest.raises(ValidationFailed) as caught:
        check(*given_)
    (problem,) = caught.value.problems
    return problem


def count(start: str, group: str | None, requests: int, *more: int) -> wire.UsageCount:
    return wire.UsageCount(start, group, requests, *(*more, *[0] * 6)[:6])


def rows(report: wire.UsageReport) -> list[tuple[str, str | None, int]]:
    return [(row.bucket_start, row.group, row.requests) for row in report.data]


def by_model(counts: list[wire.UsageCount], bucket: wire.Bucket = "day") -> wire.UsageReport:
    return usage_report(wire.GroupedUsage(counts, counts), FIRST, LAST, bucket, "model")


# Days


@table(
    ("start", "end", "days"),
    [
        (None, None, ("2026-11-16", "2026-11-22")),
        ("2026-11-01", None, ("2026-11-01", "2026-11-22")),
        (None, "2026-03-03", ("2026-02-25", "2026-03-03")),
        (date(2026, 11, 1), "2026-11-02", ("2026-11-01", "2026-11-02")),
        (datetime(2026, 11, 1, 23, 59), date(2026, 11, 2), ("2026-11-01", "2026-11-02")),
        (datetime(2026, 11, 1, 23, 59, tzinfo=timezone(timedelta(hours=-1))), None, ("2026-11-02", "2026-11-22")),
        (None, datetime(2026, 11, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))), ("2026-10-25", "2026-10-31")),
        (None, "0001-01-03", ("0001-01-01", "0001-01-03")),
    ],
)
def test_a_report_covers_the_given_days_or_the_last_seven(
    start: str | date | None, end: str | date | None, days: tuple[str, str]
) -> None:
    assert days_of(start, end, NOW) == days


@given(st.none() | st.dates(), st.none() | st.dates(), st.floats(0, 4e9))
def test_any_days_are_valid_or_refused(start: date | None, end: date | None, now: float) -> None:
    try:
        first, last = days_of(start, end, now)
    except ValidationFailed:
        assert start is not None
        return
    assert first <= last
    assert (date.fromisoformat(last) - date.fromisoformat(first)).days < MAX_DAYS
    assert start is None or first == start.isoformat()
    assert end is None or last == end.isoformat()


ODD_DAYS = [
    ("", "''"),
    ("2026-11-31", "'2026-11-31'"),
    ("20261122", "'20261122'"),
    ("2026-11-22T09:30:00Z", "'2026-11-22T09:30:00Z'"),
    ("2026-11-22\n", r"'2026-11-22\n'"),
    ("x" * 3_000, "'" + "x" * 60 + "'..."),
    (20261122, "20261122"),
    (b"2026-11-22", "bytes"),
    (["2026-11-22"], "a list"),
]


@table(("given_", "value"), ODD_DAYS)
def test_an_invalid_day_is_refused_with_the_value(given_: Any, value: str) -> None:
    assert refusal(days_of, given_, None, NOW) == Problem("start_date", f"is {value}", "write YYYY-MM-DD")
    assert refusal(days_of, "2026-11-22", given_, NOW) == Problem("end_date", f"is {value}", "write YYYY-MM-DD")


def test_a_datetime_whose_day_in_utc_has_no_date_is_refused() -> None:
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    problem = refusal(days_of, None, late, NOW)
    assert problem == Problem("end_date", f"is {late}", "take a year from 1 to 9999")


def test_days_in_the_wrong_order_are_refused_with_both() -> None:
    problem = refusal(days_of, "2026-11-23", "2026-11-22", NOW)
    assert (problem.path, problem.problem) == ("start_date", "is 2026-11-23, after 2026-11-22, the end_date")


def test_ten_years_are_enough() -> None:
    last = date(2026, 11, 22)
    longest = last - timedelta(days=MAX_DAYS - 1)
    assert days_of(longest, last, NOW) == days_of(longest, None, NOW) == (longest.isoformat(), "2026-11-22")
    problem = refusal(days_of, longest - timedelta(days=1), last, NOW)
    said = "is 2016-11-14, 3661 days up to 2026-11-22, the end_date"
    assert problem == Problem("start_date", said, "take at most 3660")
    assert refusal(days_of, "1999-01-01", None, NOW).hint == "take at most 3660"


# Buckets and groups


@table(
    ("bucket", "value", "hint"),
    [
        ("days", "'days'", "did you mean 'day'? one of hour, day, week, month"),
        (7, "7", "one of hour, day, week, month"),
        (["day"], "a list", "one of hour, day, week, month"),
    ],
)
def test_an_unknown_bucket_is_refused_with_the_known_ones(bucket: object, value: str, hint: str) -> None:
    problem = refusal(check_bucket, bucket, FIRST, LAST)
    assert (problem.path, problem.problem) == ("bucket", f"is {value}")
    assert problem.hint.endswith(hint)


def test_hourly_reports_cover_at_most_31_days() -> None:
    first, longest = date(2026, 10, 1), date(2026, 10, 1) + timedelta(days=MAX_HOURLY_DAYS - 1)
    check_bucket("hour", first.isoformat(), longest.isoformat())
    check_bucket("day", first.isoformat(), "2030-01-01")
    problem = refusal(check_bucket, "hour", first.isoformat(), (longest + timedelta(days=1)).isoformat())
    assert problem == Problem("bucket", "is hour over 32 days", "take at most 31, or bucket=day")


@table(
    ("group_by", "value"), [("metadata.teams", "'metadata.teams'"), ("provider", "'provider'"), (["model"], "a list")]
)
def test_an_unknown_group_is_refused_with_the_known_ones(group_by: object, value: str) -> None:
    problem = refusal(check_group, group_by, KNOWN)
    assert (problem.path, problem.problem) == ("group_by", f"is {value}")
    assert "one of model, tenant, workflow, policy_version, shadow, metadata.team, metadata.x.y" in problem.hint
    assert "Settings(rollup_keys=...)" in problem.hint


@table("key", ["", "x" * 101, 7, None, "\ud800", "te\udfffam"])
def test_a_rollup_key_is_a_short_valid_text(key: object) -> None:
    problem = refusal(check_keys, "rollup_keys", ["team", key])
    assert problem.path == "rollup_keys[1]"
    assert problem.hint == "name a key of the metadata, of at most 100 characters"


def test_a_rollup_key_is_given_without_prefix() -> None:
    problem = refusal(check_keys, "rollup_keys", ["metadata.team"])
    assert problem == Problem("rollup_keys[0]", "is 'metadata.team'", "leave out 'metadata.'")
    assert check_keys("rollup_keys", ["team", "meta.data", "日本 😀", "tenant"]) == ("team", "meta.data", "日本 😀")


# Usage


@table(
    ("bucket", "start", "begins"),
    [
        ("hour", "2026-11-22T09", "2026-11-22T09:00:00Z"),
        ("day", "2026-11-22", "2026-11-22T00:00:00Z"),
        ("week", "2026-11-22", "2026-11-16T00:00:00Z"),
        ("week", "2027-01-01", "2026-12-28T00:00:00Z"),
        ("week", "0001-01-01", "0001-01-01T00:00:00Z"),
        ("month", "2026-11-22", "2026-11-01T00:00:00Z"),
        ("month", "2028-02-29", "2028-02-01T00:00:00Z"),
    ],
)
def test_a_bucket_starts_with_its_hour_day_monday_or_month(bucket: wire.Bucket, start: str, begins: str) -> None:
    assert rows(by_model([count(start, "a/one", 1)], bucket)) == [(begins, "a/one", 1)]


def test_traces_without_metadata_are_the_total_minus_the_groups() -> None:
    everything = [count("2026-11-21", "a/one", 4), count("2026-11-22", "a/one", 5, 1, 9, 8, 7, 6, 5)]
    everything += [count("2026-11-22", "", 2, 2)]
    counts = [count("2026-11-21", "search", 4), count("2026-11-22", "ads", 3, 1, 4, 4, 4, 4, 4)]
    counts += [count("2026-11-22", None, 1, 1)]
    report = usage_report(wire.GroupedUsage(counts, everything), FIRST, LAST, "day", "tenant")
    assert rows(report) == [
        ("2026-11-21T00:00:00Z", "search", 4),
        ("2026-11-22T00:00:00Z", "ads", 3),
        ("2026-11-22T00:00:00Z", None, 3),
        ("2026-11-22T00:00:00Z", "other", 1),
    ]
    assert report.data[2].errors == 1
    assert report.data[2].tokens == wire.Tokens(3, 2, 1)
    assert report.totals.requests == 11
    assert report.totals.errors == 3


def test_rows_are_sorted_by_time_requests_and_name_with_the_rest_last() -> None:
    day = "2026-11-22"
    counts = [count(day, None, 99), count(day, "", 98), count(day, "c", 5), count(day, "a", 5), count(day, "b", 7)]
    counts += [count("2026-11-21", "a", 1), count("2026-11-21", "b", 2)]
    expected: list[tuple[str, str | None]] = [("2026-11-21", "b"), ("2026-11-21", "a")]
    expected += [(day, group) for group in ("b", "a", "c", None, "other")]
    for some in (counts, counts[::-1]):
        assert [(row.bucket_start[:10], row.group) for row in by_model(some).data] == expected


AMOUNTS = st.lists(st.integers(0, 10**12), min_size=6, max_size=6)
DAYS = st.integers(1, 30).map("2026-11-{:02}".format)
GROUPS = st.none() | st.sampled_from(["", "a", "b", "other"])
COUNTS = st.dictionaries(st.tuples(DAYS, GROUPS), st.tuples(st.integers(1, 99), AMOUNTS), max_size=12).map(
    lambda found: [count(*key, requests, *amounts) for key, (requests, amounts) in found.items()]
)


@given(COUNTS, COUNTS, st.sampled_from(["day", "week", "month"]))
def test_rows_add_up_to_the_totals_for_any_grouping(
    named: list[wire.UsageCount], unnamed: list[wire.UsageCount], bucket: wire.Bucket
) -> None:
    named = [row for row in named if row.group != ""]
    everything = [msgspec.structs.replace(row, group="a/one") for row in [*named, *unnamed]]
    report = usage_report(wire.GroupedUsage(named, everything), FIRST, LAST, bucket, "tenant")
    assert report.totals == by_model(everything, bucket).totals
    for field in ("requests", "errors"):
        assert sum(getattr(row, field) for row in report.data) == getattr(report.totals, field)
    for field in ("cost_usd", "charged_usd"):
        assert sum(getattr(row, field) for row in report.data) == pytest.approx(getattr(report.totals, field))
    for field in ("input", "output", "cached"):
        assert sum(getattr(row.tokens, field) for row in report.data) == getattr(report.totals.tokens, field)
    without = sum(row.requests for row in report.data if row.group is None)
    assert without == sum(row.requests for row in unnamed)
    assert sum(row.requests for row in report.data if row.rest) == sum(
        row.requests for row in named if row.group is None
    )
    keys = [(row.bucket_start, row.group, row.rest) for row in report.data]
    assert len(set(keys)) == len(keys)


# Cache


def test_the_cache_report_has_hits_misses_and_savings() -> None:
    counts = [
        wire.CacheCount("miss", 6, 0),
        wire.CacheCount("60", 1, 250_000_000),
        wire.CacheCount("older", 1, 500_000_000),
    ]
    report = cache_report(counts, FIRST, LAST)
    assert (report.hits, report.misses, report.hit_rate, report.saved_usd) == (2, 6, 0.25, 0.75)
    assert (report.start_date, report.end_date) == (FIRST, LAST)


def test_each_hit_is_in_one_bucket_of_age_and_the_youngest_are_first() -> None:
    counts = [wire.CacheCount(str(age), n, 0) for n, age in enumerate(reversed(AGES_S), 1)]
    report = cache_report([*counts, wire.CacheCount("older", 9, 0), wire.CacheCount("miss", 50, 0)], FIRST, LAST)
    expected = {60.0: 6, 300.0: 5, 900.0: 4, 3_600.0: 3, 21_600.0: 2, 86_400.0: 1, None: 9}
    assert report.ttl_distribution == [wire.TtlBucket(age_s, hits) for age_s, hits in expected.items()]
    assert sum(bucket.hits for bucket in report.ttl_distribution) == report.hits == 30


# Fallback


def test_the_fallback_report_has_rate_reasons_and_success_by_model() -> None:
    counts = [
        wire.FallbackCount("model", "a/one", 4, 3),
        wire.FallbackCount("model", "b/two", 9, 0),
        wire.FallbackCount("model", "a/also", 4, 4),
        wire.FallbackCount("passed", "a/one", 7, 7),
        wire.FallbackCount("reason", "timeout", 2, 2),
        wire.FallbackCount("reason", "upstream_5xx", 1, 1),
        wire.FallbackCount("request", "", 12, 3),
    ]
    report = fallback_report(counts, FIRST, LAST)
    assert (report.start_date, report.end_date) == (FIRST, LAST)
    assert (report.triggered, report.rate) == (3, 0.25)
    assert report.reasons == {"timeout": 2, "upstream_5xx": 1}
    assert report.passed_by == {"a/one": 7}
    assert report.candidates == [
        wire.FallbackCandidate(model="b/two", attempts=9, success_rate=0.0),
        wire.FallbackCandidate(model="a/also", attempts=4, success_rate=1.0),
        wire.FallbackCandidate(model="a/one", attempts=4, success_rate=0.75),
    ]


def test_without_model_calls_there_is_no_rate() -> None:
    report = fallback_report([], FIRST, LAST)
    assert (report.triggered, report.rate, report.reasons, report.candidates) == (0, None, {}, [])
    assert fallback_report([wire.FallbackCount("request", "", 5, 0)], FIRST, LAST).rate == 0.0


# Latency


def test_the_latency_report_has_quantiles_with_the_most_requests_first() -> None:
    slow = {bucket_of(10.0): 90, bucket_of(500.0): 8, bucket_of(9_000.0): 2}
    some = {bucket_of(70.0): 3}
    counts = [
        wire.LatencyCount("b/two", "balanced", some),
        wire.LatencyCount("a/one", "quality-first", some),
        wire.LatencyCount("a/one", "balanced", some),
        wire.LatencyCount("c/slow", "balanced", slow),
    ]
    report = latency_report(counts, FIRST, LAST)
    assert (report.start_date, report.end_date) == (FIRST, LAST)
    assert [(row.model, row.strategy, row.count) for row in report.data] == [
        ("c/slow", "balanced", 100),
        ("a/one", "balanced", 3),
        ("a/one", "quality-first", 3),
        ("b/two", "balanced", 3),
    ]
    first, *others = report.data
    assert first.p50_ms == pytest.approx(10.0, rel=0.01)
    assert first.p95_ms == pytest.approx(500.0, rel=0.01)
    assert first.p99_ms == pytest.approx(9_000.0, rel=0.01)
    for row in others:
        assert row.p50_ms == row.p95_ms == row.p99_ms == pytest.approx(70.0, rel=0.01)


def test_times_are_milliseconds_below_a_second() -> None:
    times = [time_short(ms) for ms in (0, 0.249, 9.94, 9.96, 812.4, 999.6, 1000, 15_000.2, 3_600_000)]
    assert times == ["0 ms", "0.2 ms", "9.9 ms", "10 ms", "812 ms", "1.0 s", "1.0 s", "15.0 s", "3,600.0 s"]
