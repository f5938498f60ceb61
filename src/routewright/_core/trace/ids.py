"""Writes ids: a prefix and 26 characters of Crockford's base 32, in the order of their making (contract 2)."""

from __future__ import annotations

from routewright._core.request.json_scan import is_unicode, quoted
from routewright.errors import Problem, ValidationFailed

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
AFTER_PREFIX = f"[{ALPHABET}]{{{LENGTH}}}"
"""What follows the prefix of an id, as a regular expression."""
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
_COUNTER_BITS = 40
_HEAD_BITS = 40
_TIME_LENGTH = 10
"""Letters of the milliseconds, before those of chance."""
RANDOM_BITS = _HEAD_BITS + _COUNTER_BITS - 1
"""How many random bits a new millisecond takes."""


class IdSequence:
    """Ids of one process: milliseconds, then chance, then a counter, so that later ids are greater.

    A clock that steps back is ignored until it catches up.
    """

    def __init__(self) -> None:
        self.milliseconds = -1
        """The present one: ids of a later one take chance."""
        self._head = ""
        self._counter = 0

    def next(self, prefix: str, milliseconds: int, random_bits: int) -> str:
        """Write the next id. ``random_bits``: ``RANDOM_BITS`` of them, used where the millisecond is a new one."""
        if milliseconds > self.milliseconds:
            head = milliseconds << _HEAD_BITS | random_bits >> (_COUNTER_BITS - 1)
            self.milliseconds = milliseconds
            self._head = (
                f"{_PAIRS[head >> 80]}{_PAIRS[head >> 70 & 1023]}{_PAIRS[head >> 60 & 1023]}{_PAIRS[head >> 50 & 1023]}"
                f"{_PAIRS[head >> 40 & 1023]}{_PAIRS[head >> 30 & 1023]}{_PAIRS[head >> 20 & 1023]}"
                f"{_PAIRS[head >> 10 & 1023]}{_PAIRS[head & 1023]}"
            )
            self._counter = random_bits & ((1 << (_COUNTER_BITS - 1)) - 1)  # half the range is left to count in
        self._counter = counter = self._counter + 1
        return (
            f"{prefix}{self._head}{_PAIRS[counter >> 30]}{_PAIRS[counter >> 20 & 1023]}"
            f"{_PAIRS[counter >> 10 & 1023]}{_PAIRS[counter & 1023]}"
        )


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
    """Read ``trc_<id>`` as the alias of ``tr_<id>`` that the specification also publishes (spec 2.2).

    Raises ``ValidationFailed`` for what is no string, or none that a storage can look for.
    """
    if not isinstance(text, str):
        raise ValidationFailed.of(Problem("trace_id", f"must be a string, got {type(text).__name__}", ""))
    if not is_unicode(text):
        raise ValidationFailed.of(Problem("trace_id", f"holds half of a surrogate pair: {quoted(text)}", ""))
    return "tr_" + text[4:] if text.startswith("trc_") else text
