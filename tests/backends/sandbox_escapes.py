"""Named programs that try to escape a code sandbox, and a host environment that detects it.

They run in Python and in interpreters that lack most of its modules. A program prints ``WON``, which is ``ESCAPED``, if
an attempt succeeds. ``FOLDER``, ``PORT``, ``ABSTRACT`` and ``HOST``
are replaced by a folder, a port, an abstract socket and the host's process id.
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

FILES = {
    "passwd": 'attempt(open, "/etc/passwd")',
    "shadow": 'attempt(open, "/etc/shadow")',
    "homes": 'attempt(os.listdir, "/root/.ssh"); attempt(os.listdir, "/home")',
    "secret": 'attempt(open, "FOLDER/secret")',
    "dot_dot": 'attempt(open, "../" * 30 + "etc/passwd"); attempt(os.listdir, "FOLDER/..")',
    "root_listing": 'attempt(os.listdir, "/")',
    "site_packages": 'if os.listdir(os.path.dirname(os.__file__) + "/site-packages"): print(WON)',
    "symlink": 'os.symlink("/etc/passwd", "link"); attempt(open, "link")',
    "symlinked_folder": 'os.symlink("FOLDER", "link"); attempt(open, "link/escaped", "w")',
    "symlink_race": """
def swap():
    while True:
        for target in ("/tmp/inside", "FOLDER/secret", "/etc/passwd"):
            os.symlink(target, "next")
            os.rename("next", "link")
open("inside", "w").close()
threading.Thread(target=swap, daemon=True).start()
until = time.monotonic() + 0.3
while time.monotonic() < until:
    try:
        with open("link") as opened:
            if opened.read():
                print(WON)
    except OSError:
        pass
""",
    "hard_link": 'attempt(os.link, os.__file__, "link"); attempt(os.link, "FOLDER/secret", "link")',
    "write_outside": 'attempt(open, "FOLDER/escaped", "w"); attempt(open, "/escaped", "w"); attempt(os.mkdir, "/x")',
    "write_library": 'attempt(open, os.__file__, "a"); attempt(open, os.path.dirname(os.__file__) + "/new.py", "w")',
    "change_library": "attempt(os.chmod, os.__file__, 0o777); attempt(os.unlink, os.__file__)",
    "touch_library": 'attempt(os.utime, os.__file__); attempt(os.setxattr, os.__file__, "user.a", b"")',
    "rename_outside": 'open("a", "w").close(); attempt(os.rename, "a", "FOLDER/escaped")',
    "truncate": 'attempt(os.truncate, "FOLDER/secret", 0); attempt(os.truncate, os.__file__, 0)',
    "devices": """
