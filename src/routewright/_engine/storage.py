"""The border to a host's storage: whatever it raises or returns, callers see only ``RouterError``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import Any, TypeVar, get_args, get_origin, get_overloads, get_type_hints

from routewright._core.request.json_scan import quoted
from routewright._core.timestamps import timestamp
from routewright._core.trace.compact import joined
from routewright.errors import (
    InternalError,
    NotFound,
    PreconditionFailed,
    RouterError,
    RouterTimeoutError,
    StorageUnavailable,
    UnsupportedWrite,
)
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Facts, ImmediateStorage, Storage
from routewright.wire import Ask, Caller, Grant, Left, Query, RunLimit, Scan, Stands, Trace, TraceById, Write, Written

T = TypeVar("T")
TRIES = 10
"""Tries of a change that conflicts with others. Each conflict means that another writer succeeded, so ten finish."""
KNOWN_S = 2.0
"""How long ``NoAccounts`` believes that a name has no account."""
DEEPEST = 4
"""Levels of sub-traces that a trace is read with."""
MOST_KNOWN = 10_000
"""Accounts that ``NoAccounts`` remembers."""


class StorageFaults:
    """``with storage_faults`` does what ``raise_fault`` does."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            raise_fault(error)


storage_faults = StorageFaults()


def raise_fault(error: BaseException) -> None:
    """Turn an exception that a storage should not raise into an ``InternalError`` that names its class, and a stray
    cancellation into ``StorageUnavailable``. Any other is left as it is."""
    if isinstance(error, asyncio.CancelledError) and not is_cancelled():
        raise StorageUnavailable("the storage cancelled itself") from error
    if isinstance(error, Exception) and not isinstance(error, RouterError):  # its message may hold secrets
        raise InternalError(f"the storage failed with {type(error).__name__}") from error


class GuardedStorage:
    """A storage that raises ``RouterError`` alone: an ``InternalError`` where it gives what it may not."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage  # its overloads are the caller's matter
        self.is_immediate = isinstance(storage, ImmediateStorage)
        """It never waits."""

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        with storage_faults:
            written: object = await self._storage.apply(account, writes)
        return checked_written(self._storage, writes, written)

    async def read(self, account: str, query: Query) -> Any:
        with storage_faults:
            return _checked(self._storage, "read", query, await self._storage.read(account, query))

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        with storage_faults:
            found = await self._storage.scan(account, query, after=after, limit=limit)
            return _checked(self._storage, "scan", query, found)

    async def sweep(self, now: float) -> int:
        with storage_faults:
            return int(await self._storage.sweep(now))

    async def aclose(self) -> None:
        await self._storage.aclose()


class NoAccounts:
    """``Accounts`` of a storage that has none: admits callers without an account, and refuses all others."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = GuardedStorage(storage)
        self._clock = clock
        self._open: dict[str, float] = {}
        """Names that have no account, and until when that need not be asked again."""

    async def admit(self, ask: Ask) -> Grant:
        """Admit a caller without an account. Raises ``InternalError`` for others: nobody would enforce their limits."""
        if (await self.look(ask.caller)).account is not None:
            raise no_accounts()
        return Grant(id=ask.id, caller=ask.caller)

    async def settle(self, grant: Grant | None, facts: Facts) -> list[Any]:
        """Never called: a call that nothing limits keeps no grant."""
        raise no_accounts()

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """Nothing is reserved."""
        return False

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """Nothing is held."""

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """No limits, if that is known."""
        return Left(None, None, None) if self._open.get(caller.account, -inf) > self._clock.monotonic() else None

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        with suppress(UnsupportedWrite):
            stands = await self._storage.read(caller.account, Stands(timestamp(self._clock.time())))
            if stands.account is not None:
                return Left(stands.account, None, None)
        if len(self._open) >= MOST_KNOWN:
            self._open.clear()
        self._open[caller.account] = self._clock.monotonic() + KNOWN_S
        return Left(None, None, None)


def no_accounts() -> InternalError:
    """The error for what only a storage with ``accounts`` can do."""
    return InternalError(
        "this storage has no `accounts`, so it serves no accounts or keys of a Console, idempotency keys or agent "
        "runs: use MemoryStorage or SqliteStorage, or give yours `accounts` that pass "
        "routewright.testing.storage.AccountsContract"
    )


def checked_written(storage: object, writes: Sequence[Write], written: object) -> list[Written]:
    """The results of writes. Raises ``InternalError`` unless there is one ``Written`` for each."""
    if isinstance(written, list | tuple) and [*map(type, written)] == [Written] * len(writes):
        return [*written]
    raise unfit(storage, "apply", f"a list with one Written for each of {len(writes)} writes", written)


def _checked(storage: object, method: str, query: object, found: Any) -> Any:
    """The answer to a query. Raises ``InternalError`` for what is not of the type that the protocol declares."""
    kinds = _declared(method)[type(query)]
    if get_origin(kinds) is list:
        (kind,) = get_args(kinds)
        if isinstance(found, list | tuple) and all(isinstance(each, kind) for each in found):
            return [*found]
        raise unfit(storage, method, f"a list of {kind.__name__}", found)
    if isinstance(found, kinds):
        return found
    named = " or ".join(each.__name__.removesuffix("Type") for each in get_args(kinds) or (kinds,))
    raise unfit(storage, method, named, found)


@cache
def _declared(method: str) -> dict[type, Any]:
    """The type of the answer to each kind of query, taken from the overloads of the protocol's method."""
    hints = map(get_type_hints, get_overloads(getattr(Storage, method)))
    return {each["query"]: each["return"] for each in hints}


def unfit(storage: object, method: str, asked: str, given: object) -> InternalError:
    """What is raised for what a storage may not give."""
    return InternalError(f"{type(storage).__name__}.{method} has to give {asked}, and gave {type(given).__name__}")


async def read_trace(storage: Storage, account: str, query: TraceById, depth: int = DEEPEST) -> Trace:
    """A trace, with the spans of its sub-traces down to ``depth`` levels. Raises ``NotFound``."""
    found = await storage.read(account, query)
    if found is None:
        raise NotFound(f"no trace {quoted(query.id)}")
    below = {}
    for child_id in found.children if depth else ():
        with suppress(NotFound):
            below[child_id] = await read_trace(storage, account, TraceById(child_id, found.environment), depth - 1)
    return joined(found, below) if below else found


async def unhindered(attempt: Callable[[], Awaitable[T]], what: str) -> T:
    """Read, change and write something; start again if it was changed in between. Raises ``PreconditionFailed`` after
    ``TRIES`` conflicts."""
    for _ in range(TRIES):
        with suppress(PreconditionFailed):
            return await attempt()
    raise PreconditionFailed(f"{what} was not changed, since others change it all the time: try again")


async def in_time(asked: Coroutine[Any, Any, T], clock: Clock, until: float) -> T:
    """Await a storage. Raises ``RouterTimeoutError`` if it takes longer than the call has left."""
    try:
        with clock.deadline(until):
            return await asked
    except RouterError:
        raise
    except BaseException as error:
        raise_fault(error)
        raise
    raise RouterTimeoutError(
        "timeout_ms ran out while the storage was asked for what the call needs; try again, and see to the storage"
    )
