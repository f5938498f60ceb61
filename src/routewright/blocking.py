"""Async methods as plain functions: each runs in a background thread, and blocks until done.

    class BlockingStore(Twin["Store"]):
        get = plain(Store.get)

They work in scripts, threads and notebooks, and in a running event loop, which they block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial, wraps
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from msgspec import UNSET, UnsetType

from .arguments import check_account
from .errors import RouterClosed
from .wire import OutputDelta, RouteEvent
from .worker import Worker

if TYPE_CHECKING:
    from ._core.routing.decision import Decision
    from ._engine.answer import Answer
    from ._engine.prepared import InputTokens, Prepared
    from ._engine.stream import Stream

_Wait = Callable[[Callable[[], Awaitable[Any]]], Any]


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


class OfAccount(Closing):
    """Has a default account, which each method may replace."""

    _account = "default"

    def as_account(self, account: str) -> Self:
        """The same with another default account."""
        view = copy(self)
        view._account = check_account("account", account)
        vars(view).pop("blocking", None)
        return view

    def _of(self, account: str | UnsetType) -> str:
        return self._account if account is UNSET else check_account("account", account)


class _Blocking:
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


class Twin(_Blocking, Generic[S]):
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
    def waited(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return twin._wait(partial(method, twin._of, *args, **kwargs))

    return waited


def plain_loop(method: Callable[Concatenate[S, P], AsyncIterator[T]]) -> Callable[Concatenate[Twin[S], P], Iterator[T]]:
    """The blocking twin of an async generator that never yields None."""

    @wraps(method)
    def iterated(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        things = method(twin._of, *args, **kwargs)
        while (thing := twin._wait(partial(anext, things, None))) is not None:
            yield thing

    return iterated


def plain_result(
    method: Callable[Concatenate[S, P], T], kind: Callable[[T, _Wait], R]
) -> Callable[Concatenate[Twin[S], P], R]:
    """A method that does not wait, with the blocking twin of its result."""

    @wraps(method)
    def made(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kind(method(twin._of, *args, **kwargs), twin._wait)

    made.__dict__["__signature__"] = signature(method).replace(return_annotation=kind)
    return made


class BlockingPrepared:
    """``Prepared`` for servers without ``await``, such as WSGI servers."""

    def __init__(self, prepared: Prepared, wait: _Wait) -> None:
        self.prepared = prepared
        """The request, its tokens, its decision, and the headers."""
        self._wait = wait

    def run(self) -> Answer[Any]:
        """Admit the request and answer it (``Prepared.run``)."""
        answer: Answer[Any] = self._wait(self.prepared.run)
        return answer

    def stream(self) -> BlockingStream:
        """Answer it piece by piece (``Prepared.stream``)."""
        return BlockingStream(self.prepared.stream(), self._wait)

    def decide(self) -> Decision:
        """Choose a model, counted as a request (``Prepared.decide``)."""
        decision: Decision = self._wait(self.prepared.decide)
        return decision

    def count_tokens(self, model: str | None = None) -> InputTokens:
        """Count the input (``Prepared.count_tokens``)."""
        count: InputTokens = self._wait(partial(self.prepared.count_tokens, model))
        return count


class BlockingStream(_Blocking):
    """``Stream`` for plain ``for`` loops.

    with router.blocking.stream("Tell me a story") as stream:
        for text in stream.text():
            print(text, end="")

    A loop over events can be left and continued, so without ``with`` the call ends only at ``close``."""

    def __init__(self, stream: Stream, wait: _Wait) -> None:
        self._stream = stream
        self._wait = wait

    def __iter__(self) -> Iterator[RouteEvent]:
        while (event := self._wait(partial(anext, self._stream, None))) is not None:
            yield event

    def text(self) -> Iterator[str]:
        """Iterate over the answer's text (``Stream.text``). Leaving the loop ends the call."""
        self._stream.expect_text()
        try:
            for event in self:
                if isinstance(event, OutputDelta):
                    yield event.data.text
        finally:
            self.close()
        self._stream.raise_failure()

    @property
    def trace_id(self) -> str | None:
        """Id of the call's trace; None before the first event."""
        return self._stream.trace_id

    @property
    def result(self) -> Answer:
        """The answer, once the stream has ended."""
        return self._stream.result

    def close(self) -> None:
        """End the call."""
        with suppress(RouterClosed):  # it has already ended
            self._wait(self._stream.aclose)
