"""Every error that reaches a caller, with code, status and whether to retry; and the one that providers raise.

    RouterError
    ├── ValidationFailed            400 validation_failed
    │   └── InvalidJson             400 invalid_json
    ├── MalformedRequest            400 malformed_request
    ├── CursorInvalid               400 cursor_invalid
    │   └── CursorExpired           400 cursor_expired
    ├── AuthenticationFailed        401 authentication_failed
    │   └── SignatureError          401 signature_invalid
    ├── InsufficientBalance         402 insufficient_balance
    ├── QuotaExhausted              402 quota_exhausted
    ├── PermissionDenied            403 permission_denied
    ├── BlockedByPolicy             403 blocked_by_policy
    ├── ContentRefused              403 content_refused
    ├── NotFound                    404 not_found
    ├── MethodNotAllowed            405 method_not_allowed
    ├── RequestTimedOut             408 request_timeout              retryable
    ├── IdempotencyKeyReused        409 idempotency_key_reused_with_different_body
    ├── BodyTooLarge                413 body_too_large
    ├── UnsupportedMediaType        415 unsupported_media_type
    ├── HeadersTooLarge             431 headers_too_large
    ├── NoCandidates                422 router.no_candidates
    │   ├── BudgetExceeded          422 router.budget_exceeded
    │   └── NoProviders             422 router.no_candidates (nothing is configured)
    ├── RateLimited                 429 RATE_LIMITED                 retryable
    ├── InternalError               500 internal_error               retryable
    │   ├── StorageUnavailable      500 storage_unavailable          retryable
    │   │   ├── StorageFull         500 storage_unavailable          retryable
    │   │   ├── StorageReadOnly     500 storage_unavailable
    │   │   ├── StorageCorrupt      500 storage_unavailable
    │   │   └── StorageVersion      500 storage_unavailable
    │   ├── PreconditionFailed      500 internal_error
    │   ├── RouterClosed            500 internal_error
    │   └── UnsupportedWrite        500 internal_error
    ├── UpstreamFailed              502 router.upstream_failed       retryable
    ├── Overloaded                  503 overloaded                   retryable
    └── RouterTimeoutError          504 RouterTimeoutError           retryable

``ProviderFault`` is raised by providers and classified by the engine; callers never see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self


@contextmanager
def require_extra(name: str, module: str) -> Iterator[None]:
    """Name the extra if an import within the block fails. Raises ``ModuleNotFoundError``."""
    try:
        yield
    except ImportError as error:  # psycopg without libpq is no ModuleNotFoundError
        lack = f"{error.name} is missing" if error.name else error
        message = f"{module} needs the extra '{name}' ({lack}): pip install 'routewright[{name}]'"
        raise ModuleNotFoundError(message, name=error.name) from error


class Problem(NamedTuple):
    """One thing that is wrong with an input."""

    path: str
    """JSON path without the dollar: ``messages[0].role``; for files after the file's name."""
    problem: str
    """What is wrong, with the value."""
    hint: str
    """How to fix it."""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.problem}; {self.hint}" if self.hint else f"{where}{self.problem}"


class RouterError(Exception):
    """Base of all errors. ``code``, ``status``, ``type`` and ``retryable`` are the class's; the rest is per error."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    is_counted = False
    """True: the Router has counted it among its refusals."""

    outside: tuple[str, dict[str, Any]] | None = None
    """``message`` and ``detail`` without addresses of upstreams, for outsiders; None if they contain none."""

    def __init_subclass__(cls, **facts: str | int) -> None:
        """``class MyError(RouterError, code="mine", status=400)``; missing values are inherited."""
        super().__init_subclass__()
        for name, value in facts.items():
            setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        request_id: str | None = None,
        trace_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail or {}
        self.request_id = request_id
        """The id of the failed request; None if it was refused before admission."""
        self.trace_id = trace_id
        self.headers: dict[str, str] = {}
        """HTTP headers: ``X-RateLimit-...`` of a counted call, ``Retry-After``."""
        self.cost_nanos = 0
        """The cost of the call's attempts before it failed, in nano-dollars."""

    @property
    def status_code(self) -> int:
        """``status``, under the name used by vendors' SDKs and httpx."""
        return self.status

    @property
    def body(self) -> dict[str, Any]:
        """The error envelope of HTTP (spec 7): ``{"error": {"code": ..., "message": ...}}``. Addresses of upstreams are
        left out."""
        message, detail = self.outside or (self.message, self.detail)
        fields = {"code": self.code, "message": message, "type": self.type}
        ids = {"request_id": self.request_id, "trace_id": self.trace_id}
        return {"error": fields | {name: id for name, id in ids.items() if id is not None} | {"detail": detail}}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[RouterError], message: str, state: dict[str, Any]) -> RouterError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ValidationFailed(RouterError, code="validation_failed", status=400, type="validation_error"):
    """The input is invalid. ``problems`` lists what is wrong, with path and hint. When these are fixed, others may
    appear."""

    def __init__(self, message: str, *, problems: list[Problem] | None = None, **rest: Any) -> None:
        self.problems = problems or []
        rest.setdefault("detail", {"problems": [p._asdict() for p in self.problems]} if self.problems else None)
        super().__init__(message, **rest)

    @classmethod
    def of(cls, *problems: Problem) -> Self:
        """Make the error whose message is its problems."""
        return cls("\n".join(str(p) for p in problems), problems=list(problems))

    @classmethod
    def at(cls, path: str, problem: str, hint: str) -> Self:
        """Make the error of one problem."""
        return cls.of(Problem(path, problem, hint))


