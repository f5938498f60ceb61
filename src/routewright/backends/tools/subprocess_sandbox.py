"""Runs a model's Python program in its own process, and ends it with all its children.

``_sandbox_runner`` confines the process from inside; this module starts it, limits its output and time, and kills it.
"""

from __future__ import annotations

import marshal
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import anyio.to_thread

from routewright.backends.clock import SystemClock
from routewright.protocols import Executed, ToolFailed

RUNNER = str(Path(__file__).with_name("_sandbox_runner.py"))
PYTHON = [sys.executable, "-I", "-S", "-B", "-X", "utf8", RUNNER]
SELF_TEST_S = 15.0
DRAIN_S = 0.5
"""How long output is read after the program was killed."""
STOP_S = 0.1
END_S = 0.8
"""How long the runner may take to end. It needs some milliseconds."""
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""Errors of a pipe whose other end is closed."""
LONGEST_PROCESSOR_TIME_S = 86_400
LONGEST_REPORT = 4096
SELF_TEST = """
import ctypes, errno, os, socket

def error_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0

prctl = ctypes.CDLL(None).prctl
checks = {
    "the network can be reached": error_of(socket.create_connection, ("127.0.0.1", 9), 1) == errno.EPERM,
    "/etc/passwd can be read": error_of(open, "/etc/passwd"),
    "Landlock does not restrict reading": error_of(open, "/.unlisted") == errno.EACCES,
    "files outside can be written": error_of(open, "/outside", "w") and error_of(open, os.__file__, "a"),
    "the working directory cannot be written": not error_of(open, "inside", "w"),
    "there is no pid namespace": os.getpid() == 2,
    "processes can be started": error_of(os.fork),
    "no seccomp filter is loaded": prctl(21, 0, 0, 0, 0) == 2,
    "privileges can be gained": prctl(39, 0, 0, 0, 0) == 1,
    "the environment is not empty": not os.environ.keys() - {"LC_CTYPE"},
}
print("; ".join(said for said, passed in checks.items() if not passed) or "isolated")
"""


class SubprocessSandbox:
    """Runs Python programs in processes of their own, with the standard library and without network.

    >>> async def add() -> str:
    ...     return (await SubprocessSandbox().execute("print(1 + 1)", timeout_s=5)).output

    ``level`` is never lowered: if it is not available, ``execute`` raises.

    ``isolated`` (Linux 5.13 or later on x86_64 or aarch64) is for possibly hostile programs. A program only sees the
    standard library, read-only, and an empty ``/tmp`` in memory. It has its own user, network, pid, mount and ipc
    namespaces, no privileges, Landlock rules and a seccomp filter. It can create threads, but no processes or sockets.
    If the host runs as root, the program runs as nobody. All this reduces the attack surface of a shared kernel, but
    does not protect from kernel bugs: use virtual machines for hostile tenants.

    ``contained`` only protects from accidents: endless loops, endless output, too much memory. The program runs as the
    host's user, with its files and network, and can start processes that survive it.

    Processor time, memory, open files and file size are limited at both levels.
    """

    def __init__(
        self,
        *,
        level: Literal["isolated", "contained"] = "isolated",
        memory_bytes: int = 512 * 2**20,
        disk_bytes: int = 32 * 2**20,
        output_bytes: int = 64 * 2**10,
    ) -> None:
        """``memory_bytes`` limits the address space of a process, enough for a few threads. ``disk_bytes`` limits a
        file, and at the isolated level the working directory. ``output_bytes`` limits the output."""
        self.level = level
        self._memory_bytes, self._disk_bytes, self._output_bytes = memory_bytes, disk_bytes, output_bytes
        self._clock = SystemClock()
        self._paths: list[str] = []
        self._is_tested = level == "contained"

    async def execute(self, code: str, timeout_s: float) -> Executed:
        """Run a program. ``timeout_s`` includes its start. The first call tests the level, in some 0.2 s.

        Raises ``ToolFailed`` if the level is not available."""
        if not self._is_tested:  # find the readable paths, and test the isolation from inside a program
            if sys.platform != "linux":
                raise self._refusal(f"isolation needs Linux, this is {sys.platform}")
            try:
                found = await anyio.run_process([*PYTHON, "paths"], env={}, cwd="/", stdin=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                raise self._refusal(f"{sys.executable} does not start: {error}") from error
            self._paths = os.fsdecode(found.stdout).splitlines()
            done = await self._run(SELF_TEST, SELF_TEST_S)
            if done.output != "isolated\n":
                raise self._refusal(done.output.strip() or f"the self-test ended with {done.reason or done.exit_code}")
            self._is_tested = True
        return await self._run(code, timeout_s)

    async def aclose(self) -> None:
        """Nothing to release."""

    async def _run(self, code: str, timeout_s: float) -> Executed:
        until = self._clock.monotonic() + timeout_s
        order = {
            "code": code, "isolated": self.level == "isolated", "paths": self._paths,
            "memory_bytes": self._memory_bytes, "disk_bytes": self._disk_bytes,
            "cpu_s": math.ceil(min(max(timeout_s, 0), LONGEST_PROCESSOR_TIME_S)) + 2,
        }  # fmt: skip
        packed = marshal.dumps(order)
        folder = tempfile.mkdtemp(prefix="routewright-")
        try:
            try:  # the runner gets its own session and process group
                process = await anyio.open_process(PYTHON, cwd=folder, env={}, start_new_session=True)
            except OSError as error:
                raise self._refusal(f"{sys.executable} does not start: {error}") from error
            try:
                return await self._watch(process, len(packed).to_bytes(8, "little") + packed, until)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end(process)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(shutil.rmtree, folder, True)

    async def _watch(self, process: anyio.abc.Process, order: bytes, until: float) -> Executed:
        """Send the order, and read output and report. Raises ``ToolFailed`` if the program could not be confined."""
        output, reported, drained = bytearray(), bytearray(), anyio.Event()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

        async def collect() -> None:
            if not await read(stdout, output, self._output_bytes):
                await self._stop(process)
            drained.set()

        async with anyio.create_task_group() as group:
            group.start_soon(collect)
            with self._clock.deadline(until, scoped=True) as deadline:
                with suppress(*GONE):
                    await stdin.send(order)
                await read(stderr, reported, LONGEST_REPORT)
            await self._stop(process)
            with self._clock.deadline(self._clock.monotonic() + DRAIN_S, scoped=True):
                await drained.wait()
            group.cancel_scope.cancel()
        text = output[: self._output_bytes].decode("utf-8", "replace")
        if len(output) > self._output_bytes:
            return Executed(output=text, exit_code=None, reason="output")
        if deadline.expired:
            return Executed(output=text, exit_code=None, reason="timeout")
        report = reported.decode("utf-8", "replace")
        kind, _, said = report.partition("\n")[0].partition(" ")
        if kind != "status":
            if report:
                raise self._refusal(said if kind == "refused" else report.strip())
            return Executed(output=text, exit_code=None, reason="memory")  # the kernel killed the runner
        code = os.waitstatus_to_exitcode(int(said))
        # uncaught MemoryError; killed by the kernel, or by nobody else; out of processor time
        reasons = {-signal.SIGUSR2: "memory", -signal.SIGKILL: "memory", -signal.SIGXCPU: "timeout"}
        reason = reasons.get(code)
        return Executed(output=text, exit_code=None if reason else code, reason=reason)

    async def _stop(self, process: anyio.abc.Process) -> None:
        """Make the runner kill the program and its children, by closing its standard input. Also sends a byte, since a
        process forked from this one may keep the pipe open."""
        assert process.stdin is not None
        with suppress(*GONE):
            with self._clock.deadline(self._clock.monotonic() + STOP_S, scoped=True):
                await process.stdin.send(b"\n")
            await process.stdin.aclose()

    async def _end(self, process: anyio.abc.Process) -> None:
        """Wait for the runner, which ends last. Kill the process group if it is late."""
        await self._stop(process)
        with self._clock.deadline(self._clock.monotonic() + END_S, scoped=True):
            await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.aclose()

    def _refusal(self, why: str) -> ToolFailed:
        verb = "isolate" if self.level == "isolated" else "contain"
        return ToolFailed(f"code_exec is refused: this machine cannot {verb} programs ({why})")


async def read(stream: anyio.abc.ByteReceiveStream, into: bytearray, most: int) -> bool:
    """Read to the end. False if there are more than ``most`` bytes."""
    with suppress(anyio.EndOfStream, *GONE):
        while len(into) <= most:
            into += await stream.receive()
    return len(into) <= most
