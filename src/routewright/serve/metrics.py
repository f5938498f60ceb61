"""A worker's figures, in files that all workers read, as long as there is room for these; else for itself alone.

Files of ``prometheus_client`` are mapped into memory and have holes where nothing was written yet: to write there while
the disk is full would end the process (SIGBUS). So room is taken first, and where there is none a figure stays here.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from routewright.router import Router
from routewright.server.metrics import SHARED_BY, Metrics

_KINDS = ("counter", "gauge_livesum", "histogram")
"""The files of a process."""
_BEGIN_BYTES = 1 << 16
_BESIDE_KEY = 64
"""What an entry takes besides its key, and more."""
_log = logging.getLogger("routewright.serve")


def metrics_of(router: Router) -> Metrics:
    """The figures, shared if that is asked for and there is room."""
    folder = os.environ.get(SHARED_BY)
    if folder is not None:
        try:
            _reserve(Path(folder))
        except OSError as error:
            _log.warning("the figures of this worker are told by itself alone: %s", error)
            del os.environ[SHARED_BY]
    shared: Any = values  # the package has its types checked without its options
    shared.MmapedDict = _Roomy
    shared.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
    return Metrics(router)


def _reserve(folder: Path) -> None:
    """Take the room of this process's files. Raises ``OSError``, and leaves none."""
    files = [folder / f"{kind}_{os.getpid()}.db" for kind in _KINDS]
    try:
        for file in files:
            with file.open("ab") as made:
                _fill(made.fileno(), _BEGIN_BYTES)
    except OSError:
        for file in files:
            file.unlink(missing_ok=True)
        raise


class _Roomy(MmapedDict):
    """One that takes room before it grows. What finds none is not in the file, until there is some."""

    _is_full = False

    def read_value(self, key: str) -> Any:
        return super().read_value(key) if self._has_room(key) else (0.0, 0.0)  # type: ignore[no-untyped-call]

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        if self._has_room(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_room(self, key: str) -> bool:
        if key in self._positions:
            return True
        size = self._capacity
        while self._used + len(key.encode()) + _BESIDE_KEY > size:
            size *= 2
        try:
            _fill(self._f.fileno(), size)
        except OSError as error:
            self._tell(error)
            return False
        self._is_full = False
        return True

    def _tell(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            _log.warning("some figures are not told, until there is room for them: %s", error)


def _fill(file: int, size: int) -> None:
    """Have a file, which is opened to append, be so long, without holes in what is new."""
    before = os.fstat(file).st_size
    try:
        while (missing := size - os.fstat(file).st_size) > 0:
            os.write(file, bytes(missing))
    except OSError:
        os.ftruncate(file, before)
        raise
