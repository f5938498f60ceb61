"""What an HTTP answer that is not one means: status, headers and body to ``ProviderFault``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import msgspec

from routewright.errors import ProviderFault
from routewright.wire import FaultKind

BODY_CHARS = 2048
"""How much of a body a fault keeps."""
_START_CHARS = 2 * BODY_CHARS
"""As much is kept until it is concealed, lest a credential be cut in two first."""
MAX_RETRY_AFTER_S = 86_400.0

Redact = Callable[[str], str]
"""Hides our credentials in what a server sent, with as many other characters."""

_BY_STATUS = {
    401: FaultKind.AUTH,
    402: FaultKind.AUTH,  # out of credit: this key does not get served, another may
    408: FaultKind.TIMEOUT,
    429: FaultKind.RATE_LIMITED,
    498: FaultKind.RATE_LIMITED,  # groq: capacity exceeded
}
_UNLESS_SAID_OTHERWISE = {403: FaultKind.AUTH, 413: FaultKind.CONTEXT_OVERFLOW}

_BY_CODE = {
    "context_length_exceeded": FaultKind.CONTEXT_OVERFLOW,
    "exceed_context_size_error": FaultKind.CONTEXT_OVERFLOW,
    "content_filter": FaultKind.REFUSED,
    "content_policy_violation": FaultKind.REFUSED,
    "data_inspection_failed": FaultKind.REFUSED,
    "invalid_prompt": FaultKind.REFUSED,
    "moderation_blocked": FaultKind.REFUSED,
    "model_not_found": FaultKind.MODEL_NOT_FOUND,
    "invalid_model": FaultKind.MODEL_NOT_FOUND,
    "invalid_api_key": FaultKind.AUTH,
    "authentication_error": FaultKind.AUTH,
    "insufficient_quota": FaultKind.RATE_LIMITED,
    "rate_limit_error": FaultKind.RATE_LIMITED,
    "rate_limit_exceeded": FaultKind.RATE_LIMITED,
    "internal_server_error": FaultKind.SERVER,
    "overloaded_error": FaultKind.SERVER,
    "server_error": FaultKind.SERVER,
    "service_unavailable": FaultKind.SERVER,
}
_BY_TEXT = (
    (
        FaultKind.REFUSED,
        r"content (management )?polic|usage polic|content[ _]filter|moderation|was flagged|safety system"
        r"|(unsafe|sensitive|inappropriate) content|considered high risk",
    ),
    (
        FaultKind.CONTEXT_OVERFLOW,
        r"context[ _](length|window|size)|maximum (prompt|input) length|(prompt|input) is too long|prompt exceeds"
        r"|too many (input )?tokens|model token limit|range of input length|reduce the length of"
        r"|tokens` \+ `max_new_tokens",
    ),
    (FaultKind.AUTH, r"(incorrect|invalid) api key|api key (is )?(not valid|invalid)"),
    (
        FaultKind.MODEL_NOT_FOUND,
        r"(invalid|unknown) model|model\b.{0,80}\b(not found|not exist|does not exist|not a valid|not supported in)",
    ),
)
_TEXT_KINDS = tuple((kind, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for kind, pattern in _BY_TEXT)


def fault_of_answer(provider: str, status: int, headers: Mapping[str, str], body: str) -> ProviderFault:
    """The fault that an answer with a status other than 200 stands for, not yet concealed."""
    error = _parse(body)
    kind = _kind(status, error.code, error.text)
    message = f"{provider} answered {status}" + (f" {error.code}" if error.code else "")
    return ProviderFault(kind, message, status=status, retry_after=retry_after(headers), body=start_of(body))


def fault_in_answer(provider: str, body: str) -> ProviderFault:
    """The fault that an error inside an answer with status 200 stands for, not yet concealed."""
    error = _parse(body)
    if error.code.isdecimal() and 400 <= int(error.code) < 600:
        kind = _kind(int(error.code), "", error.text)
    else:
        kind = _BY_CODE.get(error.code) or _kind_of_text(error.text) or FaultKind.MALFORMED
    message = f"{provider} answered 200 with an error" + (f": {error.code}" if error.code else "")
    return ProviderFault(kind, message, status=200, body=start_of(body))


def start_of(body: str) -> str:
    """As much of a body as a fault that will be concealed takes along."""
    return body[:_START_CHARS]


def conceal(fault: ProviderFault, redact: Redact) -> None:
    """Hide our credentials in all that a finished fault says, whatever it was read from."""
    fault.message, fault.body = redact(fault.message), redact(fault.body)[:BODY_CHARS]
    fault.args = (fault.kind, fault.message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, 0 to a day, from ``retry-after-ms`` or ``retry-after``; None where there is no sense in them."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None:
        return min(seconds, MAX_RETRY_AFTER_S)
    until = _http_date(value)
    if until is None:
        return None
    now = _http_date(headers.get("date", ""))  # by the server's own clock, if it says
    return min(max(until - (time.time() if now is None else now), 0.0), MAX_RETRY_AFTER_S)


class _Told(msgspec.Struct, frozen=True):
    """What an error body says: a code that is safe to show, and everything else."""

    code: str
    text: str


def _kind(status: int, code: str, text: str) -> FaultKind:
    if status >= 500:
        return FaultKind.SERVER
    if status < 400:
        return FaultKind.MALFORMED
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    told = _BY_CODE.get(code) or _kind_of_text(text)
    if told is None and status == 404 and "model" in text.lower():
        return FaultKind.MODEL_NOT_FOUND
    return told or _UNLESS_SAID_OTHERWISE.get(status, FaultKind.REQUEST)


def _kind_of_text(text: str) -> FaultKind | None:
    return next((kind for kind, pattern in _TEXT_KINDS if pattern.search(text)), None)


def _parse(body: str) -> _Told:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _Told("", body[:BODY_CHARS])
    first = decoded[0] if isinstance(decoded, list) and decoded else decoded
    return _read(first.get("error") or first if isinstance(first, dict) else first)


def _read(error: Any) -> _Told:
    if not isinstance(error, dict):
        return _Told("", str(error)[:BODY_CHARS])
    names = (error.get("code"), error.get("type"))
    known = [str(name).lower() for name in names if isinstance(name, str | int) and not isinstance(name, bool)]
    shown = [name for name in known if re.fullmatch(r"[\w.-]{1,64}", name)]
    code = next((name for name in shown if name in _BY_CODE), shown[0] if shown else "")
    said = next((error[name] for name in ("message", "msg", "detail") if error.get(name)), "")
    return _Told(code, f"{said} {' '.join(known)}"[:BODY_CHARS])


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _http_date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
