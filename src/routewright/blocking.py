"""The same Router for code without ``await``: each call runs in the Router's background thread and is waited for.

Works in plain scripts, in threads, in notebooks, and inside a running event loop (which it then blocks).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ._engine.answer import Answer
from ._engine.stream import Stream
from .errors import RouterClosed, RouterError
from .options import Options, RequestLike, RequestsLike, SharedOptions
from .trace import BlockingTraceStore
from .twin import Twin
from .wire import Budget, Caller, OutputDelta, RouteEvent, Trace

if TYPE_CHECKING:
    from .router import Router

T = TypeVar("T")


class BlockingRouter(Twin["Router"]):
    """``router.blocking``: the methods of ``Router`` that wait, as plain functions. The others need no twin.

    answer = Router.sandbox().blocking.route("Hello")
    """

    @property
    def router(self) -> Router:
        """The Router itself, whose other methods are plain already: ``decide``, ``explain``, ``replay`` and more."""
        return self._of

    @overload
    def route(
        self,
        request: RequestLike,
        *,
        output_type: None = None,
        caller: Caller | None = None,
        **options: Unpack[Options],
    ) -> Answer: ...
    @overload
    def route(
        self, request: RequestLike, *, output_type: type[T], caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[T]: ...
    @overload
    def route(
        self, request: RequestLike, *, output_type: object, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]: ...
    def route(
        self, request: RequestLike, *, output_type: Any = None, caller: Caller | None = None, **options: Unpack[Options]
    ) -> Answer[Any]:
        """Answer a request (``Router.route``)."""
        return self._wait(partial(self.router.route, request, output_type=output_type, caller=caller, **options))

    def route_many(
        self,
        requests: RequestsLike,
        *,
        limit: int = 8,
        budget: Budget | Mapping[str, Any] | None = None,
        caller: Caller | None = None,
        **options: Unpack[SharedOptions],
    ) -> list[Answer | RouterError]:
        """Answer many requests, so many at a time (``Router.route_many``)."""
        many = partial(self.router.route_many, requests, limit=limit, budget=budget, caller=caller, **options)
        return self._wait(many)

    def stream(
        self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]
    ) -> BlockingStream:
        """Answer a request piece by piece (``Router.stream``)."""
        return BlockingStream(self.router.stream(request, caller=caller, **options), self._wait)

    def feedback(
        self, trace_id: str, score: float, comment: str | None = None, *, caller: Caller | None = None
    ) -> None:
        """Say how good an answer was (``Router.feedback``)."""
        self._wait(partial(self.router.feedback, trace_id, score, comment, caller=caller))

    def trace(self, trace_id: str, *, caller: Caller | None = None) -> Trace:
        """Read a trace (``Router.trace``)."""
        return self._wait(partial(self.router.trace, trace_id, caller=caller))

    @property
    def traces(self) -> BlockingTraceStore:
        """All traces of the Router's storage (``Router.traces``)."""
        return self.router.traces.blocking

    def flush(self) -> None:
        """Write all traces that still wait (``Router.flush``)."""
        self._wait(self.router.flush)

    def close(self) -> None:
        """Write what waits and free connections (``Router.aclose``)."""
        self.router._parts.close()


class BlockingStream:
    """``Stream`` for plain ``for`` loops.

    with router.blocking.stream("Tell me a story") as stream:
        for text in stream.text():
            print(text, end="")

    A loop over events may be left and gone on with, so without ``with`` the call ends when somebody calls ``close``.
    """

    def __init__(self, stream: Stream, wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        self._stream = stream
        self._wait = wait

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[RouteEvent]:
        while (event := self._wait(partial(anext, self._stream, None))) is not None:
            yield event

    def text(self) -> Iterator[str]:
        """The answer's text as it comes (``Stream.text``). Leaving the loop ends the call."""
        self._stream.expect_text()
        try:
            for event in self:
                if isinstance(event, OutputDelta):
                    yield event.data.text
        finally:
            self.close()
        self._stream.raise_failure()

    @property
    def result(self) -> Answer:
        """The answer, once the stream has ended."""
        return self._stream.result

    def close(self) -> None:
        """End the call."""
        with suppress(RouterClosed):  # nothing goes on in a closed one
            self._wait(self._stream.aclose)
