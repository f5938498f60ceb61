"""Ids of traces and requests, and ``traceparent`` as W3C Trace Context has it."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from routewright._core.request.json_scan import is_unicode, quoted
from routewright.errors import ValidationFailed

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
AFTER_PREFIX = f"[{ALPHABET}]{{{LENGTH}}}"  # what follows the prefix of an id, as a regular expression
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
_TIME_LENGTH = 10  # letters of the milliseconds, before two that count and those of chance
CHANCE_LENGTH = LENGTH - _TIME_LENGTH - 2  # letters of chance in an id: 70 bits
_LETTERS = ALPHABET.encode() * 8


def letters_of(chance: bytes) -> str:
    """Write each byte of chance as a letter."""
    return chance.translate(_LETTERS).decode()


class IdSequence:
    """Ids of one process: the milliseconds, a number within these, then chance; so later ids are greater. A clock that
    steps back is ignored until it catches up. After 1,024 ids in a millisecond the next one is begun."""

    def __init__(self) -> None:
        self._milliseconds = -1
        self._within = 0
        self._high = self._lead = ""

    def next(self, prefix: str, milliseconds: int, chance: str) -> str:
        """Write the next id, which ends in ``chance``, ``CHANCE_LENGTH`` letters."""
        within = 0
        if milliseconds <= self._milliseconds:
            milliseconds, within = self._milliseconds, self._within + 1
            if within == len(_PAIRS):
                milliseconds, within = milliseconds + 1, 0
        self._within = within
        if milliseconds != self._milliseconds:
            if milliseconds >> 20 != self._milliseconds >> 20:
                self._high = "".join([_PAIRS[milliseconds >> bits & 1023] for bits in (40, 30, 20)])
            self._milliseconds = milliseconds
            self._lead = f"{self._high}{_PAIRS[milliseconds >> 10 & 1023]}{_PAIRS[milliseconds & 1023]}"
        return f"{prefix}{self._lead}{_PAIRS[within]}{chance}"


def milliseconds_of(id: str) -> int:
    """When an id was made, in Unix milliseconds, as the clock of its maker had it; 0 for an id of another kind."""
    written = id.rpartition("_")[2][:_TIME_LENGTH]
    number = 0
    for letter in written:
        value = ALPHABET.find(letter)
        if value < 0:
            return 0
        number = number << 5 | value
    return number


def normalise_trace_id(text: object) -> str:
    """Read ``trc_<id>`` as the alias of ``tr_<id>`` that the specification also publishes (spec 2.2). Raises
    ``ValidationFailed`` for what is no string, or none that a storage can look for."""
    if not isinstance(text, str):
        raise ValidationFailed.at("trace_id", f"must be a string, got {type(text).__name__}", "pass answer.trace.id")
    if not is_unicode(text):
        raise ValidationFailed.at("trace_id", f"holds half of a surrogate pair: {quoted(text)}", "pass it as it was")
    return "tr_" + text[4:] if text.startswith("trc_") else text


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
    """Read a header. None if it is invalid: the standard says to ignore it. Of a later version the known part is read;
    longer text must follow another dash."""
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
