"""Ids of traces, requests and policies, and ``traceparent`` as W3C Trace Context has it."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from routewright.errors import ValidationFailed

from .json_scan import is_unicode, quoted

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
AFTER_PREFIX = f"[{ALPHABET}]{{{LENGTH}}}"  # regular expression for an id after its prefix
_TRACE_ID = re.compile(f"trc?_{AFTER_PREFIX}")
TIME_LENGTH = 10  # letters of the milliseconds; two for a counter and the random ones follow


def milliseconds_of(id: str) -> int:
    """Creation time of an id in Unix milliseconds; 0 for an id in another format."""
    written = id.rpartition("_")[2][:TIME_LENGTH]
    number = 0
    for letter in written:
        value = ALPHABET.find(letter)
        if value < 0:
            return 0
        number = number << 5 | value
    return number


def policy_id(name: str) -> str:
    """Default id of a policy: ``pol_`` and 26 characters from the hash of its name."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=17).digest(), "big")
    return "pol_" + "".join(ALPHABET[(number >> shift) & 31] for shift in range(0, 130, 5))


def is_trace_id(text: str) -> bool:
    """True if a text has the form of our trace ids, ``trc_`` included, so that it is no prompt."""
    return _TRACE_ID.fullmatch(text) is not None


def normalise_trace_id(text: object) -> str:
    """Convert the alias ``trc_<id>`` to ``tr_<id>`` (spec 2.2). Raises ``ValidationFailed`` unless it is a valid
    string."""
    if not isinstance(text, str):
        raise ValidationFailed.at("trace_id", f"must be a string, got {type(text).__name__}", "pass answer.trace.id")
    if not is_unicode(text):
        raise ValidationFailed.at("trace_id", f"holds an unpaired surrogate: {quoted(text)}", "pass it unchanged")
    return "tr_" + text[4:] if text.startswith("trc_") else text


SAMPLED = 0x01  # the caller records the trace
RANDOM = 0x02  # the trace id is random

_LENGTH = 55
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_INVALID_VERSION = "ff"
_FLAGS_OF_LATER = SAMPLED  # the only flag with a defined meaning in future versions


class TraceParent(NamedTuple):
    """The parent span of a call (W3C Trace Context)."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = 0
    """``SAMPLED`` and ``RANDOM``; other bits are dropped."""

    @property
    def text(self) -> str:
        """The header value, version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse a header. None: invalid, to be ignored according to the standard. For a later version the known part is
    parsed; more text must follow another dash."""
    if len(text) < _LENGTH:
        return None
    match = _FORM.fullmatch(text, 0, _LENGTH)
    if match is None:
        return None
    version = match[1]
    parent = TraceParent(match[2], match[3], int(match[4], 16) & (SAMPLED | RANDOM))
    if version == _INVALID_VERSION or not parent.trace_id.strip("0") or not parent.span_id.strip("0"):
        return None
    if version != "00":
        is_valid = len(text) == _LENGTH or text[_LENGTH] == "-"
        return parent._replace(flags=parent.flags & _FLAGS_OF_LATER) if is_valid else None
    return parent if len(text) == _LENGTH else None


def span_id_of(trace_id: str, attempt: int = 0) -> str:
    """Span id of an attempt, or of the whole call (0). It is derived from the trace id, so that the header sent to a
    provider and the exported span agree without being stored."""
    digest = blake2b(f"{trace_id}/{attempt}".encode(), digest_size=8).hexdigest()
    return digest if digest.strip("0") else "1".zfill(16)
