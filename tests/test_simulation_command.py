"""``routewright policies simulate`` and ``what-if``: what they pass on, how a report looks, and the gate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Console, Policy
from routewright._core.analytics.comparison import wilson
from routewright.catalogue import Catalogue
from routewright.cli import main
from routewright.wire import (
    AccountCost,
    BlockedBudget,
    Difference,
    Drift,
    Estimate,
    Figure,
    PolicyComparison,
    RefusalChange,
    Reroute,
    ShareComparison,
    SimulationExample,
    SimulationReport,
    VersionFigures,
    WhatIfReport,
)

from .sample_store import at_noon

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

BIG, SMALL, OTHER = "openai/gpt-4.1", "openai/gpt-4o", "mistral/large"
FIGURES: dict[str, Any] = {
    "since": "2026-11-15T12:00:00.000Z",
    "until": "2026-11-22T12:00:00.000Z",
    "requests": 1_200,
    "skipped": 3,
    "rerouted": 300,
    "rerouted_share": Estimate(0.25, *wilson(0.25, 1_200)),
    "refused_share": Estimate(5 / 1_200, *wilson(5 / 1_200, 1_200)),
    "reroutes": [Reroute(BIG, SMALL, 295), Reroute(BIG, None, 5)],
    "actual_cost_usd": 9.87,
    "cost_before_usd": Estimate(10.0, 9.5, 10.5),
    "cost_after_usd": Estimate(10.2, 9.6, 10.9),
    "cost_change": Estimate(0.02, -0.01, 0.06),
    "latency_before_ms": Estimate(900.0, 880.0, 920.0),
    "latency_after_ms": Estimate(1200.0, 1100.0, 1300.0),
    "latency_change": Estimate(0.33, 0.2, 0.4),
    "refusals": [RefusalChange("budget_cost", 5, 0)],
    "expectations": [OTHER],
    "drifts": [],
}
REPORT = SimulationReport(
    **FIGURES,
    policy="desk",
    version="draft",
    blocked=[BlockedBudget("acme", "day", "2026-11-20", 5.0, 6.5, 12)],
    costlier=[AccountCost("acme", 100, 1.0, 1.5)],
    examples=[
        SimulationExample("tr_1", BIG, None, "goal=cost: the big one\nand a table", "no model fits\nmore", "acme")
    ],
    unknown_spent=40,
)
DRIFTED = replace(
    REPORT, cost_before_usd=None, cost_after_usd=None, cost_change=None, latency_before_ms=None, latency_after_ms=None,
    latency_change=None, drifts=[Drift(BIG, Estimate(1.8, 1.7, 1.9), 900)], problem="the answers have drifted",
)  # fmt: skip


def version(label: str, cost: float) -> VersionFigures:
    return VersionFigures(
        version=label,
        requests=500,
        cost_usd=Figure(cost, (cost * 0.9, cost * 1.1), 500),
        error_rate=Figure(0.01, (0.002, 0.03), 500),
        latency_ms=Figure(900.0, None, 500),
        p50_ms=Figure(850.0),
        p95_ms=Figure(1500.0),
        feedback=Figure(None),
    )


OLD, NEW = version("desk@2026-11-20", 0.001), version("desk@2026-11-21", 0.002)
COMPARISON = PolicyComparison(
    name="desk",
    since="2026-11-15T12:00:00.000Z",
    versions=[NEW, OLD],
    share=ShareComparison(
        base=OLD,
        shared=NEW,
        differences={
            "cost_usd": Difference(change=Figure(0.001, (0.0008, 0.0012), 500), significant=True, verdict="higher"),
            "feedback": Difference(change=Figure(None), significant=False, verdict="too few: rate 400 answers"),
        },
    ),
)


class Simulations:
    """Stands in for the Console's simulations: takes their arguments down, and returns a report."""

    def __init__(self) -> None:
        self.report: SimulationReport = REPORT
        self.calls: list[Any] = []

    async def simulate(self, console: Console, draft: str | Policy, **options: Any) -> SimulationReport:
        self.calls.append((draft, options))
        return self.report

    async def compare(self, console: Console, name: str, **options: Any) -> PolicyComparison:
        self.calls.append((name, options))
        return COMPARISON

    async def what_if(self, console: Console, **options: Any) -> WhatIfReport:
        self.calls.append(options)
        return WhatIfReport(**FIGURES, hits=7)


