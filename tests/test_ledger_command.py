"""``routewright ledger``: rows, statements, corrections, and a provider's bill beside them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from routewright import SqliteStorage
from routewright.cli import main
from routewright.testing import FakeClock
from routewright.wire import AddCredit, LedgerRow, Tokens

from . import billing
from .billing import COST, NOON, SET_UP, SILENT, TOLD, Firm

Capture = pytest.CaptureFixture[str]
EXPORTS = Path(__file__).parent / "data" / "exports"
FEW = Tokens(10, 5, 0)

pytestmark = pytest.mark.usefixtures("noon")


@pytest.fixture
def call(noon: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The trace of a call of whose cost the provider told nothing, in a store that the environment names, behind one of
    which he told all."""
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "calls.db")
    return anyio.run(partial(_calls, tmp_path / "calls.db"))


async def _calls(path: Path) -> str:
    clock = FakeClock(NOON)
    firm = await Firm(SqliteStorage(path, clock=clock), clock, [TOLD, SILENT]).set_up(10**9, prepaid=True)
    await firm.call()
    await clock.sleep(60)
    trace = await firm.call()
    await firm.close()
    return trace.id


def row(number: int, at: str, nanos: int, model: str = "openai/gpt-4.1", tokens: Tokens = FEW) -> LedgerRow:
    return LedgerRow(
        request_id=f"tr_{number}", attempt=1, at=at, model=model, provider=model.partition("/")[0], tokens=tokens,
        cost_nanos=nanos, charge_nanos=nanos,
    )  # fmt: skip


def book(path: Path, *rows: LedgerRow) -> None:
    async def booked() -> None:
        storage = SqliteStorage(path)
        for place, each in enumerate(rows):
            account = ("default", "other")[place % 2]
            await billing.book(storage, account, each)
        await storage.aclose()

    anyio.run(booked)


def ledger(*argv: str) -> int:
    return main(["ledger", *argv])


def told(capsys: Capture, *argv: str) -> dict[str, object]:
    """What the command says as JSON."""
    ledger(*argv, "--json")
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


# rows


def test_rows_are_listed_newest_first_each_on_a_line(call: str, capsys: Capture) -> None:
    assert ledger("rows", "--account", "acme") == 0
    out, err = capsys.readouterr()
    assert err == ""
    head, second, first, credit = out.splitlines()
    assert head.split() == "began (UTC) call kind model tokens in out cost charged".split()
    assert second == (
        f"2026-11-21 12:01:00  {call}  1  attempt  good/one          8    2  $0.000016  $0.000016"
        "  cost $0.0000041 to $0.000061"
    )
    assert first.endswith("1  attempt  good/one        100   50    $0.0003    $0.0003")
    assert credit.split() == ["2026-11-01", "00:00:00", "cr_1", "0", "credit", "$1"]


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        ([], 3),
        (["--since", "1d"], 2),
        (["--since", "2026-11-21T12:00:30Z"], 1),
        (["--until", "2026-11-21"], 1),
        (["--limit", "2"], 2),
        (["--trace", "cr_1"], 1),
    ],
)
@pytest.mark.usefixtures("call")
def test_rows_are_selected_by_time_and_call(argv: list[str], number: int, capsys: Capture) -> None:
    found = told(capsys, "rows", "--account=acme", *argv)
    assert isinstance(found["rows"], list)
    assert (len(found["rows"]), found["has_more"]) == (number, "--limit" in argv)
    assert ledger("rows", "--account=acme", *argv) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == number + 1
    assert ("there are older ones" in err) == ("--limit" in argv)


def test_an_empty_ledger_says_so_on_stderr(tmp_path: Path, capsys: Capture) -> None:
    anyio.run(SqliteStorage(tmp_path / "calls.db").sweep, NOON)
    assert ledger("rows", "--store=calls.db") == 0
    assert capsys.readouterr() == ("", "nothing is booked there\n")


