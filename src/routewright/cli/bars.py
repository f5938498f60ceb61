"""Bars of block characters, and what stands in for what is drawn where an encoding lacks it."""

from __future__ import annotations

from typing import NamedTuple

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STAND_INS = dict(zip("▏▎▍▌▋▊▉█├└│─✗", "...#####|`|-x", strict=True))


class Bar(NamedTuple):
    """A stretch of a scale from 0 to 1, drawn as wide as there is room."""

    start: float
    length: float


def drawn(bar: Bar, width: int) -> str:
    """A bar on a scale of so many characters: at least a stroke, whatever its length, and never beyond the scale."""
    before = min(int(_share(bar.start) * width), width - 1)
    eighths = max(1, min(round(_share(bar.length) * width * 8), (width - before) * 8))
    return " " * before + _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def stand_ins(encoding: str) -> dict[int, str]:
    """What ``str.translate`` puts in the place of characters that an encoding does not have."""
    return {ord(drawn): plain for drawn, plain in _STAND_INS.items() if not has(encoding, drawn)}


def has(encoding: str, text: str) -> bool:
    """Whether an encoding has the characters of a text."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _share(part: float) -> float:
    return min(max(part, 0.0), 1.0)
