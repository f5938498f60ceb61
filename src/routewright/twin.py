"""The methods of a class for code without ``await``: each runs in a background thread and is waited for.

    class BlockingStore(Twin["Store"]):
        get = plain(Store.get)

They work in plain scripts, in threads, in notebooks, and inside a running event loop (which they then block).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from ._engine.worker import Worker


class Closable(Protocol):
    """What has something to free."""

    def aclose(self) -> Awaitable[None]:
        """Free it."""
        ...


class Closing:
    """Is freed where ``async with`` is left."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: Closable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


S = TypeVar("S", bound=Closable)
T = TypeVar("T")
P = ParamSpec("P")


class Twin(Generic[S]):
    """Does what another object does, and waits for it. Behind ``with`` that one is closed."""

    def __init__(self, of: S, worker: Worker) -> None:
        self._of = of
        self._worker = worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self._of!r}.blocking"

    def close(self) -> None:
        """Free what the other holds."""
        self._wait(self._of.aclose)

    def _wait(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        return self._worker.run(async_fn)


def plain(method: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[Twin[S], P], T]:
    """The plain twin of a method, with its name, its arguments and its words."""

    @wraps(method)
    def waited(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin._wait(partial(method, twin._of, *args, **kwargs))

    return waited


def plain_loop(method: Callable[Concatenate[S, P], AsyncIterator[T]]) -> Callable[Concatenate[Twin[S], P], Iterator[T]]:
    """The same of one that is iterated over, and never gives None."""

    @wraps(method)
    def iterated(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        things = method(twin._of, *args, **kwargs)
        while (thing := twin._wait(partial(anext, things, None))) is not None:
            yield thing

    return iterated
