"""Storages and caches by URL, as the command line and configuration files name them; and what a storage of one's own is
made with.

``check_batch`` and ``ids_of`` hold a batch to its preconditions, ``selects`` says what a selection means, and
``Rollups`` are the sums that reports are made of. A storage that keeps accounts, too, writes a ``Shelf``, over which
``State``, ``Waiting``, ``settle`` and ``expired_row`` are the rules; ``next_label`` and ``added`` are those of what
processes agree on (``docs/how-to/own-storage.md``).
"""

from __future__ import annotations

from ._core.accounts.hold import Hold
from ._core.accounts.ledger import Shelf, expired_row, settle
from ._core.accounts.state import Expired, Kept, State
from ._core.accounts.waiting import Waiting
from ._core.analytics.rollup import Rollups
from ._core.attempts.learned import added
from ._core.batch import check_batch, check_digests, ids_of
from ._core.policy import next_label
from ._core.request.problems import did_you_mean, shown
from ._core.trace.filter import selects
from .backends.storage.memory import MemoryStorage
from .errors import ValidationFailed
from .protocols import Cache, Clock, Storage

__all__ = [
    "Expired",
    "Hold",
    "Kept",
    "Rollups",
    "Shelf",
    "State",
    "Waiting",
    "added",
    "check_batch",
    "check_digests",
    "expired_row",
    "ids_of",
    "next_label",
    "open_cache",
    "open_storage",
    "selects",
    "settle",
]

SCHEMES = ("memory", "sqlite")


def open_storage(url: str, *, clock: Clock | None = None) -> Storage:
    """The storage that a URL names: ``memory:``, or ``sqlite:///path`` (``sqlite:////absolute/path``).

    Nothing is opened before it is used. ``clock``: the ``FakeClock`` of a test. Raises ``ValidationFailed``.
    """
    path = _path_of(url, "traces.db")
    if path is None:
        return MemoryStorage(clock=clock)
    from .backends.storage.sqlite import SqliteStorage  # which memory does not need

    return SqliteStorage(path, clock=clock)


def open_cache(url: str) -> Cache:
    """The response cache that a URL names: ``memory:``, or ``sqlite:///path``, a file of its own.

    Nothing is opened before it is used. Raises ``ValidationFailed``.
    """
    path = _path_of(url, "cache.db")
    if path is None:
        from .backends.cache.memory import MemoryCache  # which loads numpy

        return MemoryCache()
    from .backends.cache.sqlite import SqliteCache

    return SqliteCache(path)


def url_of(named: str) -> str:
    """The URL of what a person names by that, or by its file alone."""
    is_url = "://" in named or named.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))
    return named if is_url else f"sqlite:///{named}"


def _path_of(url: str, example: str) -> str | None:
    """The file that a URL names; None: it is ``memory:``. Raises ``ValidationFailed``."""
    hint = f"write memory: or sqlite:///{example}, with four slashes before an absolute path"
    if not isinstance(url, str):
        raise ValidationFailed.at("url", f"is {shown(url)}", hint)
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon and not rest.strip("/"):
        return None
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        return rest[3:]
    if url and not colon and scheme not in SCHEMES:
        raise ValidationFailed.at("url", f"is {shown(url)}", f"write {shown(f'sqlite:///{url}')} for that file")
    near = did_you_mean(scheme, SCHEMES) if scheme not in SCHEMES else ""
    raise ValidationFailed.at("url", f"is {shown(url)}", f"{near} {hint}".strip())
