"""What is answered that is no success: a component for each status, with its codes. And the headers of all answers."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from routewright import errors
from routewright.docstrings import summary
from routewright.errors import (
    AuthenticationFailed,
    BodyTooLarge,
    HeadersTooLarge,
    InternalError,
    InvalidJson,
    MalformedRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestTimedOut,
    RouterError,
    SignatureError,
    StorageUnavailable,
    UnsupportedMediaType,
    ValidationFailed,
)
from routewright.server.operation import Operation
from routewright.wire import error_envelope

from .examples import ERRORS, REQUEST_ID

ALWAYS = (ValidationFailed, AuthenticationFailed, PermissionDenied, InternalError, StorageUnavailable)
"""What everything with a key can end in."""
OF_BODIES = (InvalidJson, RequestTimedOut, BodyTooLarge, UnsupportedMediaType)
_NOT_OURS = {SignatureError}
"""Which only those answer who are sent webhooks."""
NO_REQUESTS = {MalformedRequest, HeadersTooLarge, Overloaded}
"""What the server of a connection says, before there is a request to answer."""

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": ("Names the request in errors and in the operator's log.", {**_TEXT, "pattern": "^req_"}),
    "X-RateLimit-Limit": ("How much the limit lets in within a minute.", _COUNT),
    "X-RateLimit-Remaining": ("What is left of it.", _COUNT),
    "X-RateLimit-Reset": ("When all of it is free again if nobody asks for more, in Unix seconds.", _COUNT),
    "X-RateLimit-Resource": (
        "What the limit counts. Of several limits the headers are those of the one with the smallest share left; where"
        " nothing is limited there are none.",
        {**_TEXT, "enum": ["requests", "tokens"]},
    ),
    "Retry-After": ("So many seconds later the same call is let in if nobody else calls.", _COUNT),
    "WWW-Authenticate": ("How to authenticate.", {**_TEXT, "const": "Bearer"}),
    "ETag": ("Names this version of the document, for `If-None-Match`.", _TEXT),
}
LIMITED = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Resource")
_BESIDES: dict[int, tuple[str, ...]] = {
    AuthenticationFailed.status: ("WWW-Authenticate",),
    RateLimited.status: (*LIMITED, "Retry-After"),
    **dict.fromkeys((400, 402, 403, 409, 422, 500, 502, 504), LIMITED),
}
"""Headers of a status, besides the id of the request. Those of limits only tell where a call was counted."""


def header_components() -> dict[str, Any]:
    """Every header that an answer may have."""
    return {name: {"description": said, "schema": schema} for name, (said, schema) in _HEADERS.items()}


def headers(*names: str) -> dict[str, Any]:
    """References to headers, that of the request's id among them."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


def error_components() -> dict[str, Any]:
    """The answer of every status that is an error."""
    return {_name(status): _answer(status, kinds) for status, kinds in _by_status(_of_requests()).items()}


def errors_of(path: str, operation: Operation) -> dict[str, Any]:
    """The errors that an operation can end in, by their statuses."""
    kinds = [*ALWAYS, *operation.raises]
    kinds += OF_BODIES if operation.body is not None else ()
    kinds += [NotFound] if path.endswith("}") else []
    return references(kinds)


def references(kinds: Iterable[type[RouterError]]) -> dict[str, Any]:
    """Answers by status, each with the codes that there can be."""
    return {
        str(status): {
            "$ref": f"#/components/responses/{_name(status)}",
            "description": ", ".join(dict.fromkeys(f"`{kind.code}`" for kind in found)),
        }
        for status, found in _by_status(kinds).items()
    }


def codes() -> list[tuple[int, str, str]]:
    """Every status and code that an answer may have, and when."""
    return [(status, *told) for status, kinds in _by_status(_all()).items() for told in _told(kinds).items()]


def _all() -> list[type[RouterError]]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)]
    return [kind for kind in kinds if kind is not RouterError and kind not in _NOT_OURS]


def _of_requests() -> list[type[RouterError]]:
    return [kind for kind in _all() if kind not in NO_REQUESTS]


def _by_status(kinds: Iterable[type[RouterError]]) -> dict[int, list[type[RouterError]]]:
    found: dict[int, list[type[RouterError]]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.status):
        found.setdefault(kind.status, []).append(kind)
    return found


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def _told(kinds: Iterable[type[RouterError]]) -> dict[str, str]:
    """What each code means: of several errors with one it is the first that says so, which the others are kinds of."""
    told: dict[str, str] = {}
    for kind in kinds:
        told.setdefault(kind.code, summary(kind))
    return told


def _answer(status: int, kinds: list[type[RouterError]]) -> dict[str, Any]:
    told = _told(kinds)
    body = {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "enum": [*told]},
                    "type": {"type": "string", "enum": [*dict.fromkeys(kind.type for kind in kinds)]},
                },
            }
        },
    }
    again = " The same request may succeed later." if any(kind.retryable for kind in kinds) else ""
    return {
        "description": " ".join(f"`{code}`: {said}" for code, said in told.items()) + again,
        "headers": headers(*_BESIDES.get(status, ())),
        "content": {
            "application/json": {
                "schema": {"allOf": [{"$ref": "#/components/schemas/ErrorEnvelope"}, body]},
                "examples": {error.code: {"value": _shown(error)} for error in ERRORS if error.status == status},
            }
        },
    }


def _shown(error: RouterError) -> Any:
    error.request_id = REQUEST_ID
    return msgspec.to_builtins(error_envelope(error))