@contextmanager
def renaming(rename: Callable[[Problem], Problem]) -> Iterator[None]:
    """Rename the problems of a ``ValidationFailed`` raised in the block."""
    try:
        yield
    except ValidationFailed as error:
        problems = [*map(rename, error.problems)]
    else:
        return
    raise ValidationFailed.of(*problems)


class InvalidJson(ValidationFailed, code="invalid_json"):
    """The body is not a single JSON value in UTF-8 (spec 1)."""


class MalformedRequest(RouterError, code="malformed_request", status=400, type="request_error"):
    """The bytes are not an HTTP/1.1 request, or ask for an unsupported protocol."""


class CursorInvalid(RouterError, code="cursor_invalid", status=400, type="validation_error"):
    """The cursor was not made by this service for this account and query."""


class CursorExpired(CursorInvalid, code="cursor_expired"):
    """The cursor is older than 24 hours (spec 4.5)."""


class AuthenticationFailed(RouterError, code="authentication_failed", status=401, type="authentication_error"):
    """The key is missing, malformed, unknown, revoked, or for the other environment (spec 5)."""


class SignatureError(AuthenticationFailed, code="signature_invalid"):
    """The signature of a webhook is too old, or not made with a valid secret for this body. Answer with 401."""


class InsufficientBalance(RouterError, code="insufficient_balance", status=402, type="billing_error"):
    """The account's balance cannot cover the call."""


class QuotaExhausted(RouterError, code="quota_exhausted", status=402, type="billing_error"):
    """A spending limit is used up; ``detail["level"]`` says which."""


class PermissionDenied(RouterError, code="permission_denied", status=403, type="permission_error"):
    """The key lacks the scope that this call needs or may not use what it names, or the account is unknown."""


class BlockedByPolicy(RouterError, code="blocked_by_policy", status=403, type="permission_error"):
    """A guardrail of the Router or of the policy blocked the content."""


class ContentRefused(RouterError, code="content_refused", status=403, type="permission_error"):
    """The provider's moderation refused the content. Other providers are tried only if a policy says so."""


class NotFound(RouterError, code="not_found", status=404, type="request_error"):
    """There is no such object, or it belongs to another account."""


class MethodNotAllowed(RouterError, code="method_not_allowed", status=405, type="request_error"):
    """The address exists, but does not accept this method."""


class RequestTimedOut(RouterError, code="request_timeout", status=408, type="request_error", retryable=True):
    """The request did not arrive completely in time (spec 7)."""


class IdempotencyKeyReused(
    RouterError, code="idempotency_key_reused_with_different_body", status=409, type="conflict_error"
):
    """The idempotency key was used with another body within 24 hours (spec 4.1)."""


class BodyTooLarge(RouterError, code="body_too_large", status=413, type="request_error"):
    """The request body has too many bytes or JSON values."""


class UnsupportedMediaType(RouterError, code="unsupported_media_type", status=415, type="request_error"):
    """The body is not ``application/json``."""


class HeadersTooLarge(RouterError, code="headers_too_large", status=431, type="request_error"):
    """The request line or the headers are too long, or there are too many headers."""


class NoCandidates(RouterError, code="router.no_candidates", status=422, type="constraint_error"):
    """No model meets all constraints. ``rejected_candidates`` and ``suggestion`` are in ``detail`` (spec 7)."""

    decision_input: object = None
    """Its ``DecisionInput``, from which the decision can be repeated."""


