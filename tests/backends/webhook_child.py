"""Delivers the webhooks of a store: ``python -m tests.backends.webhook_child STORE PORT``.

Forks a dispatcher for each line on standard input, which saves loading the library again, and writes its process id.
Each POST names the process that sent it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from routewright import SqliteStorage
from routewright._core.crypto import derive
from routewright._core.webhooks.endpoint import PURPOSE
from routewright._engine import webhooks
from routewright.backends.clock import SystemClock
from routewright.wire import WebhookAnswer

KEY = derive(b"root" * 8, PURPOSE)
LEASE_S = 3.0


class Loopback:
    """Posts over a new connection each time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            sent = {**headers, "X-Process": str(os.getpid()), "Content-Length": str(len(body))}
            lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            writer.write(f"POST {url} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            return WebhookAnswer(int((await reader.readline()).split()[1]))
        finally:
            writer.close()

    async def aclose(self) -> None:
        """Nothing is kept open."""


async def deliver(store: str, port: int) -> None:
    storage = SqliteStorage(store)
    dispatcher = webhooks.Dispatcher(
        storage, lambda: Loopback(port), lambda: (KEY,), SystemClock(), poll_s=0.02, max_attempts=6
    )
    await dispatcher.run()


def main(store: str, port: str) -> None:
    webhooks.LEASE_S, vars(webhooks)["ATTEMPT_S"] = LEASE_S, 1.0
    children = []
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            asyncio.run(deliver(store, int(port)))
            os._exit(1)
        children.append(child)
        print(child, flush=True)
    for child in children:  # the test has ended, in whatever way
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
