"""Times as they are written on the command line."""

from __future__ import annotations

import re

from routewright._core.moment import timestamp
from routewright.backends.clock import SystemClock

_AGO = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def when(text: str | None) -> str | None:
    """A time; one that is given as how long ago it is becomes a timestamp."""
    ago = _AGO.fullmatch(text or "")
    return text if ago is None else timestamp(max(0.0, SystemClock().time() - int(ago[1]) * _SECONDS[ago[2]]))
