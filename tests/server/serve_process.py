"""``routewright serve`` as a child process on loopback, and a vendor server that answers on demand."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

from routewright.backends.providers.hosts import ENDPOINTS
from tests.upstream import Answer, Gate, Piece, Upstream

PATIENCE_S = 30.0
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
_KEY = re.compile(r"sk_(live|test)_[0-9A-Za-z]+")
_AT = re.compile(r"serves at (https?)://127\.0\.0\.1:(\d+)")


class Server:
    """One that runs, or ran."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.opened: list[HTTPConnection] = []
        kept = {name: value for name, value in os.environ.items() if not _is_configured_by(name)}
        kept.pop("PYTHONUNBUFFERED", None)
        self.out, self._err = folder / "out.txt", folder / "err.txt"
        command = [sys.executable, "-m", "routewright", "serve", "--port", "0", *options]
        with self.out.open("w") as out, self._err.open("a") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, env=kept | variables, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def log(self) -> str:
        """What stands on its standard error, and on those of the servers before it in the folder."""
        return self._err.read_text("utf-8")

    @property
    def page(self) -> str:
        """What it has said when it was ready."""
        self.until(lambda: "serves at" in self.out.read_text("utf-8"))
        return self.out.read_text("utf-8")

    @property
    def port(self) -> int:
        found = _AT.search(self.page)
        assert found is not None, self.page
        return int(found[2])

    @property
    def keys(self) -> dict[str, str]:
        """Those of the page: ``live`` and ``test``."""
        return {found[1]: found[0] for found in _KEY.finditer(self.page)}

    @property
    def children(self) -> list[int]:
        """The workers that run, and one that prepares."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sorted(int(child) for child in listed if b"spawn_main" in _command_line(child))

    def until(self, happened: Callable[[], object]) -> None:
        """Wait for something that its process brings about."""
        ends = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < ends, f"{self.out.read_text('utf-8')}\n{self.log}"
            assert self.process.poll() is None or happened(), self.log
            time.sleep(0.02)

    def connect(self, context: ssl.SSLContext | None = None) -> HTTPConnection:
        if context is not None:
            made: HTTPConnection = HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_S, context=context)
        else:
            made = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        self.opened.append(made)
        return made

    def ask(
        self, key: str, connection: HTTPConnection | None = None, path: str = "/v1/route", **more: Any
    ) -> HTTPResponse:
        """Send a request, and give the response as it begins."""
        connection = connection or self.connect()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({**HELLO, **more}), headers)
        return connection.getresponse()

    def signal(self, *numbers: int) -> None:
        for number in numbers:
            self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)


def _command_line(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def _is_configured_by(name: str) -> bool:
    vendors = {each for host in ENDPOINTS.values() for each in (*host.key_variables, host.url_variable)}
    return name.startswith("ROUTEWRIGHT_") or name in vendors


@contextmanager
def serving(folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    """Serve until the end of the block, if it does not end before."""
    server = Server(folder, *options, **variables)
    try:
        yield server
    finally:
        for connection in server.opened:
            connection.close()
        if server.process.poll() is None:
            server.signal(signal.SIGTERM)
            try:
                server.process.wait(10)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait(10)


class Vendor(Upstream):
    """Speaks chat completions on the loopback: a first word at once, the rest when it is let go."""

    def __init__(self) -> None:
        self.gate = Gate()
        first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "First"}}]}
        last = {"choices": [{"index": 0, "delta": {"content": " last"}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
        pieces: list[Piece] = [
            b"data: %s\n\n" % json.dumps({"id": "x", "object": "chunk", **data}).encode()
            for data in (first, last, usage)
        ]
        pieces = [pieces[0], self.gate, *pieces[1:], b"data: [DONE]\n\n"]
        answer = Answer(pieces, headers={"content-type": "text/event-stream"}, chunked=True)
        super().__init__(lambda request: answer)

    @property
    def variables(self) -> dict[str, str]:
        """Let a server call it."""
        return {"OPENAI_API_KEY": "sk-of-the-vendor", "OPENAI_BASE_URL": self.root}


def free_ports(count: int) -> int:
    """The first of so many in a row that were free a moment ago, beyond those that are given out by chance."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        with ExitStack() as taken:
            try:
                for place in range(count):
                    taken.enter_context(socket.create_server(("127.0.0.1", first + place)))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")
