"""Child processes that use the same file, or fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

PREAMBLE = """
    import anyio, os, signal, sys, threading
    from contextlib import aclosing
    from pathlib import Path
    from routewright.backends.storage.sqlite import SqliteStorage
    from tests.contracts.storage.samples import make_trace
    from routewright.wire import *

    def heard():
        return sys.stdin.readline().strip()

    def say(word):
        print(word, flush=True)

    async def put(storage, first, many, account="default"):
        for number in range(first, first + many):
            await storage.apply(account, [PutTrace(make_trace(number))])
"""
TIMEOUT_S = 60


def program(script: str, *arguments: object) -> list[str]:
    """The command that runs a script after ``PREAMBLE``."""
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    flags = ["-W", "error", "-W", "ignore::DeprecationWarning:__main__"]  # 3.12: fork in a process with threads
    return [sys.executable, *flags, "-c", code, *map(str, arguments)]


def run(script: str, *arguments: object) -> str:
    """Run a script to its end; what it printed."""
    done = subprocess.run(program(script, *arguments), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Running:
    """A script that is told when to go on."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        self._started = started

    def tell(self, word: str = "go") -> None:
        """Let it go on."""
        assert self._started.stdin is not None
        self._started.stdin.write(f"{word}\n")
        self._started.stdin.flush()

    def heard(self) -> str:
        """Wait for the next word that it says; what it died of, if it did."""
        assert self._started.stdout is not None
        assert self._started.stderr is not None
        return self._started.stdout.readline().strip() or self._started.stderr.read()

    def kill(self) -> None:
        """Kill it, and wait for that."""
        self._started.kill()
        self._started.wait(TIMEOUT_S)

    def end(self) -> None:
        """Wait for its end, which has to be a good one."""
        _, errors = self._started.communicate(timeout=TIMEOUT_S)
        assert self._started.returncode == 0, errors


@contextmanager
def running(script: str, *arguments: object) -> Iterator[Running]:
    """Start a script; one that does not end by itself is killed."""
    pipe = subprocess.PIPE
    started = subprocess.Popen(program(script, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield Running(started)
    finally:
        started.kill()
        started.communicate()
