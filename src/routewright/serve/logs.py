"""Where the processes of a server write what they do: to standard error, a line each, without any API key.

What they are asked is a line of JSON on standard output.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from routewright._core.account import without_keys

from .line_writer import LineWriter

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_CHATTY = ("uvicorn", "asyncio")
"""What speaks at every step of its own."""


ACCESS = "routewright.access"


class _Keyless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def set_up(level: str, *, access: bool = False) -> None:
    """Let this process log so. ``access``: each request, too."""
    writer = _writer_to(sys.stderr, "standard error")
    writer.setFormatter(_Keyless(_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [writer]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    asked = logging.getLogger(ACCESS)
    asked.handlers[:] = [_writer_to(sys.stdout, "standard output")] if access else []
    asked.setLevel(logging.INFO if access else logging.CRITICAL)
    asked.propagate = False
    for name in _CHATTY:
        logging.getLogger(name).setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))


def fill_standard_streams() -> None:
    """Open the null device where standard input, output or error was closed, for this process and those that it starts:
    a socket would land there, and be written to as if it were a log."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest that is free


def _writer_to(stream: TextIO | None, name: str) -> logging.Handler:
    """``stream``: None where it was closed before this process began."""
    return logging.NullHandler() if stream is None else LineWriter(stream.fileno(), name)


def lost_lines() -> int:
    """Lines that this process logged, and that nobody will read."""
    handlers = [*logging.getLogger().handlers, *logging.getLogger(ACCESS).handlers]
    return sum(each.lost for each in handlers if isinstance(each, LineWriter))
