"""The command ``what-if``, and how reports of simulations and comparisons are shown."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import msgspec

from routewright.catalogue import Catalogue
from routewright.console import Console
from routewright.wire import Estimate, Figure, PolicyComparison, SimulationReport, WhatIfReport

from .command import Declaration, arg, flag, several
from .show import Block, Line, Row, Screen, Table, cell, facts, heading, listing, percent, pick, with_count
from .store import store_verb

FILTER = arg("--filter FILTER", "only these requests, as metadata.team=search", default="")
_FIGURES = ("cost_usd", "error_rate", "latency_ms", "p50_ms", "p95_ms", "feedback")


def since(default: str) -> Declaration:
    """The option for the start of the traffic."""
    return arg("--since WHEN", "at or after a time, or an age such as 30m, 2h, 7d", default=default)


ALL_ACCOUNTS = arg("--account NAME", "only this account (default: all)")


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
    yield from (
        Line(f"{title}: {with_count(report.requests, 'request')} since {cell('_at', report.since)}", "title"),
        Line(),
    )
    skipped = f"{report.skipped:,}: their decisions cannot be repeated" if report.skipped else ""
    share = percent(report.rerouted / max(report.requests, 1))
    actual = cell("cost_usd", report.actual_cost_usd)
    yield from (
        facts({"rerouted": f"{report.rerouted:,} ({share})", "actual cost": actual, "skipped": skipped}),
        Line(),
    )
    if report.problem is not None:
        yield from (Line(f"no figures: {report.problem}", "bad"), Line())
    else:
        rows = [(report.cost_before_usd, report.cost_after_usd, report.cost_change)]
        rows += [(report.latency_before_ms, report.latency_after_ms, report.latency_change)]
        yield Table(
            [
                Row((f"expected {heading(name)}", estimate(name, before), estimate(name, after), estimate("", change)))
                for name, (before, after, change) in zip(("cost_usd", "latency_ms"), rows, strict=True)
            ],
            "|before|after|change",
        )
        yield Line()
    yield from _tables(report, {"reroutes": "from_model to_model requests", "refusals": "constraint new gone"})
    for model in report.expectations:
        yield Line(f"{model} has no outcome on such requests: its figures are an expectation", "dim")
    for drift in report.drifts:
        yield Line(
            f"{drift.model} has drifted: its answers are {drift.ratio.value:.2f} times as long as expected", "bad"
        )


def simulation_page(report: SimulationReport) -> Iterator[Block]:
    """A draft beside what is in force, and traces that show it."""
    yield from figures_page(f"{report.policy}, {report.version}", report)
    blocked = "account period start limit_usd expected_usd requests"
    yield from _tables(report, {"blocked": blocked, "costlier": "account requests before_usd after_usd"})
    notes = {
        "requests do not say what they set themselves: it was inferred": report.inferred,
        "requests do not say what share of its limits the caller had spent: rules with 'when' did not apply to them":
            report.unknown_spent,
    }  # fmt: skip
    yield from (Line(f"{count:,} {note}", "dim") for note, count in notes.items() if count)
    for example in report.examples:
        yield Line(f"{example.trace_id}: {example.from_model or 'refused'} -> {example.to_model or 'refused'}")
        for name, text in (("before", example.before), ("after", example.after)):
            yield Line(f"  {name}: {text.partition(chr(10))[0]}", "dim")


def comparison_page(comparison: PolicyComparison) -> Iterator[Block]:
    """The versions that served, the two of a share figure by figure, and what the shadow chose."""
    yield from (Line(f"{comparison.name} since {cell('_at', comparison.since)}", "title"), Line())
    rows = [
        {**pick(figures, "version requests"), **{name: _rounded(getattr(figures, name).value) for name in _FIGURES}}
        for figures in comparison.versions
    ]
    yield from (listing(rows, f"version requests {' '.join(_FIGURES)}"), Line())
    if (share := comparison.share) is not None:
        table = [
            Row(
                (
                    heading(name),
                    *(_figure(name, getattr(side, name)) for side in (share.base, share.shared)),
                    difference.verdict,
                )
            )
            for name, difference in share.differences.items()
        ]
        yield from (Table(table, f"|{share.base.version}|{share.shared.version}|verdict"), Line())
    yield listing([{"shadow": name, "requests": count} for name, count in comparison.shadow.items()], "shadow requests")


def _figure(name: str, figure: Figure) -> str:
    if figure.value is None or figure.interval is None:
        return cell(name, _rounded(figure.value))
    return estimate(name, Estimate(figure.value, *figure.interval))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _tables(report: msgspec.Struct, columns: dict[str, str]) -> Iterator[Block]:
    for name, paths in columns.items():
        records = [
            {field: "refused" if value is None else value for field, value in msgspec.to_builtins(record).items()}
            for record in getattr(report, name)
        ]
        yield from (listing(records, paths), Line()) if records else ()


def estimate(name: str, figure: Estimate | None) -> str:
    """A figure with its interval, by the unit in its name; a share without one."""
    if figure is None:
        return ""
    texts = [cell(name, _rounded(number)) if name else f"{number:+.1%}" for number in msgspec.structs.astuple(figure)]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
