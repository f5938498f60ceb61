"""Errors as HTTP tells them: the envelope of the specification, its status and headers, also for bytes that are no
request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from http import HTTPStatus
from random import SystemRandom
from typing import NamedTuple, TypeVar

import msgspec

from routewright._core.account import without_keys
from routewright._core.request.problems import in_json, problem_in_json
from routewright.backends.clock import SystemClock
from routewright.errors import (
    AuthenticationFailed,
    HeadersTooLarge,
    InternalError,
    MalformedRequest,
    Overloaded,
    Problem,
    RequestTimedOut,
    RouterError,
    StorageUnavailable,
    ValidationFailed,
)
from routewright.identity import Ids
from routewright.wire import error_envelope

E = TypeVar("E", bound=RouterError)

_WORDS = {
    b"create one with Console.create_key": b"the server's operator makes one with 'routewright keys create'",
    b"Settings(rollup_keys=...) says what else is counted": b"the server's operator says with settings.rollup_keys "
    b"(ROUTEWRIGHT_SETTINGS_ROLLUP_KEYS) what else is counted",
    b"in the environment to have the models of": b"in the server's environment to have the models of",
    b"Router.models()": b"GET /v1/models",
    b"pass it to Router(policies=...)": b"this server has no policies: ask its operator",
    b"set a provider's key in the environment (OPENAI_API_KEY ...), pass Router(providers=[...]), or use "
    b"Router.sandbox() for canned answers": b"the operator of the server has to set a provider's key; a test key "
    b"(sk_test_...) gets canned answers",
}
"""Advice for the Python API, and what clients over HTTP are told instead."""
_log = logging.getLogger("routewright.server")


def told(error: Exception, request_id: str) -> RouterError:
    """The error as its client may see it, under the id of the request. A fault of the server, what a storage says of
    files, and addresses of upstreams go into the log instead."""
    if not isinstance(error, RouterError):
        _log.error("request %s ended in a fault of the server", request_id, exc_info=error)
        error = InternalError(f"the server failed to answer; the operator finds why in its log under {request_id}")
    if isinstance(error, StorageUnavailable):
        _log.error("request %s: %s", request_id, error)
        message = f"the storage of the server is not available; the operator finds why in its log under {request_id}"
        headers, error = error.headers, StorageUnavailable(message, trace_id=error.trace_id)
        error.headers = headers
    if error.outside is not None:
        _log.warning("request %s: %s", request_id, error.message)
        message, detail = error.outside
        error = copy(error)
        error.message, error.detail, error.outside = message, detail, None
    error = retold(error, problem_in_json, in_json)
    error.request_id = request_id
    return error


def retold(error: E, problem: Callable[[Problem], Problem], text: Callable[[str], str]) -> E:
    """A copy of an error in other words."""
    said = copy(error)
    if isinstance(said, ValidationFailed) and said.problems:
        said.problems = [problem(each) for each in said.problems]
        said.message = "\n".join(map(str, said.problems))
        said.detail = said.detail | {"problems": [each._asdict() for each in said.problems]}
        return said
    said.message = text(error.message)
    if isinstance(said.detail.get("suggestion"), str):
        said.detail = said.detail | {"suggestion": text(said.detail["suggestion"])}
    return said


def stopped() -> InternalError:
    """The error of a request that the server's stop cuts short."""
    return InternalError("the server was stopped before the answer was whole: send the request again")


def envelope(error: RouterError) -> bytes:
    """The body of an error response (spec 7)."""
    return fit(msgspec.json.encode(error_envelope(error)))


def fit(text: bytes) -> bytes:
    """The body of an error without advice for Python, and without API keys that stood in a wrong place."""
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs)
    return without_keys(text.decode()).encode() if b"sk_" in text else text


def headers_of(error: RouterError) -> dict[str, str]:
    """Headers of an error response: limits, ``Retry-After``, how to authenticate."""
    return error.headers | ({"WWW-Authenticate": "Bearer"} if isinstance(error, AuthenticationFailed) else {})


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
