"""The border to custom storages: whatever they raise or return, callers see only ``RouterError``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import Any, TypeVar, get_args, get_origin, get_overloads, get_type_hints

from routewright import errors, wire
from routewright._core.trace.spans import join_traces
from routewright._runtime.loop import is_cancelled
from routewright.protocols import Clock, Facts, ImmediateStorage, Storage
from routewright.wire import Ask, Caller, Grant, Left, Query, RunLimit, Scan, Stands, Trace, TraceById, Write, Written
from routewright.wire.json_scan import quoted
from routewright.wire.timestamps import timestamp

T = TypeVar("T")
TRIES = 10
"""Tries of a change that conflicts with others. Each conflict means that another writer succeeded, so ten finish."""
KNOWN_S = 2.0
"""How long ``NoAccounts`` caches that a name has no account."""
DEEPEST = 4
"""Levels of sub-traces to read with a trace."""
MOST_KNOWN = 10_000
"""Size of the cache of ``NoAccounts``."""
LONGEST_S = 10.0
"""Time-out of a batch, which is then tried again."""
PROBE_S, PAUSE_S = 2.0, 3.0
"""An account whose batch timed out is skipped for ``PAUSE_S``; then one call is tried for ``PROBE_S``. This delays
other accounts little, and notices recovery within five seconds. The time-out of further probes doubles, since the
storage may only be slow."""


class StorageFaults:
    """``with storage_faults`` applies ``raise_fault`` to exceptions in the block."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            raise_fault(error)


storage_faults = StorageFaults()


def raise_fault(error: BaseException) -> None:
    """Raise an ``InternalError`` that names the class of a foreign exception, and ``StorageUnavailable`` for a stray
    cancellation. Does nothing for other exceptions."""
    if isinstance(error, asyncio.CancelledError) and not is_cancelled():
        raise errors.StorageUnavailable("the storage cancelled itself") from error
    if isinstance(error, Exception) and not isinstance(error, errors.RouterError):  # its message may hold secrets
        raise errors.InternalError(f"the storage failed with {type(error).__name__}") from error


class GuardedStorage:
    """A storage that raises only ``RouterError``; ``InternalError`` if it returns a wrong type."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage
        self.is_immediate = isinstance(storage, ImmediateStorage)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        with storage_faults:
            written: object = await self._storage.apply(account, writes)
        return checked_written(self._storage, writes, written)

    async def read(self, account: str, query: Query) -> Any:
        with storage_faults:
            return _checked(self._storage, "read", query, await self._storage.read(account, query))

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        with storage_faults:
            page = await self._storage.scan(account, query, after=after, limit=limit)
            return _checked(self._storage, "scan", query, page)

    async def sweep(self, now: float) -> int:
        with storage_faults:
            return int(await self._storage.sweep(now))

    async def aclose(self) -> None:
        await self._storage.aclose()


async def read_accounts(storage: Storage) -> dict[str, wire.Account | None]:
    """All accounts by name, and ``default`` even if it was not created."""
    accounts = await storage.read(wire.SYSTEM_ACCOUNT, wire.AllAccounts())
    return {wire.DEFAULT_ACCOUNT: None} | {account.name: account for account in accounts}


class Timeouts:
    """Time limits of calls to a storage. An account that it hangs on is skipped for a while."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self.hung: dict[str, tuple[float, float]] = {}
        """Accounts whose last call timed out: when to try again, and with what timeout in seconds."""

    async def ask(self, account: str, ask: Callable[[], Awaitable[T]], deadline: float = inf) -> T:
        """Call the storage with a time-out. Raises ``StorageUnavailable``: after the time-out, at ``deadline``, and at
        once for an account that has just timed out."""
        now, is_hung = self._clock.monotonic(), account in self.hung
        retry_at, bound_s = self.hung.get(account, (now, LONGEST_S))
        if now < retry_at:
            raise errors.StorageUnavailable(f"the storage has just timed out for this account; wait {PAUSE_S:g} s")
        try:
            with self._clock.deadline(min(now + bound_s, deadline)):
                done = await ask()
                if is_hung:
                    self.hung.pop(account, None)
                return done
            if deadline < now + bound_s:
                raise errors.StorageUnavailable("the storage did not answer within the rest of the call's time")
            self.hung[account] = now + bound_s + PAUSE_S, min(2 * bound_s, LONGEST_S) if is_hung else PROBE_S
            raise errors.StorageUnavailable(f"the storage did not answer within {bound_s:g} s")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise errors.StorageUnavailable(f"{type(self._storage).__name__} cancelled itself") from error


