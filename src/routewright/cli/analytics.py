"""The command ``analytics`` with its four reports, which read the traces of a store."""

from __future__ import annotations

import operator
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar, get_args

from routewright.trace import TraceStore
from routewright.wire import Bucket, CacheReport, FallbackReport, LatencyReport, UsageReport, UsageRow
from routewright.wire.analytics import time_short

from .command import Parser, add, add_json
from .show import Bar, Block, Line, Row, Screen, Table, about, facts, percent, picked, tokens
from .store import add_place, add_whose, existing_store

_SHOWN = 20
"""The most groups or models in a table."""
_FAILS_MOSTLY = 0.5
"""Models with a lower success rate are marked."""
_USED = ("requests", "", "errors", "tokens in", "out", "cost")
_USED_RIGHT = frozenset({1, 3, 4, 5, 6, 7})
_BUCKETS: dict[Bucket, tuple[timedelta, int]] = {
    "hour": (timedelta(hours=1), len("2026-11-22 12:00")),
    "day": (timedelta(days=1), len("2026-11-22")),
    "week": (timedelta(days=7), len("2026-11-22")),
    "month": (timedelta(days=31), len("2026-11")),
}
"""For each bucket size, its longest duration and the length of its label."""
_AGES: dict[float | None, str] = {
    60: "1 min",
    300: "5 min",
    900: "15 min",
    3_600: "1 h",
    21_600: "6 h",
    86_400: "1 day",
    None: "older",
}
_Used = tuple[float, ...]
"""Requests, errors, tokens in, tokens out, cost in dollars."""
_NOTHING: _Used = (0, 0, 0, 0, 0.0)
K = TypeVar("K")


def add_analytics(command: Parser) -> None:
    """Add the reports of ``analytics``."""
    for name, report in (("usage", _usage), ("cache", _cache), ("fallback", _fallback), ("latency", _latency)):
        topic = command.command(name, report, "Days are UTC, both ends included; without dates it is the last seven.")
        add(topic, "--start-date YYYY-MM-DD", "the first day")
        add(topic, "--end-date YYYY-MM-DD", "the last day")
        if name == "usage":
            add(topic, "--group-by WHAT", "model, tenant, workflow or metadata.KEY (default: model)", default="model")
            spans = "hour, day, week or month (default: day)"
            add(topic, "--bucket SPAN", spans, choices=get_args(Bucket), default="day")
        add_place(topic)
        add_whose(topic)
        add_json(topic)


def _asked(args: Namespace) -> dict[str, Any]:
    return picked(args, "start_date end_date account environment")


def _title(name: str, report: UsageReport | CacheReport | FallbackReport | LatencyReport) -> list[Block]:
    return [Line(f"{name} from {report.start_date} to {report.end_date} (UTC)", "title"), Line()]


async def _usage(args: Namespace, screen: Screen) -> None:
    """Requests, errors, money and tokens, by time and group."""
    async with TraceStore(existing_store(args)) as store:
        report = await store.usage(**_asked(args), group_by=args.group_by, bucket=args.bucket)
    screen.report(report, *usage_page(report))


def usage_page(report: UsageReport) -> list[Block]:
    """Totals, then by time, then by group."""
    totals, title = report.totals, _title("Usage", report)
    if not totals.requests:
        return [*title, Line("no requests in that time", "dim")]
    cost, charged = about(totals.cost_usd), about(totals.charged_usd)
    named = {
        "requests": f"{totals.requests:,}",
        "errors": f"{totals.errors:,} ({percent(totals.errors / totals.requests)})",
        "cost": f"{cost}, of which {charged} is charged" if totals.charged_usd and charged != cost else cost,
        "tokens": tokens(totals.tokens),
    }
    if report.runs:
        named["agent runs"] = ", ".join(f"{count:,} {status}" for status, count in report.runs.items())
    # one row for each bucket, also for empty ones
    sums = _sums(report.data, lambda row: row.bucket_start)
    step, label = _BUCKETS[report.bucket]
    at, last = datetime.fromisoformat(min(sums)), datetime.fromisoformat(max(sums))
    most, times = max(used[0] for used in sums.values()), []
    while at <= last:
        start = at.isoformat().replace("+00:00", "Z")
        times.append(Row((start.replace("T", " ")[:label], *_used(sums.get(start, _NOTHING), most))))
        at = (at + step).replace(day=1) if report.bucket == "month" else at + step
    by_time = Table(times, ("week from" if report.bucket == "week" else report.bucket, *_USED), _USED_RIGHT)
    grouped = [(*key, used) for key, used in _sums(report.data, lambda row: (row.group, row.rest)).items()]
    grouped.sort(key=lambda each: (each[0] is None, each[1], -each[2][0], each[0] or ""))
    most, groups = max(used[0] for *_, used in grouped), []
    for group, rest, used in grouped[:_SHOWN]:
        name = "(none)" if group is None else f"({group})" if rest else group
        groups.append(Row((name, *_used(used, most), percent(used[-1] / totals.cost_usd) if totals.cost_usd else "")))
    by_group = Table(groups, (report.group_by, *_USED, "of cost"), _USED_RIGHT)
    return [*title, facts(named), Line(), by_time, Line(), by_group, *_and_more(len(grouped))]


def _sums(rows: Iterable[UsageRow], key: Callable[[UsageRow], K]) -> dict[K, _Used]:
    sums: dict[K, _Used] = {}
    for row in rows:
        used = (row.requests, row.errors, row.tokens.input, row.tokens.output, row.cost_usd)
        sums[key(row)] = tuple(map(operator.add, sums.get(key(row), _NOTHING), used))
    return sums


def _used(used: _Used, most: float) -> tuple[str | Bar, ...]:
    requests, errors, given, made, cost = used
    if not requests:
        return ("0", "", "", "", "", "")
    share = percent(errors / requests)
    return (f"{requests:,}", Bar(0, requests / most), share, f"{given:,}", f"{made:,}", about(cost))


async def _cache(args: Namespace, screen: Screen) -> None:
    """What the response cache saved, and how old its hits were."""
    async with TraceStore(existing_store(args)) as store:
        report = await store.cache_report(**_asked(args))
    page = _title("Cache", report)
    if report.hit_rate is None:
        page.append(Line("nothing was looked up in that time", "dim"))
    else:
        hits = f"{report.hits:,} ({percent(report.hit_rate)})"
        page.append(facts({"hits": hits, "misses": f"{report.misses:,}", "saved": about(report.saved_usd)}))
    if report.hits:
        most, so_far, rows = max(each.hits for each in report.ttl_distribution), 0, []
        for each in report.ttl_distribution:
            so_far += each.hits
            bar = Bar(0, each.hits / most) if each.hits else ""
            label = _AGES.get(each.up_to_s, f"{each.up_to_s} s")
            rows.append(Row((label, f"{each.hits:,}", bar, percent(so_far / report.hits))))
        page += [Line(), Table(rows, ("entries up to", "hits", "", "kept so far"), frozenset({1, 3}))]
    screen.report(report, *page)


async def _fallback(args: Namespace, screen: Screen) -> None:
    """How often another model had to serve, why, and which models fail."""
    async with TraceStore(existing_store(args)) as store:
        report = await store.fallback_report(**_asked(args))
    page = _title("Fallback", report)
    if report.rate is None:
        page.append(Line("no model was called in that time", "dim"))
    else:
        times = "once" if report.triggered == 1 else f"{report.triggered:,} times"
        page.append(facts({"another model served": f"{times} ({percent(report.rate)} of the requests)"}))
    if report.reasons:
        whole = sum(report.reasons.values())
        rows = [
            Row((reason, f"{count:,}", Bar(0, count / whole), percent(count / whole)))
            for reason, count in sorted(report.reasons.items(), key=lambda each: (-each[1], each[0]))
        ]
        page += [Line(), Table(rows, ("because of", "requests", "", "of all"), frozenset({1, 3}))]
    if report.candidates:
        rows = []
        for each in report.candidates[:_SHOWN]:
            rate = each.success_rate
            cells = (each.model, f"{each.attempts:,}", percent(rate), Bar(0, rate) if rate else "")
            rows.append(Row(cells, "bad" if rate < _FAILS_MOSTLY else "plain"))
        page += [Line(), Table(rows, ("model", "attempts", "successful", ""), frozenset({1, 2}))]
    screen.report(report, *page, *_and_more(len(report.candidates)))


async def _latency(args: Namespace, screen: Screen) -> None:
    """How long requests took, by model and strategy."""
    async with TraceStore(existing_store(args)) as store:
        report = await store.latency_report(**_asked(args))
    page = _title("Latency", report)
    if not report.data:
        page.append(Line("no request was completed in that time", "dim"))
    longest, rows = max((row.p95_ms for row in report.data), default=0.0) or 1.0, []
    for row in report.data[:_SHOWN]:
        times = map(time_short, (row.p50_ms, row.p95_ms, row.p99_ms))
        bar = Bar(row.p50_ms / longest, (row.p95_ms - row.p50_ms) / longest)
        rows.append(Row((row.model, row.strategy, f"{row.count:,}", *times, bar)))
    head = ("model", "strategy", "requests", "p50", "p95", "p99", "p50 to p95")
    screen.report(report, *page, Table(rows, head, frozenset({2, 3, 4, 5})), *_and_more(len(report.data)))


def _and_more(count: int) -> list[Line]:
    return [Line(f"and {count - _SHOWN} more; --json lists all", "dim")] if count > _SHOWN else []
