"""Logging of the server's processes: lines on standard error with API keys masked, requests as JSON on standard
output."""

from __future__ import annotations

import logging
import sys

from routewright._core.account import without_keys

ACCESS = "routewright.access"
_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_CHATTY = ("uvicorn", "asyncio")
"""Loggers that write much at ``INFO``."""


class _Keyless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def set_up(level: str, *, access: bool = False) -> None:
    """Configure logging of this process, with ``access`` also the access log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Keyless(_FORMAT))
    root, requests = logging.getLogger(), logging.getLogger(ACCESS)
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    requests.handlers[:] = [logging.StreamHandler(sys.stdout)] if access else []
    requests.setLevel(logging.INFO if access else logging.CRITICAL)
    requests.propagate = False
    for name in _CHATTY:
        logging.getLogger(name).setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
