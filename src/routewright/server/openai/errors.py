"""Errors in OpenAI's envelope, so that its SDKs raise their own classes, and try again what may help."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from routewright.errors import RateLimited, RouterError, ValidationFailed
from routewright.server.errors import fit
from routewright.server.words import Words
from routewright.wire import error_envelope

from .response import limit_headers

TYPES = {
    "validation_error": "invalid_request_error",
    "request_error": "invalid_request_error",
    "conflict_error": "invalid_request_error",
    "constraint_error": "invalid_request_error",
    "billing_error": "insufficient_quota",
    "internal_error": "server_error",
    "upstream_error": "server_error",
    "timeout_error": "server_error",
}
"""OpenAI's words for classes of errors; of others ours are its own."""


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """What OpenAI says of an error, and what we know besides."""

    message: str
    type: str
    param: str | None
    """The field that is wrong."""
    code: str
    request_id: str | None = None
    trace_id: str | None = None
    detail: dict[str, object] | None = None


def envelope(error: RouterError) -> bytes:
    """The body of an error response, and what ends a stream that failed. No API key is repeated."""
    ours = error_envelope(error).error
    body = ErrorBody(
        message=ours.message,
        type=TYPES.get(ours.type, ours.type),
        param=_param(error),
        code=ours.code,
        request_id=ours.request_id,
        trace_id=ours.trace_id,
        detail=ours.detail,
    )
    return fit(msgspec.json.encode({"error": body}))


def in_words(error: RouterError, words: Words | None, now: float) -> RouterError:
    """The error as a client of OpenAI is told of it: its own words for fields, and whether to try again.

    Its SDKs would try again after each 409 and 5xx; ours say better what that helps.
    """
    told = error if words is None else words.error(error)
    told.headers = {**error.headers, "X-Should-Retry": "true" if error.retryable else "false"}
    if error.trace_id is not None:
        told.headers["X-Routewright-Trace-Id"] = error.trace_id
    if isinstance(error, RateLimited) and error.detail.get("limit_of") != "concurrency":
        told.headers |= limit_headers(error.headers, now)
    return told


def _param(error: RouterError) -> str | None:
    if isinstance(error, ValidationFailed) and error.problems:
        return error.problems[0].path or None
    return None
