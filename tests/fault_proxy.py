"""A TCP proxy on loopback for networks that are slow or broken."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Literal, Self

from tests.database_servers import HOST, free_port

Side = Literal["client", "server"]


class FaultProxy:
    """Passes connections on to a server, with two threads for each, and does to them what a test says.

    with FaultProxy(HOST, server.port) as proxy:
        proxy.delay_s = {"client": 0.0005, "server": 0.0005}  # a round trip takes 1 ms
        storage = open_storage(at_port(server.url, proxy.port))
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self.delay_s: dict[Side, float] = {"client": 0.0, "server": 0.0}
        """How long what is sent to each side is on its way."""
        self.drops = set[Side]()
        """Sides that nothing gets to. ``restore`` resets connections that lost something, as TCP does in the end."""
        self._server = (host, port)
        self._listener = socket.socket()
        self._lines = list[_Line]()

    def __enter__(self) -> Self:
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self.reset()

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._lines)

    @property
    def round_trips(self) -> int:
        """How often a client sent something at first, or after it was sent something."""
        return sum(line.round_trips for line in self._lines)

    def wait_until_idle(self) -> None:
        """Wait until all that was on its way has come."""
        while any(line.on_its_way for line in self._lines):
            time.sleep(0.01)

    def refuse(self) -> None:
        """Refuse new connections until ``restore``."""
        with suppress(OSError):  # it does already
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def reset(self) -> None:
        """Reset all connections."""
        for line in self._lines:
            line.cut()

    def half_close(self, side: Side) -> None:
        """End what is sent to a side on all connections. It may still send."""
        for line in self._lines:
            with suppress(OSError):  # closed already
                line.ends[side].shutdown(socket.SHUT_WR)

    def restore(self) -> None:
        """Pass everything on again, at once."""
        self.drops.clear()
        self.delay_s.update({"client": 0.0, "server": 0.0})
        for line in self._lines:
            if line.torn:
                line.cut()
        if self._listener.fileno() < 0 or not self._lines:
            self.refuse()
            self._listener = socket.create_server((HOST, self.port), backlog=200)
            threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # ``refuse`` closed it
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                line = _Line(client, server)
                self._lines.append(line)
                for side in line.ends:
                    threading.Thread(target=self._pass_on, args=[line, side], daemon=True).start()

    def _pass_on(self, line: _Line, to: Side) -> None:
        """Send one side what the other does, until that ends."""
        source, data = line.ends["client" if to == "server" else "server"], b"-"
        try:
            while data:
                data = source.recv(1 << 16)
                if to in self.drops:
                    line.torn = True
                    continue
                if data:
                    line.note(to)
                    line.on_its_way += 1
                    try:
                        time.sleep(self.delay_s[to])
                        line.ends[to].sendall(data)
                    finally:
                        line.on_its_way -= 1
            if not line.torn:
                time.sleep(self.delay_s[to])
                line.ends[to].shutdown(socket.SHUT_WR)
        except OSError:
            line.cut()
        else:
            line.end(to)


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends: dict[Side, socket.socket] = {"client": client, "server": server}
        for end in self.ends.values():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.round_trips = 0
        self.torn = False
        """Whether something was dropped."""
        self.on_its_way = 0
        """How much was taken from one side, and not given to the other yet."""
        self._was_answered = True
        self._ended = set[Side]()

    def note(self, to: Side) -> None:
        """Something is sent to a side."""
        if to == "server" and self._was_answered:
            self.round_trips += 1
        self._was_answered = to == "client"

    def end(self, to: Side) -> None:
        """Nothing more is sent to a side: close the connection if that is true of both."""
        self._ended.add(to)
        if len(self._ended) == 2:
            for end in self.ends.values():
                end.close()

    def cut(self) -> None:
        """Reset both sides."""
        for end in self.ends.values():
            with suppress(OSError):  # closed already
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads, without which there is no reset
            end.close()
