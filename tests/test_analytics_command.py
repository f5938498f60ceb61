"""``routewright analytics``: what the traces of a store add up to."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from routewright import Router
from routewright.cli import main
from routewright.storage import open_storage
from routewright.wire import CacheSpan, Tokens, Trace, UsageReport

from .sample_store import BIG, SMALL, model, record, trace

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _the_store_is_named(monkeypatch: pytest.MonkeyPatch, noon: None) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")


def looked_up(age_s: float | None) -> list[CacheSpan]:
    """A look-up in the cache: a hit on an entry of this age, or a miss."""
    saved = None if age_s is None else 0.002
    return [CacheSpan(id=9, name="cache", start_ms=0, hit=age_s is not None, age_s=age_s, saved_usd=saved)]


def busy() -> list[Trace]:
    """Twelve requests of four days: eight by the small model, three by the big one, one that failed."""
    small = [
        trace(f"tr_s{n}", 1 + n, metadata={"team": "search"}, spans=[*looked_up(100.0 * n or None), model(1, SMALL)])
        for n in range(8)
    ]
    big = [trace(f"tr_b{n}", 25 + n, selected_model=BIG, cost_usd=0.25, charged_usd=0.0, environment="sandbox",
                 duration_ms=4000.0, tokens=Tokens(1000, 200, 500), spans=[model(1, BIG)])
           for n in range(3)]  # fmt: skip
    lost = [model(1, BIG, status="error", error="server", finish_reason=None)]
    failed = trace("tr_f", 73, status="failed", error="router.upstream_failed", selected_model=None, cost_usd=0.0,
                   charged_usd=0.0, tokens=Tokens(), spans=lost)  # fmt: skip
    return [*small, *big, failed]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return record(tmp_path / "traces.db", busy(), rollup_keys=("team",))


def shown(capsys: Capture, *argv: str) -> str:
    environment = () if "--environment" in argv else ("--environment", "all")
    assert main(["analytics", *argv, *environment]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.usefixtures("store")
def test_usage_is_totals_then_days_then_groups(capsys: Capture) -> None:
    assert shown(capsys, "usage") == (
        "Usage from 2026-11-16 to 2026-11-22 (UTC)\n"
        "\n"
        "requests  12\n"
        "errors    1\n"
        "cost      $0.766\n"
        "charged   $0.016\n"
        "tokens    3,800 in (1,500 cached), 760 out\n"
        "\n"
        "day         requests  errors  tokens in  tokens out    cost\n"
        "2026-11-19         1       1          0           0      $0\n"
        "2026-11-21         3       0      3,000         600   $0.75\n"
        "2026-11-22         8       0        800         160  $0.016\n"
        "\n"
        "group           requests  errors  tokens in  tokens out    cost\n"
        "openai/gpt-4o          8       0        800         160  $0.016\n"
        "openai/gpt-4.1         4       1      3,000         600   $0.75\n"
    )


@pytest.mark.usefixtures("store")
def test_usage_is_grouped_and_cut_as_asked(capsys: Capture) -> None:
    by_team = shown(capsys, "usage", "--group-by", "metadata.team", "--bucket", "month", "--environment", "production")
    assert "\nrequests  9\n" in by_team
    assert "\nmonth    requests" in by_team
    assert "\n2026-11         9  " in by_team
    assert "\nsearch         8  " in by_team
    assert "\n(none)         1  " in by_team
    one_day = shown(capsys, "usage", "--start-date", "2026-11-21", "--end-date", "2026-11-21", "--bucket", "hour")
    assert [line.split()[:3] for line in one_day.splitlines() if line.startswith("2026")] == [
        ["2026-11-21", f"{hour:02}:00", "1"] for hour in (9, 10, 11)
    ]
    weeks = shown(capsys, "usage", "--start-date", "2026-11-01", "--bucket", "week")
    assert "\nweek        requests" in weeks
    assert "\n2026-11-16        12  " in weeks


@pytest.mark.usefixtures("store")
def test_json_is_the_whole_report(capsys: Capture) -> None:
    report = msgspec.json.decode(shown(capsys, "usage", "--json"), type=UsageReport)
    assert (report.totals.requests, report.totals.errors, len(report.data)) == (12, 1, 3)
    assert json.loads(shown(capsys, "cache", "--json"))["hits"] == 7
    assert json.loads(shown(capsys, "fallback", "--json"))["triggered"] == 0
    assert len(json.loads(shown(capsys, "latency", "--json"))["data"]) == 2


@pytest.mark.usefixtures("store")
def test_cache_shows_how_old_its_hits_were(capsys: Capture) -> None:
    out = shown(capsys, "cache")
    assert "\nhits      7\nmisses    1\nhit rate  87.5%\nsaved     $0.014\n" in out
    rows = [line.rsplit(maxsplit=1) for line in out.splitlines()[8:]]
    assert [row for row in rows if row[1] != "0"] == [["5 min", "3"], ["15 min", "4"]]
    assert rows[-1] == ["older", "0"]


def test_fallback_shows_how_often_why_and_which_models_fail(capsys: Capture) -> None:
    storage = open_storage("sqlite:///traces.db")
    with Router.sandbox(storage=storage, faults={BIG: "server"}).blocking as router:
        for _ in range(2):
            router.route("Hello", models=[BIG, SMALL], goal="quality")
        router.route("Hello", models=[SMALL])
    out = shown(capsys, "fallback")
    assert "\ntriggered  2\nrate       66.7%\n" in out
    assert "\nserver             2\n" in out
    assert f"\n{BIG}         4            0%\n" in out
    assert f"\n{SMALL}          3          100%\n" in out


@pytest.mark.usefixtures("store")
def test_latency_shows_quantiles_by_model_and_strategy(capsys: Capture) -> None:
    out = shown(capsys, "latency")
    assert "\nmodel           strategy  count    p50    p95    p99\n" in out
    assert f"\n{SMALL}   balanced      8  2.0 s  2.0 s  2.0 s\n" in out
    assert f"\n{BIG}  balanced      3  4.0 s  4.0 s  4.0 s\n" in out


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("usage", "no requests in that time"),
        ("cache", "no look-ups in that time"),
        ("fallback", "no calls in that time"),
        ("latency", "no completed requests in that time"),
    ],
)
@pytest.mark.usefixtures("store")
def test_an_empty_report_says_so(report: str, said: str, capsys: Capture) -> None:
    for argv in (["--end-date", "2026-01-01"], ["--account", "nobody"]):
        assert shown(capsys, report, *argv).splitlines()[1:] == ["", said]
        lines = shown(capsys, report, *argv, "--environment", "production").splitlines()
        assert lines[1:] == ["", f"{said}; --environment all includes the sandbox"]


def test_usage_of_all_accounts(store: Path, capsys: Capture) -> None:
    for name in ("acme", "bmw"):
        assert main(["accounts", "create", name]) == 0
    capsys.readouterr()
    record(store, [replace(entry, id=f"{entry.id}a", account="acme") for entry in busy()])
    table = shown(capsys, "usage", "--group-by", "account").split("\n\n")[-1]
    assert [line.split()[:2] for line in table.splitlines()] == [
        ["group", "requests"],
        ["acme", "12"],
        ["default", "12"],
    ]
    assert main(["analytics", "usage", "--group-by", "account", "--account", "acme"]) == 2
    assert "--group-by: is 'account'; one of model, tenant, workflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["usage", "--start-date", "soon"], "--start-date: is 'soon'; write YYYY-MM-DD"),
        (
            ["usage", "--group-by", "zzz"],
            "--group-by: is 'zzz'; one of model, tenant, workflow, policy_version, shadow, account, metadata.team; the "
            "setting rollup_keys",
        ),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_wrong_report_option_is_named(argv: list[str], said: str, capsys: Capture) -> None:
    assert main(["analytics", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"routewright: {said}")


def test_more_groups_than_a_screen_holds_are_counted(tmp_path: Path, capsys: Capture) -> None:
    many = [trace(f"tr_{n}", selected_model=f"v/m{n:02}", spans=[model(1, f"v/m{n:02}")]) for n in range(25)]
    record(tmp_path / "traces.db", many)
    for report in ("usage", "latency", "fallback"):
        out = shown(capsys, report)
        assert out.count("\nv/m") == 20
        assert out.endswith("and 5 more; --json lists all\n")
