"""Errors in the words of the Messages API. Statuses are our own, so that clients raise what belongs to them."""

from __future__ import annotations

import msgspec

from routewright.errors import RouterError
from routewright.server.errors import fit

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""What a status is called. Of others, those below 500 are called as 400 is, and those above ``api_error``."""


def body(error: RouterError) -> bytes:
    """The body of an error response. Our code and detail are in ``details``, where clients look for a code. No API key
    is repeated that stood in a wrong place."""
    kind = TYPES.get(error.status, TYPES[400] if error.status < 500 else "api_error")
    told = {"type": kind, "message": error.message, "details": _details(error)}
    return fit(msgspec.json.encode({"type": "error", "error": told, "request_id": error.request_id}))


def _details(error: RouterError) -> dict[str, object]:
    trace = {} if error.trace_id is None else {"trace_id": error.trace_id}
    return {**error.detail, "error_code": error.code, **trace}
