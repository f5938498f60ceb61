"""A file of policies that a Router takes anew whenever it changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Self

from ._core.problem import shown
from .document import naming, path_of
from .errors import Problem, ValidationFailed
from .wire import Policy

Signature = tuple[int, int, int]
"""Time of the last change, size and inode: what a file that was written anew does not keep."""


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

    def read(self) -> list[Policy]:
        """Read the file now. Raises ``ValidationFailed`` naming the file, the line and the key."""
        from .config import read_policies  # loads pydantic

        self._taken = self._signature()  # before it is read: what is written meanwhile is seen as a change
        return read_policies(self.path)

    @contextmanager
    def noting(self) -> Iterator[Self]:
        """Keep in ``problem`` what is refused inside, with the file's name before its place."""
        try:
            with naming(self.path):
                yield self
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
