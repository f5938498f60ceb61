"""Confines itself and runs one program. ``subprocess_sandbox`` starts it as a script with only the standard library.

The order arrives on standard input. There are three processes: this one, the supervisor and the program. At the
isolated level, the supervisor is the first process of a pid namespace: when it ends, the kernel kills all others in it.
The report goes to standard error: ``status`` and the wait status, or ``refused`` and the reason. All processes end when
the host writes another byte, closes standard input or dies.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import signal
import struct
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

NOBODY = 65534
NAMESPACES = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "net": 0x40000000}
NEW_PID, NEW_USER = 0x20000000, 0x10000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
PR_DEATH_SIGNAL, PR_SUBREAPER, PR_NO_NEW_PRIVS, PR_SECCOMP, PR_SECCOMP_FILTER = 1, 36, 38, 22, 2
REAP_S = 0.5
"""How long to wait for killed children of a contained program."""
READ, WRITE, READ_DIR, TRUNCATE = 1 << 2, 1 << 1, 1 << 3, 1 << 14
CHANGE = WRITE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | TRUNCATE
"""Landlock: write; remove folders and files; create folders, files and symbolic links; move; truncate."""
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""File rights that Landlock handles, by ABI version. Later versions add ioctl on devices."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the column in the system call numbers below, and the audit architecture."""
NEWEST_CALL = 461
"""Newest known system call. Calls with higher numbers fail as nonexistent."""
DENIED = """
fork:57: vfork:58: execve:59:221 execveat:322:281 ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271
process_madvise:440:440 process_mrelease:448:448 kcmp:312:272 pidfd_open:434:434 pidfd_getfd:438:438
pidfd_send_signal:424:424 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 open_tree:428:428
move_mount:429:429 fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433 mount_setattr:442:442
statmount:457:457 listmount:458:458 setns:308:268 unshare:272:97 bpf:321:280 perf_event_open:298:241
userfaultfd:323:282 io_uring_setup:425:425 io_uring_enter:426:426 io_uring_register:427:427 io_setup:206:0
io_submit:209:2 add_key:248:217 request_key:249:218 keyctl:250:219 kexec_load:246:104 kexec_file_load:320:294
reboot:169:142 init_module:175:105 finit_module:313:273 delete_module:176:106 swapon:167:224 swapoff:168:225
acct:163:89 quotactl:179:60 quotactl_fd:443:443 syslog:103:116 settimeofday:164:170 clock_settime:227:112
adjtimex:159:171 clock_adjtime:305:266 sethostname:170:161 setdomainname:171:162 iopl:172: ioperm:173:
modify_ldt:154: personality:135:92 vhangup:153:58 name_to_handle_at:303:264 open_by_handle_at:304:265
fanotify_init:300:262 fanotify_mark:301:263 inotify_init:253: inotify_init1:294:26 memfd_create:319:279
memfd_secret:447:447 shmget:29:194 shmat:30:196 shmctl:31:195 semget:64:190 semop:65:193 semtimedop:220:192
semctl:66:191 msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181
move_pages:279:239 migrate_pages:256:238 mbind:237:235 set_mempolicy:238:237 remap_file_pages:216:234
splice:275:76 tee:276:77 vmsplice:278:75 uselib:134: ustat:136: sysfs:139: lookup_dcookie:212:18 nfsservctl:180:42
mlock:149:228 mlock2:325:284 mlockall:151:230 sched_setscheduler:144:119 sched_setattr:314:274 setpriority:141:140
ioprio_set:251:30 flock:73:32 mknod:133: mknodat:259:33 socket:41:198 capset:126:91
"""
CLONE, SOCKETPAIR, PRLIMIT, IOCTL, PIVOT_ROOT, CLONE3 = (56, 220), (53, 199), (302, 261), (16, 29), (155, 41), 435
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, NOT_PERMITTED, NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x50000 | 1, 0x50000 | 38

