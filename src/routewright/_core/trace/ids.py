"""Writes ids: a prefix and 26 characters of Crockford's base 32, in the order of their making (contract 2)."""

from __future__ import annotations

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
