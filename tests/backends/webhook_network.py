"""Receivers of webhooks on loopback, and a network limited to it: DNS is scripted, connections are recorded."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
Write = Callable[[bytes], Awaitable[None]]
Respond = Callable[["Connection"], Awaitable[None]]
Lookup = Iterable[Any] | BaseException | Callable[[], Iterable[Any]]
"""What one lookup gives: addresses, as text or as they come from the system; or what it raises."""


class Connection:
    """One connection to a receiver, with the last request that came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""
        self.body = b""

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Wait until the client closes the connection."""
        await self.reader.read()

    def reset(self) -> None:
        """End it by a reset."""
        self.writer.transport.abort()

    async def next_request(self) -> None:
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        self.body = await self.reader.readexactly(int(self.header("content-length") or 0))

    def header(self, name: str) -> str | None:
        lines = [line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:]]
        return next((value.strip() for key, _, value in lines if key.lower() == name), None)


class Receiver:
    """Answers POSTs by ``respond`` and keeps what came."""

    def __init__(self, respond: Respond | bytes = OK) -> None:
        self.respond = respond
        self.port = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        """One entry a connection that has ended."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        connection = Connection(reader, writer)
        try:
            while True:
                await connection.next_request()
                self.requests.append((connection.head, connection.body))
                if isinstance(self.respond, bytes):
                    await connection.write(self.respond)
                else:
                    await self.respond(connection)
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self.ended.put_nowait(None)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def receiving(respond: Respond | bytes = OK, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(respond)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()
        await server.wait_closed()


class Net:
    """Replaces the network. Addresses without a route refuse connections and are never contacted."""

    def __init__(self) -> None:
        self.routes: dict[str, int] = {}
        """Addresses that are served, by ports of loopback."""
        self.connects: list[str] = []
        """Addresses that somebody tried to connect to."""
        self.sockets = 0
        """Sockets of the Internet that were made."""
        self.lookups: list[str] = []
        self._scripts: dict[str, Iterator[Lookup]] = {}

    def script(self, name: str, lookups: Iterable[Lookup]) -> None:
        """What the lookups of a name give, one after the other."""
        self._scripts[name] = iter(lookups)

    def getaddrinfo(self, host: str, port: int, *_: object, **__: object) -> list[Any]:
        if host.endswith(".invalid"):  # a Router of another test still looks for its database
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        self.lookups.append(host)
        found = next(self._scripts[host])
        if isinstance(found, BaseException):
            raise found
        return [info(each, port) for each in (found() if callable(found) else found)]

    def try_connect(self, address: Any) -> int:
        self.connects.append(address[0])
        if address[0] in self.routes:
            return self.routes[address[0]]
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")


def info(address: Any, port: int) -> Any:
    if not isinstance(address, str):
        return address
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


def stand_between(monkeypatch: pytest.MonkeyPatch) -> Net:
    net = Net()

    class Recorded(socket.socket):
        def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
            super().__init__(family, type, proto, fileno)
            net.sockets += fileno is None and self.family in (socket.AF_INET, socket.AF_INET6)

        def connect(self, address: Any) -> None:
            super().connect(("127.0.0.1", net.try_connect(address)))

        def connect_ex(self, address: Any) -> int:
            raise AssertionError(f"connects to {address} in another way")

        def sendto(self, *_: Any) -> int:
            raise AssertionError("sends without a connection")

    monkeypatch.setattr(socket, "socket", Recorded)
    monkeypatch.setattr(socket, "getaddrinfo", net.getaddrinfo)
    return net