@pytest.mark.parametrize("argv", [["rows"], ["statement"]])
def test_an_empty_default_account_lists_the_others(argv: list[str], call: str, capsys: Capture) -> None:
    assert ledger(*argv) == 0
    assert capsys.readouterr().err == "nothing is booked there; name another with --account: 'acme'\n"
    assert ledger("correct", call, "1", "--cost=1") == 2
    assert capsys.readouterr().err.endswith(f"no trace '{call}'; name another with --account: 'acme'\n")
    for name in "bcdefg":
        assert main(["accounts", "create", name]) == 0
    capsys.readouterr()
    assert ledger(*argv) == 0
    said = "nothing is booked there; name another with --account: 'routewright accounts ls' lists 7\n"
    assert capsys.readouterr().err == said
    told(capsys, *argv)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("argv", [["rows"], ["statement"], ["correct", "tr_1", "1", "--cost=1"]])
@pytest.mark.usefixtures("call")
def test_an_unknown_account_has_no_ledger(argv: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert ledger(*argv, "--account=acne") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "routewright: no account 'acne', and nothing is booked there; name another with --account: 'acme'\n"
    assert told(capsys, *argv, "--account=acne")["error"]


@pytest.mark.usefixtures("call")
def test_a_ledger_needs_no_account_and_an_account_no_ledger(tmp_path: Path, capsys: Capture) -> None:
    book(tmp_path / "calls.db", row(1, "2026-10-21T10:00:00.000Z", 5), row(2, "2026-10-21T10:00:00.000Z", 5))
    assert ledger("statement", "--account=other") == 0, "a host may name accounts of its own"
    assert main(["accounts", "create", "idle"]) == 0
    capsys.readouterr()
    for argv in (["statement"], ["rows"]):
        assert ledger(*argv, "--account=idle") == 0
        assert "--account" not in capsys.readouterr().err


def test_notes_of_a_row_stand_in_its_last_column(tmp_path: Path, capsys: Capture) -> None:
    async def lose() -> None:
        storage = SqliteStorage(tmp_path / "calls.db")
        at = "2026-11-21T12:00:00.000Z"
        lost = LedgerRow(
            request_id="tr_1", attempt=0, kind="expired", at=at, cost_range_nanos=(0, 9),
            note="its process ended before it did",
        )  # fmt: skip
        over = LedgerRow(request_id="tr_2", attempt=1, at=at, overrun_nanos=5, note="so\nit is")
        await billing.book(storage, "default", lost, over)
        await storage.apply("default", [AddCredit("cr", -5, SET_UP, "back")])
        await storage.aclose()

    anyio.run(lose)
    assert ledger("rows", "--store=calls.db") == 0
    out = capsys.readouterr().out
    assert "cost $0 to $0.000000009, its process ended before it did" in out
    assert "$0.000000005 more than was reserved, so it is" in out
    assert "-$0.000000005, back" in out


# statement


@pytest.mark.usefixtures("call")
def test_a_statement_lists_charges_by_model(capsys: Capture) -> None:
    assert ledger("statement", "--account=acme") == 0
    assert capsys.readouterr().out == (
        "Statement of acme for 2026-11 (UTC)\n"
        "\n"
        "opening balance  $0\n"
        "credit           $1\n"
        "charged          $0.000316\n"
        "closing balance  $0.999684\n"
        "cost             $0.000316 ($0.0003041 to $0.000361)\n"
        "attempts         2\n"
        "\n"
        "model     provider  attempts  tokens in  cached  out       cost    charged\n"
        "good/one  good             2        108       0   52  $0.000316  $0.000316\n"
        "\n"
        "day         times  credit\n"
        "2026-11-01      1      $1\n"
        "\n"
        "cost that is not certain    at least    at most\n"
        "good/one                  $0.0003041  $0.000361\n"
    )


@pytest.mark.usefixtures("call")
def test_a_statement_can_be_by_day_and_of_another_month(capsys: Capture) -> None:
    assert ledger("statement", "2026-11", "--by-day", "--account=acme") == 0
    assert "\n2026-11-21  good/one  good             2        108" in capsys.readouterr().out
    assert ledger("statement", "2026-10", "--account=acme") == 0
    assert "no calls in that month" in capsys.readouterr().out
    found = told(capsys, "statement", "--by-day", "--account=acme")
    assert (found["month"], found["by"], found["closing_nanos"]) == ("2026-11", "day", 999_684_000)


# correct


def test_a_correction_is_booked_once_and_printed(call: str, capsys: Capture) -> None:
    assert ledger("correct", call, "1", "--cost", "0.0005", "--note", "invoice 7", "--account=acme") == 0
    assert capsys.readouterr().out == (
        f"booked   correction -1 of {call}\n"
        "model    good/one\n"
        "cost     +$0.000484\n"
        "charge   +$0.000484\n"
        "paid by  2026-11, the month of the call\n"
    )
    assert ledger("correct", call, "1", "--cost", "0.0005", "--account=acme") == 0
    assert capsys.readouterr() == ("", "it is booked so already: there is nothing to do\n")
    assert told(capsys, "correct", call, "1", "--cost", "0.0005", "--account=acme") == {"row": None}
    assert ledger("statement", "--account=acme") == 0
    out = capsys.readouterr().out
    assert "charged          $0.0008, of which corrections are $0.000484" in out
    assert "correction of  provider  times" in out
    assert "not certain" not in out
    assert main(["traces", "show", call, "--account=acme"]) == 0
    assert "cost       $0.0005\n" in capsys.readouterr().out


def test_a_correction_may_be_in_tokens(call: str, capsys: Capture) -> None:
    argv = ["--input=200", "--output=30", "--cached=100", "--account=acme"]
    found = told(capsys, "correct", call, "1", *argv)
    assert isinstance(found["row"], dict)
    assert found["row"]["cost_nanos"] == 100 * 1_000 + 100 * 100 + 30 * 4_000 - 16_000
    assert found["row"]["tokens"] == {"input": 192, "output": 28, "cached": 100}
    assert ledger("correct", call, "1", "--input=200", "--output=0", "--account=acme") == 0
    assert "tokens   +0 in, -30 out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rows", "--limit=0"], "--limit: must be at least 1, got 0"),
        (["rows", "--since=soon"], "--since: is 'soon'; write a timestamp as 2026-11-22T09:30:00Z, or how long ago"),
        (["rows", "--since=2026-11-22", "--until=2026-11-21"], "--since: is 2026-11-22T00"),
        (["rows", "--account="], "--account: must be 1 to 200 printable characters"),
        (["statement", "november"], "MONTH: is 'november'; write YYYY-MM"),
        (["correct", "tr_none", "1", "--cost=1"], "no trace 'tr_none'"),
        (["correct", "tr_none", "0", "--cost=1"], "ATTEMPT: must be a whole number from 1 to 1000, got 0; as in its"),
        (["correct", "tr_none", "1", "--cost=-1"], "--cost: must be a number from 0 to 1000000.0, got -1"),
        (["correct", "tr_none", "1"], "--cost: is missing, and so is usage; give it, or --input and --output"),
        (["correct", "tr_none", "1", "--output=1"], "--input: is missing; tokens are given with --input and --output"),
        (["correct", "tr_none", "1", "--cached=1"], "--input: is missing"),
        (["correct", "tr_none", "1", "--input=1", "--output=1", "--cached=2"], "--input, --output: does not add up"),
        (["reconcile", "none.csv"], "none.csv: cannot be read: No such file or directory; check the path"),
        (["reconcile", "table.csv", "--first=soon"], "--first: is 'soon'; write YYYY-MM-DD"),
        (["reconcile", "table.csv", "--last=2020-01-01"], "--first: is 2026-11-20, after 2020-01-01, the last"),
        (["reconcile", "table.csv", "--provider=opanai"], "--provider: unknown provider 'opanai'; did you mean"),
        (["reconcile", "table.csv", "--tolerance=200%"], "--tolerance: must be a number from 0 to 1, got 2; as 1%"),
        (["reconcile", "table.csv", "--catalogue=none.toml"], "none.toml: cannot be read"),
        (["reconcile", "bad.csv"], "bad.csv:2: cost: must be a number, got 'much'"),
    ],
)
@pytest.mark.usefixtures("call")
def test_an_invalid_argument_is_2(argv: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "table.csv").write_bytes((EXPORTS / "table.csv").read_bytes())
    (tmp_path / "bad.csv").write_text("date,cost\n2026-11-20,much\n", "utf-8")
    assert ledger(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"routewright: {said}" in err


@pytest.mark.parametrize("argv", [["rows"], ["statement"], ["reconcile", "x"], ["correct", "tr_1", "1", "--cost=1"]])
def test_a_missing_store_is_refused(argv: list[str], capsys: Capture) -> None:
    assert ledger(*argv) == 2
    assert "--store: is missing" in capsys.readouterr().err
    assert ledger(*argv, "--store=none.db") == 2
    assert "there is no store" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["reconcile", "x", "--tolerance=much"], ["correct", "x", "one"], []])
