"""Faults over real TCP: a server on loopback, in a thread with its own loop.

It serves clients on asyncio and trio, in other threads and processes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from routewright.errors import ValidationFailed
from routewright.testing.provider import Pause

from .scenarios import ANSWER, Faults, Request, Script
from .steps import FOREVER, Break, Connection, Gate, Head, Step, moments

PATIENCE_S = 10.0
"""How long to wait for the server's thread."""
_LONGEST_S = 86_400.0
_HOST = "127.0.0.1"
_SECURE = (Connection.UNTRUSTED, Connection.MUTE)
_DEAF = (Connection.REFUSED, Connection.UNRESOLVED)
UNTRUSTED = Path(__file__).with_name("untrusted.pem")
"""A certificate that no client trusts, valid until 2126, with its key, which is no secret."""


class LoopbackServer:
    """Serves HTTP on loopback, in a thread with its own loop: for each request the steps that a subclass says."""

    connection: Connection | None = None
    """The connection fault to simulate, if any."""
    time_scale = 1.0
    tls: ssl.SSLContext | None = None

    def __init__(self) -> None:
        self.connected = 0
        """Number of open connections."""
        self.opened = 0
        """Number of connections so far."""
        self.port = 0
        self._changed = threading.Condition()
        self._started = threading.Event()

    def steps(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Sequence[Step]:
        """The steps for a request. The names of headers are in lower case."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        # bound even if it does not listen, to reserve the port; where the protocol is named, asyncio sets TCP_NODELAY
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((_HOST, self.port))
        if self.connection not in _DEAF:
            self._socket.listen(1_024)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="loopback-server", daemon=True)
        self._thread.start()
        self._started.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._socket.close()

    def wait_connected(self, count: int, seconds: float = 1.0) -> bool:
        """Wait until ``count`` connections are open. False if ``seconds`` pass without a change."""
        with self._changed:
            while self.connected != count:
                if not self._changed.wait(seconds):
                    return False
        return True

    def note_connection(self, change: int) -> None:
        """Count an opened or closed connection."""
        with self._changed:
            self.opened += max(change, 0)
            self.connected += change
            self._changed.notify_all()

    def _run(self) -> None:
        loop = self._loop
        served: set[_Served] = set()
        asyncio.set_event_loop(loop)
        if self.connection not in _DEAF:
            context = self.tls
            if self.connection is Connection.UNTRUSTED:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(UNTRUSTED)
            serving = loop.create_server(lambda: _Served(self, served), sock=self._socket, ssl=context)
            listening = loop.run_until_complete(serving)
            loop.call_later(_LONGEST_S, listening.close)  # keeps a reference, so that it is not collected
        loop.call_soon(self._started.set)
        loop.run_forever()
        for connection in tuple(served):
            connection.transport.abort()
        for _ in range(3):  # let them notice
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class FaultyServer(LoopbackServer):
    """Serves requests on loopback with faults by name, and remembers them.

        with FaultyServer(["rate_limited", None]) as server:
            provider = OpenAIProvider("key", name="test", base_url=server.url, models=[...])

    ``faults`` names one for all requests, or one a request; None, and what comes after the last, is a good answer. A
    fault of the connection, such as ``connect_refused``, stands alone. A pause lasts ``time_scale`` times as long as
    the fault has it, and one without end until the client leaves.
    """

    def __init__(self, faults: Faults = (), *, answer: str = ANSWER, time_scale: float = 1.0) -> None:
        super().__init__()
        self.script = Script(faults, answer)
        steps = [step for scenario in self.script.faults if scenario is not None for step in scenario.plain.steps]
        self.connection = next((step for step in steps if isinstance(step, Connection)), None)
        if self.connection is not None and len(self.script.faults) > 1:
            problem = "a fault of the connection applies to all requests"
            raise ValidationFailed.at("faults", problem, "start another server for it")
        self.time_scale = time_scale

    @property
    def url(self) -> str:
        """The ``base_url`` for providers, while the server runs."""
        if self.connection is Connection.UNRESOLVED:
            return "http://nowhere.invalid/v1"
        return f"{'https' if self.connection in _SECURE else 'http'}://{_HOST}:{self.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """The received requests."""
        return self.script.requests

    def steps(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Sequence[Step]:
        """Those of the next fault."""
        return self.script.play(Request(method, f"http://{headers.get('host', _HOST)}{path}", body)).steps


class _Served(asyncio.Protocol):
    """One connection, serving requests one after the other."""

    transport: asyncio.Transport

    def __init__(self, server: LoopbackServer, others: set[_Served]) -> None:
        self._server = server
        self._others = others
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._others.add(self)
        self._server.note_connection(+1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._others.discard(self)
        self._server.note_connection(-1)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Serve the request once it has arrived completely."""
        self._received += data
        if self._server.connection is None and not self._received[:1].isalpha():
            return self.transport.abort()  # a TLS handshake
        parts = bytes(self._received).split(b"\r\n\r\n", 1)
        first, *lines = parts[0].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if self._server.connection is not None or len(parts) < 2 or len(parts[1]) < length:
            return None
        self._received = bytearray(parts[1][length:])
        method, path = first.split(" ")[:2]
        steps = self._server.steps(method, path, headers, parts[1][:length])
        self._task = asyncio.get_running_loop().create_task(self._serve(steps))
        return None

    async def _serve(self, steps: Sequence[Step]) -> None:
        chunked = False
        for moment in moments(steps):
            match moment:
                case Pause(seconds):
                    await asyncio.sleep(_LONGEST_S if seconds == FOREVER else seconds * self._server.time_scale)
                case Head(status, headers):
                    chunked = "content-length" not in headers
                    fields = dict(headers) | ({"transfer-encoding": "chunked"} if chunked and status >= 200 else {})
                    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                    await self._write(f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode("latin-1"))
                case bytes():
                    await self._write(b"%x\r\n%b\r\n" % (len(moment), moment) if chunked else moment)
                case Break.CLOSE:
                    return self.transport.close()
                case Break() | Connection():
                    sock = self.transport.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset on close
                    return self.transport.abort()
                case Gate():
                    await moment.wait()
        if chunked:
            await self._write(b"0\r\n\r\n")
        return None

    async def _write(self, data: bytes) -> None:
        self.transport.write(data)
        await asyncio.sleep(0)
        await self._may_write.wait()
