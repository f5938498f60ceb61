"""A test server on loopback: the application under a real uvicorn in its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import uvicorn

from routewright import Console, Router
from routewright.backends.storage.memory import MemoryStorage
from routewright.protocols import Storage
from routewright.server import App, HttpLimits, create_app
from routewright.wire import Environment

SECRET = "a secret for tests, which is long enough for one"
PATIENCE_S = 20.0


class _Server(uvicorn.Server):
    """Ends when it is told to, not at uvicorn's next tick, and gives idle connections no time."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_up = threading.Event()

    async def main_loop(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)
        self._is_up.set()
        await self._ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if running := set(self.server_state.tasks):
            for task in (await asyncio.wait(running, timeout=self.config.timeout_graceful_shutdown))[1]:
                task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        await self.lifespan.shutdown()

    def end(self) -> None:
        """Called in another thread."""
        assert self._is_up.wait(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._ends.set)


@contextmanager
def served(app: Callable[..., Any], port: int = 0, **config: Any) -> Iterator[str]:
    """Serve an ASGI application, on a free port unless one is given. Gives its address."""
    # of a socket that does not say TCP asyncio does not know that it may set TCP_NODELAY, and answers come 40 ms late
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen(512)
    settings = {"log_config": None, "access_log": False, "ws": "none", "server_header": False, "loop": "asyncio"}
    server = _Server(uvicorn.Config(app, **{**settings, "timeout_graceful_shutdown": 5, **config}))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="served")
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.end()
        thread.join(PATIENCE_S)
        bound.close()
        assert not thread.is_alive()


class Site:
    """A Router at an address, with accounts and keys to be made."""

    def __init__(
        self,
        router: Router | None = None,
        *,
        storage: Storage | None = None,
        environment: Environment | None = None,
        limits: HttpLimits | None = None,
        keys: Environment = "sandbox",
    ) -> None:
        """``keys``: of which environment the keys of vendors' clients are."""
        self.keys = keys
        self.storage = storage or MemoryStorage()
        self.router = router or Router.sandbox(storage=self.storage)
        self.console = Console(self.storage, secret=SECRET)
        self.app: App = create_app(self.router, self.console, environment=environment, limits=limits)

    def key(self, account: str = "acme", *, environment: Environment = "production", **terms: Any) -> str:
        """A key to an account, which is set up if it is not there. ``account_...`` are terms of the account."""
        console = self.console.blocking
        of_account = {
            name.removeprefix("account_"): terms.pop(name) for name in [*terms] if name.startswith("account_")
        }
        if account not in [each.name for each in console.accounts()]:
            console.create_account(account, **{"plan": "team", **of_account})
        return console.create_key(account, name="test", environment=environment, **terms).secret.reveal()

    @contextmanager
    def served(self, **config: Any) -> Iterator[str]:
        """Serve it. Gives its address."""
        with served(self.app, **config) as url:
            yield url

    @contextmanager
    def client(self, key: str | None = None, **config: Any) -> Iterator[httpx2.Client]:
        """Serve it, and give a client of it with a key."""
        with self.served(**config) as url, httpx2.Client(base_url=url, headers=bearer(key), timeout=30) as client:
            yield client


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