libc = ctypes.CDLL(None, use_errno=True)
prctl = getattr(libc, "prctl", lambda *_: 0)  # Linux only; the contained level works without it
libc.syscall.restype = ctypes.c_long
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def main() -> None:
    """Read the order and fork. Only the process of the program returns from the forks: it confines itself and runs."""
    order = marshal.loads(read_exactly(int.from_bytes(read_exactly(8), "little")))
    report = os.dup(2)
    os.dup2(1, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # the kernel kills the program before its host
    try:
        if order["isolated"]:
            enter_namespaces(order)
        prctl(PR_SUBREAPER, 1, 0, 0, 0)
        if supervisor := os.fork():
            wait_for_host(supervisor, report, isolated=order["isolated"])
        prctl(PR_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if not order["isolated"]:
            os.setpgid(0, 0)
        if program := os.fork():
            while True:  # reap children until the program ends
                pid, status = os.waitpid(-1, 0)
                if pid == program:
                    os.write(report, f"status {status}\n".encode())
                    os._exit(0)
        prctl(PR_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        confine(order)
    except Exception as error:
        os.write(report, f"refused {error}\n".encode())
        os._exit(1)
    os.closerange(3, 4096)
    run(order["code"])


def read_exactly(size: int) -> bytes:
    """Read exactly ``size`` bytes of standard input. Exits if it ends earlier."""
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


# --- the processes around the program


def wait_for_host(supervisor: int, report: int, *, isolated: bool) -> NoReturn:
    """Wait until the host writes a byte, closes standard input or dies. Then kill and reap all other processes."""
    if not isolated:
        with suppress(OSError):  # the supervisor did it itself, or has ended
            os.setpgid(supervisor, supervisor)
    for descriptor in (report, 1, 2):
        os.close(descriptor)
    os.read(0, 1)
    with suppress(ProcessLookupError):
        os.kill(supervisor, signal.SIGKILL) if isolated else os.killpg(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)  # the first process of a pid namespace ends after all others
    until = time.monotonic() + REAP_S
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
    os._exit(0)


# --- namespaces and the file system


def enter_namespaces(order: dict[str, Any]) -> None:
    """Leave the host's namespaces and file system. Root becomes nobody."""
    uid, gid = os.geteuid(), os.getegid()
    wanted = {name: flag for name, flag in NAMESPACES.items() if uid or name != "user"}
    before = {name: os.readlink(f"/proc/self/ns/{name}") for name in wanted}
    unshare(sum(wanted.values()) | NEW_PID)
    for name, link in before.items():
        if os.readlink(f"/proc/self/ns/{name}") == link:
            raise OSError(f"the {name} namespace is still the host's")
    if uid:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as opened:
                opened.write(text)
    check("sethostname", libc.sethostname(b"sandbox", 7))
    enter_root(os.getcwd(), order["paths"], order["disk_bytes"])
    if not uid:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        unshare(NEW_USER)


def enter_root(base: str, paths: list[str], disk_bytes: int) -> None:
    """Change to a root with the paths, read-only, an empty ``/tmp``, ``/dev/null`` and ``/dev/urandom``."""
    os.umask(0o022)
    mount("none", "/", None, REC | PRIVATE)
    mount("tmpfs", base, "tmpfs", NO_SUID | NO_DEV, "size=1m,nr_inodes=4k,mode=755")
    os.mkdir(f"{base}/tmp")
    size = f"size={disk_bytes},nr_inodes=1k,mode=1777"
    mount("tmpfs", f"{base}/tmp", "tmpfs", NO_SUID | NO_DEV | NO_EXEC, size)
    touch(f"{base}/.unlisted")
    for path in (*paths, "/dev/null", "/dev/urandom"):
        target = base + path
        is_device = path.startswith("/dev/")
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            touch(target)
        mount(os.path.realpath(path), target, None, BIND | REC)
        attributes = struct.pack("QQQQ", READ_ONLY | NO_SUID | (0 if is_device else NO_DEV), 0, 0, 0)
        syscall("mount_setattr", MOUNT_SETATTR, -100, os.fsencode(target), 0x8000, attributes, len(attributes))
        for installed in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{target}/{installed}"):
                mount("tmpfs", f"{target}/{installed}", "tmpfs", READ_ONLY, "size=4k")
    mount("none", base, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEV)
    os.chdir(base)
    syscall("pivot_root", PIVOT_ROOT[column()], b".", b".")
    check("umount2", libc.umount2(b".", 2))
    os.chdir("/tmp")


def touch(path: str) -> None:
    """Create an empty file."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """``mount(2)``."""
    texts = [os.fsencode(text) if text is not None else None for text in (source, target, kind, data)]
    check(f"mount of {source}", libc.mount(*texts[:3], flags, texts[3]))


def unshare(flags: int) -> None:
    """``unshare(2)``."""
    check("unshare", libc.unshare(flags))


# --- limits, Landlock and seccomp of the program


def confine(order: dict[str, Any]) -> None:
    """Drop the program's privileges and set its limits. The program cannot undo any of this."""
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, order["cpu_s"]),
        (resource.RLIMIT_FSIZE, order["disk_bytes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, order["memory_bytes"]),
    ]
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["isolated"]:
        os.setsid()  # kill(0) reaches a process group across pid namespaces
        # only here: without a user namespace, the limit counts all processes of the user
        limits.append((resource.RLIMIT_NPROC, 64))
    for limit, most in limits:
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # the soft CPU limit sends SIGXCPU, the hard one SIGKILL
        soft = max(most - 1, 0) if limit == resource.RLIMIT_CPU else most
        resource.setrlimit(limit, (soft, most))
    with suppress(AttributeError):  # not in every libc
        libc.mallopt(-8, 2)  # at most two arenas: each takes 64 MiB of address space
    if order["isolated"]:
        check("prctl", prctl(PR_NO_NEW_PRIVS, 1, 0, 0, 0))
        check("capset", libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)))
        restrict_files(order["paths"])
        filter_calls()


def restrict_files(paths: list[str]) -> None:
    """Landlock: the paths are readable, ``/tmp`` is writable; no TCP, no signals to processes outside."""
    version = syscall("landlock", LANDLOCK_CREATE, None, 0, 1)
    handled = RIGHTS.get(version, (1 << 16) - 1)
    words = [handled, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    ruleset = syscall("landlock", LANDLOCK_CREATE, struct.pack(f"{len(words)}Q", *words), 8 * len(words), 0)
    rules = [(path, READ | READ_DIR if os.path.isdir(path) else READ) for path in paths]
    rules += [("/tmp", READ | READ_DIR | CHANGE), ("/dev/null", READ | WRITE | TRUNCATE), ("/dev/urandom", READ)]
    for path, rights in rules:
        opened = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", rights & handled, opened)
        syscall(f"landlock of {path}", LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(opened)
    syscall("landlock", LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def filter_calls() -> None:
    """Load the seccomp filter."""
    rows = seccomp_rows(*MACHINES[os.uname().machine])
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code))
    check("seccomp", prctl(PR_SECCOMP, PR_SECCOMP_FILTER, program, 0, 0))


def seccomp_rows(here: int, architecture: int) -> list[tuple[int, int, int, int]]:
    """The filter: kills other architectures; allows threads but no processes, and sockets only as pairs."""
    rows = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    rows += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]  # x32 calls
    rows += [(AT_LEAST, 0, 1, NEWEST_CALL + 1), (RETURN, 0, 0, NO_SUCH_CALL)]
    rows += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, NO_SUCH_CALL)]  # its flags are in memory; libc falls back to clone
    for entry in DENIED.split():
        number = entry.split(":")[1:][here]
        if number:
            rows += [(EQUAL, 0, 1, int(number)), (RETURN, 0, 0, NOT_PERMITTED)]
    # allowed: clone with CLONE_THREAD, socketpair of AF_UNIX, prlimit of the process itself
    for call, test, value in ((CLONE, ANY_BIT, 0x10000), (SOCKETPAIR, EQUAL, 1), (PRLIMIT, EQUAL, 0)):
        rows += [(EQUAL, 0, 4, call[here]), (LOAD, 0, 0, 16), (test, 0, 1, value)]
        rows += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_PERMITTED)]
    rows += [(EQUAL, 0, 4, IOCTL[here]), (LOAD, 0, 0, 24), (EQUAL, 0, 1, 0x5412)]  # TIOCSTI types into a terminal
    rows += [(RETURN, 0, 0, NOT_PERMITTED), (RETURN, 0, 0, ALLOW)]
    return [*rows, (RETURN, 0, 0, ALLOW)]


