"""The command ``what-if``, and how reports of simulations and comparisons are shown."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import msgspec
from msgspec.structs import asdict

from routewright.catalogue import Catalogue
from routewright.console import Console
from routewright.wire import Estimate, Figure, PolicyComparison, SimulationReport, WhatIfReport

from .command import Declaration, arg, flag, several
from .show import Block, Line, Row, Screen, Table, cell, fields, heading, listing, percent, pick, with_count
from .store import store_verb

FILTER = arg("--filter FILTER", "only these requests, as metadata.team=search", default="")


def since(default: str) -> Declaration:
    """The option for the start of the traffic."""
    return arg("--since WHEN", "at or after a time, or an age such as 30m, 2h, 7d", default=default)


ALL_ACCOUNTS = arg("--account NAME", "only this account (default: all that were created, and default)")


@store_verb(
    Console,
    "what-if",
    since("30d"),
    several("--without ID,...", "without these models", default=[]),
    several("--only ID,...", "with these models alone", default=[]),
    arg("--prices FILE", "at the prices of this catalogue file, TOML or JSON"),
    flag("--no-cache", "without the response cache: its hits are calls"),
    FILTER,
    ALL_ACCOUNTS,
)
async def _what_if(args: Namespace, screen: Screen, console: Console) -> None:
    """Show what stored traffic would have cost with other models or prices.

    Decides the requests again, and calls no model."""
    prices = None if args.prices is None else Catalogue.load(args.prices)
    changes = pick(args, "since without only filter account")
    report = await console.what_if(**changes, prices=prices, cache=not args.no_cache)
    screen.report(report, *figures_page("What if", report))


def figures_page(title: str, report: SimulationReport | WhatIfReport) -> Iterator[Block]:
    """What changes: figures with intervals, requests that go elsewhere, and what limits the figures."""
    head = f"{title}: {with_count(report.requests, 'request')} since {cell('_at', report.since)}"
    rerouted = report.rerouted_share and f"{report.rerouted:,} ({percent(report.rerouted_share.value)})"
    summary = {"rerouted": rerouted, **pick(report, "actual_cost_usd"), "not repeatable": report.skipped or None}
    yield from (Line(head, "title"), Line(), fields(summary), Line())
    if report.problem is None:
        rows = []
        for name, unit in (("cost", "usd"), ("latency", "ms")):
            ends = [_numbers(getattr(report, f"{name}_{when}_{unit}")) for when in ("before", "after")]
            change = _interval("", *_numbers(getattr(report, f"{name}_change")))
            rows.append(Row((f"expected {name}", *(_interval(f"_{unit}", *numbers) for numbers in ends), change)))
        yield from (Table(rows, "|before|after|change"), Line())
        if report.latency_problem is not None:
            yield Line(f"no latency: {report.latency_problem}", "bad")
        if refused := sum(refusal.new for refusal in report.refusals):
            yield Line(f"the figures are without {with_count(refused, 'request')} that would be refused", "bad")
    else:
        yield from (Line(f"no figures: {report.problem}", "bad"), Line())
    reroutes = "from_model to_model requests"
    yield from _tables(report, reroutes=reroutes, refusals="constraint new gone", drifts="model ratio.value answers")
    for model in report.expectations:
        yield Line(f"{model} has no outcome on such requests: its figures are an expectation", "dim")


def simulation_page(report: SimulationReport) -> Iterator[Block]:
    """A draft beside what is in force, and traces that show it."""
    yield from figures_page(f"{report.policy}, {report.version}", report)
    blocked = "account period start limit_usd expected_usd requests"
    yield from _tables(report, blocked=blocked, costlier="account requests before_usd after_usd")
    yield fields({"unknown share of limits": report.unknown_spent or None})
    for example in report.examples:
        yield Line(f"{example.trace_id}: {example.from_model or 'refused'} -> {example.to_model or 'refused'}")
        for name, text in (("before", example.before), ("after", example.after)):
            yield Line(f"  {name}: {text.partition(chr(10))[0]}", "dim")


def comparison_page(comparison: PolicyComparison) -> Iterator[Block]:
    """The versions that served, and the two of a share figure by figure."""
    yield from (Line(f"{comparison.name} since {cell('_at', comparison.since)}", "title"), Line())
    rows = [
        {name: getattr(figure, "value", figure) for name, figure in asdict(version).items()}
        for version in comparison.versions
    ]
    yield listing(rows, " ".join(rows[0])) if rows else Line("no stored request of a version")
    if (share := comparison.share) is not None:
        table = []
        for name, difference in share.differences.items():
            sides = [_interval(name, *_numbers(getattr(side, name))) for side in (share.base, share.shared)]
            table.append(Row((heading(name), *sides, difference.verdict)))
        yield from (Line(), Table(table, f"|{share.base.version}|{share.shared.version}|verdict"))


def _tables(report: msgspec.Struct, **columns: str) -> Iterator[Block]:
    for name, paths in columns.items():
        records = [
            {field: "refused" if value is None else value for field, value in msgspec.to_builtins(record).items()}
            for record in getattr(report, name)
        ]
        yield from (listing(records, paths), Line()) if records else ()


def _numbers(figure: Estimate | Figure | None) -> tuple[float, ...]:
    """A figure and the ends of its interval, as far as they are known."""
    if figure is None:
        return ()
    if isinstance(figure, Estimate):
        return figure.value, figure.low, figure.high
    return () if figure.value is None else (figure.value, *(figure.interval or ()))


def _interval(name: str, *numbers: float) -> str:
    """A figure with its interval, by the unit in its name; a change if it has no name."""
    texts = [cell(name, float(f"{number:.3g}")) if name else f"{number:+.1%}" for number in numbers]
    return f"{texts[0]} ({texts[1]} to {texts[2]})" if len(texts) > 1 else "".join(texts)