class NoAccounts:
    """``Accounts`` for a storage without: admits callers without an account, and refuses others."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = GuardedStorage(storage)
        self._clock = clock
        self._open: dict[str, float] = {}
        """Names without an account, and until when that holds without asking."""

    async def admit(self, ask: Ask) -> Grant:
        """Admit a caller without an account. Raises ``InternalError`` for others, whose limits cannot be enforced."""
        if (await self.look(ask.caller)).account is not None:
            raise no_accounts()
        return Grant(id=ask.id, caller=ask.caller)

    async def settle(self, grant: Grant | None, facts: Facts) -> list[Any]:
        """Never called, since calls without limits keep no grant."""
        raise no_accounts()

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """Nothing is reserved."""
        return False

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """Nothing is held."""

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """No limits, if cached."""
        return Left(None, None, None) if self._open.get(caller.account, -inf) > self._clock.monotonic() else None

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        with suppress(errors.UnsupportedWrite):
            stands = await self._storage.read(caller.account, Stands(timestamp(self._clock.time())))
            if stands.account is not None:
                return Left(stands.account, None, None)
        if len(self._open) >= MOST_KNOWN:
            self._open.clear()
        self._open[caller.account] = self._clock.monotonic() + KNOWN_S
        return Left(None, None, None)

    def spent_shares(self, caller: Caller) -> dict[wire.Period, int]:
        """No limits."""
        return {}


def no_accounts() -> errors.InternalError:
    """The error of an operation that needs a storage with ``accounts``."""
    return errors.InternalError(
        "this storage has no `accounts`, so it serves no accounts or keys of a Console, idempotency keys or agent "
        "runs; use MemoryStorage or SqliteStorage, or give yours `accounts` that pass the AccountsContract of "
        "tests/contracts"
    )


def checked_written(storage: object, writes: Sequence[Write], written: object) -> list[Written]:
    """The results of writes. Raises ``InternalError`` unless there is one ``Written`` for each."""
    if isinstance(written, list | tuple) and [*map(type, written)] == [Written] * len(writes):
        return [*written]
    raise unfit(storage, "apply", f"a list with one Written for each of {len(writes)} writes", written)


def _checked(storage: object, method: str, query: object, result: Any) -> Any:
    """The result of a query. Raises ``InternalError`` if it has not the type that the protocol declares."""
    kinds = _declared(method)[type(query)]
    plural = "a list of " if get_origin(kinds) is list else ""
    if plural:
        (kinds,) = get_args(kinds)
        if isinstance(result, list | tuple) and all(isinstance(item, kinds) for item in result):
            return [*result]
    elif isinstance(result, kinds):
        return result
    names = " or ".join(kind.__name__.removesuffix("Type") for kind in get_args(kinds) or (kinds,))
    raise unfit(storage, method, f"{plural}{names}", result)


@cache
def _declared(method: str) -> dict[type, Any]:
    """The answer type of each query type, from the overloads of the protocol's method."""
    overloads = map(get_type_hints, get_overloads(getattr(Storage, method)))
    return {hints["query"]: hints["return"] for hints in overloads}


def unfit(storage: object, method: str, expected: str, result: object) -> errors.InternalError:
    """The error for a wrong return type."""
    return errors.InternalError(
        f"{type(storage).__name__}.{method} must return {expected}, got {type(result).__name__}"
    )


async def read_trace(storage: Storage, account: str, query: TraceById, depth: int = DEEPEST) -> Trace:
    """A trace, with the spans of its sub-traces down to ``depth`` levels. Raises ``NotFound``."""
    trace = await storage.read(account, query)
    if trace is None:
        raise errors.NotFound(f"no trace {quoted(query.id)}")
    below = {}
    for child_id in trace.children if depth else ():
        with suppress(errors.NotFound):
            below[child_id] = await read_trace(storage, account, TraceById(child_id, trace.environment), depth - 1)
    return join_traces(trace, below) if below else trace


async def unhindered(attempt: Callable[[], Awaitable[T]], what: str) -> T:
    """Retry a read-change-write ``attempt`` on conflicts. Raises ``PreconditionFailed`` after ``TRIES``."""
    for _ in range(TRIES):
        with suppress(errors.PreconditionFailed):
            return await attempt()
    raise errors.PreconditionFailed(f"{what} was not changed: {TRIES} concurrent changes came first; try again")


async def write_all(
    items: Sequence[T], write: Callable[[Sequence[T]], Awaitable[object]], refuse: Callable[[T, Exception], object]
) -> None:
    """Write all at once; if the storage refuses that, each alone, and ``refuse`` those at fault. Raises
    ``StorageUnavailable``."""
    try:
        await write(items)
        return
    except errors.StorageUnavailable:
        raise
    except Exception as error:  # a custom storage may raise anything
        fault = error
    if len(items) == 1:
        refuse(items[0], fault)
    else:
        for item in items:
            await write_all([item], write, refuse)


async def in_time(answer: Coroutine[Any, Any, T], clock: Clock, deadline: float) -> T:
    """Await a storage. Raises ``RouterTimeoutError`` at the call's ``deadline``."""
    try:
        with clock.deadline(deadline):
            return await answer
    except errors.RouterError:
        raise
    except BaseException as error:
        raise_fault(error)
        raise
    raise errors.RouterTimeoutError(
        "timeout_ms ran out while the storage admitted the call; check the storage, and try again"
    )
