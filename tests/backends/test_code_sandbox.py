"""``SubprocessSandbox``: escape attempts fail, and no program outlives its time limit."""

from __future__ import annotations

import marshal
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright.backends.tools import subprocess_sandbox
from routewright.backends.tools.subprocess_sandbox import SubprocessSandbox
from routewright.protocols import CodeSandbox, Executed, ToolFailed

from .escapes import ENDLESS, ESCAPES, GREEDY, SECRET, TOGETHER, Outside

pytestmark = pytest.mark.anyio
TIMEOUT_S = 5.0
SHORT_S = 0.6


KERNEL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if sys.platform != "linux":
    print("no Linux")
elif libc.syscall(444, None, 0, 1) < 1:
    print("no Landlock")
elif libc.unshare(0x10000000 | 0x20000000 | 0x40000000 | 0x20000) < 0:
    print("no namespaces:", os.strerror(ctypes.get_errno()))
"""


@pytest.fixture(scope="module")
def sandbox() -> SubprocessSandbox:
    """Skips only if the kernel lacks something. Any other refusal fails."""
    found = subprocess.run([sys.executable, "-c", KERNEL], capture_output=True, text=True, check=True)
    if found.stdout:
        pytest.skip(f"this kernel cannot isolate programs: {found.stdout.strip()}")
    return SubprocessSandbox()


@pytest.fixture
async def accidents() -> AsyncIterator[SubprocessSandbox]:
    made = SubprocessSandbox(level="contained")
    yield made
    await made.aclose()


def assert_untouched(outside: Outside, done: Executed) -> None:
    assert "ESCAPED" not in done.output
    assert SECRET not in done.output
    assert outside.changes() == []
    until = time.monotonic() + 1
    while (survivors := outside.survivors()) and time.monotonic() < until:
        time.sleep(0.02)
    assert survivors == set()


def changed(folder: Path, old: str, new: str) -> list[str]:
    """The command of a runner with a changed source."""
    source = Path(subprocess_sandbox.RUNNER).read_text("utf-8")
    assert old in source
    (folder / "runner.py").write_text(source.replace(old, new))
    return [*subprocess_sandbox.PYTHON[:-1], str(folder / "runner.py")]


# --- isolated


async def test_plain_escapes_in_one_program_reach_nothing(sandbox: SubprocessSandbox, outside: Outside) -> None:
    code = "\n".join(f"{ESCAPES[name]}\nprint('tried', {name!r})" for name in TOGETHER)
    done = await sandbox.execute(outside.fill_in(code), TIMEOUT_S)
    assert [line for line in done.output.splitlines() if "tried" in line] == [f"tried {name}" for name in TOGETHER]
    assert_untouched(outside, done)


@pytest.mark.parametrize("name", [name for name in ESCAPES if name not in TOGETHER])
async def test_an_escape_reaches_nothing(name: str, sandbox: SubprocessSandbox, outside: Outside) -> None:
    done = await sandbox.execute(outside.fill_in(ESCAPES[name]), SHORT_S if name in ENDLESS else TIMEOUT_S)
    assert_untouched(outside, done)


@pytest.mark.parametrize("name", GREEDY)
async def test_a_greedy_program_ends_for_its_reason(name: str, sandbox: SubprocessSandbox, outside: Outside) -> None:
    code, reason = GREEDY[name]
    began = time.monotonic()
    done = await sandbox.execute(outside.fill_in(code), TIMEOUT_S if reason != "timeout" else SHORT_S)
    assert (done.reason, done.exit_code) == (reason, None)
    assert time.monotonic() - began < TIMEOUT_S
    assert len(done.output) <= 2**16
    assert_untouched(outside, done)


async def test_processor_time_is_limited(sandbox: SubprocessSandbox) -> None:
    code = "from resource import *\nsoft, hard = getrlimit(RLIMIT_CPU)\nprint(soft)\nsetrlimit(RLIMIT_CPU, (1, hard))\n"
    done = await sandbox.execute(code + "while True: pass", 9)
    assert done == Executed(output="10\n", exit_code=None, reason="timeout")


async def test_a_program_has_the_standard_library_and_threads(sandbox: SubprocessSandbox) -> None:
    code = """
        import asyncio, ctypes, decimal, hashlib, json, lzma, random, sqlite3, ssl, tempfile, threading, zlib
        async def add():
            await asyncio.sleep(0)
            return 1 + 1
        print(asyncio.run(add()))
        thread = threading.Thread(target=print, args=("thread",))
        thread.start(); thread.join()
        with tempfile.NamedTemporaryFile() as file:
            print(file.write(b"kept"))
        print(sqlite3.connect(":memory:").execute("select 3").fetchone()[0], random.random() < 1)
        print(open("/dev/null", "w").write("x"), input.__name__, __name__)
    """
    done = await sandbox.execute(textwrap.dedent(code), TIMEOUT_S)
    assert done == Executed(output="2\nthread\n4\n3 True\n1 input __main__\n", exit_code=0)


@pytest.mark.parametrize(
    ("code", "exit_code", "output"),
    [
        ("print('é')", 0, "é\n"),
        ("exit(3)", 3, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("print(input())", 1, "EOFError"),
        ("x = 1\nx / 0", 1, '  File "program.py", line 2, in <module>\n    x / 0\n'),
        ("x = (", 1, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV, ""),
        ("import os; print(os.listdir('.'), os.getcwd())", 0, "[] /tmp\n"),
    ],
)
async def test_output_and_exit_code(code: str, exit_code: int, output: str, sandbox: SubprocessSandbox) -> None:
    done = await sandbox.execute(code, TIMEOUT_S)
    assert done.exit_code == exit_code
    assert done.reason is None
    assert output in done.output
    assert "_sandbox_runner" not in done.output


async def test_output_before_the_time_out_is_kept(sandbox: SubprocessSandbox) -> None:
    done = await sandbox.execute("import time\nprint('so far')\ntime.sleep(60)", 1.0)
    assert done == Executed(output="so far\n", exit_code=None, reason="timeout")


async def test_programs_run_at_the_same_time_and_apart(sandbox: SubprocessSandbox) -> None:
    done: list[str] = []

    async def run(number: int) -> None:
        code = f"import os, time; open('{number}', 'w').close(); time.sleep(0.3); print(*os.listdir('.'))"
        done.append((await sandbox.execute(code, 20)).output)

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(run, number)
    assert sorted(done) == [f"{number}\n" for number in range(6)]


async def test_a_cancelled_call_leaves_no_process(sandbox: SubprocessSandbox, outside: Outside) -> None:
    with anyio.move_on_after(SHORT_S) as scope:
        await sandbox.execute("import time; time.sleep(60)", 60)
    assert scope.cancelled_caught
    assert_untouched(outside, Executed(output="", exit_code=None))


@pytest.mark.usefixtures("sandbox")
def test_programs_end_when_the_host_is_killed(outside: Outside, tmp_path: Path) -> None:
    code = """
        import anyio
        from routewright.backends.tools.subprocess_sandbox import SubprocessSandbox
        sandbox = SubprocessSandbox()
        anyio.run(sandbox.execute, "", 30)
        print("ready", flush=True)
        anyio.run(sandbox.execute, "import time; time.sleep(600)", 600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        while len(outside.survivors()) < 3:
            time.sleep(0.02)
        host.kill()
    assert_untouched(outside, Executed(output="", exit_code=None))


@pytest.mark.usefixtures("sandbox")
async def test_more_memory_and_disk_can_be_given(outside: Outside) -> None:
    sandbox = SubprocessSandbox(memory_bytes=2**30, disk_bytes=2**27, output_bytes=10)
    code = "x = bytearray(2**29); open('a', 'wb').write(bytes(2**26)); print('x' * 9)"
    assert await sandbox.execute(code, 20) == Executed(output="xxxxxxxxx\n", exit_code=0)
    assert (await sandbox.execute("print('x' * 10)", 20)).reason == "output"


def test_it_runs_on_trio(sandbox: SubprocessSandbox, outside: Outside) -> None:
    async def run() -> None:
        assert (await sandbox.execute("print(1 + 1)", TIMEOUT_S)).output == "2\n"
        assert (await sandbox.execute("import time; time.sleep(60)", SHORT_S)).reason == "timeout"
        assert (await sandbox.execute("while True: print('x' * 1000)", TIMEOUT_S)).reason == "output"
        with anyio.move_on_after(SHORT_S) as scope:
            await sandbox.execute("import time; time.sleep(60)", 60)
        assert scope.cancelled_caught
        assert_untouched(outside, Executed(output="", exit_code=None))

    anyio.run(run, backend="trio")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run without privileges")
@pytest.mark.usefixtures("sandbox")
def test_a_host_without_privileges_isolates_too() -> None:
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "env": {}, "cwd": "/"}
    runner = Path(tempfile.mkdtemp()) / "runner.py"  # pytest's folders are for root only
    runner.parent.chmod(0o777)
    shutil.copy(subprocess_sandbox.RUNNER, runner)
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, *subprocess_sandbox.PYTHON[1:-1], str(runner)]
        with suppress(OSError, subprocess.CalledProcessError):
            found = subprocess.run([*command, "paths"], capture_output=True, text=True, check=True, **nobody)
            break
    else:
        pytest.skip("the user nobody cannot run Python here")
    limits = {"memory_bytes": 2**29, "disk_bytes": 2**25, "cpu_s": 9}
    order = {"code": subprocess_sandbox.SELF_TEST, "isolated": True, "paths": found.stdout.splitlines()} | limits
    packed = marshal.dumps(order)
    given = len(packed).to_bytes(8, "little") + packed
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, **nobody | {"cwd": runner.parent}) as host:
        assert host.stdin is not None
        assert host.stderr is not None
        assert host.stdout is not None
        host.stdin.write(given)
        host.stdin.flush()
        assert host.stderr.read() == b"status 0\n"
        assert host.stdout.read() == b"isolated\n"
    shutil.rmtree(runner.parent)


