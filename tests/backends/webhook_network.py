"""A network limited to loopback: DNS is scripted, connections are recorded."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

Lookup = Iterable[Any] | BaseException | Callable[[], Iterable[Any]]
"""What one lookup gives: addresses, as text or as they come from the system; or what it raises."""


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
