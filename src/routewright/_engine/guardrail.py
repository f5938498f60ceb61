"""Runs guardrails on requests and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

import anyio.to_thread

from routewright._core.guardrails.screen import AnswerGate, Hit, PassageGate
from routewright._core.guardrails.texts import json_passage
from routewright._core.request.json_scan import quoted
from routewright.errors import InternalError
from routewright.loop import this_loop
from routewright.protocols import Guardrail
from routewright.wire import Delta, Finish, FunctionCall, ToolCall, ToolDelta

from .context import CancelWatch

LARGE_CHARACTERS = 20_000
"""Longer texts are checked in a worker thread: they take milliseconds."""

T = TypeVar("T")


class GuardrailFailed(InternalError):
    """A guardrail returned no verdict, so the text is blocked."""


class _CannotWait(BaseException):
    """Thrown into a guardrail that waits in plain code."""


async def pass_gate(gate: PassageGate | AnswerGate, *, aside: bool = False) -> None:
    """Get the verdict of every guardrail; rule-based ones in a worker thread if ``aside``. Raises
    ``GuardrailFailed``, for any exception of a guardrail but an exit or this task's cancellation."""
    while True:
        if aside:  # after a cancellation the gate is not used again
            ask = await anyio.to_thread.run_sync(gate.next, abandon_on_cancel=True)
        else:
            ask = gate.next()
        if ask is None:
            return
        watch, named = CancelWatch(), f"the guardrail {quoted(ask.guardrail.name)}"
        try:
            verdict: object = ask.guardrail.check(ask.text, ask.stage)
            if isinstance(verdict, Awaitable):
                if this_loop() is None:
                    if isinstance(verdict, Coroutine):
                        verdict.close()  # else Python warns that it was not awaited
                    raise _CannotWait
                verdict = await verdict
        except _CannotWait:
            hint = "use Router.route or Router.stream"
            raise GuardrailFailed(f"{named} has to be awaited, which plain code cannot; {hint}") from None
        except BaseException as error:
            in_loop = this_loop() is not None
            if watch.passes(error) if in_loop else isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # the error's message may hold the text
            raise GuardrailFailed(f"{named} failed with {type(error).__name__}") from error
        try:
            gate.take(verdict)
        except InternalError as error:
            raise GuardrailFailed(error.message) from error


def done_now(waiting: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in plain code, inside or outside of a loop. Raises ``GuardrailFailed`` if it has to wait."""
    try:
        waiting.send(None)
        waiting.throw(_CannotWait())
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        waiting.close()
    raise GuardrailFailed("a guardrail waits, which plain code cannot")


class Screen:
    """Checks one streamed answer. Text passes as soon as it is known to be harmless; tool calls and JSON answers once
    they are complete."""

    def __init__(self, guardrails: Sequence[Guardrail], *, as_json: bool, aside_from: float) -> None:
        """``aside_from``: longer texts, in characters, are checked in a worker thread."""
        self._guardrails = guardrails
        self._as_json = as_json
        self._aside_from = aside_from
        self._gate = AnswerGate(guardrails)
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._later: list[Hit] = []
        self.blocked: Hit | None = None

    @property
    def output(self) -> str:
        return "".join(self._text)

    @property
    def calls(self) -> list[ToolCall] | None:
        return self._calls or None

    @property
    def hits(self) -> list[Hit]:
        return [*self._gate.hits, *self._later]

    async def feed(self, text: str) -> str:
        """Check a piece of the answer's text; returns the text that may be delivered."""
        if self._as_json:
            return ""
        if len(text) > self._aside_from:
            await anyio.to_thread.run_sync(self._gate.feed, text, abandon_on_cancel=True)
        else:
            self._gate.feed(text)
        return await self._passed()

    async def end(self, text: str, calls: Sequence[ToolCall], finish: Finish) -> list[Delta | ToolDelta | Finish]:
        """Check the complete answer, text and calls; returns the parts to deliver, the ``Finish`` last."""
        if self._as_json:
            rest = await self._passage(text) if text else ""
            self._text.append(rest)
        else:
            self._gate.end()
            rest = await self._passed()
        parts: list[Delta | ToolDelta | Finish] = [Delta(rest)] if rest else []
        for index, call in enumerate(calls):
            if self.blocked is None:
                arguments = await self._passage(call.function.arguments)
                self._calls.append(ToolCall(call.id, FunctionCall(call.function.name, arguments)))
                parts.append(ToolDelta(index, arguments, call.id, call.function.name))
        return [*parts, finish]

    async def _passed(self) -> str:
        await pass_gate(self._gate)
        self.blocked = self._gate.blocked
        text = self._gate.text
        self._text.append(text)
        return text

    async def _passage(self, text: str) -> str:
        """Check a complete JSON text; returns it redacted."""
        gate = PassageGate([json_passage(text)], self._guardrails, "output")
        await pass_gate(gate, aside=len(text) > self._aside_from)
        self._later += gate.hits
        self.blocked = self.blocked or gate.blocked
        return str(gate.passages[0])
