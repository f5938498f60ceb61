"""Errors over HTTP: envelope, status and headers of the specification, also for input that is not a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from http import HTTPStatus
from random import SystemRandom
from typing import NamedTuple, TypeVar

import msgspec

from routewright import errors
from routewright._runtime.identity import Ids
from routewright.settings import SystemClock
from routewright.wire import error_envelope
from routewright.wire.account import without_keys
from routewright.wire.problems import in_json, problem_in_json

E = TypeVar("E", bound=errors.RouterError)

_WORDS = {
    b"create one with Console.create_key": b"the server's operator creates one with 'routewright keys create'",
    b"Settings(rollup_keys=...) says what else is counted": b"the server's operator adds others with "
    b"settings.rollup_keys (ROUTEWRIGHT_SETTINGS_ROLLUP_KEYS)",
    b"in the environment to use the models of": b"in the server's environment to use the models of",
    b"Router.models()": b"GET /v1/models",
    b"add a new one by models=[Model(id=...)] of its provider, or in a catalogue file": b"the server's operator adds "
    b"new ones",
    b"pass it to Router(policies=...) or publish it in storage": b"this server has no policies: ask its operator",
    b"Console.policies.roll_back() publishes it again": b"the server's operator can publish it again",
    b"set a provider's key in the environment (OPENAI_API_KEY ...), pass Router(providers=[...]), or use "
    b"Router.sandbox() for canned answers": b"the operator of the server has to set a provider's key; a test key "
    b"(sk_test_...) gets canned answers",
}
"""Advice for the Python API, and its replacement over HTTP."""
_log = logging.getLogger("routewright.server")


def to_client_error(error: Exception, request_id: str) -> errors.RouterError:
    """The error for the client, with the request's id. Details of internal errors, storage paths and upstream addresses
    are logged instead."""
    if not isinstance(error, errors.RouterError):
        _log.error("request %s failed with an internal error", request_id, exc_info=error)
        error = errors.InternalError(
            f"the server failed to answer; the operator finds the cause in the log by {request_id}"
        )
    if isinstance(error, errors.StorageUnavailable):
        _log.error("request %s: %s", request_id, error)
        message = f"the server's storage is not available; the operator finds the cause in the log by {request_id}"
        public = errors.StorageUnavailable(message, trace_id=error.trace_id)
        public.headers = error.headers
        public.outside = message, {}
        error = public
    if error.outside is not None:
        message, detail = error.outside
        if message != error.message:
            _log.warning("request %s: %s", request_id, error.message)
        error = copy(error)
        error.message = message
        error.detail = detail
        error.outside = None
    error = rewrite(error, problem_in_json, in_json)
    error.request_id = request_id
    return error


def rewrite(
    error: E, rewrite_problem: Callable[[errors.Problem], errors.Problem], rewrite_text: Callable[[str], str]
) -> E:
    """A copy of an error with its texts rewritten."""
    translated = copy(error)
    if isinstance(translated, errors.ValidationFailed) and translated.problems:
        translated.problems = [rewrite_problem(problem) for problem in translated.problems]
        translated.message = "\n".join(map(str, translated.problems))
        translated.detail = translated.detail | {"problems": [problem._asdict() for problem in translated.problems]}
        return translated
    translated.message = rewrite_text(error.message)
    if isinstance(translated.detail.get("suggestion"), str):
        translated.detail = translated.detail | {"suggestion": rewrite_text(translated.detail["suggestion"])}
    return translated


def shutdown_error() -> errors.InternalError:
    """The error of a request that is cancelled at shutdown."""
    return errors.InternalError("the server was stopped before the answer was complete; send the request again")


def envelope(error: errors.RouterError) -> bytes:
    """The body of an error response (spec 7)."""
    return fit(msgspec.json.encode(error_envelope(error)))


def fit(text: bytes) -> bytes:
    """Replace advice for Python in the body of an error, and mask API keys."""
    for advice, replacement in _WORDS.items():
        text = text.replace(advice, replacement)
    return without_keys(text.decode()).encode() if b"sk_" in text else text


def headers_of(error: errors.RouterError) -> dict[str, str]:
    """Headers of an error response: limits, ``Retry-After``, ``WWW-Authenticate``."""
    return error.headers | ({"WWW-Authenticate": "Bearer"} if isinstance(error, errors.AuthenticationFailed) else {})


_clock = SystemClock()
new_id = Ids(_clock, SystemRandom())
"""Makes ids of requests without a Router."""


class Refusal(Enum):
    """Reasons to refuse a connection, each with its error and message."""

    MALFORMED = errors.MalformedRequest, "the request is not valid HTTP/1.1; see RFC 9112"
    VERSION = errors.MalformedRequest, "the HTTP version is not supported; use HTTP/1.1 or HTTP/1.0"
    HOST = errors.MalformedRequest, "the header 'Host' is missing or repeated; send it once"
    UPGRADE = errors.MalformedRequest, "'Upgrade' is not supported; leave it out: streams are server-sent events"
    CODING = errors.MalformedRequest, "the 'Transfer-Encoding' is not supported; send 'chunked' or leave it out"
    CONNECT = errors.MalformedRequest, "CONNECT is not supported; this is not a proxy"
    PIPELINED = errors.MalformedRequest, "this connection has too many pending requests; read their answers first"
    LATE = errors.RequestTimedOut, "the headers did not arrive in time; send them at once"
    TOO_LARGE = errors.HeadersTooLarge, "the request line or the headers are too long, or too many; send fewer"
    BUSY = errors.Overloaded, "the server has too many open connections; try again in a moment"

    def __init__(self, kind: type[errors.RouterError], message: str) -> None:
        self.kind = kind
        self.message = message


class RefusedClient(NamedTuple):
    """A client that was refused."""

    refusal: Refusal
    request_id: str
    client: str | None
    """Its address, if known."""
    at: float
    """In Unix seconds."""
    response: bytes
    """The complete response."""


def refuse(refusal: Refusal, client: str | None, headers: Iterable[tuple[bytes, bytes]]) -> RefusedClient:
    """Build the response to a refused client. ``headers`` are added to it."""
    kind = refusal.kind
    request_id = new_id("req_")
    body = envelope(kind(refusal.message, request_id=request_id))
    phrase = HTTPStatus(kind.status).phrase
    fields = {
        "content-type": "application/json",
        "content-length": len(body),
        "x-request-id": request_id,
        "cache-control": "no-store",
        "connection": "close",
    }
    if refusal is Refusal.BUSY:
        fields["retry-after"] = 1
    lines = [f"{name}: {value}".encode() for name, value in fields.items()]
    head = [f"HTTP/1.1 {kind.status} {phrase}".encode(), *(b"%s: %s" % header for header in headers), *lines]
    return RefusedClient(refusal, request_id, client, _clock.time(), b"\r\n".join([*head, b"", body]))
