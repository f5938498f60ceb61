"""Lines of a log go out from a thread of their own: who logs never waits, whoever reads, or does not."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from routewright.serve.line_writer import AGAIN_S, WHOLE_BYTES, LineWriter

from .command import PATIENCE_S

fcntl = pytest.importorskip("fcntl")
SMALL = 4096
"""The least that a pipe of Linux can be told to hold."""


class Pipe:
    """One that holds little."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        with suppress(AttributeError):  # elsewhere it holds what it holds
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, SMALL)
        self.text = ""

    def read(self) -> None:
        self.text += os.read(self.out, 1 << 16).decode()

    def read_until(self, wanted: str) -> None:
        while wanted not in self.text:
            self.read()

    def close(self) -> None:
        for each in (self.out, self.into):
            with suppress(OSError):
                os.close(each)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def logger_to(writer: LineWriter) -> logging.Logger:
    logger = logging.Logger("lines")
    logger.addHandler(writer)
    return logger


def until(happened: Callable[[], object]) -> None:
    ends, never = time.monotonic() + PATIENCE_S, Event()
    while not happened():
        assert time.monotonic() < ends
        never.wait(0.01)


def test_lines_come_in_their_order(pipe: Pipe) -> None:
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe"))
    for number in range(500):
        logger.info("line %d", number)
    pipe.read_until("line 499\n")
    assert pipe.text.splitlines() == [f"line {number}" for number in range(500)]
    assert writer.lost == 0
    writer.close()


def test_who_logs_does_not_wait_and_what_is_lost_is_told_once_somebody_reads(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe", most_bytes=10_000))
    for number in range(1_000):
        logger.info("%099d", number)
    assert writer.lost > 700
    pipe.read_until(f"{1_000 - writer.lost - 1:099d}\n")
    until(lambda: caplog.messages)
    assert caplog.messages == [f"{writer.lost} lines to a pipe were lost: it was full, or not read in time"]
    logger.info("the next")
    pipe.read_until("the next\n")
    assert len(caplog.messages) == 1
    writer.close()


def test_a_reader_that_has_left_silences_it(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe"))
    os.close(pipe.out)
    for number in range(5):
        logger.info("line %d", number)
    until(lambda: writer.lost == 5)
    logger.info("one more")
    assert writer.lost == 6
    writer.close()
    assert caplog.messages == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_lines_that_cannot_be_written_are_counted_and_no_line_is_made_of_that(caplog: pytest.LogCaptureFixture) -> None:
    with open("/dev/full", "wb") as full:
        writer = LineWriter(full.fileno(), "a full disk")
        logger = logging.getLogger("routewright.serve")  # where it tells of itself
        logger.addHandler(writer)
        try:
            for number in range(3):
                logger.warning("line %d", number)
            until(lambda: writer.lost == 3)
        finally:
            logger.removeHandler(writer)
            writer.close()
    assert writer.lost == len(caplog.messages) == 3


def test_a_reader_that_comes_back_reads_on_and_it_is_told_what_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    into = os.open(tmp_path / "pipe", os.O_WRONLY)
    logger = logger_to(writer := LineWriter(into, "a pipe", monotonic=lambda: now[0]))
    os.close(reader)
    logger.info("lost")
    until(lambda: writer.lost == 1)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY)
    now[0] = AGAIN_S - 0.001
    logger.info("lost, too")
    assert writer.lost == 2
    now[0] = AGAIN_S
    logger.info("read")
    until(lambda: caplog.messages)
    assert os.read(reader, 100) == b"read\n"
    assert caplog.messages == ["2 lines to a pipe were lost: it was full, or not read in time"]
    writer.close()
    os.close(into)
    os.close(reader)


def test_a_terminal_that_was_closed_silences_it(caplog: pytest.LogCaptureFixture) -> None:
    screen, terminal = os.openpty()
    os.close(screen)
    logger = logger_to(writer := LineWriter(terminal, "a terminal"))
    logger.info("a line")
    until(lambda: writer.lost)
    logger.info("one more")
    assert writer.lost == 2
    writer.close()
    os.close(terminal)
    assert caplog.messages == []


def test_what_waits_is_written_at_the_end(pipe: Pipe) -> None:
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe"))
    logger.info("the last words")
    writer.close()
    pipe.read()
    assert pipe.text == "the last words\n"


def test_the_end_does_not_wait_for_a_reader_that_sleeps(pipe: Pipe) -> None:
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe", end_s=0.05))
    for _ in range(200):
        logger.info("%099d", 0)
    began = time.monotonic()
    writer.close()
    assert time.monotonic() - began < PATIENCE_S / 2
    os.close(pipe.out)  # lets its thread end


def test_a_pipe_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.into, False)
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe"))
    for number in range(300):
        logger.info("%099d", number)
    pipe.read_until(f"{299:099d}\n")
    assert writer.lost == 0
    assert len(pipe.text) == 300 * 100
    writer.close()


def test_no_more_goes_out_at_once_than_a_shared_pipe_keeps_whole(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = os.write

    def watched(descriptor: int, text: Any) -> int:
        written.append(len(text))
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", watched)
    logger = logger_to(writer := LineWriter(pipe.into, "a pipe"))
    for number in range(300):
        logger.info("%099d", number)
    pipe.read_until(f"{299:099d}\n")
    assert max(written) <= WHOLE_BYTES
    assert not any(size % 100 for size in written)
    writer.close()


@pytest.mark.skipif(not Path("/proc").exists(), reason="tells a pipe how little it holds as Linux has it")
def test_a_server_serves_on_when_nobody_reads_what_it_writes(tmp_path: Path) -> None:
    out, err = Pipe(), Pipe()
    command = [sys.executable, "-m", "routewright", "serve", "--port", "0", "--log-level", "debug"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=out.into, stderr=err.into) as process:
        try:
            out.read_until("curl ")
            port = int(out.text.partition("serves at http://127.0.0.1:")[2].split()[0])
            with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
                for _ in range(200):
                    connection.request("GET", "/v1/models")
                    assert connection.getresponse().read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            out.close()
            err.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")
def test_what_a_server_opens_does_not_land_where_a_standard_stream_was_closed(tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" -m routewright serve --port 0 <&- 2>&-'
    out = tmp_path / "out"
    with out.open("w") as stdout, subprocess.Popen(["sh", "-c", command], cwd=tmp_path, stdout=stdout) as process:
        try:
            until(lambda: "curl " in out.read_text())
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            opened = [
                os.readlink(f"/proc/{each}/fd/{stream}") for each in (process.pid, *children) for stream in (0, 2)
            ]
            assert set(opened) == {"/dev/null"}
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_logs_that_were_closed_stop_no_process() -> None:
    code = "from routewright.serve.logs import set_up; set_up('info', access=True); import logging; logging.error('x')"
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&- >&-', sys.executable, code], timeout=PATIENCE_S)
    assert done.returncode == 0
