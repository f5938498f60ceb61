"""What comes from a storage is checked here, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from routewright._core.request.json_scan import quoted
from routewright.errors import (
    InternalError,
    NotFound,
    PreconditionFailed,
    RouterError,
    RouterTimeoutError,
    StorageUnavailable,
)
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Storage
from routewright.wire import Trace, Write, Written

T = TypeVar("T")
TRIES = 10
"""So often one tries who writes what he read. Whoever comes between has made a change, so that of ten at once each gets
his turn."""


@contextmanager
def storage_faults() -> Iterator[None]:
    """Make of what a storage raises, and should not, an ``InternalError`` that names its kind; of a cancellation that
    nobody asked for ``StorageUnavailable``."""
    try:
        yield
    except RouterError:
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise StorageUnavailable("the storage cancelled itself") from error
    except Exception as error:  # its words stay there
        raise InternalError(f"the storage failed with {type(error).__name__}") from error


async def unhindered(attempt: Callable[[], Awaitable[T]], what: str) -> T:
    """What comes of a change to something that has to be read first, once nobody changes it in between. Raises
    ``PreconditionFailed`` where somebody always does."""
    for _ in range(TRIES):
        with suppress(PreconditionFailed):
            return await attempt()
    raise PreconditionFailed(f"{what} was not changed, since others change it all the time: try again")


async def in_time(asked: Coroutine[Any, Any, T], clock: Clock, until: float) -> T:
    """What a storage gives. Raises ``RouterTimeoutError`` where it takes longer than a call has time."""
    with clock.deadline(until), storage_faults():
        return await asked
    raise RouterTimeoutError(
        "timeout_ms ran out while the storage was asked for what the call needs; try again, and see to the storage"
    )


async def applied(storage: Storage, account: str, writes: Sequence[Write]) -> list[Written]:
    """Apply writes. Raises ``RouterError`` alone."""
    with storage_faults():
        written: object = await storage.apply(account, writes)
    return checked_written(storage, writes, written)


def checked_written(storage: object, writes: Sequence[Write], written: object) -> list[Written]:
    """What a storage says of writes. Raises ``InternalError`` where that is not one ``Written`` of each."""
    if isinstance(written, list | tuple) and [*map(type, written)] == [Written] * len(writes):
        return [*written]
    raise unfit(storage, "apply", f"a list with one Written for each of {len(writes)} writes", written)


def checked(storage: object, found: object, kind: type[T]) -> T:
    """What a storage gave, if it is of the kind that was asked for. Raises ``InternalError``."""
    if isinstance(found, kind):
        return found
    raise unfit(storage, "read", kind.__name__, found)


def unfit(storage: object, method: str, asked: str, given: object) -> InternalError:
    """What to raise where a storage gives what it may not, of which no word is said."""
    return InternalError(f"{type(storage).__name__}.{method} has to give {asked}, and gave {type(given).__name__}")


def found_trace(found: object, trace_id: str) -> Trace:
    """The trace that a storage gave. Raises ``NotFound`` for none, and ``InternalError`` for what is no trace."""
    if found is None:
        raise NotFound(f"no trace {quoted(trace_id)}")
    if not isinstance(found, Trace):
        raise InternalError(f"the storage gave {type(found).__name__} in the place of a trace")
    return found
