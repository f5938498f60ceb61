"""Child processes that use the same file, or fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.programs import Program

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
    flags = ["-W", "error", "-W", "ignore::DeprecationWarning:__main__"]  # 3.12: fork in a process with threads
    return [sys.executable, *flags, "-c", _code(script), *map(str, arguments)]


def _code(script: str) -> str:
    return textwrap.dedent(PREAMBLE) + textwrap.dedent(script)


def run(script: str, *arguments: object) -> str:
    """Run a script to its end; what it printed."""
    done = subprocess.run(program(script, *arguments), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def running(script: str, *arguments: object) -> Program:
    """Start a script; one that does not end by itself is killed."""
    return Program("-c", _code(script), *map(str, arguments))
