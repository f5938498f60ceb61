"""Opens storages, caches and coordinations by URL; and exports the building blocks of custom storages.

``check_batch`` and ``ids_of`` check the preconditions of a batch, ``selects`` applies a selection, and ``Rollups``
are the sums behind reports. A storage with accounts implements ``Shelf``; ``State``, ``WaitQueue``, ``settle``,
``end_hold``, ``expire_hold``, ``expired_row`` and ``Eviction`` are the rules over it. ``next_label`` and ``added``
are rules for data that processes share (``docs/how-to/own-storage.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._core.accounts.eviction import Eviction as Eviction
from ._core.accounts.holds import Hold as Hold
from ._core.accounts.settlement import End as End
from ._core.accounts.settlement import Expired as Expired
from ._core.accounts.settlement import Shelf as Shelf
from ._core.accounts.settlement import end_hold as end_hold
from ._core.accounts.settlement import expire_hold as expire_hold
from ._core.accounts.settlement import expired_row as expired_row
from ._core.accounts.settlement import settle as settle
from ._core.accounts.state import State as State
from ._core.accounts.wait_queue import WaitQueue as WaitQueue
from ._core.analytics.rollup import Rollups as Rollups
from ._core.attempts.statistics import added as added
from ._core.idempotency import KeptResult as KeptResult
from ._core.policy import next_label as next_label
from ._core.trace.filter import selects as selects
from ._core.write_batch import check_batch as check_batch
from ._core.write_batch import check_digests as check_digests
from ._core.write_batch import ids_of as ids_of
from ._runtime.plugins import make_plugin
from ._setup.arguments import check_storage
from .backends.coordination.memory import MemoryCoordination as MemoryCoordination
from .backends.storage.memory import MemoryStorage
from .errors import ValidationFailed
from .protocols import Cache, Clock, Coordination, Storage
from .wire.account import without_password
from .wire.problems import did_you_mean, shown

SCHEMES = ("memory", "sqlite", "postgresql")


def open_storage(url: str, *, clock: Clock | None = None) -> Storage:
    """Make the storage of a URL: ``memory:``, ``sqlite:///path`` (``sqlite:////absolute/path``), or
    ``postgresql://user@host:5432/database`` with parameters of libpq such as ``?sslmode=verify-full``. The password
    comes from the URL, ``PGPASSWORD``, or the file named by ``PGPASSFILE``. URLs with other schemes are opened by
    installed packages (``docs/how-to/own-provider.md``).

    It is opened on first use. ``clock``: the ``FakeClock`` of a test. Raises ``ValidationFailed``."""
    if is_postgres(url):
        with _extra("postgres"):
            from .backends.storage.postgres import PostgresStorage
        return PostgresStorage(url, clock=clock)
    scheme = str(url).partition(":")[0]
    if scheme not in (*SCHEMES, url):
        plugin = make_plugin("url", "routewright.storages", Storage, scheme, url, clock=clock)  # type: ignore[type-abstract]
        if plugin is not None:
            return plugin
    path = _path_of(url, "traces.db", "; or postgresql://user@host/database")
    if path is None:
        return MemoryStorage(clock=clock)
    from .backends.storage.sqlite import SqliteStorage  # not needed for memory

    return SqliteStorage(path, clock=clock)


def storage_at(storage: Storage | str, clock: Clock | None) -> Storage:
    """A storage, or that of a URL. Raises ``ValidationFailed`` for anything else."""
    storage = open_storage(storage, clock=clock) if isinstance(storage, str) else storage
    check_storage(storage)
    return storage


def open_cache(url: str) -> Cache:
    """Make the response cache of a URL: ``memory:``, ``sqlite:///path`` (a separate file),
    ``postgresql://user@host/database``, or a Redis URL.

    It is opened on first use. Raises ``ValidationFailed``."""
    if _is_redis(url):
        with _extra("redis"):
            from .backends.cache.redis import RedisCache
        return RedisCache(url)
    if is_postgres(url):
        with _extra("postgres"):
            from .backends.cache.postgres import PostgresCache
        return PostgresCache(url)
    path = _path_of(url, "cache.db")
    if path is None:
        from .backends.cache.memory import MemoryCache  # which loads numpy

        return MemoryCache()
    from .backends.cache.sqlite import SqliteCache

    return SqliteCache(path)


def open_coordination(url: str, *, processes: int = 1, clock: Clock | None = None) -> Coordination:
    """Make the coordination of a URL: ``memory:``, ``redis://host:port/db``, ``redis+cluster://host:port,host:port`` or
    ``redis+sentinel://host:port,host:port/service``; ``rediss`` for TLS. ``processes``: how many share it.

    The password comes from the URL, the first line of ``?password_file=``, or ``REDIS_PASSWORD``. It is opened on first
    use. Raises ``ValidationFailed``."""
    if _is_redis(url):
        with _extra("redis"):
            from .backends.coordination.redis import RedisCoordination
        return RedisCoordination(url, processes=processes, clock=clock)
    if url != "memory:":
        raise ValidationFailed.at("url", "is not the URL of a coordination", "write memory: or redis://host:6379/0")
    return MemoryCoordination(clock=clock)


def _is_redis(url: object) -> bool:
    return isinstance(url, str) and url.startswith(("redis:", "rediss:", "redis+", "rediss+"))


def is_postgres(url: object) -> bool:
    """True for a URL of PostgreSQL."""
    return isinstance(url, str) and url.startswith(("postgresql:", "postgres:"))


def url_of(named: str) -> str:
    """The URL for a URL or a plain file name."""
    begins = tuple(f"{scheme}{end}" for scheme in (*SCHEMES, "redis", "rediss") for end in (":", "//"))
    return named if "://" in named or named.startswith(begins) else f"sqlite:///{named}"


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Raise ``ValidationFailed`` if the extra for a URL is not installed."""
    try:
        yield
    except ImportError as error:
        hint = f"run: pip install 'routewright[{name}]'"
        raise ValidationFailed.at("url", f"needs the extra {name}, which is not installed", hint) from error


def _path_of(url: str, example: str, more: str = "") -> str | None:
    """The file of a URL; None for ``memory:``. Raises ``ValidationFailed``."""
    hint = f"write memory: or sqlite:///{example}, with four slashes before an absolute path{more}"
    if not isinstance(url, str):
        raise ValidationFailed.at("url", f"is {shown(url)}", hint)
    url = url if url.startswith("sqlite:") else without_password(url)
    scheme = url.partition(":")[0]
    if url.startswith("memory:") and not url.removeprefix("memory:").strip("/"):
        return None
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return url.removeprefix("sqlite:///")
    if url and ":" not in url and scheme not in SCHEMES:
        raise ValidationFailed.at("url", f"is {shown(url)}", f"write {shown(f'sqlite:///{url}')} for that file")
    near = did_you_mean(scheme, SCHEMES) if scheme not in SCHEMES else ""
    raise ValidationFailed.at("url", f"is {shown(url)}", f"{near} {hint}".strip())
