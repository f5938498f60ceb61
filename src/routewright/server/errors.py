"""Errors as HTTP tells them: the envelope of the specification, its status and headers."""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

import msgspec

from routewright._core.account import without_keys
from routewright.errors import AuthenticationFailed, InternalError, NoCandidates, RouterError, StorageUnavailable
from routewright.wire import Reason, error_envelope

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
"""What Python is told to do, and what clients are."""
_log = logging.getLogger("routewright.server")


def told(error: Exception, request_id: str) -> RouterError:
    """The error that a caller is told of, under the id of its request. A fault of ours is logged, and tells nothing."""
    if not isinstance(error, RouterError):
        _log.error("request %s ended in a fault of the server", request_id, exc_info=error)
        error = InternalError(f"the server failed to answer; the operator finds why in its log under {request_id}")
    if isinstance(error, StorageUnavailable):  # which speaks of files, and to who keeps them
        _log.error("request %s: %s", request_id, error)
        error = _of_storage(error, request_id)
    if isinstance(error, NoCandidates):
        error = _without_unwanted(error)
    if error.outside is not None:
        _log.warning("request %s: %s", request_id, error.message)
        error = _without_addresses(error, *error.outside)
    error.request_id = request_id
    return error


def _without_unwanted(error: NoCandidates) -> NoCandidates:
    """The same without the models that nobody asked for: of a request for two it would name all the others."""
    rejected = error.detail.get("rejected_candidates", ())
    wanted = [each for each in rejected if each.get("reason") != Reason.WHITELIST]
    told = copy(error)
    told.detail = {**error.detail, "rejected_candidates": wanted}
    return told


def _without_addresses(error: RouterError, message: str, detail: dict[str, Any]) -> RouterError:
    """The same without the addresses of upstreams, which stand in the log."""
    told = copy(error)
    told.message, told.detail, told.outside = message, detail, None
    return told


def _of_storage(error: StorageUnavailable, request_id: str) -> StorageUnavailable:
    """The same as clients may have it."""
    said = f"the storage of the server is not available; the operator finds why in its log under {request_id}"
    told = StorageUnavailable(said, trace_id=error.trace_id)
    told.headers = error.headers
    return told


def stopped() -> InternalError:
    """What is said of a request that the end of the server cuts short."""
    return InternalError("the server was stopped before the answer was whole: send the request again")


def envelope(error: RouterError) -> bytes:
    """The body of an error response (spec 7)."""
    return fit(msgspec.json.encode(error_envelope(error)))


def fit(text: bytes) -> bytes:
    """The body of an error as clients may have it: nothing of Python in it, and no API key that stood in a wrong
    place."""
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs)
    return without_keys(text.decode()).encode() if b"sk_" in text else text


def headers_of(error: RouterError) -> dict[str, str]:
    """What goes with it: limits, ``Retry-After``, how to authenticate."""
    if isinstance(error, AuthenticationFailed):
        return {"WWW-Authenticate": "Bearer"}
    return error.headers