import stat
attempt(os.mknod, "disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
for name in ("mem", "kmsg", "vda", "sda", "shm/escaped", "tty", "ptmx", "kvm", "fuse", "net/tun", "zero"):
    attempt(open, f"/dev/{name}", "r+b", 0)
""",
    "fifo": 'attempt(os.mkfifo, "FOLDER/escaped"); attempt(os.mkfifo, "fifo")',
    "chroot": 'os.mkdir("a"); attempt(os.chroot, "a"); os.chdir("../" * 30); attempt(open, "etc/passwd")',
    "path_descriptor": 'attempt(lambda: os.open("etc/passwd", os.O_RDONLY, dir_fd=os.open("/", os.O_PATH)))',
    "set_uid_file": 'open("a", "w").close(); os.chmod("a", 0o4755); attempt(os.execv, "a", ["a"])',
    "owner": 'open("a", "w").close(); attempt(os.chown, "a", 0, 0); attempt(os.chown, os.__file__, 0, 0)',
    "fill_disk": """
written = 0
try:
    for number in range(200):
        with open(f"file{number}", "wb", 0) as opened:
            for _ in range(4):
                written += opened.write(bytes(2**20))
except OSError as error:
    print(error)
print(WON if written > 2**26 else written)
""",
    "fill_inodes": """
try:
    for number in range(100_000):
        open(f"file{number}", "w").close()
    print(WON)
except OSError as error:
    print(error)
""",
    "huge_file": 'attempt(lambda: os.truncate(os.open("a", os.O_CREAT | os.O_RDWR), 2**40))',
}

PROCFS = {
    "environ_of_host": 'attempt(open, "/proc/HOST/environ"); attempt(open, "/proc/self/environ")',
    "memory_of_self": 'attempt(open, "/proc/self/mem", "r+b"); attempt(open, "/proc/thread-self/mem", "r+b")',
    "memory_of_host": 'attempt(open, "/proc/HOST/mem", "rb"); attempt(open, "/proc/1/mem", "rb")',
    "root_of_init": 'attempt(os.listdir, "/proc/1/root"); attempt(open, "/proc/HOST/root/etc/passwd")',
    "descriptors": 'attempt(os.listdir, "/proc/self/fd"); attempt(os.listdir, "/proc/HOST/fd")',
    "core_pattern": 'attempt(open, "/proc/sys/kernel/core_pattern", "w")',
    "sysrq": 'attempt(open, "/proc/sysrq-trigger", "w")',
    "cgroups": 'attempt(os.listdir, "/sys/fs/cgroup"); attempt(os.listdir, "/sys")',
    "namespace_files": 'attempt(open, "/proc/1/ns/net"); attempt(open, "/proc/HOST/ns/mnt")',
    "inherited_descriptors": """
for number in range(3, 1024):
    try:
        os.fstat(number)
        print(WON, number)
    except OSError:
        pass
""",
}

PYTHON = {
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
    "collector": """
import gc
word = "canary" + "-"
for each in gc.get_objects():
    if isinstance(each, dict):
        for value in list(each.values()):
            if isinstance(value, (str, bytes)) and (word if isinstance(value, str) else word.encode()) in value:
                print(value)
""",
    "environment": """
print(os.environ)
pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
index = 0
while pointer and pointer[index]:
    print(pointer[index])
    index += 1
""",
    "null_pointer": "ctypes.string_at(0)",
    "ptrace": "libc = ctypes.CDLL(None)\nfor pid in (0, 1, HOST): attempt(libc.ptrace, 16 if pid else 0, pid, 0, 0)",
    "forged_code": "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes([100, 255]) * 50)\nf()",
    "deep_recursion": "sys.setrecursionlimit(10**9)\ndef f(): [f() for _ in (1,)]\nf()",
    "set_user": "attempt(os.setuid, 0); attempt(os.setgid, 0); attempt(os.setgroups, [0])",
    "priorities": "attempt(os.nice, -10); attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))",
}

PROCESSES = {
    "fork": "attempt(os.fork)",
    "exec": 'attempt(os.execv, sys.executable, ["python", "-c", f"print({WON!r})"])',
    "exec_shell": 'attempt(os.execv, "/bin/sh", ["sh", "-c", f"echo {WON}"])',
    "exec_library": "attempt(os.execve, os.__file__, ['x'], {})",
    "spawn": 'attempt(os.posix_spawn, "/bin/true", ["true"], {})',
    "subprocess": 'import subprocess; attempt(subprocess.run, ["touch", "FOLDER/escaped"])',
    "multiprocessing": "from multiprocessing import Process; attempt(Process(target=print).start)",
    "fork_bomb": """
until = time.monotonic() + 0.3
while time.monotonic() < until:
    try:
        os.fork()
        print(WON)
    except OSError:
        pass
""",
    "thread_bomb": """
threading.stack_size(65536)
count = 0
try:
    while count < 1000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError as error:
    print(error)
print(WON if count > 100 else count)
""",
    "orphan": """
try:
    os.setsid()
except OSError as error:
    print(error)
for _ in range(2):
    try:
        if os.fork() == 0:
            os.setsid()
            open("FOLDER/escaped", "w").close()
    except OSError as error:
        print(error)
""",
    "memfd": 'attempt(os.memfd_create, "x")',
    "no_death_signal": "print(ctypes.CDLL(None).prctl(1, 0, 0, 0, 0))\nwhile True: time.sleep(60)",
}

SIGNALS = {
    "signal_host": "attempt(os.kill, HOST, 0); attempt(os.kill, HOST, signal.SIGUSR1)",
    "signal_host_group": "attempt(os.killpg, HOST, 0); attempt(os.kill, -HOST, 0)",
    "signal_all": "attempt(os.kill, -1, 0)",
    "signal_many": "for pid in range(3, 70_000):\n    try: os.kill(pid, 0); print(WON, pid)\n    except OSError: pass",
    "signal_own_group": "signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.kill(0, signal.SIGUSR1)",
    "kill_supervisor": """
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try:
        os.kill(1, number)
    except OSError as error:
        print(error)
""",
    "interrupt_supervisor": """
for number in range(1, 65):
    if os.getppid() == 1:
        try: os.kill(1, number)
        except OSError as error: print(error)
print("done")
""",
    "owner_signal": "import fcntl; attempt(fcntl.fcntl, 1, fcntl.F_SETOWN, HOST)",
    "terminal": "import fcntl; attempt(fcntl.ioctl, 0, 0x5412, b'x')",
}

NETWORK = {
    "tcp": 'attempt(socket.create_connection, ("127.0.0.1", PORT), 1)',
    "udp": 'attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))',
    "tcp6": 'attempt(socket.create_connection, ("::1", PORT), 1)',
    "raw_socket": "attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)",
    "packet": "attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)",
    "netlink": "attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "vsock": "attempt(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)",
    "crypto_socket": "attempt(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET, 0)",
    "bluetooth": "attempt(socket.socket, 31, socket.SOCK_RAW, 1)",
    "unix_socket": 'attempt(lambda: socket.socket(socket.AF_UNIX).connect("FOLDER/socket"))',
    "abstract_socket": 'attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0ABSTRACT"))',
    "socket_pair": """
first, second = socket.socketpair()
attempt(first.sendto, b"x", "\\0ABSTRACT")
attempt(first.connect, "\\0ABSTRACT")
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
attempt(pair[0].sendto, b"x", "\\0ABSTRACT")
attempt(pair[0].connect, "FOLDER/socket")
""",
    "inet_pair": "attempt(socket.socketpair, socket.AF_INET)",
    "url": 'from urllib.request import urlopen; attempt(urlopen, "http://127.0.0.1:PORT/", None, 1)',
    "names": 'attempt(socket.getaddrinfo, "example.com", 80)',
    "listen": 'attempt(socket.create_server, ("127.0.0.1", 0))',
}

LIMITS = {
    "raise_limits": """
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        soft, hard = resource.getrlimit(getattr(resource, name))
        if hard != resource.RLIM_INFINITY:
            attempt(resource.setrlimit, getattr(resource, name), (hard + 1, hard + 1))
            attempt(resource.setrlimit, getattr(resource, name), (-1, -1))
""",
    "limits_of_host": "attempt(resource.prlimit, HOST, resource.RLIMIT_NOFILE, (1, 1))",
    "limits_of_supervisor": "attempt(resource.prlimit, 1, resource.RLIMIT_CPU, (0, 0))",
    "open_files": "files = [os.dup(1) for _ in range(500)]\nprint(WON)",
    "core_dump": "os.abort()",
}

GREEDY = {
    "endless_loop": "while True: pass",
    "sleep": "time.sleep(600)",
    "ignored_signals": (
        "for number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    ),
    "loop_at_exit": "import atexit; atexit.register(time.sleep, 600)",
    "thread_left": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "slow_pattern": "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "huge_power": "print(len(str(9 ** 9 ** 9)))",
    "closed_streams": "os.close(0); os.close(1); os.close(2); time.sleep(600)",
    "flood": "while True: print('x' * 1000)",
    "flood_of_errors": "while True: os.write(2, b'x' * 100_000)",
    "flood_in_one": "print('x' * 10_000_000)",
    "memory": "x = bytearray(2**30)",
    "memory_in_steps": "x = []\nwhile True: x.append(bytes(2**22))",
    "memory_of_list": "x = [0]\nwhile True: x += x",
    "memory_of_text": "x = 'ab'\nwhile True: x += x",
}
"""Programs that would never end, or take everything."""
ESCAPES = FILES | PROCFS | PYTHON | PROCESSES | SIGNALS | NETWORK | LIMITS | GREEDY


class Outside:
    """A secret file, open sockets and processes that a program must not touch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "secret").write_text(SECRET)
        self._abstract = f"routewright-{os.getpid()}"
        self._stack = ExitStack()
        self._sockets = [
            self._bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
            self._bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self._abstract}"),
        ]
        self._port = self._sockets[0].getsockname()[1]
        self._sockets.append(self._bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self._port)))
        self._state = self._look()
        self._processes = processes()

    def close(self) -> None:
        self._stack.close()

    def fill_in(self, code: str) -> str:
        """The program with its placeholders filled in."""
        values = {"FOLDER": self._folder, "PORT": self._port, "ABSTRACT": self._abstract, "HOST": os.getpid()}
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
