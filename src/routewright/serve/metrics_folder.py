"""A folder in which the workers of a server share their figures, also with those that replace them."""

from __future__ import annotations

import logging
import os
import shutil
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

SHARED_BY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which processes share what Prometheus reads."""
_log = logging.getLogger("routewright.serve")


class MetricsFolder:
    """Stands in the environment of what is started after ``provide()``. Leaving the ``with`` removes it."""

    def __init__(self) -> None:
        self._is_ours = SHARED_BY not in os.environ
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)
        if self._is_ours:
            os.environ.pop(SHARED_BY, None)

    def provide(self) -> None:
        """Have one that is there, and a new one where a cleaner removed it. Without one each worker tells its own."""
        if not self._is_ours or os.path.isdir(os.environ.get(SHARED_BY, "")):
            return
        try:
            self._made.append(mkdtemp(prefix="routewright-figures-"))
        except OSError as error:
            _log.warning("the figures of each worker are told by itself alone: %s", error)
            os.environ.pop(SHARED_BY, None)
        else:
            os.environ[SHARED_BY] = self._made[-1]
