"""Errors as HTTP tells them: the envelope of the specification, its status and headers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from typing import TypeVar

import msgspec

from routewright._core.account import without_keys
from routewright._core.request.problems import in_json, problem_in_json
from routewright.errors import (
    AuthenticationFailed,
    InternalError,
    Problem,
    RouterError,
    StorageUnavailable,
    ValidationFailed,
)
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
