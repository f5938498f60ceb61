"""The error envelope and the list envelope (spec 2.8, 7)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import Struct

from routewright.errors import RouterError

T = TypeVar("T")


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """Inside of the error envelope."""

    code: str
    message: str
    type: str
    request_id: str | None = None
    trace_id: str | None = None
    detail: dict[str, Any] | None = None


class ErrorEnvelope(Struct, frozen=True):
    """Any error response."""

    error: ErrorBody


class Page(Struct, Generic[T], frozen=True):
    """One page of a list; ``next_cursor`` is opaque and lives 24 hours."""

    data: list[T]
    next_cursor: str | None = None
    has_more: bool = False


def error_envelope(error: RouterError) -> ErrorEnvelope:
    """Put an error into the shape callers see. Addresses of upstreams are left out."""
    message, detail = error.outside or (error.message, error.detail)
    return ErrorEnvelope(ErrorBody(error.code, message, error.type, error.request_id, error.trace_id, detail))
