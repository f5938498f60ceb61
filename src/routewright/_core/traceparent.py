"""Which trace of a whole system does a call belong to? Reads and writes ``traceparent`` as W3C Trace Context has it."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

SAMPLED = 0x01  # whoever began the trace records it
RANDOM = 0x02  # its id was drawn by chance

_LENGTH = 55
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_INVALID_VERSION = "ff"
_FLAGS_OF_LATER = SAMPLED  # of a version that is not known yet one bit alone means what it means here


class TraceParent(NamedTuple):
    """A place in a trace: what comes next there is its child."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = 0
    """``SAMPLED`` and ``RANDOM``; no other bit is passed on."""

    @property
    def text(self) -> str:
        """As a header, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """Read a header; None for what is none, which the standard has ignored. A later version is read as far as it is
    like this one: longer texts only behind a further dash."""
    if len(text) < _LENGTH:
        return None
    found = _FORM.fullmatch(text, 0, _LENGTH)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    if version == _INVALID_VERSION or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    if version != "00":
        is_read = len(text) == _LENGTH or text[_LENGTH] == "-"
        return TraceParent(trace_id, span_id, int(flags, 16) & _FLAGS_OF_LATER) if is_read else None
    return TraceParent(trace_id, span_id, int(flags, 16) & (SAMPLED | RANDOM)) if len(text) == _LENGTH else None


def span_id_of(trace_id: str, attempt: int = 0) -> str:
    """The span of an attempt at a model, or of the whole call: who knows the call's trace finds the same again, so
    that what a provider was told and what is exported later agree without being stored."""
    digest = blake2b(f"{trace_id}/{attempt}".encode(), digest_size=8).hexdigest()
    return digest if digest.strip("0") else "1".zfill(16)
