"""What a client is told that does not speak HTTP as it should, before there is a request to answer."""

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
    """One client that was refused."""

    refusal: Refusal
    request_id: str
    client: str | None
    """Its address, where that is known."""
    at: float
    """In Unix seconds."""
    response: bytes
    """All that it is sent; the connection is to be closed after it."""


def refused(refusal: Refusal, client: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Refused:
    """Refuse one. ``headers`` are those that every response has."""
    kind, said = refusal.value
    error: RouterError = kind(said, request_id=_ids("req_"))
    assert error.request_id is not None
    body = envelope(error)
    lines = [
        b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode()),
        *(b"%s: %s" % header for header in headers),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"x-request-id: %s" % error.request_id.encode(),
        b"cache-control: no-store",
        b"connection: close",
    ]
    if refusal is Refusal.BUSY:
        lines.append(b"retry-after: 1")
    return Refused(refusal, error.request_id, client, _clock.time(), b"\r\n".join([*lines, b"", body]))
