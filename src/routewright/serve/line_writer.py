"""Writes lines of a log from a thread of its own: who logs never waits for who reads. What does not fit is counted."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf

MOST_BYTES = 4 << 20
"""So much waits to be written; a line beyond is lost."""
WHOLE_BYTES = getattr(select, "PIPE_BUF", 512)
"""So much goes at once: of a pipe that processes share none writes into the midst of it."""
GATHER_S = 0.01
"""Lines of so long are written together."""
AGAIN_S = 1.0
"""So long after it found no reader it tries again."""
END_S = 1.0
"""So long the end waits for what is not written."""

_GONE = (errno.EPIPE, errno.EIO)
"""Nobody reads any more: a pipe whose reader ended, a terminal that was closed."""
_log = logging.getLogger("routewright.serve")


class LineWriter(logging.Handler):
    """Writes what is logged to a file descriptor. A reader that has left silences it, until one comes back."""

    def __init__(
        self,
        descriptor: int,
        name: str,
        *,
        most_bytes: int = MOST_BYTES,
        end_s: float = END_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._descriptor, self._called = descriptor, name
        self._most_bytes, self._end_s, self._monotonic = most_bytes, end_s, monotonic
        self.lost = 0
        """Lines that were not written."""
        self._told = 0
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._there_are_more = threading.Condition()
        self._silent_until = -inf
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log to {name}", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written soon. Never waits."""
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        with self._there_are_more:
            if self._monotonic() < self._silent_until or self._bytes + len(line) > self._most_bytes:
                self.lost += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._there_are_more.notify()

    def close(self) -> None:
        """Write what waits, if somebody reads it, and end."""
        super().close()
        self._ends.set()
        with self._there_are_more:
            self._there_are_more.notify()
        self._thread.join(self._end_s)

    def _run(self) -> None:
        while True:
            with self._there_are_more:
                while not self._lines and not self._ends.is_set():
                    self._there_are_more.wait()
            if not self._lines:
                return
            self._ends.wait(GATHER_S)
            was_put = False
            while lines := self._taken():
                was_put = self._put(lines)
            if was_put:
                self._tell()

    def _taken(self) -> list[bytes]:
        """The next lines, as many as are written at once."""
        lines: list[bytes] = []
        size = 0
        with self._there_are_more:
            while self._lines and (not lines or size + len(self._lines[0]) <= WHOLE_BYTES):
                lines.append(self._lines.popleft())
                size += len(lines[-1])
            self._bytes -= size
        return lines

    def _put(self, lines: list[bytes]) -> bool:
        """Write them. False: they are lost."""
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[self._written(rest) :]
        except OSError as error:
            self._lose(lines, is_deserted=error.errno in _GONE)
            return False
        return True

    def _written(self, rest: memoryview) -> int:
        try:
            return os.write(self._descriptor, rest)
        except BlockingIOError:  # whoever shares it made it so
            select.select([], [self._descriptor], [])
            return 0

    def _lose(self, lines: list[bytes], *, is_deserted: bool) -> None:
        with self._there_are_more:
            self.lost += len(lines)
            if is_deserted:
                self.lost += len(self._lines)
                self._lines.clear()
                self._bytes, self._silent_until = 0, self._monotonic() + AGAIN_S

    def _tell(self) -> None:
        """Say how many lines were lost, once there is room again."""
        lost = self.lost - self._told
        if lost and not self._ends.is_set():
            self._told += lost
            _log.warning("%d lines to %s were lost: it was full, or not read in time", lost, self._called)
