"""Builds analytics reports from a storage's counts (spec 4.6, contract 9)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import get_args

from msgspec.structs import asdict, astuple, replace

from routewright import wire
from routewright._core.money import usd
from routewright._core.request.rules import is_day
from routewright.errors import ValidationFailed
from routewright.wire.json_scan import is_unicode
from routewright.wire.problems import one_of, shown

from .rollup import AGES_S, GROUPS, METADATA, MISS, OLDER, TAGS, add_to, quantile

DAYS = 7  # the default window
MAX_DAYS = 3_660
MAX_HOURLY_DAYS = 31
GROUP_LIMIT = 100
MAX_KEYS = 8
MAX_KEY_CHARS = 100
OTHER = "other"
ACCOUNT = "account"
"""Groups usage for the owner of the storage."""


def days_of(
    start_date: str | date | None,
    end_date: str | date | None,
    now: float,
    names: tuple[str, str] = ("start_date", "end_date"),
) -> tuple[str, str]:
    """First and last day of a report. Default: the last seven days, today included. ``names`` are the parameters' names
    in errors. Raises ``ValidationFailed``."""
    today = datetime.fromtimestamp(now, UTC).date()
    last = _day(names[1], end_date) or (today if start_date is None else None)
    first = _day(names[0], start_date)
    if last is None:
        assert first is not None
        last = max(first, today)
    first = first or date.fromordinal(max(1, last.toordinal() - DAYS + 1))
    if first > last:
        raise ValidationFailed.at(names[0], f"is {first}, after {last}, the {names[1]}", "swap them")
    days = (last - first).days + 1
    if days > MAX_DAYS:
        problem = f"is {first}, {days} days up to {last}, the {names[1]}"
        raise ValidationFailed.at(names[0], problem, f"take at most {MAX_DAYS}")
    return first.isoformat(), last.isoformat()


def check_bucket(bucket: object, first: str, last: str) -> None:
    """Raise ``ValidationFailed`` for an unknown bucket, or hours over too many days."""
    known = get_args(wire.Bucket)
    if bucket not in known:
        raise ValidationFailed.at("bucket", f"is {shown(bucket)}", one_of(bucket, known))
    days = (date.fromisoformat(last) - date.fromisoformat(first)).days + 1
    if bucket == "hour" and days > MAX_HOURLY_DAYS:
        hint = f"take at most {MAX_HOURLY_DAYS}, or bucket=day"
        raise ValidationFailed.at("bucket", f"is hour over {days} days", hint)


def check_keys(path: str, keys: object) -> tuple[str, ...]:
    """Validate metadata keys to count usage by. Raises ``ValidationFailed``."""
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise ValidationFailed.at(path, f"is {shown(keys)}", "pass the names in a list: ('team', 'feature')")
    if len(keys) > MAX_KEYS:
        raise ValidationFailed.at(path, f"names {len(keys)} keys", f"take at most {MAX_KEYS}")
    for place, key in enumerate(keys):
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARS or not is_unicode(key):
            hint = f"name a key of the metadata, of at most {MAX_KEY_CHARS} characters"
            raise ValidationFailed.at(f"{path}[{place}]", f"is {shown(key)}", hint)
        if key.startswith(METADATA):
            raise ValidationFailed.at(f"{path}[{place}]", f"is {shown(key)}", f"leave out {METADATA!r}")
    return tuple(dict.fromkeys(key for key in keys if key not in TAGS))


def groups_of(keys: Collection[str], *, of_all: bool) -> list[str]:
    """What usage can be grouped by. ``keys`` are the counted metadata keys. ``of_all``: also by account."""
    return [*GROUPS, *([ACCOUNT] if of_all else ()), *(METADATA + key for key in sorted(keys))]


def check_group(group_by: object, known: Sequence[str]) -> None:
    """Raise ``ValidationFailed`` for a group that usage is not counted by."""
    if group_by not in known:
        hint = f"{one_of(group_by, known)}; Settings(rollup_keys=...) says what else is counted from then on"
        raise ValidationFailed.at("group_by", f"is {shown(group_by)}", hint)


def merge_usage(uses: Mapping[str, wire.GroupedUsage], *, by_account: bool) -> wire.GroupedUsage:
    """The usage of accounts as one: of the ``GROUP_LIMIT`` groups with the most requests, and the others' sum.
    ``by_account``: the accounts are the groups."""
    if by_account:
        groups = [replace(count, group=name) for name, use in uses.items() for count in use.all]
    else:
        groups = [count for use in uses.values() for count in use.groups]
    requests: Counter[str] = Counter()
    for count in groups:
        if count.group is not None:
            requests[count.group] += count.requests
    largest = {*sorted(requests, key=lambda group: (-requests[group], group))[:GROUP_LIMIT]}
    return wire.GroupedUsage(
        [count if count.group in largest else replace(count, group=None) for count in groups],
        [count for use in uses.values() for count in use.all],
        sum((Counter(use.runs) for use in uses.values()), Counter()),
    )


def usage_report(use: wire.GroupedUsage, first: str, last: str, bucket: wire.Bucket, group_by: str) -> wire.UsageReport:
    """Usage by time and group. What remains after all groups is usage without a group."""
    sums: dict[tuple[str, str | None, bool], list[int]] = {}
    for count in use.groups:
        rest = count.group is None
        start = _start_of(count.start, bucket)
        add_to(sums, (start, OTHER if rest else count.group or None, rest), _amounts(count))
        add_to(sums, (start, None, False), [-amount for amount in _amounts(count)])
    for count in use.all:
        add_to(sums, (_start_of(count.start, bucket), None, False), _amounts(count))
    rows = [
        wire.UsageRow(bucket_start=start, group=group, rest=rest, **asdict(_totals(row)))
        for (start, group, rest), row in sums.items()
        if row[0] > 0
    ]
    rows.sort(key=lambda row: (row.bucket_start, row.rest, row.group is None, -row.requests, row.group or ""))
    return wire.UsageReport(
        start_date=first,
        end_date=last,
        bucket=bucket,
        group_by=group_by,
        data=rows,
        totals=_totals([sum(column) for column in zip(*map(_amounts, use.all), strict=True)] or [0] * 7),
        runs=use.runs,
    )


def cache_report(counts: Sequence[wire.CacheCount], first: str, last: str) -> wire.CacheReport:
    """Hits by age, misses, and dollars saved."""
    lookups: Counter[str] = Counter()
    for count in counts:
        lookups[count.age] += count.lookups
    misses = lookups[MISS]
    hits = lookups.total() - misses
    ages = [wire.TtlBucket(float(age), lookups[str(age)]) for age in AGES_S]
    return wire.CacheReport(
        start_date=first,
        end_date=last,
        hit_rate=round(hits / (hits + misses), 6) if hits + misses else None,
        hits=hits,
        misses=misses,
        saved_usd=usd(sum(count.saved_nanos for count in counts)),
        ttl_distribution=[*ages, wire.TtlBucket(None, lookups[OLDER])],
    )


def fallback_report(counts: Sequence[wire.FallbackCount], first: str, last: str) -> wire.FallbackReport:
    """Fallbacks by reason, and success rates by model."""
    sums: dict[tuple[str, str], list[int]] = {}
    for count in counts:
        add_to(sums, (count.kind, count.name), (count.total, count.counted))
    counts = [wire.FallbackCount(*names, *totals) for names, totals in sorted(sums.items())]
    kinds = ("request", "reason", "passed", "model")
    of_kind = {kind: [count for count in counts if count.kind == kind] for kind in kinds}
    requests = sum(count.total for count in of_kind["request"])
    triggered = sum(count.counted for count in of_kind["request"])
    return wire.FallbackReport(
        start_date=first,
        end_date=last,
        triggered=triggered,
        rate=round(triggered / requests, 6) if requests else None,
        reasons={count.name: count.total for count in of_kind["reason"]},
        passed_by={count.name: count.total for count in of_kind["passed"]},
        candidates=[
            wire.FallbackCandidate(
                model=count.name, attempts=count.total, success_rate=round(count.counted / count.total, 6)
            )
            for count in sorted(of_kind["model"], key=lambda count: (-count.total, count.name))
        ],
    )


def latency_report(counts: Sequence[wire.LatencyCount], first: str, last: str) -> wire.LatencyReport:
    """Latency quantiles by model and strategy."""
    merged: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for count in counts:
        merged[count.model, count.strategy].update(count.buckets)
    rows = [
        wire.LatencyRow(model=model, strategy=strategy, count=buckets.total(), **_quantiles(buckets))
        for (model, strategy), buckets in merged.items()
    ]
    rows.sort(key=lambda row: (-row.count, row.model, row.strategy))
    return wire.LatencyReport(start_date=first, end_date=last, data=rows)


def latency_of_day(counts: Sequence[wire.LatencyCount], day: str) -> list[wire.LatencyDay]:
    """Latency quantiles of all models together, then by model."""
    merged: defaultdict[str | None, Counter[int]] = defaultdict(Counter)
    for count in counts:
        merged[None].update(count.buckets)
        merged[count.model].update(count.buckets)
    rows = [
        wire.LatencyDay(day=day, model=model, count=buckets.total(), **_quantiles(buckets))
        for model, buckets in merged.items()
    ]
    return sorted(rows, key=lambda row: (row.model is not None, -row.count, row.model))


def dates_between(first: str, last: str) -> list[str]:
    """All days of a report, for reading them one by one. Raises ``ValidationFailed`` if they are too many for that."""
    check_bucket("hour", first, last)
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [date.fromordinal(day).isoformat() for day in range(start.toordinal(), end.toordinal() + 1)]


def _quantiles(buckets: Mapping[int, int]) -> dict[str, float]:
    return {f"p{share}_ms": quantile(buckets, share / 100) for share in (50, 95, 99)}


def _totals(sums: Sequence[int]) -> wire.UsageTotals:
    money = {"cost_usd": usd(sums[2]), "charged_usd": usd(sums[3])}
    return wire.UsageTotals(requests=sums[0], errors=sums[1], tokens=wire.Tokens(*sums[4:]), **money)


def _amounts(count: wire.UsageCount) -> tuple[int, ...]:
    return astuple(count)[2:]


def _start_of(start: str, bucket: wire.Bucket) -> str:
    """Start of the bucket of an hour or day."""
    day = date.fromisoformat(start[:10])
    match bucket:
        case "hour":
            return f"{start}:00:00Z"
        case "week":
            day -= timedelta(days=day.weekday())
        case "month":
            day = day.replace(day=1)
    return f"{day.isoformat()}T00:00:00Z"


def _day(path: str, day: str | date | None) -> date | None:
    if day is None:
        return None
    if isinstance(day, datetime):
        try:
            day = day.date() if day.utcoffset() is None else day.astimezone(UTC).date()
        except OverflowError:
            raise ValidationFailed.at(path, f"is {day}", "take a year from 1 to 9999") from None
    if isinstance(day, str) and is_day(day):
        return date.fromisoformat(day)
    if not isinstance(day, date):
        raise ValidationFailed.at(path, f"is {shown(day)}", "write YYYY-MM-DD")
    return day
