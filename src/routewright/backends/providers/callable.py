"""Any function as a provider: your own model, an SDK, a test."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio.to_thread

from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.wire import Chunk, Delta, FaultKind, Finish, Model, ToolDelta, UpstreamCall

Reply = str | Iterable[str | Chunk] | AsyncIterable[str | Chunk]
Function = Callable[[UpstreamCall], Reply | Awaitable[Reply]]


class CallableProvider:
    """Serves models with a function of the call that returns text, or an iterable of text and chunks.

        async def answer(call):
            return call.messages[-1].content.upper()

        provider = CallableProvider(answer, models=[Model(id="local/upper", quality=0.2)])

    A plain function runs in a worker thread, a coroutine function or async generator on the loop. What it raises is
    the provider's fault ``server``, unless it raises ``ProviderFault`` itself.
    """

    def __init__(self, function: Function, *, models: Sequence[Model], name: str = "") -> None:
        if not models:
            raise ValidationFailed.of(
                Problem("models", "is empty", "declare at least one Model that the function serves")
            )
        self.name = name or models[0].id.partition("/")[0]
        self._function = function
        self._models = tuple(models)
        self._waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def __repr__(self) -> str:
        return f"CallableProvider({self.name!r}, {[model.id for model in self._models]})"

    def models(self) -> Sequence[Model]:
        """The models it was declared with."""
        return self._models

    def open(self, call: UpstreamCall) -> RunningFunction:
        """Start one call (``protocols.Provider``)."""
        return RunningFunction(self._function, call, self._waits)

    async def aclose(self) -> None:
        """Nothing is held."""


class RunningFunction:
    """One call of a function, read as chunks: what it gives, and a ``Finish`` if it gave none."""

    def __init__(self, function: Function, call: UpstreamCall, waits: bool) -> None:
        self._function = function
        self._call = call
        self._waits = waits
        self._reply: AsyncIterator[str | Chunk] | None = None
        self._tools = False
        self._finished = False

    async def __aenter__(self) -> RunningFunction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = getattr(self._reply, "aclose", None)
        if close is not None:
            await close()

    def __aiter__(self) -> RunningFunction:
        return self

    async def __anext__(self) -> Chunk:
        if self._finished:
            raise StopAsyncIteration
        try:
            if self._reply is None:
                self._reply = await self._start()
            piece = await anext(self._reply, None)
        except (ProviderFault, StopAsyncIteration):
            raise
        except Exception as error:
            raise ProviderFault(FaultKind.SERVER, f"the function raised {_where(error)}") from error
        if piece is None:
            self._finished = True
            return Finish("tool_calls" if self._tools else "stop")
        if isinstance(piece, str):
            return Delta(piece)
        self._finished = isinstance(piece, Finish)
        self._tools = self._tools or isinstance(piece, ToolDelta)
        return piece

    async def _start(self) -> AsyncIterator[str | Chunk]:
        if self._waits:
            reply: Any = self._function(self._call)
        else:
            reply = await anyio.to_thread.run_sync(self._function, self._call, abandon_on_cancel=True)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, str):
            return _Once(reply)
        if isinstance(reply, AsyncIterable):
            return aiter(reply)
        if isinstance(reply, Iterable):
            return _Each(reply)
        raise ProviderFault(FaultKind.MALFORMED, f"the function returned {type(reply).__name__}, not text or chunks")


def _where(error: Exception) -> str:
    """What was raised and where; not what it says, which may be the prompt."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(frame.f_code.co_filename).name}, line {line}"


class _Once:
    """One text as an async iterator."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __aiter__(self) -> _Once:
        return self

    async def __anext__(self) -> str:
        text, self._text = self._text, None
        if text is None:
            raise StopAsyncIteration
        return text


class _Each:
    """An iterable as an async iterator."""

    def __init__(self, pieces: Iterable[str | Chunk]) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> _Each:
        return self

    async def __anext__(self) -> str | Chunk:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration
