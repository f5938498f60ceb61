"""The command ``analytics``, with its four reports on the traces of a store."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from routewright.trace import ReportEnvironment, TraceStore
from routewright.wire import Bucket, JsonObject, UsageReport, UsageRow

from .command import arg
from .show import Block, Line, Screen, StyleOf, fields, listing, pick, tokens
from .store import store_verb

_SHOWN = 20
"""The most groups or models in a table."""
_FAILS_MOSTLY = 0.5
"""Models with a lower success rate are marked."""
_COLUMNS = "requests errors tokens_in tokens_out cost_usd"
_LABELS: dict[Bucket, int] = {"hour": len("2026-11-22 12:00"), "month": len("2026-11")}
"""The length of a bucket's label, if it is not a day."""
_AGES = {60.0: "1 min", 300.0: "5 min", 900.0: "15 min", 3600.0: "1 h", 21600.0: "6 h", 86400.0: "1 day", None: "older"}
_MORE = "Days are UTC, both ends included (default: the last seven)."
_REPORT = (
    arg("--start-date YYYY-MM-DD", "first day"), arg("--end-date YYYY-MM-DD", "last day"),
    arg("--account NAME", "account (default: default)"),
    arg("--environment", "calls to report", ReportEnvironment, "production"),
)  # fmt: skip


def _options(args: Namespace) -> JsonObject:
    return pick(args, "start_date end_date environment" + ("" if args.account is None else " account"))


def _show(args: Namespace, screen: Screen, name: str, report: Any, empty_note: str, blocks: Iterable[Block]) -> None:
    """Write a report under its title. ``empty_note``: said instead, if it is empty."""
    title = Line(f"{name} from {report.start_date} to {report.end_date} (UTC)", "title")
    hint = "; --environment all includes the sandbox" if args.environment == "production" else ""
    note = Line(f"{empty_note}{hint}", "dim")
    screen.report(report, title, Line(), *([note] if empty_note else blocks))


@store_verb(
    TraceStore,
    "analytics usage",
    arg("--group-by WHAT", "model, policy_version, shadow, tenant, workflow, metadata.KEY, account", default="model"),
    arg("--bucket", "length of each time span", Bucket, "day"),
    *_REPORT,
    more=_MORE,
)
async def _usage(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Report requests, errors, money and tokens, by time and group."""
    report = await store.usage(**_options(args), group_by=args.group_by, bucket=args.bucket)
    empty_note = "" if report.totals.requests else "no requests in that time"
    _show(args, screen, "Usage", report, empty_note, usage_page(report))


def usage_page(report: UsageReport) -> Iterator[Block]:
    """Totals, then by time, then by group."""
    totals, length = report.totals, _LABELS.get(report.bucket, len("2026-11-22"))
    summary = pick(totals, "requests errors cost_usd charged_usd") | {"tokens": tokens(totals.tokens)}
    yield from (fields({**summary, "agent runs": report.runs}), Line())
    times = _sum_rows(report.data, report.bucket, lambda row: row.bucket_start.replace("T", " ")[:length])
    yield from (listing(sorted(times, key=lambda entry: entry[report.bucket]), f"{report.bucket} {_COLUMNS}"), Line())
    groups = _sum_rows(
        report.data, "group", lambda row: f"({row.group or 'none'})" if row.rest or row.group is None else row.group
    )
    yield from _first_rows(sorted(groups, key=lambda entry: -entry["requests"]), f"group {_COLUMNS}")


def _sum_rows(rows: Iterable[UsageRow], name: str, key: Callable[[UsageRow], str]) -> list[JsonObject]:
    totals: dict[str, JsonObject] = {}
    for row in rows:
        figures = (row.requests, row.errors, row.tokens.input, row.tokens.output, row.cost_usd)
        counts = dict(zip(_COLUMNS.split(), figures, strict=True))
        total = totals.setdefault(key(row), dict.fromkeys(counts, 0))
        totals[key(row)] = {name: key(row)} | {field: total[field] + value for field, value in counts.items()}
    return [*totals.values()]


@store_verb(TraceStore, "analytics cache", *_REPORT, more=_MORE)
async def _cache(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Report what the response cache saved, and how old its hits were."""
    report = await store.cache_report(**_options(args))
    ages = [{"entries_up_to": _AGES[group.up_to_s], "hits": group.hits} for group in report.ttl_distribution]
    page = (fields(pick(report, "hits misses hit_rate saved_usd")), Line(), listing(ages, "entries_up_to hits"))
    _show(args, screen, "Cache", report, "no look-ups in that time" if report.hit_rate is None else "", page)


@store_verb(TraceStore, "analytics fallback", *_REPORT, more=_MORE)
async def _fallback(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Report how often a fallback served, why, and which models fail."""
    report = await store.fallback_report(**_options(args))
    causes = [{"because_of": reason, "requests": count} for reason, count in report.reasons.items()]
    page: list[Block] = [fields(pick(report, "triggered rate")), Line(), listing(causes, "because_of requests"), Line()]
    if report.passed_by:
        passed = [{"passed_by": model, "requests": count} for model, count in report.passed_by.items()]
        page += [listing(passed, "passed_by requests"), Line()]
    page += _first_rows(
        report.candidates,
        "model attempts success_rate",
        lambda candidate: "bad" if candidate["success_rate"] < _FAILS_MOSTLY else "plain",
    )
    _show(args, screen, "Fallback", report, "no calls in that time" if report.rate is None else "", page)


@store_verb(TraceStore, "analytics latency", *_REPORT, more=_MORE)
async def _latency(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Report how long requests took, by model and strategy."""
    report = await store.latency_report(**_options(args))
    page = _first_rows(report.data, "model strategy count p50_ms p95_ms p99_ms")
    _show(args, screen, "Latency", report, "" if report.data else "no completed requests in that time", page)


def _first_rows(records: Sequence[Any], columns: str, style: StyleOf | None = None) -> list[Block]:
    """The first records as a table, and how many more there are."""
    more = [Line(f"and {len(records) - _SHOWN} more; --json lists all", "dim")] if len(records) > _SHOWN else []
    return [listing(msgspec.to_builtins(records[:_SHOWN]), columns, style), *more]
