"""``routewright traces export``: whole traces as lines, into a file that nothing else is lost for."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from routewright.cli import main
from routewright.wire import Trace

from .recorded import few, record, trace

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ON_POSIX = pytest.mark.skipif(os.name == "nt", reason="files have other rights and kinds there")
DRAFTS = ".*.new"


pytestmark = pytest.mark.usefixtures("store")


def export(*argv: str) -> int:
    return main(["traces", "export", *argv])


def test_export_writes_whole_traces_one_a_line(capsys: Capture) -> None:
    assert export("--since", "3h") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [msgspec.json.decode(line, type=Trace) for line in out.splitlines()] == few()[:3]


def test_export_writes_what_a_user_said_of_a_trace_beside_it(capsys: Capture) -> None:
    assert main(["feedback", "tr_failed", "0.5", "so so"]) == 0
    assert export("--output", "out.jsonl") == 0
    capsys.readouterr()
    assert export() == 0
    out = capsys.readouterr().out
    assert out == Path("out.jsonl").read_text()
    said = {trace["id"]: trace.get("feedback") for trace in map(json.loads, out.splitlines())}
    assert {trace_id for trace_id, feedback in said.items() if feedback is not None} == {"tr_failed"}
    assert (said["tr_failed"]["score"], said["tr_failed"]["comment"]) == (0.5, "so so")


def test_export_into_a_file_says_how_many_and_replaces_it_whole(store: Path, capsys: Capture) -> None:
    Path("out.jsonl").write_text("before")
    assert export("status=failed", "--output", "out.jsonl") == 0
    assert capsys.readouterr() == ("", "1 trace written to out.jsonl\n")
    assert [json.loads(line)["id"] for line in Path("out.jsonl").read_text().splitlines()] == ["tr_failed"]
    assert export("nonsense", "--output", "out.jsonl") == 2
    assert "tr_failed" in Path("out.jsonl").read_text()
    assert {path.name for path in store.parent.iterdir()} <= {"out.jsonl", "traces.db", "traces.db.secret"}


def test_export_to_a_place_that_is_not_there_is_refused(capsys: Capture) -> None:
    assert export("--output", "no/such/out.jsonl") == 2
    assert "--output: no/such/out.jsonl cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="there is no such device")
def test_export_does_not_put_a_file_in_the_place_of_a_device() -> None:
    assert export("--output", "/dev/null") == 0
    assert Path("/dev/null").is_char_device()


def test_export_loses_nothing_to_an_old_encoding(tmp_path: Path) -> None:
    mine = trace("tr_1", metadata={"team": "naïve 日本 😀"})
    path = record(tmp_path / "own.db", [mine])
    command = [sys.executable, "-m", "routewright", "traces", "export", "--store", str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, env=environment)
    assert msgspec.json.decode(done.stdout.decode("cp1252"), type=Trace) == mine


# the store itself


@pytest.mark.parametrize("name", ["traces.db", "./traces.db", "{0}", "link.db", "folder/traces.db", "twin.db"])
def test_export_never_writes_over_the_store(name: str, store: Path, capsys: Capture) -> None:
    Path("link.db").symlink_to(store)
    Path("folder").symlink_to(store.parent)
    os.link(store, "twin.db")
    before = store.read_bytes()
    assert export("--output", name.format(store)) == 2
    said = f"--output: {name.format(store).removeprefix('./')} belongs to the store {store}, which would be lost"
    assert capsys.readouterr() == ("", f"routewright: {said}; name another file\n")
    assert store.read_bytes() == before


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal", ".secret"])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("named", ["traces.db", "link.db"])
def test_export_never_writes_over_what_stands_beside_the_store(
    end: str, there: bool, named: str, store: Path, capsys: Capture
) -> None:
    Path("link.db").symlink_to(store)
    beside = Path(f"traces.db{end}")
    if there:
        beside.write_text("precious")
    assert export("--store", named, "--output", str(beside)) == 2
    assert "belongs to the store" in capsys.readouterr().err
    assert (beside.read_text() if beside.exists() else None) == ("precious" if there else None)


def test_the_file_is_refused_before_the_store_is_opened(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "own.db"
    path.write_text("no store at all")
    assert export("--store", str(path), "--output", str(path)) == 2
    assert "belongs to the store" in capsys.readouterr().err


# the draft


@ON_POSIX
def test_a_new_file_is_its_owners_alone_and_one_that_is_replaced_keeps_its_rights() -> None:
    before = os.umask(0o022)
    try:
        for mode in (0o600, 0o644, 0o640):
            Path(f"{mode}.jsonl").touch()
            Path(f"{mode}.jsonl").chmod(mode)
            assert export("--output", f"{mode}.jsonl") == 0
            assert _mode(f"{mode}.jsonl") == mode
        assert export("--output", "new.jsonl") == 0
        assert _mode("new.jsonl") == 0o600
    finally:
        os.umask(before)


@ON_POSIX
def test_what_is_called_as_a_draft_may_be_is_left_alone() -> None:
    Path("mine").write_text("precious")
    Path(".out.jsonl.new").symlink_to("mine")
    Path(".new.jsonl.new").write_text("precious")
    assert export("--output", "out.jsonl") == export("--output", "new.jsonl") == 0
    assert Path("mine").read_text() == Path(".new.jsonl.new").read_text() == "precious"
    assert Path(".out.jsonl.new").is_symlink()


def test_export_follows_a_link_to_the_file_that_it_replaces() -> None:
    Path("behind").mkdir()
    Path("out.jsonl").symlink_to("behind/out.jsonl")
    for _ in range(2):
        assert export("--output", "out.jsonl") == 0
        assert Path("out.jsonl").is_symlink()
        assert len(Path("behind/out.jsonl").read_text().splitlines()) == 5
    assert os.listdir("behind") == ["out.jsonl"]


def test_export_replaces_a_file_where_a_rename_would_not(monkeypatch: Patch) -> None:
    def rename(source: str, target: str) -> None:
        raise FileExistsError(f"{target} exists, as a rename says on Windows")

    monkeypatch.setattr(os, "rename", rename)
    Path("out.jsonl").write_text("before")
    assert export("--output", "out.jsonl") == 0
    assert "before" not in Path("out.jsonl").read_text()


@ON_POSIX
def test_export_writes_into_a_pipe() -> None:
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(Path("pipe").read_text().splitlines()), daemon=True)
    reader.start()
    assert export("--output", "pipe") == 0
    reader.join(10)
    assert len(read) == 5
    assert Path("pipe").is_fifo()


def test_a_folder_is_no_file_to_write(capsys: Capture) -> None:
    Path("folder").mkdir()
    assert export("--output", "folder") == 2
    assert "--output: folder cannot be written: Is a directory" in capsys.readouterr().err


def test_an_export_that_fails_half_way_leaves_no_draft_and_the_file_as_it_was(monkeypatch: Patch) -> None:
    Path("out.jsonl").write_text("before")
    monkeypatch.setattr("routewright.cli.show.json_line", fails_at_last())
    assert export("--output", "out.jsonl") == 2
    assert Path("out.jsonl").read_text() == "before"
    assert not list(Path().glob(DRAFTS))


def fails_at_last() -> object:
    lines = iter(["one\n", "two\n"])

    def line(trace: Trace) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise OSError(28, "No space left on device") from None

    return line


SLOW = """
import signal, sys
import anyio
from routewright.cli import main
from routewright.trace import TraceStore

export = TraceStore.export

async def slowly(self, **which):
    async for trace in export(self, **which):
        yield trace
        print("begun", flush=True)
        await anyio.sleep_forever()

TraceStore.export = slowly
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
sys.exit(main(["traces", "export", "--store", "traces.db", "--output", "out.jsonl"]))
"""


@ON_POSIX
def test_an_interrupt_leaves_no_draft() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert len(list(Path().glob(DRAFTS))) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert not list(Path().glob(DRAFTS))
    assert not Path("out.jsonl").exists()


def _mode(name: str) -> int:
    return stat.S_IMODE(Path(name).stat().st_mode)
