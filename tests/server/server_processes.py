"""Server processes on one store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from routewright import Console

from .uvicorn_server import SECRET

ROOT = Path(__file__).parents[2]
WORKERS = 4
LEASE_S = 2.0


class Worker(NamedTuple):
    """A server process."""

    url: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def forked(workers: int, program: str, *arguments: str, **variables: str) -> Iterator[list[Worker]]:
    """Run a module in so many processes, of which one loads the library for all (``fork``)."""
    command = [sys.executable, "-m", f"tests.server.{program}", str(workers), *arguments]
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        try:
            assert first.stdout is not None
            lines = [first.stdout.readline().split() for _ in range(workers)]
            yield [Worker(f"http://127.0.0.1:{port}", int(pid)) for port, pid in lines]
        finally:
            os.killpg(first.pid, signal.SIGKILL)


def fork(workers: int) -> socket.socket:
    """Return in so many processes, each with a socket of its own, whose port is written."""
    for _ in range(workers - 1):
        if os.fork() == 0:
            break
    bound = socket.create_server(("127.0.0.1", 0), backlog=512)
    os.write(1, b"%d %d\n" % (bound.getsockname()[1], os.getpid()))  # in one piece
    return bound


class Farm(NamedTuple):
    """The processes, and what they share."""

    workers: list[Worker]
    console: Console
    store: Path
    calls: Path

    @property
    def urls(self) -> list[str]:
        return [worker.url for worker in self.workers]

    def key(self, account: str, **terms: Any) -> str:
        return self.console.blocking.create_key(account, name="k", **terms).secret.reveal()

    @property
    def upstream_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@contextmanager
def farmed(folder: Path, workers: int = WORKERS) -> Iterator[Farm]:
    """Start them, and end them afterwards."""
    store, calls = folder / "traces.db", folder / "calls.txt"
    console = Console(f"sqlite:///{store}", secret=SECRET)
    console.blocking.accounts()
    with forked(workers, "worker_child", str(store), str(calls), str(LEASE_S)) as started:
        yield Farm(started, console, store, calls)
        console.blocking.close()
