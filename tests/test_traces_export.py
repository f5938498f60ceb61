"""``routewright traces export``: whole traces as lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from routewright.cli import main
from routewright.wire import Trace

from .recorded import few, record, trace

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("store")


def export(*argv: str) -> int:
    return main(["traces", "export", *argv])


def test_export_writes_whole_traces_one_a_line(capsys: Capture) -> None:
    assert export("--since", "3h") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [msgspec.json.decode(line, type=Trace) for line in out.splitlines()] == few()[:3]
    assert export("status=failed") == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["tr_failed"]
    assert export("nonsense") == 2
    assert capsys.readouterr().out == ""


def test_export_writes_what_a_user_said_of_a_trace_beside_it(capsys: Capture) -> None:
    assert main(["feedback", "tr_failed", "0.5", "so so"]) == 0
    assert export() == 0
    said = {trace["id"]: trace["feedback"] for trace in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {trace_id for trace_id, feedback in said.items() if feedback is not None} == {"tr_failed"}
    assert (said["tr_failed"]["score"], said["tr_failed"]["comment"]) == (0.5, "so so")


def test_export_loses_nothing_to_an_old_encoding(tmp_path: Path) -> None:
    mine = trace("tr_1", metadata={"team": "naïve 日本 😀"})
    path = record(tmp_path / "own.db", [mine])
    command = [sys.executable, "-m", "routewright", "traces", "export", "--store", str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, env=environment)
    assert msgspec.json.decode(done.stdout.decode("cp1252"), type=Trace) == mine
