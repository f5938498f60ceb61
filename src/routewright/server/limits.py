"""How much, and for how long, the server takes from one client."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one request over HTTP (contract 2, 5).

    app = create_app(router, limits=HttpLimits(body_bytes=1 << 20))
    """

    body_bytes: int = 16 << 20
    """A longer body is 413."""
    body_values: int = 200_000
    """A body with more members of arrays and objects, at any depth, is 413. An empty one of these counts twice."""
    bodies_bytes: int = 256 << 20
    """So many bytes of bodies a worker holds that are not whole, or not read yet, and half as many of one account; what
    would exceed it is 429. The first 64 KiB of each body are not counted."""
    body_s: float = 30.0
    """So long a body may take to come; then it is 408."""
    send_s: float = 30.0
    """A client that takes nothing of its stream for so long is taken to have left."""
    heartbeat_s: float = 15.0
    """After so long without an event a stream sends a comment; so long, too, its status is held back at first."""
    query_bytes: int = 8 << 10
    """A longer query is 400."""

    def __post_init__(self) -> None:
        _check(self)


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one connection, before there is a request (``routewright serve``)."""

    header_bytes: int = 32 << 10
    """A longer request line with its headers is 431."""
    headers: int = 100
    """More of them are 431."""
    header_s: float = 10.0
    """So long a request's headers may take to come whole, from the first byte on; then it is 408. A new connection that
    sends nothing is closed."""
    keep_alive_s: float = 75.0
    """A connection without a request is closed after so long. Longer than proxies keep theirs, so that none sends a
    request into one that is being closed."""
    send_s: float = 30.0
    """A client that takes nothing of what it is sent for so long is cut off."""
    pipelined: int = 16
    """So many requests may wait on one connection for the answer to the one before them; one more is 400."""
    open: int = 10_000
    """So many connections a worker has open at most; the next is told 503 and closed."""

    def __post_init__(self) -> None:
        _check(self)


def _check(limits: HttpLimits | ConnectionLimits) -> None:
    """Raises ``ValidationFailed`` for what is no such number."""
    for name in limits.__struct_fields__:
        value: object = getattr(limits, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
        whole = not name.endswith("_s")
        if not number or (whole and not isinstance(value, int)):
            kind = "a whole number of bytes" if name.endswith("_bytes") else "a whole number" if whole else "seconds"
            problem = Problem(f"{type(limits).__name__}.{name}", f"is {shown(value)}", f"take {kind} above 0")
            raise ValidationFailed.of(problem)
