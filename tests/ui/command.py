"""``routewright ui`` as a child process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
_LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#link=(\S+)")


class Command:
    """The command as a process."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROUTEWRIGHT_", "OPENAI_"))}
        kept |= {"TMPDIR": str(folder), "BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""} | variables
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        with self.out.open("w") as out, self.err.open("w") as err:
            command = [sys.executable, "-m", "routewright", "ui", "--store", "traces.db", *options]
            self.process = subprocess.Popen(command, cwd=folder, env=kept, stdout=out, stderr=err)
        link = self.until(lambda: _LINK.search(self.out.read_text("utf-8")))
        self.port, self.token = int(link[1]), link[2]
        self.cookie = self.change_token = ""

    def until(self, look: Any) -> Any:
        ends = time.monotonic() + PATIENCE_S
        while not (result := look()):
            assert time.monotonic() < ends, self.err.read_text("utf-8")
            assert self.process.poll() is None, self.err.read_text("utf-8")
            time.sleep(0.02)
        return result

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"}
        headers |= {"Cookie": self.cookie, "X-Session-Token": self.change_token}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        self.cookie = (response.getheader("set-cookie") or self.cookie).partition(";")[0]
        connection.close()
        return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def sign_in(self) -> dict[str, Any]:
        status, session = self.ask("POST", "/session", {"link": self.token})
        assert status == 200
        self.change_token = session["token"]
        return dict(session)


@contextmanager
def running(folder: Path, *options: str, **variables: str) -> Iterator[Command]:
    command = Command(folder, *options, **variables)
    try:
        yield command
    finally:
        command.process.terminate()
        assert command.process.wait(10) == 0, command.err.read_text("utf-8")
