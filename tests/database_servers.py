"""Real servers on loopback for tests and benchmarks: PostgreSQL, PgBouncer, and Redis or Valkey.

Each runs an installed program (on Linux) in a temporary folder on a free port, as ``nobody`` if this process is root.
It ends with its ``with`` block, and with this process, even if that is killed."""

from __future__ import annotations

import atexit
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote

import pytest

HOST = "127.0.0.1"
PATIENCE_S = 30.0
Auth = Literal["trust", "scram-sha-256"]
_PORTS = range(10_000, 22_000)
"""Below the ephemeral ports: otherwise a client that retries while a server is down may get the server's own port. The
bus of a Redis Cluster is 10,000 above."""
_NOBODY = 65_534


class NotInstalled(FileNotFoundError):
    """The program of a server is not installed. The message says how to install it."""


class Server:
    """A server that keeps its port and data across restarts."""

    folder: Path
    """Its data and its ``log``, until the block is left."""
    _made_by: Sequence[str] = ("true",)
    _files: Mapping[str, str]
    _command: Sequence[str]
    _probe: Sequence[str]  # a command, after what it prints when the server is up

    def __init__(self) -> None:
        self.port = free_port()

    def __enter__(self) -> Self:
        self.folder = _make_folder()
        _run(self.folder, *self._made_by)
        for name, text in self._files.items():
            _run(self.folder, "sh", "-c", 'printf %s "$1" > "$0"', name, text)  # by its user
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it after ``stop`` or ``kill``. Raises ``RuntimeError`` with its log."""
        no, log = subprocess.DEVNULL, self.folder / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdin=no, stdout=out, stderr=out, **_apart(self.folder))
        # its stdin closes when this process ends in any way
        # the dying server may still write a file, so that removing its folder fails
        clean_up = 'for _ in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && break; sleep 0.2; done'
        # PostgreSQL ends its children on QUIT; others ignore it if a shell started the tests in the background
        script = f"read _; kill -QUIT $0; kill -TERM $0; kill -CONT $0; {clean_up}"
        leash = ["sh", "-c", script, f"{self._process.pid}", f"{self.folder}"]
        self._leash = subprocess.Popen(leash, stdin=subprocess.PIPE, stdout=no, stderr=no, start_new_session=True)
        up, *probe = self._probe
        until = time.monotonic() + PATIENCE_S
        while up not in _run(self.folder, *probe, check=False):
            if self._process.poll() is not None or time.monotonic() > until:
                said = log.read_text()[-2_000:]
                self.__exit__()
                raise RuntimeError(f"{' '.join(self._command)} did not start:\n{said}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Shut it down cleanly, even with open connections."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """End all its processes by SIGKILL."""
        if self._process.poll() is None:
            children = self.pause()
            for child in children:
                os.kill(child, signal.SIGKILL)
            # their shared memory is free once they are zombies, which they stay while the parent is stopped
            while not all(") Z " in Path(f"/proc/{child}/stat").read_text() for child in children):
                time.sleep(0.001)
            self._process.kill()
            self._process.wait()
        self._leash.kill()
        self._leash.communicate()

    def pause(self) -> list[int]:
        """Stop all its processes by SIGSTOP: connections stay open without answers. Returns its children."""
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)  # first, so that it starts no more children
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for child in children:
            os.kill(child, signal.SIGSTOP)
        return children

    def resume(self) -> None:
        """Continue all its processes."""
        for pid in (*self.pause(), self._process.pid):
            os.kill(pid, signal.SIGCONT)


class PostgresServer(Server):
    """PostgreSQL with the superuser ``postgres``, UTF-8 and the C locale. ``settings`` go into its configuration.

        with PostgresServer(durable=False, max_connections=50) as server:
            storage = open_storage(server.database())

    ``durable=False`` turns off syncs, which matter only in a power cut.
    """

    def __init__(self, *, durable: bool = True, auth: Auth = "trust", **settings: str | int) -> None:
        super().__init__()
        self.auth = auth
        self.url = f"postgresql://postgres:routewright@{HOST}:{self.port}/postgres"
        self._names = (f"test_{number}" for number in count(1))
        loose = {} if durable else {"fsync": "off", "full_page_writes": "off"}
        self._settings: dict[str, Any] = {**loose, "unix_socket_directories": "", **settings}
        given = [f"--{name}={value}" for name, value in self._settings.items()]
        self._command = [find("postgres"), "-D", "data", "-h", HOST, "-p", str(self.port), *given]
        self._probe = ["accepting", find("pg_isready"), "-h", HOST, "-p", str(self.port)]
        self._made_by = ["cp", "-a", str(_new_cluster()), "data"]
        self._files = {"data/pg_hba.conf": f"host all,replication all {HOST}/32 {auth}\n"}

    def database(self) -> str:
        """Create an empty database. Returns its URL."""
        name = next(self._names)
        self.sql(f"CREATE DATABASE {name}")
        return self.url.removesuffix("postgres") + name

    def sql(self, *statements: str) -> str:
        """Run statements one by one in the database ``postgres``. Returns the values they give, line by line."""
        given = [word for statement in statements for word in ("-c", statement)]
        return _run(self.folder, find("psql"), "-XAtqv", "ON_ERROR_STOP=1", *given, self.url)

    def replica(self) -> PostgresServer:
        """A hot standby, copied when its block is entered."""
        made = PostgresServer(auth=self.auth, **self._settings)
        made._made_by = [find("pg_basebackup"), *"-R -c fast --no-sync -D data -d".split(), self.url]
        return made

    def promote(self) -> None:
        """Promote a replica, and wait until it accepts writes."""
        self.sql("SELECT pg_promote()")


class PgBouncer(Server):
    """PgBouncer in front of a server, in transaction mode. ``settings`` are those of its file."""

    def __init__(self, of: PostgresServer, **settings: str | int) -> None:
        super().__init__()
        self.url = at_port(of.url, self.port)
        given = {"listen_addr": HOST, "listen_port": self.port, "unix_socket_dir": "", "pool_mode": "transaction"}
        given |= {"auth_type": of.auth, "auth_file": "users", **settings}
        lines = (f"{name} = {value}\n" for name, value in given.items())
        ini = f"[databases]\n* = host={HOST} port={of.port}\n[pgbouncer]\n{''.join(lines)}"
        self._files = {"pgbouncer.ini": ini, "users": '"postgres" "routewright"\n'}
        self._command = [find("pgbouncer"), "pgbouncer.ini"]
        self._probe = ["accepting", find("pg_isready"), "-h", HOST, "-p", str(self.port)]


class RedisServer(Server):
    """Redis, or Valkey as ``program``. ``settings`` are those of its file, with ``_`` for ``-``; nothing is saved.

        with RedisServer(appendonly="yes", requirepass="secret") as server:
            coordination = open_coordination(server.url)

    ``cluster=True`` makes a cluster of one, which refuses commands on keys of several slots and starts in two seconds.
    """

    def __init__(self, program: str = "redis-server", *, cluster: bool = False, **settings: str | int) -> None:
        super().__init__()
        user = f"default:{settings['requirepass']}@" if "requirepass" in settings else ""
        self._password = str(settings.get("requirepass", ""))
        self.url = f"redis://{user}{HOST}:{self.port}/0"
        slots = {"cluster_enabled": "yes", "cluster_announce_ip": HOST} if cluster else {}
        given = {"port": self.port, "bind": HOST, "save": "", **slots, **settings}
        self._files = {"conf": "".join(f'{name.replace("_", "-")} "{value}"\n' for name, value in given.items())}
        self._command = [find(program), "conf"]
        self._ask = [find(program.replace("server", "cli")), "-u", self.url]
        self._probe = ["PONG", *self._ask, "PING"]
        if cluster:
            ask = " ".join(self._ask)
            self._probe = ["state:ok", "sh", "-c", f"{ask} CLUSTER ADDSLOTS $(seq 0 16383); {ask} CLUSTER INFO"]

    def flush(self) -> None:
        """Delete all that it holds."""
        with socket.create_connection((HOST, self.port), PATIENCE_S) as connection:
            for words in [["AUTH", unquote(self._password)]] * bool(self._password) + [["FLUSHALL"]]:
                parts = b"".join(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words)
                connection.sendall(b"*%d\r\n%b" % (len(words), parts))
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(100), b""))
        assert answer.endswith(b"+OK\r\n"), answer


def at_port(url: str, port: int) -> str:
    """The URL of a server, by way of what stands in front of it."""
    return re.sub(rf"(?<={HOST}:)\d+", str(port), url)


def free_port() -> int:
    """A free port on loopback."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as tried:
            if tried.connect_ex((HOST, port)):
                return port