@pytest.fixture(autouse=True)
def simulations(monkeypatch: Patch, tmp_path: Path) -> Simulations:
    at_noon(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")
    Path("traces.db").touch()
    double = Simulations()
    monkeypatch.setattr(
        Console, "simulate", lambda console, draft, **options: double.simulate(console, draft, **options)
    )
    monkeypatch.setattr(Console, "what_if", lambda console, **options: double.what_if(console, **options))
    monkeypatch.setattr(Console, "compare", lambda console, name, **options: double.compare(console, name, **options))
    return double


def shown(capsys: Capture, *argv: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*argv]) == code
    return "".join(capsys.readouterr())


def test_a_report_shows_figures_with_intervals_and_what_changes(capsys: Capture) -> None:
    lines = [" ".join(line.split()) for line in shown(capsys, "policies", "simulate", "desk").splitlines()]
    for line in (
        "desk, draft: 1,200 requests since 2026-11-15 12:00:00Z",
        "rerouted 300 (25.0%)",
        "actual cost $9.87",
        "not repeatable 3",
        "expected cost $10 ($9.5 to $10.5) $10.2 ($9.6 to $10.9) +2.0% (-1.0% to +6.0%)",
        "the figures are without 5 requests that would be refused",
        "expected latency 900 ms (880 ms to 920 ms) 1.2 s (1.1 s to 1.3 s) +33.0% (+20.0% to +40.0%)",
        f"{BIG} {SMALL} 295",
        f"{BIG} refused 5",
        "budget_cost 5 0",
        f"{OTHER} has no outcome on such requests: its figures are an expectation",
        "acme day 2026-11-20 $5 $6.5 12",
        "acme 100 $1 $1.5",
        "unknown share of limits 40",
        f"tr_1: {BIG} -> refused",
        "before: goal=cost: the big one",
        "after: no model fits",
    ):
        assert line in lines


def test_a_draft_is_a_name_a_version_or_a_policy_of_a_file(capsys: Capture, simulations: Simulations) -> None:
    Path("desk.toml").write_text('[[policies]]\nname = "desk"\n[[policies]]\nname = "nightly"\n')
    shown(capsys, "policies", "simulate", "desk", "--since", "2d", "--filter", "model=x", "--account", "acme")
    shown(capsys, "policies", "simulate", "desk@2026-11-20.2")
    shown(capsys, "policies", "simulate", "desk.toml", "nightly")
    assert simulations.calls == [
        ("desk", {"since": "2d", "filter": "model=x", "account": "acme"}),
        ("desk@2026-11-20.2", {"since": "7d", "filter": "", "account": None}),
        (Policy(name="nightly"), {"since": "7d", "filter": "", "account": None}),
    ]
    said = shown(capsys, "policies", "simulate", "desk.toml", code=2)
    assert "NAME: is missing, and desk.toml has several policies; name one of them" in said


@pytest.mark.parametrize(
    ("gate", "failure"),
    [
        ("cost>+5%", "cost>+5% fails: cost +2.0%, 95% interval -1.0% to +6.0%"),
        ("latency>+30%", "latency>+30% fails: latency +33.0%, 95% interval +20.0% to +40.0%"),
        ("refusals>0.5%", "refusals>0.5% fails: refusals +0.4%, 95% interval +0.2% to +1.0%"),
        ("rerouted>20%", "rerouted>20% fails: rerouted +25.0%, 95% interval +22.6% to +27.5%"),
    ],
)
def test_a_gate_fails_by_the_end_of_the_interval(gate: str, failure: str, capsys: Capture) -> None:
    said = shown(capsys, "policies", "simulate", "desk", "--fail-if", gate, code=1 if failure else 0)
    assert (f"{failure}\n" if failure else "") == "".join(line for line in said.splitlines(True) if " fails: " in line)


