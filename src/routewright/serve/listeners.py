"""The sockets of a server. The supervisor holds them, so that connections wait there while workers come and go."""

from __future__ import annotations

import socket

from routewright.errors import Problem, ValidationFailed

from .plan import Address

BACKLOG = 2048


def listen(address: Address, key: str) -> socket.socket:
    """Listen at an address. ``key`` names it in what is said of one that cannot be had. Raises ``ValidationFailed``."""
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or no answer is sent at once
    except OSError as error:
        raise _refusal(address, key, error) from error
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(address, key, error) from error
    return listener


def bound(listener: socket.socket, address: Address) -> Address:
    """Where it listens really: a port of 0 has become one."""
    return Address(address.host, listener.getsockname()[1])


def _refusal(address: Address, key: str, error: OSError) -> ValidationFailed:
    said = f"nothing can listen at {address.host} port {address.port}: {error.strerror}"
    return ValidationFailed.of(Problem(key, said, "take another one, or end what is there"))
