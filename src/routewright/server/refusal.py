"""What a client is told that does not speak HTTP as it should, before there is a request to answer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from random import SystemRandom
from typing import NamedTuple

import msgspec

from routewright._engine.identity import Ids
from routewright.backends.clock import SystemClock

_ids = Ids(SystemClock(), SystemRandom())


class _Told(NamedTuple):
    status: int
    code: str
    type: str
    message: str


class Refusal(Enum):
    """Why a connection is closed, and in which words."""

    MALFORMED = _Told(400, "malformed_request", "request_error", "this is no HTTP/1.1 request: see RFC 9112")
    VERSION = _Told(400, "malformed_request", "request_error", "speak HTTP/1.1 here, or HTTP/1.0")
    HOST = _Told(400, "malformed_request", "request_error", "send the header 'Host' once")
    UPGRADE = _Told(
        400,
        "malformed_request",
        "request_error",
        "no other protocol is spoken here: leave the header 'Upgrade' out; streams are server-sent events",
    )
    CONNECT = _Told(400, "malformed_request", "request_error", "this is no proxy: CONNECT leads nowhere")
    PIPELINED = _Told(
        400, "malformed_request", "request_error", "too many requests wait on this connection: read their answers first"
    )
    LATE = _Told(408, "request_timeout", "request_error", "the headers did not come in time: send them in one go")
    TOO_LARGE = _Told(
        431, "headers_too_large", "request_error", "the request line and its headers are too long, or too many"
    )
    BUSY = _Told(503, "overloaded", "internal_error", "too many connections are open here: try again in a moment")

    def response(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The whole response, with headers that every response has; the connection is to be closed after it."""
        told, request_id = self.value, _ids("req_")
        error = {"code": told.code, "message": told.message, "type": told.type, "request_id": request_id, "detail": {}}
        body = msgspec.json.encode({"error": error})
        lines = [
            b"HTTP/1.1 %d %s" % (told.status, HTTPStatus(told.status).phrase.encode()),
            *(b"%s: %s" % header for header in headers),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"x-request-id: %s" % request_id.encode(),
            b"cache-control: no-store",
            b"connection: close",
        ]
        if self is Refusal.BUSY:
            lines.append(b"retry-after: 1")
        return b"\r\n".join([*lines, b"", body])
