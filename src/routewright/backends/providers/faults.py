"""Turns a failed HTTP answer into a ``ProviderFault``, by status, headers and body."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import NamedTuple

from routewright._core.attempts.faults import ENDING, ending_of, is_known, kind_of_status, kind_of_words
from routewright.errors import ProviderFault
from routewright.wire import FaultKind, JsonObject, UpstreamCall
from routewright.wire.printable import one_line

BODY_CHARS = 2048
"""Characters of a body that a fault keeps."""
_START_CHARS = 2 * BODY_CHARS
"""Characters until credentials are hidden, so that none is cut in two before."""
QUOTE_CHARS = 500
"""Characters of a vendor's message that its caller gets to read."""
MAX_RETRY_AFTER_S = 86_400.0
CUT = ("length", "content_filter")
"""Finish reasons of answers that may be empty."""
_SHOULD_RETRY = {"true": True, "false": False}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_DURATION_S = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_WORDS = ("message", "msg", "detail", "error_message", "error")
"""Fields with an error's message; the first one present counts."""
_TOOL = re.compile(
    r"\b(?:tools(?!\[0\]\.func\w+d)|func\w+declarations)[.[](\d+)|(?:function|tool) ['`]([\w.-]+)['`]", re.I
)
"""Matches the index of a tool in a place, or a tool's name. Google has all of them within the first one."""
_PLACE = re.compile(r"invalid '([\w.\[\]]{1,200})'", re.IGNORECASE)
"""Matches the place in the request that a message is about, if no field names it."""

Redact = Callable[[str], str]
"""Masks credentials in a text."""


def fault_of_answer(provider: str, status: int, headers: Mapping[str, str], body: str) -> ProviderFault:
    """The fault of an answer with a status other than 200. Credentials are not hidden yet."""
    error = _parse(body)
    kind = kind_of_status(status, error.code, error.text, error.param)
    message = f"{provider} answered {status}" + (f" {error.code}" if error.code not in ("", str(status)) else "")
    wait = retry_after(headers)
    wait = error.retry_after if wait is None else wait
    retry = _SHOULD_RETRY.get(headers.get("x-should-retry", ""))
    body = start_of(body)
    return ProviderFault(kind, message, status=status, retry_after=wait, body=body, retry=retry, quote=error.quote)


def fault_in_answer(provider: str, body: str) -> ProviderFault:
    """The fault of an error in an answer with status 200. Credentials are not hidden yet."""
    error = _parse(body)
    if error.code.isdecimal() and 400 <= int(error.code) < 600:
        kind = kind_of_status(int(error.code), "", error.text, error.param)
    else:
        kind = kind_of_words(error.code, error.text, error.param) or FaultKind.MALFORMED
    message = f"{provider} answered 200 with an error" + (f": {error.code}" if error.code else "")
    body = start_of(body)
    return ProviderFault(kind, message, status=200, retry_after=error.retry_after, body=body, quote=error.quote)


def fault_of_document(provider: str, problem: str, document: bytes | str = "") -> ProviderFault:
    """The fault of an invalid answer with status 200. Credentials are not hidden yet."""
    message = f"{provider} sent an answer with {problem}"
    return ProviderFault(FaultKind.MALFORMED, message, status=200, body=start_of(text_of(document)))


def reason_of(provider: str, word: str) -> str:
    """The common name of a vendor's finish reason, or the vendor's own. Raises a fault for some reasons."""
    reason = ending_of(word)
    if isinstance(reason, FaultKind):
        raise ProviderFault(reason, f"{provider} broke off with {word.partition(':')[0]!r}", status=200)
    return reason or (word if ENDING.fullmatch(word) else "other")


def dicts_of(value: object) -> list[JsonObject]:
    """The objects of a list; none of another value."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_of(document: bytes | str) -> str:
    """A document as text."""
    return document.decode("utf-8", "replace") if isinstance(document, bytes) else document


def start_of(body: str) -> str:
    """The part of a body for a fault whose credentials are not hidden yet. Half characters become question marks."""
    return body[:_START_CHARS].encode("utf-8", "replace").decode()


def hint_for_tool(body: str, call: UpstreamCall) -> str:
    """A hint that names the tool which a vendor's error is about, by its index or its name; empty if there is none."""
    index, name = match.groups() if (match := _TOOL.search(body)) else (None, "")
    for number, tool in enumerate(call.tools or ()):
        if str(number) == index or tool.function_spec.name == name:
            return f"check the tool {tool.function_spec.name!r}"
    return ""


