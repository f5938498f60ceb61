"""Named programs that try to escape a code sandbox, and a host environment that detects it.

They run in Python and in interpreters that lack most of its modules. A program prints ``WON``, which is ``ESCAPED``, if
an attempt succeeds. ``FOLDER``, ``PORT`` and ``HOST`` are replaced by a folder, a port and the host's process id.
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

SECRET = "canary-5f1e77"

PREAMBLE = """
WON = 'ESC' + 'APED'
import os, sys, time
try:
    import ctypes, resource, signal, socket, threading
except ImportError:
    pass
def attempt(call, *arguments):
    try:
        result = call(*arguments)
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print(f"{WON} {result}")
"""

ESCAPES = {
    "passwd": 'attempt(open, "/etc/passwd")',
    "secret": 'attempt(open, "FOLDER/secret")',
    "dot_dot": 'attempt(open, "../" * 30 + "etc/passwd"); attempt(os.listdir, "FOLDER/..")',
    "root_listing": 'attempt(os.listdir, "/")',
    "symlink": 'os.symlink("/etc/passwd", "link"); attempt(open, "link")',
    "write_outside": 'attempt(open, "FOLDER/escaped", "w"); attempt(open, "/escaped", "w"); attempt(os.mkdir, "/x")',
    "write_library": 'attempt(open, os.__file__, "a"); attempt(open, os.path.dirname(os.__file__) + "/new.py", "w")',
    "path_descriptor": 'attempt(lambda: os.open("etc/passwd", os.O_RDONLY, dir_fd=os.open("/", os.O_PATH)))',
    "environ_of_host": 'attempt(open, "/proc/HOST/environ"); attempt(open, "/proc/self/environ")',
    "memory_of_self": 'attempt(open, "/proc/self/mem", "r+b"); attempt(open, "/proc/thread-self/mem", "r+b")',
    "inherited_descriptors": """
for number in range(3, 1024):
    try:
        os.fstat(number)
        print(WON, number)
    except OSError:
        pass
""",
    "subclass_walk": """
for kind in ().__class__.__base__.__subclasses__():
    if kind.__name__ == "_wrap_close":
        scope = kind.__init__.__globals__
        attempt(scope["popen"], "id")
        attempt(scope["listdir"], "/etc")
""",
    "system": 'print(WON if os.system("touch FOLDER/escaped") == 0 else "no")',
    "builtins": "attempt(print.__self__.__import__('os').fork); attempt(print.__self__.open, '/etc/passwd')",
    "frames": """
frame = sys._getframe()
while frame:
    if "canary" + "-" in str((frame.f_locals, frame.f_globals)):
        print(WON)
    frame = frame.f_back
""",
    "environment": """
print(os.environ)
pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
index = 0
while pointer and pointer[index]:
    print(pointer[index])
    index += 1
""",
    "forged_code": "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes([100, 255]) * 50)\nf()",
    "deep_recursion": "sys.setrecursionlimit(10**9)\ndef f(): [f() for _ in (1,)]\nf()",
    "fork": "attempt(os.fork)",
    "exec": 'attempt(os.execv, sys.executable, ["python", "-c", f"print({WON!r})"])',
    "subprocess": 'import subprocess; attempt(subprocess.run, ["touch", "FOLDER/escaped"])',
    "signal_host": "attempt(os.kill, HOST, 0); attempt(os.kill, HOST, signal.SIGUSR1)",
    "tcp": 'attempt(socket.create_connection, ("127.0.0.1", PORT), 1)',
    "udp": 'attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))',
    "unix_socket": 'attempt(lambda: socket.socket(socket.AF_UNIX).connect("FOLDER/socket"))',
    "url": 'from urllib.request import urlopen; attempt(urlopen, "http://127.0.0.1:PORT/", None, 1)',
    "names": 'attempt(socket.getaddrinfo, "example.com", 80)',
    "endless_loop": "while True: pass",
    "sleep": "time.sleep(600)",
    "slow_pattern": "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "huge_power": "print(len(str(9 ** 9 ** 9)))",
    "flood": "while True: print('x' * 1000)",
    "memory_in_steps": "x = []\nwhile True: x.append(bytes(2**22))",
    "memory_of_text": "x = 'ab'\nwhile True: x += x",
}
"""One program for each way out; the last seven would never end, or take everything."""


class Outside:
    """A secret file, open sockets and processes that a program must not touch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "secret").write_text(SECRET)
        self._stack = ExitStack()
        self._sockets = [
            self._bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
        ]
        self._port = self._sockets[0].getsockname()[1]
        self._sockets.append(self._bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self._port)))
        self._state = self._look()
        self._processes = processes()

    def close(self) -> None:
        self._stack.close()

    def fill_in(self, code: str) -> str:
        """The program with its placeholders filled in."""
        values = {"FOLDER": self._folder, "PORT": self._port, "HOST": os.getpid()}
        for name, value in values.items():
            code = code.replace(name, str(value))
        return PREAMBLE + code

    def changes(self) -> list[str]:
        """The differences to the initial state."""
        state = self._look()
        return [f"{name}: {old} -> {state[name]}" for name, old in self._state.items() if state[name] != old]

    def survivors(self) -> set[str]:
        """Children of this process that are new."""
        return processes() - self._processes

    def _bound(self, family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        made = self._stack.enter_context(socket.socket(family, kind))
        made.bind(address)
        if kind == socket.SOCK_STREAM:
            made.listen()
        made.setblocking(False)
        return made

    def _look(self) -> dict[str, object]:
        arrived = 0
        for each in self._sockets:
            with suppress(BlockingIOError):
                each.recv(10) if each.type == socket.SOCK_DGRAM else each.accept()[0].close()
                arrived += 1
        return {
            "arrived": arrived,
            "files": sorted(path.name for path in self._folder.iterdir()),
            "secret": (self._folder / "secret").read_text(),
            "library": (Path(os.__file__).stat().st_mtime_ns, Path(os.__file__).stat().st_mode),
            "beside": sorted(name for name in os.listdir(Path(os.__file__).parent) if name != "__pycache__"),
            "roots": [name for name in ("escaped", "x") if os.path.exists(f"/{name}")],
            "folders": os.listdir(tempfile.gettempdir()),
        }


def processes() -> set[str]:
    """The children of this process, by number."""
    children = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                children.add(pid)
    return children
