"""``MontySandbox``: programs can use only the interpreter, and end in time."""

from __future__ import annotations

import subprocess
import sys
import time

import anyio
import pytest

from routewright.backends.tools.monty_sandbox import MontySandbox
from routewright.protocols import CodeSandbox, ToolFailed

from .sandbox_escapes import ESCAPES, SECRET, Outside

pytestmark = pytest.mark.anyio
TIMEOUT_S = 5.0
SANDBOX = MontySandbox(memory_bytes=64 * 2**20, output_bytes=1_000)


async def test_no_escape_reaches_the_host(outside: Outside) -> None:
    for name, code in ESCAPES.items():
        done = await SANDBOX.execute(outside.fill_in(code), 0.3)
        assert "ESCAPED" not in done.output, name
        assert SECRET not in done.output, name
    assert outside.changes() == []
    assert outside.survivors() == set()


async def test_an_attempt_that_succeeds_would_be_noticed(outside: Outside) -> None:
    assert "ESCAPED 1" in (await SANDBOX.execute(outside.fill_in("attempt(len, 'x')"), TIMEOUT_S)).output


@pytest.mark.parametrize("name", ["passwd", "secret", "tcp", "unix_socket", "fork", "root_listing", "environment"])
def test_the_programs_escape_from_an_interpreter_with_a_way_to_the_host(name: str, outside: Outside) -> None:
    ran = subprocess.run([sys.executable, "-c", outside.fill_in(ESCAPES[name])], capture_output=True, text=True)
    assert "ESCAPED" in ran.stdout or SECRET in ran.stdout


@pytest.mark.parametrize(
    ("code", "output", "exit_code"),
    [
        ("print(1 + 1)", "2\n", 0),
        ("import json, math\nprint(json.dumps([math.floor(2.5)]))", "[2]\n", 0),
        ("import time\ntime.sleep(1000)\nprint('on')", "on\n", 0),
        ("print('a')\n1 / 0", "ZeroDivisionError: division by zero\n", 1),
        ("print(", "SyntaxError", 1),
        ("import socket", "ModuleNotFoundError", 1),
        ("print(open('/etc/passwd').read())", "PermissionError", 1),
        ("import os\nprint(os.environ)", "Error", 1),
        ("raise TimeoutError('mine')", "TimeoutError: mine", 1),
    ],
)
async def test_output_and_exit_code(code: str, output: str, exit_code: int) -> None:
    done = await SANDBOX.execute(code, TIMEOUT_S)
    assert (done.exit_code, done.reason) == (exit_code, None)
    assert output in done.output


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "timeout"),
        ("x = []\nwhile True: x.append('a' * 1_000_000)", "memory"),
        ("'a' * 10**12", "memory"),
        ("print('a' * 100_000)", "output"),
        ("while True: print('a' * 100)", "output"),
    ],
)
async def test_a_greedy_program_ends_for_its_reason(code: str, reason: str) -> None:
    began = time.monotonic()
    done = await SANDBOX.execute(code, 0.5)
    assert (done.exit_code, done.reason) == (None, reason)
    assert len(done.output) <= 1_000
    assert time.monotonic() - began < TIMEOUT_S


async def test_a_cancelled_call_does_not_wait_for_its_program() -> None:
    began = time.monotonic()
    with anyio.move_on_after(0.05):
        await SANDBOX.execute("while True: pass", 0.5)
    assert time.monotonic() - began < 0.5


async def test_a_sandbox_that_does_not_start_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONTY_BIN", "/nowhere/monty")
    with pytest.raises(ToolFailed, match="code_exec is refused"):
        await SANDBOX.execute("print(1)", TIMEOUT_S)


async def test_it_is_a_code_sandbox() -> None:
    assert isinstance(SANDBOX, CodeSandbox)
    await SANDBOX.aclose()
