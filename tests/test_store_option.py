"""Which store the commands mean, that none of them makes one unasked, and what ``route`` leaves in it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from routewright import Router, UpstreamCall
from routewright.cli import main

from .sample_store import few, listed, record

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("noon")


def traces(*argv: str) -> int:
    return main(["traces", *argv])


# which store


@pytest.mark.parametrize("written", ["traces.db", "sqlite:///traces.db", "sqlite:///{0}", "{0}"])
def test_a_store_is_a_file_or_its_url(written: str, recorded: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "elsewhere.db")
    assert len(listed(capsys, "--store", written.format(recorded))) == 5


COMMANDS = [
    ["traces", "ls"], ["traces", "show"], ["traces", "export"], ["traces", "delete", "x", "--yes"],
    ["feedback", "tr_1", "1"], ["analytics", "usage"], ["analytics", "latency"], ["store", "check"],
    ["store", "backup", "copy.db"], ["store", "upgrade"], ["store", "retain", "--production-days", "3"],
    ["ledger", "rows"], ["ledger", "export"], ["accounts", "ls"], ["keys", "ls", "acme"], ["webhooks", "ls", "acme"],
]  # fmt: skip


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_every_command_needs_a_store_that_is_there(argv: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main(argv) == 2
    said = "routewright: --store: is missing; give --store traces.db, or set ROUTEWRIGHT_STORE\n"
    assert capsys.readouterr() == ("", said)
    assert main([*argv, "--store", "none.db"]) == 2
    assert f"there is no store {tmp_path / 'none.db'}" in capsys.readouterr().err
    for name in ("x" * 300, "\udcff.db"):
        assert main([*argv, "--store", name]) == 2
        assert capsys.readouterr().err.startswith("routewright: --store: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("memory:", "--store: is memory:, which ends with the command; name a file, such as traces.db"),
        ("sqlit:///x", "--store: is 'sqlit:///x'; did you mean 'sqlite'? write sqlite:///traces.db"),
        ("x" * 300, "--store: is too long for a file name; name another file"),
        ("\udcff.db", "--store: contains bytes that are not text; name a file, such as traces.db"),
    ],
)
def test_an_invalid_store_is_refused(written: str, said: str, capsys: Capture) -> None:
    assert traces("ls", "--store", written) == 2
    assert capsys.readouterr().err.startswith(f"routewright: {said}")


def test_another_kind_of_file_is_refused_and_unchanged(tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a store, and longer than a header of one" * 9)
    before = other.read_bytes()
    assert traces("show", "tr_1", "--store", str(other)) == 1
    assert "no store of routewright" in capsys.readouterr().err
    assert other.read_bytes() == before


def test_json_has_the_error(capsys: Capture) -> None:
    for name, code, said in (("none.db", "not_found", "there is no"), ("\udcff.db", "validation_failed", "--store: ")):
        assert traces("ls", "--store", name, "--json") == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["code"], error["message"][: len(said)]) == (code, said)


# route


@pytest.mark.parametrize("name", ["my traces.db", "-traces.db"])
def test_route_stores_its_trace_and_prints_the_command_to_show_it(name: str, capsys: Capture) -> None:
    assert main(["route", "--sandbox", f"--store={name}", "--metadata", "team=x", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("This is a canned answer")
    kept = err.splitlines()[-1].removeprefix("trace stored: ")
    assert re.fullmatch(rf"routewright traces show tr_\w{{26}} --store={shlex.quote(name)}", kept)
    assert main(shlex.split(kept)[1:]) == 0
    assert re.search(r"\nmetadata team +x\n", capsys.readouterr().out)


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_quiet_and_json_do_not_mention_the_store(option: str, capsys: Capture) -> None:
    assert main(["route", "--sandbox", option, "--store", "traces.db", "Hello"]) == 0
    assert capsys.readouterr().err == ""
    assert len(listed(capsys, "--store", "traces.db")) == 1


def test_a_failed_call_is_stored(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(Router, "sandbox", partial(Router.sandbox, faults={"*": "auth"}))
    assert main(["route", "--sandbox", "--store", "traces.db", "Hello"]) == 5
    assert re.search(
        r"^trace stored: routewright traces show tr_\w{26} --store=traces.db$", capsys.readouterr().err, re.M
    )
    assert traces("show", "--store", "traces.db") == 0
    out = capsys.readouterr().out
    assert re.search(r"\nstatus +failed: router\.upstream_failed\n", out)
    assert out.count("✗") == 4


def test_no_model_is_called_if_the_store_cannot_be_opened(monkeypatch: Patch, capsys: Capture) -> None:
    called: list[UpstreamCall] = []

    def answer(call: UpstreamCall) -> str:
        called.append(call)
        return "paid"

    monkeypatch.setattr(Router, "sandbox", partial(Router.sandbox, answer))
    assert main(["route", "--sandbox", "--store", "no/such/folder/traces.db", "Hello"]) == 1
    out, err = capsys.readouterr()
    assert (out, called) == ("", [])
    assert "traces.db: it cannot be opened" in err


# what it costs to start


def test_commands_about_a_store_do_not_load_the_router(tmp_path: Path) -> None:
    store = ["--store", str(record(tmp_path / "traces.db", few()))]
    code = f"""
import sys
from routewright.cli import main
for argv in (["traces", "ls"], ["analytics", "usage"], ["store", "check"]):
    main([*argv, *{store}])
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert not {"routewright.router", "routewright.cli.route", "pydantic", "aiohttp", "tiktoken"} & set(loaded)