def find(program: str) -> str:
    """The path of a program, of PostgreSQL the newest. Raises ``NotInstalled``."""
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name), reverse=True)
    found = shutil.which(program, path=os.pathsep.join([*map(str, newest), os.environ["PATH"], "/usr/sbin"]))
    if found is None:
        raise NotInstalled(f"{program} is not installed: apt install {program.replace('postgres', 'postgresql')}")
    return found


def need(program: str) -> None:
    """Skip the test if a program is missing, or fail it if the environment requires servers."""
    try:
        find(program)
    except NotInstalled as missing:
        (pytest.fail if os.environ.get("TEST_SERVERS") == "required" else pytest.skip)(str(missing))


@cache
def _new_cluster() -> Path:
    """What initdb makes in a second, for all servers of this process."""
    folder = _make_folder()
    atexit.register(shutil.rmtree, folder)
    initdb = f"{find('initdb')} -D data -U postgres --pwfile pw -E UTF8 --locale C --no-sync"
    _run(folder, "sh", "-c", f"echo routewright > pw; {initdb}")
    return folder / "data"


def _run(folder: Path, *command: str, check: bool = True) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **_apart(folder))
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return str(done.stdout).strip()


def _apart(folder: Path) -> dict[str, Any]:
    """Options of ``Popen``: folder, user, environment and a new session."""
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, "start_new_session": True, **user}


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="routewright-"))
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    return folder
