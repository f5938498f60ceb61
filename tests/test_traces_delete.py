"""``routewright traces delete``: what is named goes, and nothing else, and not before a person said yes."""

from __future__ import annotations

from pathlib import Path

import pytest

from routewright.cli import main

from .recorded import listed
from .test_store_command import damage

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("store")


def delete(*argv: str) -> int:
    return main(["traces", "delete", *argv])


@pytest.mark.parametrize(
    ("argv", "gone"),
    [
        (["tr_failed"], ["tr_failed"]),
        (["trc_failed"], ["tr_failed"]),
        (["metadata.team=search"], ["tr_rescued"]),
        (["--until", "1d"], ["tr_failed", "tr_oldest"]),
        (["cost_usd>0", "--until", "1d"], ["tr_oldest"]),
        (["--everything", "--environment", "sandbox"], ["tr_sandbox"]),
        (["--everything"], ["tr_newest", "tr_rescued", "tr_sandbox", "tr_failed", "tr_oldest"]),
    ],
)
def test_delete_removes_what_is_named_and_says_how_many(argv: list[str], gone: list[str], capsys: Capture) -> None:
    before = listed(capsys)
    assert delete(*argv, "--yes") == 0
    assert capsys.readouterr() == ("", f"{len(gone)} trace{'s' * (len(gone) > 1)} deleted\n")
    assert listed(capsys) == [each for each in before if each not in gone]
    assert listed(capsys, "--account", "anna") == ["tr_hers"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "ID | FILTER: is missing; give an id, a filter, --since or --until; --everything means all"),
        (["--everything", "status=failed"], "--everything: cannot be combined with a selection"),
        (["tr_failed"], "1 trace would be deleted; give --yes to have it done"),
        (["--until", "1d"], "2 traces would be deleted; give --yes to have it done"),
        (["tr_nobody"], "no trace 'tr_nobody'"),
        (["tr_nobody", "--yes"], "no trace 'tr_nobody'"),
        (["tr_hers", "--yes"], "no trace 'tr_hers'"),
        (["nonsense=1", "--yes"], "FILTER[0]: unknown key 'nonsense'"),
    ],
)
def test_delete_refuses_what_is_left_open(argv: list[str], said: str, capsys: Capture) -> None:
    assert delete(*argv) == 2
    assert capsys.readouterr().err.startswith(f"routewright: {said}")
    assert len(listed(capsys)) == 5


def test_of_many_traces_only_so_many_are_counted(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("routewright.cli.traces.COUNTED", 3)
    assert delete("--everything") == 2
    assert "routewright: 3 traces or more would be deleted; give --yes" in capsys.readouterr().err


# a damaged one


def test_a_damaged_trace_is_deleted_by_its_id(store: Path, capsys: Capture) -> None:
    damage(store)
    assert main(["traces", "show", "tr_oldest"]) == 1
    assert "trace 'tr_oldest' is damaged: delete it by its id" in capsys.readouterr().err
    assert delete("tr_oldest", "--yes") == 0
    assert capsys.readouterr() == ("", "1 trace deleted\n")
    assert len(listed(capsys)) == 4
    assert main(["store", "check"]) == 0
