"""What does a server do under load: how many requests a second, after how long, for how much of a processor?

The load is made by ``wrk``, outside of Python, and both sides have a core of their own where there are two: nothing
that asks is in the figures of what answers.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from statistics import median
from typing import Any, NamedTuple

from .upstream import ROOT

STARTS_WITHIN_S = 90.0
ENDS_WITHIN_S = 10.0
_PROCESSES = Path("/proc")
_GROUP, _USER, _SYSTEM, _RESIDENT = 1, 10, 11, 20
"""Where a process's numbers have them, counted from its parent's."""


class Ask(NamedTuple):
    """What is sent: each body in its turn."""

    method: str
    path: str
    bodies: Sequence[bytes]
    said: str
    """Stands in every answer that is right, and in no other. A stream may fail after it began with 200."""


class Load(NamedTuple):
    """What came of it."""

    connections: int
    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """Of the processor, a request: of the server and whatever it started."""

    @property
    def per_core_s(self) -> float:
        """Requests in a second of one processor."""
        return 1e6 / self.cpu_us


class Failed(AssertionError):
    """A server that did not answer as it should. There is no figure for that."""


class Served(NamedTuple):
    """A server that runs, in a process group of its own."""

    port: int
    headers: dict[str, str]
    """That its callers have to send."""
    group: int

    @property
    def mb(self) -> float:
        """Resident memory, of all its processes."""
        return sum(stat[_RESIDENT] for stat in self._stats()) * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def cpu_s(self) -> float:
        """Spent so far, by all of them."""
        return sum(stat[_USER] + stat[_SYSTEM] for stat in self._stats()) / os.sysconf("SC_CLK_TCK")

    def _stats(self) -> list[list[int]]:
        every = [_stat(pid) for pid in os.listdir(_PROCESSES) if pid.isdigit()]
        return [stat for stat in every if stat is not None and stat[_GROUP] == self.group]


def _stat(pid: str) -> list[int] | None:
    """A process's numbers, from its parent on; None: it has ended."""
    try:
        text = (_PROCESSES / pid / "stat").read_text()
    except OSError:
        return None
    return [int(number) for number in text.rpartition(") ")[2].split()[1:]]  # what stands before may hold spaces


def tells_processor_time() -> bool:
    """Whether the system tells what a process spent, as Linux does."""
    return _PROCESSES.joinpath("self", "stat").exists()


@contextmanager
def served(command: list[str], *, core: int | None) -> Iterator[Served]:
    """Run a program that prints its port and headers, on one core. It and what it starts are ended with the block."""
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(
            [*on(core), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, process)
        assert process.stdout is not None, "it is piped"
        line = process.stdout.readline()
        if not line:
            process.wait(ENDS_WITHIN_S)
            log.seek(0)
            raise Failed(f"{' '.join(command[1:4])} ended before it served: {log.read()[-2_000:]}")
        told = json.loads(line)
        yield Served(told["port"], told["headers"], process.pid)


def _end(process: subprocess.Popen[str]) -> None:
    for signal in (SIGTERM, SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
            break
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class Cores(NamedTuple):
    """One for the server and one for those around it; None: any."""

    own: int | None
    other: int | None


def cores() -> Cores:
    """Two, where there are two and ``taskset``."""
    ours = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return Cores(ours[0], ours[1]) if len(ours) > 1 and shutil.which("taskset") else Cores(None, None)


def on(core: int | None) -> list[str]:
    """What to write before a command for it to stay on a core."""
    return [] if core is None else ["taskset", "-c", str(core)]


def visit(server: Served, ask: Ask) -> None:
    """Ask once for each body, as soon as the server listens. Raises ``Failed`` unless each answer is right."""
    with closing(connected(server.port)) as connection:
        for body in ask.bodies:
            connection.request(ask.method, ask.path, body, _headers(server, ask))
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200 or ask.said.encode() not in said:
                raise Failed(f"{ask.method} {ask.path} was answered with {answer.status}: {said[:500]!r}")


def connected(port: int) -> http.client.HTTPConnection:
    """A connection to a server, as soon as it accepts one."""
    ends = time.monotonic() + STARTS_WITHIN_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.connect()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
        else:
            return connection


def _headers(server: Served, ask: Ask) -> dict[str, str]:
    return {"content-type": "application/json", **server.headers} if ask.method == "POST" else server.headers


def wrk(server: Served, ask: Ask, connections: int, seconds: int, *, core: int | None) -> Load:
    """Ask as fast as it answers, over so many connections. Raises ``Failed`` if any answer was an error."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_lua(server, ask))
        script.flush()
        url = f"http://127.0.0.1:{server.port}{ask.path}"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", script.name, url]
        spent = server.cpu_s
        done = subprocess.run([*on(core), *command], capture_output=True, text=True, check=False, timeout=60)
        spent = server.cpu_s - spent
    if done.returncode:
        raise Failed(f"wrk ended with {done.returncode}: {done.stderr}")
    count, took_us, errors, p50, p99 = json.loads(done.stdout.splitlines()[-1])
    if errors or not count:
        raise Failed(f"{errors} of {count} requests to {ask.path} failed:\n{done.stdout}")
    return Load(connections, count / took_us * 1e6, p50, p99, spent / count * 1e6)


_SCRIPT = """
local bodies, made, turn, asking = {BODIES}, {}, 0, nil
wrong = 0
function setup(thread)
  asking = thread
end
function init(args)
  for i, body in ipairs(bodies) do made[i] = wrk.format("METHOD", nil, {HEADERS}, body) end
end
function request()
  turn = turn % #made + 1
  return made[turn]
end
function response(status, headers, body)
  if status ~= 200 or not body:find(SAID, 1, true) then wrong = wrong + 1 end
end
function done(summary, latency)
  local e = summary.errors
  local failed = asking:get("wrong") + e.connect + e.read + e.write + e.timeout
  local p50, p99 = latency:percentile(50), latency:percentile(99)
  io.write(string.format("\\n[%d, %d, %d, %f, %f]\\n", summary.requests, summary.duration, failed, p50, p99))
end
"""


def _lua(server: Served, ask: Ask) -> str:
    headers = {"Host": f"127.0.0.1:{server.port}", **_headers(server, ask)}
    parts = {
        "BODIES": ", ".join(_quoted(body.decode()) for body in ask.bodies),
        "METHOD": ask.method,
        "HEADERS": ", ".join(f"[ {_quoted(name)} ] = {_quoted(value)}" for name, value in headers.items()),
        "SAID": _quoted(ask.said),
    }
    return re.sub("|".join(parts), lambda found: parts[found[0]], _SCRIPT)


def _quoted(text: str) -> str:
    return f"[==[{text}]==]"


def middle(loads: list[Load]) -> Load:
    """Each figure's median."""
    columns: list[Any] = [median(column) for column in zip(*loads, strict=True)]
    return Load(*columns)
