"""Providers without HTTP: any function (your own model, an SDK, a test), and models that the application calls."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from types import CoroutineType, GeneratorType
from typing import Any, NoReturn, cast

from msgspec import Struct

from routewright._core.attempts.faults import hint_of, place_of
from routewright._core.catalogue.models import models_of
from routewright._core.request.rules import CALLER_EXTRA, checked_caller_extra
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Threads
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import BaseProvider
from routewright.wire import Chunk, Delta, FaultKind, Finish, Model, ToolDelta, UpstreamCall
from routewright.wire.problems import shown

from .endpoint import Fetches, check_fetches

Reply = str | Iterable[str | Chunk | None] | AsyncIterable[str | Chunk | None]
Function = Callable[[UpstreamCall], Reply | Awaitable[Reply]]

THREADS = 40
"""Concurrent calls of one provider in worker threads, in each event loop."""

_END: Any = object()
_HINT = "return text, or an iterable of text and chunks"


class CallableProvider(BaseProvider):
    """Serves models with a function of the call that returns text, or an iterable of text and chunks.

        async def answer(call):
            return call.messages[-1].content.upper()

        provider = CallableProvider(answer, models=[Model(id="local/upper", quality=0.2)])

    Functions and generators run in worker threads, coroutine functions and async generators on the loop. Exceptions
    become the fault ``server``, except for ``ProviderFault``. None as a piece is a sign of life. ``fetches_urls`` and
    ``caller_extra`` are those of ``OpenAIProvider``.
    """

    def __init__(
        self,
        function: Function,
        *,
        models: Sequence[Model],
        name: str = "",
        fetches_urls: Fetches | None = None,
        caller_extra: Collection[str] = (),
    ) -> None:
        self._models = models_of(models)
        if not self._models:
            raise ValidationFailed.at("models", "is empty", "pass at least one Model that the function serves")
        self.name = name or self._models[0].id.partition("/")[0]
        if not callable(function):
            raise ValidationFailed.at("function", f"{shown(function)} is not callable", _HINT)
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            hint = "accept one argument, the UpstreamCall"
            raise ValidationFailed.at("function", f"has the wrong parameters: {error}", hint) from None
        except ValueError:  # some built-in functions have no signature
            pass
        self.fetches_urls = False if fetches_urls is None else check_fetches(fetches_urls)
        """Whether the function fetches URLs (``protocols.BaseProvider``)."""
        self.caller_extra = CALLER_EXTRA | checked_caller_extra(caller_extra)
        """Vendor fields that callers with a key may send (``protocols.Provider``)."""
        self._function = function
        self._waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self._threads = Threads("a function", THREADS)

    def __repr__(self) -> str:
        return f"CallableProvider({self.name!r}, {[model.id for model in self._models]})"

    def models(self) -> Sequence[Model]:
        """The given models."""
        return self._models

    def open(self, call: UpstreamCall) -> RunningFunction:
        """Start one call (``protocols.Provider``)."""
        return RunningFunction(self._function, call, self._waits, self._threads)

    async def aclose(self) -> None:
        """Nothing to release."""


class HostedProvider(BaseProvider):
    """Declares models that the application calls itself, with ``Router.steps``. Needs no key and sends nothing.

        router = Router(providers=[HostedProvider("openai"), HostedProvider("anthropic")])

    Without ``models`` it has those of the catalogue under its name. Without ``fetches_urls``, URLs of images and files
    go only to known vendors that fetch them on their own machines.
    """

    def __init__(self, name: str, *, models: Sequence[Model] = (), fetches_urls: Fetches | None = None) -> None:
        from .hosts import ENDPOINTS  # loads the tables of all vendors

        vendor = ENDPOINTS.get(name)
        default: Fetches = "callers" if vendor is not None and vendor.fetches_urls else False
        self.name = name
        self._models = models_of(models)
        self.fetches_urls: Fetches = default if fetches_urls is None else check_fetches(fetches_urls)
        """Whether the application may send URLs (``protocols.BaseProvider``)."""
        self.caller_extra = CALLER_EXTRA if vendor is None else vendor.caller_extra
        """Vendor fields that callers with a key may send (``protocols.Provider``)."""

    def __repr__(self) -> str:
        return f"HostedProvider({self.name!r})"

    def models(self) -> Sequence[Model]:
        """The given models. None: those of the catalogue under its name."""
        return self._models

    def open(self, call: UpstreamCall) -> NoReturn:
        """Refuse the call, so that ``Router.route`` tries other models."""
        raise ProviderFault(FaultKind.REQUEST, f"{self.name} is only for Router.steps")

    async def aclose(self) -> None:
        """Nothing to release."""


class RunningFunction(Struct, eq=False):
    """One call of a function as chunks, with a ``Finish`` added if the function gives none."""

    function: Function
    call: UpstreamCall
    waits: bool
    """True if it needs no thread."""
    threads: Threads
    reply: AsyncIterator[str | Chunk | None] | None = None
    """The pieces of an answer that is not a single text."""
    started: bool = False
    tools: bool = False
    finished: bool = False

    def __repr__(self) -> str:
        # no prompt, since a repr may be logged
        return f"<RunningFunction for {self.call.model.id}>"

    async def __aenter__(self) -> RunningFunction:
        return self

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self.reply, "aclose", None)
        if close is not None:
            await close()

    def __aiter__(self) -> RunningFunction:
        return self

    async def __anext__(self) -> Chunk:
        if self.finished:
            raise StopAsyncIteration
        piece: Any = _END
        try:
            if not self.started:
                self.started = True
                reply: Any = (
                    self.function(self.call) if self.waits else await self.threads.run(self.function, self.call)
                )
                if type(reply) is CoroutineType or isinstance(reply, Awaitable):
                    reply = await reply
                if isinstance(reply, str):
                    return Delta(reply)
                if isinstance(reply, AsyncIterable):
                    self.reply = aiter(reply)
                elif isinstance(reply, Mapping | Set | bytes | bytearray) or not isinstance(reply, Iterable):
                    raise ProviderFault(FaultKind.MALFORMED, f"the function returned {type(reply).__name__}; {_HINT}")
                else:
                    self.reply = _iterate(reply) if isinstance(reply, Collection) else _InThreads(reply, self.threads)
            if self.reply is not None:
                piece = await anext(self.reply, _END)
        except (ProviderFault, StopAsyncIteration):
            raise
        except Exception as error:  # a function of the host may raise anything
            message = f"the function raised {place_of(error)}"
            raise ProviderFault(FaultKind.SERVER, message, hint=hint_of(error)) from error
        if piece is _END:
            self.finished = True
            return Finish("tool_calls" if self.tools else "stop")
        if piece is None or isinstance(piece, str):
            return Delta(piece or "")
        self.finished = isinstance(piece, Finish)
        self.tools = self.tools or isinstance(piece, ToolDelta)
        return cast(Chunk, piece)


async def _iterate(pieces: Iterable[str | Chunk | None]) -> AsyncIterator[str | Chunk | None]:
    for piece in pieces:
        yield piece


class _InThreads:
    """An iterator as an async one. All its steps run in threads, since they may block."""

    def __init__(self, pieces: Iterable[str | Chunk | None], threads: Threads) -> None:
        self._pieces = iter(pieces)
        self._threads = threads
        self._guard = Guard()
        self._steps = False
        """True while a thread runs it, perhaps an abandoned one."""
        self._closed = False

    def __aiter__(self) -> _InThreads:
        return self

    async def __anext__(self) -> str | Chunk | None:
        piece = await self._threads.run(self._step)
        if piece is _END:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """End the generator; one that is running ends after its next piece."""
        with self._guard.lock:
            self._closed = True
            steps = self._steps
        if not steps and isinstance(self._pieces, GeneratorType) and self._pieces.gi_frame is not None:
            await self._threads.run(self._pieces.close)

    def _step(self) -> str | Chunk | None:
        with self._guard.lock:
            self._steps = True
        try:
            return next(self._pieces, _END)
        finally:
            with self._guard.lock:
                self._steps = False
                closed = self._closed
            if closed and isinstance(self._pieces, GeneratorType):
                self._pieces.close()
