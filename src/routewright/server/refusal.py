"""The error that a client gets whose bytes are not a valid request, before there is one to answer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from random import SystemRandom
from typing import NamedTuple

from routewright.backends.clock import SystemClock
from routewright.errors import HeadersTooLarge, MalformedRequest, Overloaded, RequestTimedOut, RouterError
from routewright.identity import Ids

from .errors import envelope

_clock = SystemClock()
_ids = Ids(_clock, SystemRandom())


class Refusal(Enum):
    """Why a connection is closed, and in which words."""

    MALFORMED = MalformedRequest, "this is no HTTP/1.1 request: see RFC 9112"
    VERSION = MalformedRequest, "speak HTTP/1.1 here, or HTTP/1.0"
    HOST = MalformedRequest, "send the header 'Host' once"
    UPGRADE = (
        MalformedRequest,
        "no other protocol is spoken here: leave the header 'Upgrade' out; streams are server-sent events",
    )
    CODING = MalformedRequest, "bodies are sent as they are, or chunked: leave other codings out of 'Transfer-Encoding'"
    CONNECT = MalformedRequest, "this is no proxy: CONNECT leads nowhere"
    PIPELINED = MalformedRequest, "too many requests wait on this connection: read their answers first"
    LATE = RequestTimedOut, "the headers did not come in time: send them in one go"
    TOO_LARGE = HeadersTooLarge, "the request line and its headers are too long, or too many"
    BUSY = Overloaded, "too many connections are open here: try again in a moment"

    @property
    def kind(self) -> type[RouterError]:
        """The error that it is."""
        kind: type[RouterError] = self.value[0]
        return kind


class Refused(NamedTuple):
    """A client that was refused."""

    refusal: Refusal
    request_id: str
    client: str | None
    """Its address, if known."""
    at: float
    """In Unix seconds."""
    response: bytes
    """All that it is sent before the connection is closed."""


def refused(refusal: Refusal, client: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Refused:
    """Refuse a client. ``headers`` are those that every response has."""
    kind, said = refusal.value
    request_id = _ids("req_")
    body = envelope(kind(said, request_id=request_id))
    phrase = HTTPStatus(kind.status).phrase
    own = {
        "content-type": "application/json",
        "content-length": len(body),
        "x-request-id": request_id,
        "cache-control": "no-store",
        "connection": "close",
    }
    if refusal is Refusal.BUSY:
        own["retry-after"] = 1
    lines = [f"{name}: {value}".encode() for name, value in own.items()]
    head = [f"HTTP/1.1 {kind.status} {phrase}".encode(), *(b"%s: %s" % header for header in headers), *lines]
    return Refused(refusal, request_id, client, _clock.time(), b"\r\n".join([*head, b"", body]))