def conceal(fault: ProviderFault, redact: Redact) -> None:
    """Hide credentials in all texts of a fault."""
    fault.message = redact(fault.message)
    fault.body = redact(fault.body)[:BODY_CHARS]
    fault.public = redact(fault.public)
    fault.quote = one_line(redact(fault.quote))[:QUOTE_CHARS]
    fault.args = (fault.kind, fault.message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, up to a day, from ``retry-after-ms`` or ``retry-after``; None if invalid."""
    milliseconds = _parse_number(headers.get("retry-after-ms", ""))
    seconds = seconds_until(headers, "retry-after") if milliseconds is None else milliseconds / 1000
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def seconds_until(headers: Mapping[str, str], name: str) -> float | None:
    """Seconds until the time in a header: seconds, a duration ("6m0s", "20ms") or a date. None if invalid."""
    value = headers.get(name, "")
    seconds = _parse_number(value)
    if seconds is not None:
        return seconds
    if value and (match := _DURATION.fullmatch(value)):
        return sum(float(part or 0) * unit for part, unit in zip(match.groups(), _DURATION_S, strict=True))
    until = _parse_date(value)
    now = _parse_date(headers.get("date", ""))  # by the server's clock, if reported
    return None if until is None else max(until - (time.time() if now is None else now), 0.0)


class _Error(NamedTuple):
    """The content of an error's body."""

    code: str
    """Safe to show."""
    quote: str
    """The message, which may contain anything."""
    retry_after: float | None = None
    param: str = ""
    """The place in the request that it is about, if known."""
    text: str = ""
    """``quote`` with all codes, to look for words in."""


def _parse(body: str) -> _Error:
    with suppress(ValueError, RecursionError):  # nested too deeply
        error: object = json.loads(body)  # unlike msgspec, it takes half characters
        error = error[0] if isinstance(error, list) and error else error
        if isinstance(error, dict):
            groq = error.get("x_groq")
            minimax = error.get("base_resp")
            inner = error.get("error")
            if isinstance(minimax, dict) and minimax.get("status_code"):
                error = {"code": f"base_resp.{minimax['status_code']}", "message": minimax.get("status_msg")}
            elif isinstance(groq, dict) and groq.get("error"):
                error = {"type": "server_error", "message": groq["error"]}  # an aborted stream
            elif inner and isinstance(inner, dict | list):  # if it is a text, other fields say more
                error = inner
        if isinstance(error, dict):
            return _read(error)
        body = str(error)
    return _Error("", start_of(body), text=body[:BODY_CHARS])


def _read(error: JsonObject) -> _Error:
    details = error.get("details")
    details = dicts_of(details if isinstance(details, list) else [details])
    metadata = error.get("metadata")  # OpenRouter's field for the vendor's error
    metadata = metadata if isinstance(metadata, dict) else {}
    names = [error.get("code"), *(detail.get(name) for detail in details for name in ("reason", "error_code"))]
    names += [metadata.get("limit_source"), metadata.get("error_type"), error.get("type"), error.get("status")]
    codes = [str(name).lower() for name in names if isinstance(name, str | int) and not isinstance(name, bool)]
    safe_codes = [name for name in codes if re.fullmatch(r"[\w.-]{1,64}", name)]
    code = next((name for name in safe_codes if is_known(name)), safe_codes[0] if safe_codes else "")
    message = next((error[name] for name in _WORDS if error.get(name)), "")
    quote = f"{_join_words(message)} {_join_words(metadata.get('raw'))}".strip()
    param = error.get("param")
    if not isinstance(param, str) or param in ("", "None"):
        param = match[1] if (match := _PLACE.search(quote[:BODY_CHARS])) else ""
    # Google's details have the time to wait: "34.07s"
    wait = next((delay for detail in details if isinstance(delay := detail.get("retryDelay"), str)), "")
    seconds = _parse_number(wait.removesuffix("s")) if wait.endswith("s") else None
    wait_s = None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)
    return _Error(code, start_of(quote), wait_s, param, " ".join((quote, *codes))[:BODY_CHARS])


def _join_words(message: object) -> str:
    """Messages in an error, without values, which may contain the prompt."""
    if isinstance(message, list):
        return " ".join(map(_join_words, message))
    if isinstance(message, dict):
        return " ".join(_join_words(message.get(name)) for name in _WORDS)
    return message if isinstance(message, str) else ""


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _parse_date(text: str) -> float | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, OverflowError):
            date = read(text)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None