def test_a_gate_fails_where_nothing_is_claimed(capsys: Capture, simulations: Simulations) -> None:
    simulations.report = DRIFTED
    argv = ["policies", "simulate", "desk", "--fail-if", "cost>+500%", "--fail-if", "refusals>1%"]
    said = shown(capsys, *argv, code=1)
    assert "no figures: the answers have drifted" in said
    assert re.search(rf"\n{BIG} +1.8 +900\n", said)
    failure = "cost>+500% fails: nothing is claimed; the answers have drifted"
    assert said.splitlines()[-1] == failure
    simulations.report = replace(REPORT, latency_change=None, latency_problem="few outcomes")
    said = shown(capsys, "policies", "simulate", "desk", "--fail-if", "latency>+5%", code=1)
    assert "no latency: few outcomes" in said
    assert "latency>+5% fails: nothing is claimed; few outcomes" in said
    simulations.report = replace(DRIFTED, requests=0, refusals=[], rerouted=0, problem="no stored request matches")
    said = shown(capsys, "policies", "simulate", "desk", "--fail-if", "rerouted>50%", code=1)
    assert "rerouted>50% fails: nothing is claimed; no stored request matches" in said
    unknown = replace(DRIFTED, rerouted_share=None, refused_share=None, problem="spending is unknown")
    simulations.report = unknown
    for metric in ("rerouted", "refusals"):
        said = shown(capsys, "policies", "simulate", "desk", "--fail-if", f"{metric}>50%", code=1)
        assert f"{metric}>50% fails: nothing is claimed; spending is unknown" in said
        assert "rerouted  " not in said
    simulations.report = DRIFTED
    capsys.readouterr()
    assert main([*argv, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["failures"], body["cost_change"], body["rerouted"]) == ([failure], None, 300)


def test_what_if_passes_models_prices_and_the_cache_on(capsys: Capture, simulations: Simulations) -> None:
    Path("prices.toml").write_text('[prices]\n"openai/gpt-4.1" = { input_usd = 1, output_usd = 2 }\n')
    assert "What if: 1,200 requests since 2026-11-15 12:00:00Z" in shown(capsys, "what-if")
    shown(capsys, "what-if", "--without", "a/x,a/y", "--only", "b/*", "--no-cache", "--prices", "prices.toml")
    usual: dict[str, Any] = {
        "since": "30d",
        "without": [],
        "only": [],
        "prices": None,
        "cache": True,
        "filter": "",
        "account": None,
    }
    first, second = simulations.calls
    assert first == usual
    prices = second.pop("prices")
    assert isinstance(prices, Catalogue)
    del usual["prices"]
    assert second == {**usual, "without": ["a/x", "a/y"], "only": ["b/*"], "cache": False}


def test_a_comparison_shows_versions_and_the_share(capsys: Capture, simulations: Simulations) -> None:
    said = shown(capsys, "policies", "compare", "desk", "--since", "2d", "--environment", "sandbox")
    assert simulations.calls == [("desk", {"since": "2d", "account": None, "environment": "sandbox"})]
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in (
        "desk since 2026-11-15 12:00:00Z",
        "desk@2026-11-21 500 $0.002 1.0% 900 ms 850 ms 1.5 s",
        "desk@2026-11-20 desk@2026-11-21 verdict",
        "cost $0.001 ($0.0009 to $0.0011) $0.002 ($0.0018 to $0.0022) higher",
        "feedback too few: rate 400 answers",
    ):
        assert line in lines
