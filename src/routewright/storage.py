"""Storages by URL, as the command line and configuration files name them."""

from __future__ import annotations

from ._core.problem import did_you_mean, shown
from .backends.storage.memory import MemoryStorage
from .errors import Problem, ValidationFailed
from .protocols import Clock, Storage

SCHEMES = ("memory", "sqlite")
_HINT = "write memory: or sqlite:///traces.db, with four slashes before an absolute path"


def open_storage(url: str, *, clock: Clock | None = None) -> Storage:
    """The storage that a URL names: ``memory:``, or ``sqlite:///path`` (``sqlite:////absolute/path``).

    Nothing is opened before it is used. ``clock``: the ``FakeClock`` of a test. Raises ``ValidationFailed``.
    """
    if not isinstance(url, str):
        raise ValidationFailed.of(Problem("url", f"is {shown(url)}", _HINT))
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon and not rest.strip("/"):
        return MemoryStorage()
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        from .backends.storage.sqlite import SqliteStorage  # which memory does not need

        return SqliteStorage(rest[3:], clock=clock)
    near = did_you_mean(scheme, SCHEMES) if scheme not in SCHEMES else ""
    raise ValidationFailed.of(Problem("url", f"is {shown(url)}", f"{near} {_HINT}".strip()))
