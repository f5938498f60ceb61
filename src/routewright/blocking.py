"""Streams for code without ``await``: each step runs in the Router's background thread and is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from ._engine.answer import Answer
from ._engine.stream import Stream
from .errors import RouterClosed
from .wire import OutputDelta, RouteEvent


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
