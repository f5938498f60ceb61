"""Limits on what one client may send, and how long it may take."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits of one request over HTTP (contract 2, 5).

    app = create_app(router, limits=HttpLimits(body_bytes=1 << 20))"""

    body_bytes: int = 16 << 20
    """A longer body is 413."""
    body_values: int = 200_000
    """A body with more members of arrays and objects, at any depth, is 413. An empty array or object counts twice."""
    bodies_bytes: int = 256 << 20
    """Bytes of incomplete and unparsed bodies that a worker holds; half as many of one account. More are 429. The first
    64 KiB of each body are not counted."""
    body_s: float = 30.0
    """Seconds that a body may take to arrive; then it is 408."""
    send_s: float = 30.0
    """A client that reads nothing of its stream for so many seconds counts as gone."""
    heartbeat_s: float = 15.0
    """After so many seconds without an event a stream sends a comment. Its status is held back as long at first."""
    query_bytes: int = 8 << 10
    """A longer query is 400."""

    def __post_init__(self) -> None:
        _check(self)


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection, before there is a request (``routewright serve``)."""

    header_bytes: int = 32 << 10
    """A longer request line with its headers is 431."""
    headers: int = 100
    """More of them are 431."""
    header_s: float = 10.0
    """Seconds that the headers of a request may take, from the first byte on; then it is 408. A new connection that
    sends nothing for so long is closed."""
    keep_alive_s: float = 75.0
    """Seconds until an idle connection is closed. Longer than proxies keep theirs, so that none sends a request into
    one that is being closed."""
    send_s: float = 30.0
    """A client that reads nothing of its answer for so many seconds is cut off."""
    pipelined: int = 16
    """Requests that may wait on one connection for the answers before theirs; one more is 400."""
    open: int = 10_000
    """Connections that a worker has open; the next gets 503 and is closed."""

    def __post_init__(self) -> None:
        _check(self)


def _check(limits: HttpLimits | ConnectionLimits) -> None:
    """Raises ``ValidationFailed`` for anything else than such a number."""
    for name in limits.__struct_fields__:
        value: object = getattr(limits, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
        whole = not name.endswith("_s")
        if not number or (whole and not isinstance(value, int)):
            kind = "a whole number of bytes" if name.endswith("_bytes") else "a whole number" if whole else "seconds"
            problem = Problem(f"{type(limits).__name__}.{name}", f"is {shown(value)}", f"take {kind} above 0")
            raise ValidationFailed.of(problem)