def test_a_malformed_ledger_command_is_2(argv: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        ledger(*argv)
    assert ended.value.code == 2
    assert "usage: routewright ledger" in capsys.readouterr().err


# reconcile


def saw_all(path: Path) -> None:
    """Two accounts to whose calls ``table.csv`` is the bill."""
    book(
        path,
        row(1, "2026-11-20T10:00:00.000Z", 450_000_000, tokens=Tokens(120_000, 30_000, 20_000)),
        row(2, "2026-11-20T10:00:00.000Z", 1_950_000, "openai/gpt-4o-mini", Tokens(9_000, 1_000, 0)),
        row(3, "2026-11-21T10:00:00.000Z", 200_000_000, tokens=Tokens(60_000, 10_000, 0)),
    )


def test_a_bill_that_agrees_is_0(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    assert ledger("reconcile", str(EXPORTS / "table.csv"), "--store=calls.db") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "export         table, from 2026-11-20 to 2026-11-21, in days of UTC\n"
        "compared with  calls of openai, over all accounts, in the same days\n"
        "tolerance      1%\n"
        "\n"
        "model               bill, $  ledger, $  drift    requests  tokens in  out  cached\n"
        "openai/gpt-4.1         0.65       0.65      0     +96.67%          =    =       =\n"
        "openai/gpt-4o-mini  0.00195    0.00195      0     +66.67%          =    =       =\n"
        "all together        0.65195    0.65195      0     +95.24%          =    =       =\n"
        "\n"
        "they agree\n"
    )


def test_a_bill_that_differs_is_1_with_the_largest_drift_first(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    book(tmp_path / "calls.db", row(4, "2026-11-21T10:00:00.000Z", 70_000_000, "openai/o3"))
    costs = str(EXPORTS / "openai_costs.json")
    assert ledger("reconcile", costs, "--store=calls.db") == 1
    out = capsys.readouterr().out
    models = [line.split()[0] for line in out.splitlines() if line.startswith("openai/")]
    assert models == ["openai/o3", "openai/gpt-4.1", "openai/gpt-4o-mini"]
    assert "openai/o3                 0       0.07   -0.07           " in out
    assert "assistants api | file search    0.002" in out
    assert "only in the ledger  openai/o3\n" in out
    assert out.endswith("they do not agree\n")
    assert ledger("reconcile", costs, "--store=calls.db", "--tolerance=50", "--last=2026-11-20") == 0


def test_a_drift_within_uncertain_costs_is_explained(call: str, tmp_path: Path, capsys: Capture) -> None:
    book(tmp_path / "calls.db", row(1, "2026-11-21T10:00:00.000Z", 10**9, "good/one"))
    unsure = LedgerRow(
        request_id="tr_9", attempt=1, at="2026-11-21T10:00:00.000Z", model="good/one", provider="good",
        cost_nanos=10**9, cost_range_nanos=(0, 2 * 10**9),
    )  # fmt: skip
    book(tmp_path / "calls.db", unsure)
    (tmp_path / "bill.csv").write_text("day,model,cost\n2026-11-21,one,2.5\n", "utf-8")
    assert ledger("reconcile", "bill.csv", "--provider=good") == 0
    out = capsys.readouterr().out
    assert "explained: ours is 1.0003041 to 3.000361" in out
    assert call not in out
    assert f"{(2 * 10**9 + COST + 16_000) / 1e9}" in out


def test_tokens_are_compared_where_there_are_no_costs(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    assert ledger("reconcile", str(EXPORTS / "openai_usage.json"), "--store=calls.db") == 0
    out = capsys.readouterr().out
    assert "bill, tokens  ledger, tokens  drift" in out
    assert "all together             230,000         230,000      0     +95.24%          =    =       =" in out


def test_requests_alone_can_be_compared(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    (tmp_path / "bill.csv").write_text("day,model,requests\n2026-11-20,gpt-4.1,3\n", "utf-8")
    assert ledger("reconcile", "bill.csv", "--store=calls.db", "--first=2026-11-20", "--last=2026-11-20") == 1
    assert "openai/gpt-4.1                 3               1     +2  +66.67%   +66.67%" in capsys.readouterr().out


def test_models_and_days_of_one_side_only_are_listed(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    days = [{"date": f"2026-11-{day:02}", "model": "", "cost": 1} for day in range(1, 16)]
    (tmp_path / "bill.json").write_text(json.dumps({"data": days, "has_more": True}), "utf-8")
    assert ledger("reconcile", "bill.json", "--provider=openai", "--last=2026-11-21", "--store=calls.db") == 1
    out = capsys.readouterr().out
    assert "(none is named)" in out
    assert "2026-11-10 and 5 more\n" in out
    assert "days only in the ledger  2026-11-20, 2026-11-21\n" in out
    assert "the export               is not whole: it says that there is more\n" in out


def test_reconcile_as_json_is_the_whole_reconciliation(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    argv = ["reconcile", str(EXPORTS / "table.csv"), "--store=calls.db", "--json"]
    assert ledger(*argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["agrees"], found["providers"], found["first"]) == (True, ["openai"], "2026-11-20")
    assert found["models"][0]["cost_usd"] == {"theirs": 0.65, "ours": 0.65, "drift": 0.0, "percent": 0.0}


def test_own_models_are_known_from_a_catalogue_file(tmp_path: Path, capsys: Capture) -> None:
    book(tmp_path / "calls.db", row(1, "2026-11-21T10:00:00.000Z", 10**9, "host/quick"))
    (tmp_path / "models.toml").write_text('[aliases]\n"Quick 7B" = "openai/gpt-4.1"\n', "utf-8")
    (tmp_path / "bill.csv").write_text("day,model,cost\n2026-11-21,Quick 7B,1\n", "utf-8")
    assert ledger("reconcile", "bill.csv", "--store=calls.db", "--catalogue=models.toml") == 1
    assert "only in the bill       openai/gpt-4.1" in capsys.readouterr().out


def test_an_export_cannot_write_control_characters_to_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    saw_all(tmp_path / "calls.db")
    (tmp_path / "bill.csv").write_text("day,model,cost\n2026-11-21,\x1b[31mred\u202e,1\n", "utf-8")
    assert ledger("reconcile", "bill.csv", "--store=calls.db") == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[31mred" in out
