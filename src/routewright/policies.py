"""Reads policies from files, and reloads a file when it changes."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from ._runtime.loop import in_thread
from ._setup.input_file import path_of, read
from .errors import RouterError, ValidationFailed
from .protocols import Clock
from .wire import Policy, PolicyChanged
from .wire.problems import shown

Reload = Callable[[Sequence[Policy] | None], list[PolicyChanged]]
"""Publishes policies; None: those now in the file."""

_log = logging.getLogger(__name__)


def read_policies(path: str | Path) -> list[Policy]:
    """Read policies from a TOML or JSON file. Raises ``ValidationFailed`` naming file and key.

    The Router checks if the models exist, since it also knows those of its providers."""
    from ._setup.config import policies_of  # loads pydantic

    document = read(path)
    with document.naming():
        return policies_of(document)


class PolicyFile:
    """Policies in a file, read at first use and again when it changes.

        router = Router(policies=PolicyFile("policies.toml"))

    An invalid file leaves the policies unchanged; ``problem`` and the log say why. Use it with one Router only."""

    def __init__(self, path: str | Path, *, every_s: float = 2.0) -> None:
        """Look for changes every ``every_s`` seconds. Raises ``ValidationFailed``."""
        self.path = path_of(path)
        seconds: object = every_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.05 <= seconds < inf:
            raise ValidationFailed.at("every_s", f"must be at least 0.05 seconds, got {shown(every_s)}", "such as 2")
        self.every_s = every_s
        self.problem: ValidationFailed | None = None
        """Why the present file was refused; None: it was not."""
        self._taken: tuple[int, int, int] | None = None

    def __repr__(self) -> str:
        return f"PolicyFile({str(self.path)!r})"

    @contextmanager
    def policies(self) -> Iterator[list[Policy]]:
        """The policies now in the file. A ``ValidationFailed`` raised in the block gets the file's name, and is kept as
        ``problem``."""
        from ._setup.config import policies_of  # loads pydantic

        self._taken = self._signature()  # before reading, so that a concurrent write counts as a change
        try:
            document = read(self.path)
            with document.naming():
                yield policies_of(document)
        except ValidationFailed as error:
            self.problem = error
            raise
        self.problem = None

    def has_changed(self) -> bool:
        """True if the file changed since it was last read."""
        return self._signature() != self._taken

    def _signature(self) -> tuple[int, int, int] | None:
        """Modification time, size and inode; at least one changes when the file is written."""
        try:
            status = os.stat(self.path)
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


async def watch(file: PolicyFile, reload: weakref.WeakMethod[Reload], clock: Clock) -> None:
    """Reload a file whenever it changes, as long as its Router lives."""
    while True:
        await clock.sleep(file.every_s)
        reload_now = reload()
        if reload_now is None:
            return
        try:
            if file.has_changed():
                changes = await in_thread(clock, reload_now, None)
                _log.debug("policies of %s are in force: %s", file.path, changes)
        except RouterError as error:
            _log.warning("the policies stay unchanged: %s", error)
        del reload_now  # while it sleeps, nothing here may hold the Router
