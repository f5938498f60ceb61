"""``routewright ledger``: what was booked, row by row."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import anyio
import pytest

from routewright import SqliteStorage
from routewright.cli import main
from routewright.testing import FakeClock
from routewright.wire import AddCredit, LedgerRow

from . import billing
from .billing import NOON, SET_UP, SILENT, TOLD, Firm

Capture = pytest.CaptureFixture[str]

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
    head, second, first, credit = (re.split(r"  +", line) for line in out.splitlines())
    assert head[:9] == [
        "at",
        "request id",
        "attempt",
        "kind",
        "model",
        "tokens input",
        "tokens output",
        "cost",
        "charge",
    ]
    assert second == [
        "2026-11-21 12:01:00Z", call, "1", "attempt", "good/one", "8", "2", "$0.000016", "$0.000016", "$0", "$0",
        "$0.0000041, $0.000061",
    ]  # fmt: skip
    assert first[3:9] == ["attempt", "good/one", "100", "50", "$0.0003", "$0.0003"]
    assert credit[:4] == ["2026-11-01 00:00:00Z", "cr_1", "0", "credit"]
    assert "$1" in credit


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        ([], 3),
        (["--since", "1d"], 2),
        (["--since", "2026-11-21T12:00:30Z"], 1),
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
    assert ("there are older rows" in err) == ("--limit" in argv)


def test_an_empty_ledger_says_so_on_stderr(tmp_path: Path, capsys: Capture) -> None:
    anyio.run(SqliteStorage(tmp_path / "calls.db").sweep, NOON)
    assert ledger("rows", "--store=calls.db") == 0
    assert capsys.readouterr() == ("", "there is no such row for the account 'default'\n")


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
    assert "$0, $0.000000009  its process ended before it did" in out
    assert re.search(r"\$0\.000000005 +so it is", out)
    assert re.search(r"-\$0\.000000005 .* back", out)


# export


@pytest.mark.usefixtures("call")
def test_rows_are_exported_as_lines(capsys: Capture) -> None:
    assert ledger("export", "--account=acme") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == told(capsys, "rows", "--account=acme")["rows"]
    assert ledger("export", "--account=acme", "--since=1d") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows[:2]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rows", "--limit=0"], "--limit: must be at least 1, got 0"),
        (["rows", "--since=soon"], "--since: is 'soon'; write a timestamp as 2026-11-22T09:30:00Z, or how long ago"),
    ],
)
@pytest.mark.usefixtures("call")
def test_an_invalid_argument_is_2(argv: list[str], said: str, capsys: Capture) -> None:
    assert ledger(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"routewright: {said}" in err
