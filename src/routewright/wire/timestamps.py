"""Timestamps as RFC 3339 in UTC with milliseconds, and durations for people. Strings in this form sort by time."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from routewright.errors import ValidationFailed

from .problems import shown

_HINT = "write a timestamp as 2026-11-22T09:30:00Z, or pass a datetime with a time zone"
_AGE_HINT = "write an age such as 7d, or a timestamp as 2026-11-22T09:30:00Z"
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_MS = timedelta(milliseconds=1)


def timestamp(at: float) -> str:
    """Format Unix seconds."""
    milliseconds = int(at) * 1000 + round(at % 1 * 1_000_000) // 1000  # as datetime rounds
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


def moment(path: str, value: str | datetime | date, hint: str = _HINT) -> str:
    """Convert to the standard form, rounded up to milliseconds. A date means its start. Raises ``ValidationFailed``."""
    at: object = value
    if isinstance(at, str):
        try:
            at = date.fromisoformat(at) if len(at) == len("YYYY-MM-DD") else datetime.fromisoformat(at)
        except ValueError:
            at = None
    if isinstance(at, date) and not isinstance(at, datetime):
        at = datetime.combine(at, time.min, UTC)
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ValidationFailed.at(path, f"is {_describe(value)}", hint)
    try:
        at = at.astimezone(UTC)
        milliseconds = -(-at.microsecond // 1000)
        at = at.replace(microsecond=0) + milliseconds * _MS
    except OverflowError:
        raise ValidationFailed.at(path, f"is {_describe(value)}", "take a year from 1 to 9999") from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> int | None:
    """Seconds for ``30m``, ``2h`` or ``7d``. None for other text."""
    match = _AGO.fullmatch(text)
    return None if match is None else int(match[1]) * _SECONDS[match[2]]


def start_of(since: str | datetime | date, now: float) -> str:
    """The start of a time range: an age such as ``7d``, or as in ``moment``. Raises ``ValidationFailed``."""
    seconds = seconds_of(since) if isinstance(since, str) else None
    return moment("since", since, _AGE_HINT) if seconds is None else timestamp(max(0.0, now - seconds))


def span_of(
    since: str | datetime | date | None,
    until: str | datetime | date | None,
    names: tuple[str, str] = ("since", "until"),
) -> tuple[str | None, str | None]:
    """Convert both ends of a time range; either may be None. ``names`` are the parameters' names in errors. Raises
    ``ValidationFailed``."""
    first = None if since is None else moment(names[0], since)
    last = None if until is None else moment(names[1], until)
    if first is not None and last is not None and first > last:
        raise ValidationFailed.at(names[0], f"is {first}, after {last}, the {names[1]}", "swap them")
    return first, last


def time_short(ms: float) -> str:
    """Format a duration: milliseconds below a second, else seconds."""
    if ms >= 999.5:
        return f"{ms / 1000:,.1f} s"
    return f"{ms:.0f} ms" if ms >= 9.95 or not ms else f"{ms:.1f} ms"


def _describe(value: object) -> str:
    return shown(str(value) if isinstance(value, date) else value)


@lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
