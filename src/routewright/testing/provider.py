"""A provider that follows a test's script, and records its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from routewright._core.catalogue.models import models_of
from routewright.errors import Problem, ProviderFault, ValidationFailed
from routewright.protocols import BaseProvider, Clock
from routewright.wire import Chunk, Delta, Finish, Model, UpstreamCall, Usage


class Pause(NamedTuple):
    """Let time pass inside an answer."""

    seconds: float


Line = str | Chunk | ProviderFault | Pause
Turn = str | ProviderFault | Sequence[Line]
"""One answer: its text, its fault, or its pieces in order."""
Script = Iterable[Turn] | Callable[[UpstreamCall], Turn]


class ScriptedProvider(BaseProvider):
    """Answers calls from a script; ``calls`` records them.

        provider = ScriptedProvider(["Hello", ProviderFault("server")], models=[Model(id="test/one", quality=0.5)])

    A text becomes a complete answer with a usage of one token per word. Pieces are yielded unchanged; no ``Finish`` is
    added. A script may be a function, called with each call. Calls after the script's end fail.
    """

    fetches_urls: bool | Literal["callers"] = "callers"
    """It fetches nothing, so it may be sent all URLs (``protocols.BaseProvider``)."""

    def __init__(
        self, script: Script, *, models: Sequence[Model] = (), name: str = "", clock: Clock | None = None
    ) -> None:
        if isinstance(script, str):
            raise ValidationFailed.of(Problem("script", "is one text", "write a list with one entry per call"))
        self._models = models_of(models)
        self.name = name or (self._models[0].id.partition("/")[0] if self._models else "scripted")
        self.calls: list[UpstreamCall] = []
        self.open_calls = 0
        """Calls entered and not left."""
        self.closed = 0
        self._turns: Iterator[Turn] = iter(()) if callable(script) else iter(script)
        self._function = script if callable(script) else None
        self._clock = clock
        turns = script if isinstance(script, list | tuple) else ()
        pieces = (piece for turn in turns if isinstance(turn, list | tuple) for piece in turn)
        if clock is None and any(isinstance(piece, Pause) for piece in pieces):
            raise ValidationFailed.of(Problem("script", "holds a Pause", "give clock=..., as to Settings"))

    def models(self) -> Sequence[Model]:
        """The models passed to the constructor."""
        return self._models

    def open(self, call: UpstreamCall) -> ScriptedCall:
        """Start one call (``protocols.Provider``)."""
        return ScriptedCall(self, call)

    async def aclose(self) -> None:
        """Count the call in ``closed``."""
        self.closed += 1

    def turn(self, call: UpstreamCall) -> Sequence[Line]:
        """The pieces of the next answer."""
        self.calls.append(call)
        turn = self._function(call) if self._function is not None else next(self._turns, None)
        if turn is None:
            turn = ProviderFault(
                "request", f"the script of {self.name!r} has no turn for call {len(self.calls)}: add one"
            )
        if isinstance(turn, str):
            texts = [message.content for message in call.messages if isinstance(message.content, str)]
            return [Delta(turn), Usage(sum(len(text.split()) for text in texts), len(turn.split())), Finish("stop")]
        return [turn] if isinstance(turn, ProviderFault) else turn

    async def pause(self, seconds: float) -> None:
        """Let time pass on the clock that it was given."""
        if self._clock is None:
            raise AssertionError("a Pause needs ScriptedProvider(clock=...)")
        await self._clock.sleep(seconds)


class ScriptedCall:
    """One call of a ``ScriptedProvider``."""

    def __init__(self, provider: ScriptedProvider, call: UpstreamCall) -> None:
        self._provider = provider
        self._lines = iter(provider.turn(call))

    async def __aenter__(self) -> AsyncIterator[Chunk]:
        self._provider.open_calls += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._provider.open_calls -= 1

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        for line in self._lines:
            match line:
                case Pause(seconds):
                    await self._provider.pause(seconds)
                case ProviderFault():
                    raise line
                case str():
                    return Delta(line)
                case _:
                    return line
        raise StopAsyncIteration
