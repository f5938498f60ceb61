"""Streams for code without ``await``: each step runs in the Router's background thread and is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from ._core.routing.decision import Decision
from ._engine.answer import Answer
from ._engine.prepared import InputTokens, Prepared
from ._engine.stream import Stream
from .errors import RouterClosed
from .wire import OutputDelta, RouteEvent


class BlockingPrepared:
    """``Prepared`` for servers without ``await``, as WSGI has them."""

    def __init__(self, prepared: Prepared, wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
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
        """Choose, as a request of the caller's (``Prepared.decide``)."""
        decision: Decision = self._wait(self.prepared.decide)
        return decision

    def count_tokens(self, model: str | None = None) -> InputTokens:
        """Count the input (``Prepared.count_tokens``)."""
        count: InputTokens = self._wait(partial(self.prepared.count_tokens, model))
        return count


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