# --- refusals


async def test_a_level_that_cannot_be_built_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        subprocess_sandbox,
        "PYTHON",
        changed(tmp_path, "    unshare(sum(", "    check('unshare', -1)\n    unshare(sum("),
    )
    with pytest.raises(ToolFailed, match=r"^code_exec is refused: this machine cannot isolate programs \(unshare: "):
        await SubprocessSandbox().execute("print(1)", TIMEOUT_S)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("layer", "without", "said"),
    [
        ("restrict_files(order", "(order", "Landlock does not restrict reading"),
        ("filter_calls()\n\n\ndef restrict", "pass\n\n\ndef restrict", "no seccomp filter is loaded"),
        (" | NEW_PID)", ")", "there is no pid namespace"),
        ('"net": 0x40000000', '"net": 0', "the net namespace is still the host's"),
        ("READ_ONLY | NO_SUID | (0 if", "NO_SUID | (0 if", None),
        ('syscall("pivot_root", PIVOT_ROOT[column()], b".", b".")', "pass", ""),
    ],
)
async def test_the_self_test_notices_a_missing_layer(
    layer: str, without: str, said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess_sandbox, "PYTHON", changed(tmp_path, layer, without))
    sandbox = SubprocessSandbox()
    if said is None:  # another layer still holds
        assert (await sandbox.execute("print(1)", TIMEOUT_S)).output == "1\n"
        return
    with pytest.raises(ToolFailed) as raised:
        await sandbox.execute("print(1)", TIMEOUT_S)
    assert said in str(raised.value)