class BudgetExceeded(NoCandidates, code="router.budget_exceeded"):
    """Every suitable model would cost more than the budget; ``detail`` says by how much."""


class NoProviders(NoCandidates):
    """No provider is configured."""


class RateLimited(RouterError, code="RATE_LIMITED", status=429, type="rate_limit_error", retryable=True):
    """Too many requests or tokens in a minute, too many calls at a time, or too many request bodies in a worker, or the
    money is reserved by running calls."""

    def __init__(self, message: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        header_keys = _HEADERS if "limit" in self.detail else {"Retry-After": _HEADERS["Retry-After"]}
        self.headers = {name: str(self.detail[key]) for name, key in header_keys.items() if key in self.detail}


_HEADERS = {
    "X-RateLimit-Limit": "limit",
    "X-RateLimit-Remaining": "remaining",
    "X-RateLimit-Reset": "reset_unix",
    "X-RateLimit-Resource": "resource",
    "Retry-After": "retry_after_seconds",
}
"""Headers of a refused call, with the keys of their values in ``detail``."""


class InternalError(RouterError, retryable=True):
    """Something failed in this library, or in a part that was plugged into it."""


class StorageUnavailable(InternalError, code="storage_unavailable"):
    """The storage could not be reached or refused the write. ``body`` does not name it."""

    outside = "the storage is not available; ask the operator to check it", {}


class StorageFull(StorageUnavailable):
    """The disk is full, so nothing of this batch of writes was stored."""


class StorageReadOnly(StorageUnavailable, retryable=False):
    """The file, its folder or its disk is read-only."""


class StorageCorrupt(StorageUnavailable, retryable=False):
    """The file is damaged, or is not a store of this library."""


class StorageVersion(StorageUnavailable, retryable=False):
    """The store was made by a newer version, or by an older one and must be upgraded."""


class PreconditionFailed(InternalError, retryable=False):
    """A write expected something that was not the case, so nothing of its batch was stored. ``index`` is its place
    there."""

    def __init__(self, message: str, *, index: int = 0, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.index = index


class RouterClosed(InternalError, retryable=False):
    """The Router was closed, or the interpreter is exiting. Make a new Router."""


class UnsupportedWrite(InternalError, retryable=False):
    """The storage does not support this kind of write or query."""


class UpstreamFailed(RouterError, code="router.upstream_failed", status=502, type="upstream_error", retryable=True):
    """Every attempt failed; ``detail["attempts"]`` lists them in order."""


class Overloaded(RouterError, code="overloaded", status=503, type="internal_error", retryable=True):
    """A worker has reached its limit of open connections."""


class RouterTimeoutError(
    RouterError, TimeoutError, code="RouterTimeoutError", status=504, type="timeout_error", retryable=True
):
    """``timeout_ms`` ran out before an answer was complete."""


WROTE = "; the provider wrote: "
"""Between the text of a fault and the vendor's own message."""


class ProviderFault(Exception):
    """Raised by a provider when a call fails.

    ``kind`` is a ``FaultKind`` of ``routewright.wire``; ``status`` the HTTP status, if any; ``retry_after`` in seconds;
    ``body`` the start of the response, never shown to callers. ``quote``: the vendor's own message, only shown in this
    process and to callers without a key, since it may repeat the prompt. ``answered``: the provider had started to
    answer, so the call may be billed even if nothing could be read; always true with status 200. ``public``: the
    message without addresses, shown over HTTP and to callers with a key. ``hint``: how to fix it, if a retry does not
    help. ``retry``: the provider's own word on whether to retry the model; None: as the kind says."""

    public = hint = ""
    quote = ""
    retry: bool | None = None

    def __init__(
        self,
        kind: str,
        message: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
        body: str = "",
        answered: bool = False,
        public: str = "",
        hint: str = "",
        quote: str = "",
        retry: bool | None = None,
    ) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.public = public
        self.hint = hint
        self.quote = quote
        self.status = status
        self.retry_after = retry_after
        self.body = body
        self.answered = answered or status == 200
        self.retry = retry

    def __str__(self) -> str:
        status = f" (status {self.status})" if self.status is not None else ""
        text = f"{self.kind}{status}: {self.message}" if self.message else f"{self.kind}{status}"
        return f"{text}{WROTE}{self.quote}" if self.quote else text