def column() -> int:
    """The column of this machine's system call numbers. Raises ``OSError`` if there is none."""
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no system call table for {machine}")
    return MACHINES[machine][0]


def syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """``syscall(2)``."""
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return check(name, libc.syscall(ctypes.c_long(number), *passed))


def check(name: str, result: int) -> int:
    """Return the result of a call. Raises ``OSError`` if it failed."""
    if result < 0:
        raise OSError(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


# --- the program


def run(code: str) -> None:
    """Run the program as ``__main__``. The interpreter exits as after any script."""
    import builtins
    from types import ModuleType

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.argv, sys.excepthook = ["program.py"], lambda *raised: show(code, *raised)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "program.py", "exec", dont_inherit=True), module.__dict__)


def show(code: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback, without frames of this file. If out of memory, exit by SIGUSR2 instead."""
    if issubclass(kind, MemoryError):
        os.write(2, b"MemoryError\n")
        os.kill(os.getpid(), signal.SIGUSR2)
    import linecache
    import traceback

    linecache.cache["program.py"] = (len(code), None, code.splitlines(keepends=True), "program.py")
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def print_paths() -> None:
    """Print the paths that the program may read, one per line: the standard library and its shared libraries."""
    print(*filter(os.path.exists, sys.path), sep="\n")
    for name in "zlib _bz2 _lzma _ctypes _hashlib _ssl _sqlite3 _uuid _decimal pyexpat".split():
        with suppress(ImportError):
            __import__(name)
    with suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")  # glibc loads it when it cancels a thread
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    library = os.path.realpath(os.path.dirname(os.__file__))
    loaded = {path for path in mapped if os.path.exists(path) and not path.startswith(f"{library}/")}
    for folder in {os.path.dirname(path) for path in loaded}:
        # the loader asks for libffi.so.8, a link to libffi.so.8.1.2
        print(*(entry.path for entry in os.scandir(folder) if os.path.realpath(entry.path) in loaded), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["paths"]:
        print_paths()
    else:
        main()
