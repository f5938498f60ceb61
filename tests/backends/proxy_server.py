"""A real HTTP proxy on loopback that records its requests: CONNECT, and absolute-form requests."""

from __future__ import annotations

import asyncio
import ssl
import threading
from base64 import b64encode
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from routewright.testing.faulty.server import PATIENCE_S
from tests.upstream import Request


class ProxyServer:
    """Passes on what it is asked, to this machine whatever the host's name. ``user`` is the only one that it knows, as
    ``name:password``; ``answers`` is a status with which it refuses all else; ``tls`` makes it one that speaks TLS."""

    def __init__(self, user: str = "", answers: int | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Request] = []
        self._demands = f"Basic {b64encode(user.encode()).decode()}" if user else None
        self._answers = answers
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy-server", daemon=True)
        self._started = threading.Event()
        self.port = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.place}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop, self._tasks = asyncio.Event(), set[asyncio.Task[None]]()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out: asyncio.StreamWriter | None = None
        back: asyncio.Task[None] | None = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *fields = head.rstrip("\r\n").split("\r\n")
                method, target, _ = line.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append(Request(method, target, headers, body))
                status = 407 if headers.get("proxy-authorization") != self._demands else self._answers
                if status is not None:
                    writer.write(f"HTTP/1.1 {status} No\r\ncontent-length: 6\r\n\r\ncanary".encode())
                    continue
                place = urlsplit(f"//{target}" if method == "CONNECT" else target)
                assert place.port is not None
                if out is None:  # a client asks for no other host on the same connection
                    out_reader, out = await asyncio.open_connection("127.0.0.1", place.port)
                    if method == "CONNECT":
                        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    back = asyncio.create_task(_copy(out_reader, writer))
                    if method == "CONNECT":
                        await _copy(reader, out)
                        return
                passed = [field for field in fields if not field.lower().startswith("proxy-")]
                path = target.removeprefix(f"{place.scheme}://{place.netloc}")
                out.write("\r\n".join([f"{method} {path} HTTP/1.1", *passed, "", ""]).encode("latin-1") + body)
        finally:
            if out is not None and back is not None:
                out.transport.abort()
                await asyncio.gather(back, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
