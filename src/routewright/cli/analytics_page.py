"""What a person is shown of the analytics: tables, and bars for what is to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from routewright.wire import (
    Bucket,
    CacheReport,
    FallbackReport,
    LatencyReport,
    Tokens,
    UsageReport,
    UsageRow,
    UsageTotals,
)
from routewright.wire.figures import time_short

from .bars import Bar
from .blocks import Block, Cell, Line, Row, Table, facts
from .figures import about, percent, tokens

SHOWN = 20
"""Groups, or models, in a table."""
FAILS_MOSTLY = 0.5
"""Models of which fewer attempts succeed are marked."""

_USED = ("requests", "", "errors", "tokens in", "out", "cost")
_USED_RIGHT = frozenset({1, 3, 4, 5, 6, 7})
_LABELS = {"hour": 16, "day": 10, "week": 10, "month": 7}
"""How much of its start names a bucket."""
_WEEK = timedelta(days=7)
_STEPS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": _WEEK, "month": timedelta(days=31)}
_AGES: dict[float | None, str] = {
    60: "1 min",
    300: "5 min",
    900: "15 min",
    3_600: "1 h",
    21_600: "6 h",
    86_400: "1 day",
    None: "older",
}


def usage_page(report: UsageReport) -> list[Block]:
    """Requests, errors, money and tokens: all together, by time, by group."""
    totals, title = report.totals, _title("Usage", report)
    if not totals.requests:
        return [title, Line(), Line("no requests in that time", "dim")]
    cost, charged = about(totals.cost_usd), about(totals.charged_usd)
    named = {
        "requests": f"{totals.requests:,}",
        "errors": f"{totals.errors:,} ({percent(totals.errors / totals.requests)})",
        "cost": f"{cost}, of which {charged} is charged" if totals.charged_usd and charged != cost else cost,
        "tokens": tokens(totals.tokens),
    }
    return [title, Line(), facts(named), Line(), _by_time(report), Line(), *_by_group(report)]


def cache_page(report: CacheReport) -> list[Block]:
    """How often an answer was found, and how old it was."""
    title = _title("Cache", report)
    if report.hit_rate is None:
        return [title, Line(), Line("nothing was looked up in that time", "dim")]
    named = {
        "hits": f"{report.hits:,} ({percent(report.hit_rate)})",
        "misses": f"{report.misses:,}",
        "saved": about(report.saved_usd),
    }
    blocks: list[Block] = [title, Line(), facts(named)]
    return [*blocks, Line(), Table(_age_rows(report), _AGE_HEAD, frozenset({1, 3}))] if report.hits else blocks


def fallback_page(report: FallbackReport) -> list[Block]:
    """How often another model served, why, and how attempts at each ended."""
    title = _title("Fallback", report)
    if report.rate is None:
        return [title, Line(), Line("no model was called in that time", "dim")]
    blocks: list[Block] = [title, Line(), facts({"another model served": _times(report.triggered, report.rate)})]
    if report.reasons:
        most_first = sorted(report.reasons.items(), key=lambda each: (-each[1], each[0]))
        shares = [(reason, count, count / sum(report.reasons.values())) for reason, count in most_first]
        rows = [Row((reason, f"{count:,}", Bar(0.0, share), percent(share))) for reason, count, share in shares]
        blocks += [Line(), Table(rows, ("because of", "requests", "", "of all"), frozenset({1, 3}))]
    if report.candidates:
        blocks += [Line(), *_candidates(report)]
    return blocks


def latency_page(report: LatencyReport) -> list[Block]:
    """How long requests took, by model and strategy."""
    title = _title("Latency", report)
    if not report.data:
        return [title, Line(), Line("no request was completed in that time", "dim")]
    longest = max(row.p95_ms for row in report.data) or 1.0
    rows = [
        Row((row.model, row.strategy, f"{row.count:,}", *map(time_short, (row.p50_ms, row.p95_ms, row.p99_ms)),
             Bar(row.p50_ms / longest, (row.p95_ms - row.p50_ms) / longest)))
        for row in report.data[:SHOWN]
    ]  # fmt: skip
    head = ("model", "strategy", "requests", "p50", "p95", "p99", "p50 to p95")
    return [title, Line(), Table(rows, head, frozenset({2, 3, 4, 5})), *_and_more(len(report.data))]


_AGE_HEAD = ("entries up to", "hits", "", "kept so far")


def _title(name: str, report: UsageReport | CacheReport | FallbackReport | LatencyReport) -> Line:
    return Line(f"{name} from {report.start_date} to {report.end_date} (UTC)", "title")


def _times(count: int, share: float) -> str:
    return f"{'once' if count == 1 else f'{count:,} times'} ({percent(share)} of the requests)"


def _by_time(report: UsageReport) -> Table:
    used: dict[str, list[UsageRow]] = {}
    for row in report.data:
        used.setdefault(row.bucket_start, []).append(row)
    sums = [(start, _sum(used.get(start, ()))) for start in _starts(min(used), max(used), report.bucket)]
    most = max(total.requests for _, total in sums)
    rows = [Row((_label(start, report.bucket), *_used(total, most))) for start, total in sums]
    head = "week from" if report.bucket == "week" else report.bucket
    return Table(rows, (head, *_USED), _USED_RIGHT)


def _by_group(report: UsageReport) -> Iterator[Block]:
    used: dict[tuple[str | None, bool], list[UsageRow]] = {}
    for row in report.data:
        used.setdefault((row.group, row.rest), []).append(row)
    sums = [(*named, _sum(rows)) for named, rows in used.items()]
    sums.sort(key=lambda each: (each[0] is None, each[1], -each[2].requests, each[0] or ""))
    most = max(total.requests for _, _, total in sums)
    cost = report.totals.cost_usd
    rows = [
        Row((_group(group, rest), *_used(total, most), percent(total.cost_usd / cost) if cost else ""))
        for group, rest, total in sums[:SHOWN]
    ]
    yield Table(rows, (report.group_by, *_USED, "of cost"), _USED_RIGHT)
    yield from _and_more(len(sums))


def _group(group: str | None, rest: bool) -> str:
    """Its name; in brackets what is none."""
    return "(none)" if group is None else f"({group})" if rest else group


def _used(total: UsageTotals, most: int) -> tuple[Cell, ...]:
    """What was used, with a bar for the requests; of nothing there is none."""
    if not total.requests:
        return ("0", "", "", "", "", "")
    cost = about(total.cost_usd)
    counts = (f"{total.tokens.input:,}", f"{total.tokens.output:,}")
    return (
        f"{total.requests:,}",
        Bar(0.0, total.requests / most),
        percent(total.errors / total.requests),
        *counts,
        cost,
    )


def _sum(rows: Sequence[UsageRow]) -> UsageTotals:
    used = [row.tokens for row in rows]
    return UsageTotals(
        requests=sum(row.requests for row in rows),
        errors=sum(row.errors for row in rows),
        cost_usd=sum(row.cost_usd for row in rows),
        charged_usd=sum(row.charged_usd for row in rows),
        tokens=Tokens(sum(t.input for t in used), sum(t.output for t in used), sum(t.cached for t in used)),
    )


def _starts(first: str, last: str, bucket: Bucket) -> Iterator[str]:
    """The beginnings of all buckets from one to another, those without requests, too."""
    at, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    while at <= end:
        yield at.isoformat().replace("+00:00", "Z")
        at += _STEPS[bucket]
        at = at.replace(day=1) if bucket == "month" else at


def _label(start: str, bucket: Bucket) -> str:
    return start.replace("T", " ")[: _LABELS[bucket]]


def _age_rows(report: CacheReport) -> list[Row]:
    most, so_far, rows = max(each.hits for each in report.ttl_distribution), 0, []
    for each in report.ttl_distribution:
        so_far += each.hits
        label = _AGES.get(each.up_to_s, f"{each.up_to_s} s")
        bar = Bar(0.0, each.hits / most) if each.hits else ""
        rows.append(Row((label, f"{each.hits:,}", bar, percent(so_far / report.hits))))
    return rows


def _candidates(report: FallbackReport) -> Iterator[Block]:
    rows = [
        Row(
            (each.model, f"{each.attempts:,}", percent(each.success_rate),
             Bar(0.0, each.success_rate) if each.success_rate else ""),
            "bad" if each.success_rate < FAILS_MOSTLY else "plain",
        )
        for each in report.candidates[:SHOWN]
    ]  # fmt: skip
    yield Table(rows, ("model", "attempts", "successful", ""), frozenset({1, 2}))
    yield from _and_more(len(report.candidates))


def _and_more(count: int) -> Iterator[Line]:
    if count > SHOWN:
        yield Line(f"and {count - SHOWN} more; --json lists all", "dim")
