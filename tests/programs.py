"""Python programs in child processes that are forked from one which has imported the library. A new interpreter would
take half a second of processor time to do so."""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from contextlib import chdir, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 60.0
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.contracts.storage.samples", "routewright._assembly"])


class Program:
    """A running program, with pipes like those of ``subprocess.Popen``: ``Program("-m", "tests.module", argument)`` or
    ``Program("-c", code)``. It starts in the folder of the project. Warnings are errors."""

    def __init__(self, *command: str) -> None:
        pipes = [_FORKS.Pipe(duplex=False) for _ in range(3)]
        (stdin, stdin_here), (stdout_here, stdout), (stderr_here, stderr) = pipes
        self._process = _FORKS.Process(target=_run, args=(command, dict(os.environ), stdin, stdout, stderr))
        with chdir(ROOT):  # from where the first one imports ``tests``
            self._process.start()
        self.stdin = os.fdopen(os.dup(stdin_here.fileno()), "w")
        self.stdout = os.fdopen(os.dup(stdout_here.fileno()))
        self.stderr = os.fdopen(os.dup(stderr_here.fileno()))
        for pipe in pipes:
            for end in pipe:
                end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, line: str = "go") -> None:
        """Write a line to its standard input."""
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def heard(self) -> str:
        """Wait for the next line of its standard output; what it died of, if it did."""
        return self.stdout.readline().strip() or self.stderr.read()

    def kill(self) -> None:
        """Kill it, and wait for that."""
        self._process.kill()
        self.close()

    def end(self) -> None:
        """Wait for its end, which has to be a good one."""
        self.close()
        assert self._process.exitcode == 0, self.stderr.read()

    def close(self) -> None:
        """Close its standard input, and wait for its end."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        self._process.join(TIMEOUT_S)
        assert self._process.exitcode is not None, "it still runs"


def _run(command: tuple[str, ...], environment: dict[str, str], *pipes: Connection) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "", DeprecationWarning, "__main__")  # 3.12: fork in a process with threads
    flag, text, *arguments = command
    sys.argv = [flag, *arguments]
    if flag == "-m":
        runpy.run_module(text, run_name="__main__", alter_sys=True)
    else:
        exec(text, {"__name__": "__main__"})
