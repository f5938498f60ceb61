"""Limits on the size and duration of requests and connections."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from routewright.errors import ValidationFailed
from routewright.wire.problems import shown


class _Limits(Struct, frozen=True, kw_only=True):
    """Positive numbers. Others raise ``ValidationFailed``."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
            is_whole = not name.endswith("_s")
            if not is_valid or (is_whole and not isinstance(value, int)):
                unit = " of bytes" if name.endswith("_bytes") else ""
                hint = f"take a whole number{unit} above 0" if is_whole else "take seconds above 0"
                raise ValidationFailed.at(f"{type(self).__name__}.{name}", f"is {shown(value)}", hint)


class HttpLimits(_Limits, frozen=True, kw_only=True):
    """Limits of one request over HTTP (contract 2, 5).

    app = create_app(router, limits=HttpLimits(body_bytes=1 << 20))"""

    body_bytes: int = 16 << 20
    """A longer body is 413."""
    body_values: int = 200_000
    """A body with more members of arrays and objects, at any depth, is 413. An empty array or object counts twice."""
    bodies_bytes: int = 256 << 20
    """Bytes of incomplete and unparsed bodies in a worker; one account may have half of them. More are 429. The first
    64 KiB of each body are not counted."""
    body_s: float = 30.0
    """Seconds in which a body must arrive; a later one is 408."""
    send_s: float = 30.0
    """Seconds after which a client that reads nothing of its stream is disconnected."""
    heartbeat_s: float = 15.0
    """Seconds without an event after which a stream sends a comment. The status is sent by then."""
    query_bytes: int = 8 << 10
    """A longer query is 400."""


class ConnectionLimits(_Limits, frozen=True, kw_only=True):
    """Limits of connections and request heads (``routewright serve``)."""

    header_bytes: int = 32 << 10
    """A longer request line with its headers is 431."""
    headers: int = 100
    """A request with more headers is 431."""
    header_s: float = 10.0
    """Seconds from the first byte in which the headers of a request must arrive; later ones are 408. A new connection
    that sends nothing for that long is closed."""
    keep_alive_s: float = 75.0
    """Seconds until an idle connection is closed. It must be longer than in the proxy, which could otherwise send a
    request to a closing connection."""
    send_s: float = 30.0
    """Seconds after which a client that reads nothing of its answer is disconnected, on Linux only."""
    pipelined: int = 16
    """Requests of one connection that may wait for earlier answers; one more is 400."""
    open: int = 10_000
    """Open connections of a worker; the next gets 503 and is closed. Fewer, if the hard limit of open files
    (``ulimit -Hn``) does not allow as many."""
