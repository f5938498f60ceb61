"""A file of policies that a Router takes anew whenever it changes."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import anyio.to_thread

from ._core.request.problems import shown
from .document import path_of
from .errors import Problem, RouterError, ValidationFailed
from .protocols import Clock
from .wire import Policy, PolicyChanged

Reload = Callable[[Sequence[Policy] | None], list[PolicyChanged]]
"""Puts policies in force; None: those of the file, as they are now."""
Signature = tuple[int, int, int]
"""Time of the last change, size and inode: what a file that was written anew does not keep."""

_log = logging.getLogger(__name__)


class PolicyFile:
    """Policies that are read at first use, and again when the file has changed.

        router = Router(policies=PolicyFile("policies.toml"))

    A file that is not valid leaves the policies as they were: ``problem`` says why, and so does the log. Of one Router.
    """

    def __init__(self, path: str | Path, *, every_s: float = 2.0) -> None:
        """Look for changes ``every_s`` seconds. Raises ``ValidationFailed`` for what is no path or no time."""
        self.path = path_of(path)
        seconds: object = every_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.05 <= seconds < inf:
            problem = f"must be a number from 0.05, got {shown(every_s)}"
            raise ValidationFailed.of(Problem("every_s", problem, "it is in seconds"))
        self.every_s = every_s
        self.problem: ValidationFailed | None = None
        """Why the file as it stands was not taken; None: it was."""
        self._taken: Signature | None = None

    def __repr__(self) -> str:
        return f"PolicyFile({str(self.path)!r})"

    @contextmanager
    def policies(self) -> Iterator[list[Policy]]:
        """The policies of the file as it is now. What is refused of them inside is named by its place in the file, and
        kept in ``problem``."""
        from .policy_entry import policies_of, read_document  # loads pydantic

        self._taken = self._signature()  # before it is read: what is written meanwhile is seen as a change
        try:
            _check_kind(self.path)
            document = read_document(self.path)
            with document.naming():
                yield policies_of(document)
        except ValidationFailed as error:
            self.problem = error
            raise
        self.problem = None

    def has_changed(self) -> bool:
        """Whether it is another file than the one that was read last."""
        return self._signature() != self._taken

    def _signature(self) -> Signature | None:
        try:
            found = os.stat(self.path)
        except (OSError, ValueError):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _check_kind(path: Path) -> None:
    """Refuse a pipe or a device: opening one may take for ever."""
    with suppress(OSError, ValueError):  # which reading it tells of
        mode = path.stat().st_mode
        if not S_ISREG(mode) and not S_ISDIR(mode):
            raise ValidationFailed.of(Problem(str(path), "is no regular file", "name a file that can be read again"))


async def watch(file: PolicyFile, reload: weakref.WeakMethod[Reload], clock: Clock) -> None:
    """Take a file's policies anew whenever it has changed, for as long as the Router lives that does so."""
    while True:
        await clock.sleep(file.every_s)
        take = reload()
        if take is None:
            return
        if file.has_changed():
            await _take(file, partial(take, None), clock)
        del take


async def _take(file: PolicyFile, take: Callable[[], object], clock: Clock) -> None:
    try:
        changes = take() if clock.virtual else await anyio.to_thread.run_sync(take, abandon_on_cancel=True)
    except RouterError as error:
        _log.warning("the policies stay as they were: %s", error)
    except Exception:  # of an object that a file of Python made
        _log.exception("the policies stay as they were: %s could not be read", file.path)
    else:
        _log.debug("policies of %s are in force: %s", file.path, changes)
