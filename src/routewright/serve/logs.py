"""Where the processes of a server write what they do: to standard error, a line each, without any API key.

What they are asked is a line of JSON on standard output.
"""

from __future__ import annotations

import logging
import sys

from routewright._core.account import without_keys

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_CHATTY = ("uvicorn", "asyncio")
"""What speaks at every step of its own."""


ACCESS = "routewright.access"


class _Keyless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def set_up(level: str, *, access: bool = False) -> None:
    """Let this process log so. ``access``: each request, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Keyless(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    asked = logging.getLogger(ACCESS)
    asked.handlers[:] = [logging.StreamHandler(sys.stdout)] if access else []
    asked.setLevel(logging.INFO if access else logging.CRITICAL)
    asked.propagate = False
    for name in _CHATTY:
        logging.getLogger(name).setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))
