"""Async methods as plain functions: each runs in a background thread, and blocks until done.

    class BlockingStore(Twin["Store"]):
        get = plain(Store.get)

They work in scripts, threads and notebooks, and in a running event loop, which they block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from .worker import Worker

Wait = Callable[[Callable[[], Awaitable[Any]]], Any]


class Closable(Protocol):
    """Can be closed."""

    def aclose(self) -> Awaitable[None]:
        """Close it."""


class Closing:
    """An async context manager that closes itself."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: Closable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class PlainClosing:
    """A context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError


S = TypeVar("S", bound=Closable)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Twin(PlainClosing, Generic[S]):
    """Blocking methods of another object. Leaving ``with`` closes that object."""

    def __init__(self, of: S, worker: Worker) -> None:
        self._of = of
        self._worker = worker

    def __repr__(self) -> str:
        return f"{self._of!r}.blocking"

    def close(self) -> None:
        """Close the other object."""
        self._wait(self._of.aclose)

    def _wait(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        return self._worker.run(async_fn)


def plain(method: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[Twin[S], P], T]:
    """The blocking twin of a method, with its name, arguments and docstring."""

    @wraps(method)
    def call(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin._wait(partial(method, twin._of, *args, **kwargs))

    return call


def plain_loop(method: Callable[Concatenate[S, P], AsyncIterator[T]]) -> Callable[Concatenate[Twin[S], P], Iterator[T]]:
    """The blocking twin of an async generator that never yields None."""

    @wraps(method)
    def iterate(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        results = method(twin._of, *args, **kwargs)
        while (result := twin._wait(partial(anext, results, None))) is not None:
            yield result

    return iterate


def plain_result(
    method: Callable[Concatenate[S, P], T], kind: Callable[[T, Wait], R]
) -> Callable[Concatenate[Twin[S], P], R]:
    """A method that does not wait, with the blocking twin of its result."""

    @wraps(method)
    def call(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kind(method(twin._of, *args, **kwargs), twin._wait)

    call.__dict__["__signature__"] = signature(method).replace(return_annotation=kind)
    return call