async def test_a_level_that_cannot_be_contained_is_refused(
    accidents: SubprocessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess_sandbox, "PYTHON", ["/no/such/python"])
    with pytest.raises(ToolFailed, match=r"^code_exec is refused: this machine cannot contain programs \("):
        await accidents.execute("print(1)", TIMEOUT_S)


async def test_text_that_cannot_be_encoded_is_an_error_of_the_program(accidents: SubprocessSandbox) -> None:
    assert (await accidents.execute("print('\\ud800')", TIMEOUT_S)).output == "\\ud800\n"
    done = await accidents.execute("print('\ud800')", TIMEOUT_S)
    assert done.exit_code == 1
    assert "UnicodeEncodeError" in done.output


# --- contained


async def test_it_is_a_code_sandbox(accidents: SubprocessSandbox) -> None:
    assert isinstance(accidents, CodeSandbox)
    assert (await accidents.execute("print(1 + 1)", TIMEOUT_S)).output == "2\n"


@pytest.mark.parametrize("name", ["endless_loop", "flood", "memory", "ignored_signals"])
async def test_contained_programs_end_for_their_reason(
    name: str, accidents: SubprocessSandbox, outside: Outside
) -> None:
    code, reason = GREEDY[name]
    done = await accidents.execute(outside.fill_in(code), TIMEOUT_S if reason != "timeout" else SHORT_S)
    assert (done.reason, done.exit_code) == (reason, None)
    assert_untouched(outside, done)


async def test_children_of_a_contained_program_end_with_it(accidents: SubprocessSandbox, outside: Outside) -> None:
    code = "import os, time\nos.fork()\nprint('started')\ntime.sleep(600)"
    done = await accidents.execute(code, 1.5)
    assert (done.output, done.reason) == ("started\nstarted\n", "timeout")
    assert_untouched(outside, done)


async def test_an_orphan_that_keeps_the_output_open_is_not_waited_for(accidents: SubprocessSandbox) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(3)\n    os._exit(0)\nprint('ended')"
    began = time.monotonic()
    assert (await accidents.execute(code, 20)).output == "ended\n"
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    "name", ["passwd", "secret", "tcp", "unix_socket", "fork", "signal_host_group", "root_listing"]
)
async def test_the_corpus_would_notice_an_escape(name: str, accidents: SubprocessSandbox, outside: Outside) -> None:
    code = ESCAPES[name].replace("attempt(os.killpg, HOST, 0)", f"attempt(os.killpg, {os.getpgid(0)}, 0)")
    assert "ESCAPED" in (await accidents.execute(outside.fill_in(code), TIMEOUT_S)).output
