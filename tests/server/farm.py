"""Server processes on one store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from routewright import Console

from .serving import SECRET

ROOT = Path(__file__).parents[2]
WORKERS = 4
LEASE_S = 2.0


class Farm(NamedTuple):
    """The processes, and what they share."""

    urls: list[str]
    processes: list[subprocess.Popen[str]]
    console: Console
    store: Path
    calls: Path

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
    program = [sys.executable, "-m", "tests.server.worker_child", str(store), str(calls), str(LEASE_S)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            for _ in range(workers)
        ]
        for process in processes:
            stack.callback(process.kill)
        ports = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
        yield Farm([f"http://127.0.0.1:{port}" for port in ports], processes, console, store, calls)
        console.blocking.close()
