"""Takes requests and answers past the guardrails, and waits for those that have to be waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import anyio.to_thread

from routewright._core.guardrails.gate import AnswerGate, Ask, Hit, PassageGate
from routewright._core.guardrails.texts import json_passage
from routewright._core.request.json_scan import quoted
from routewright.errors import InternalError
from routewright.loop import this_loop
from routewright.protocols import Guardrail
from routewright.wire import Delta, Finish, FunctionCall, ToolCall, ToolDelta

from .cancel import CancelWatch

LARGE_CHARACTERS = 20_000
"""More than so many are looked through in a worker thread: some milliseconds' work."""

T = TypeVar("T")
Gate = PassageGate | AnswerGate


class GuardrailFailed(InternalError):
    """A guardrail did not say what may pass, so nothing does."""


class _CannotWait(BaseException):
    """Thrown in where a guardrail waits and plain code asks."""


async def pass_gate(gate: Gate, *, aside: bool = False) -> None:
    """Have every guardrail say what it has to say; those made of rules in a worker thread if ``aside``. Raises
    ``GuardrailFailed``."""
    while (ask := await _next_aside(gate) if aside else gate.next()) is not None:
        verdict = _asked(ask)
        if isinstance(verdict, Awaitable):
            verdict = await _awaited(ask, verdict)
        _tell(gate, ask, verdict)


async def _next_aside(gate: Gate) -> Ask | None:
    return await anyio.to_thread.run_sync(gate.next, abandon_on_cancel=True)  # who leaves does not use the gate again


def done_now(waiting: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives to plain code, which cannot wait, whether a loop runs around it or not."""
    try:
        waiting.send(None)
        waiting.throw(_CannotWait())
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        waiting.close()
    raise GuardrailFailed("a guardrail goes on waiting where plain code asks, which cannot")


def _asked(ask: Ask) -> object:
    return _contained(ask.guardrail, lambda: ask.guardrail.check(ask.text, ask.stage))


async def _awaited(ask: Ask, verdict: Awaitable[object]) -> object:
    if this_loop() is None:
        if isinstance(verdict, Coroutine):
            verdict.close()  # else it warns that nobody awaited it
        raise _waits(ask.guardrail)
    watch = CancelWatch()
    try:
        return await verdict
    except _CannotWait:
        raise _waits(ask.guardrail) from None
    except BaseException as error:
        if _passes(error, watch):
            raise
        raise _failed(ask.guardrail, error) from error


def _tell(gate: Gate, ask: Ask, verdict: object) -> None:
    try:
        gate.take(verdict)
    except InternalError as error:
        raise GuardrailFailed(error.message) from error


def _contained(guardrail: Guardrail, check: Callable[[], object]) -> object:
    watch = CancelWatch()
    try:
        return check()
    except BaseException as error:
        if _passes(error, watch):
            raise
        raise _failed(guardrail, error) from error


def _passes(error: BaseException, watch: CancelWatch) -> bool:
    """Whether it is no guardrail's doing: it ends the program, or the task."""
    if this_loop() is None:
        return isinstance(error, KeyboardInterrupt | SystemExit)
    return watch.passes(error)


def _waits(guardrail: Guardrail) -> GuardrailFailed:
    hint = "use Router.route or Router.stream"
    return GuardrailFailed(f"the guardrail {quoted(guardrail.name)} has to be awaited, which plain code cannot; {hint}")


def _failed(guardrail: Guardrail, error: BaseException) -> GuardrailFailed:
    # its words may hold the text, so they stay there
    return GuardrailFailed(f"the guardrail {quoted(guardrail.name)} failed with {type(error).__name__}")


class Screen:
    """One answer on its way past the guardrails. Text goes on as soon as it is known to be harmless, tool calls and
    answers in JSON once they are whole."""

    def __init__(self, guardrails: Sequence[Guardrail], *, as_json: bool, aside_from: float) -> None:
        """``aside_from``: more characters than so many are looked through in a worker thread."""
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
        """The text that has passed."""
        return "".join(self._text)

    @property
    def calls(self) -> list[ToolCall] | None:
        """The tool calls that have passed."""
        return self._calls or None

    @property
    def hits(self) -> list[Hit]:
        """What was found."""
        return [*self._gate.hits, *self._later]

    async def feed(self, text: str) -> str:
        """Take a piece of the answer's text; give what may go on."""
        if self._as_json:
            return ""
        if len(text) > self._aside_from:
            await anyio.to_thread.run_sync(self._gate.feed, text, abandon_on_cancel=True)
        else:
            self._gate.feed(text)
        return await self._passed()

    async def end(self, text: str, calls: Sequence[ToolCall], finish: Finish) -> list[Delta | ToolDelta | Finish]:
        """The answer is whole: its text and its calls. Gives what is left to go on, its end last, if nothing blocks."""
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
        """What is left of a text of JSON."""
        gate = PassageGate([json_passage(text)], self._guardrails, "output")
        await pass_gate(gate, aside=len(text) > self._aside_from)
        self._later += gate.hits
        self.blocked = self.blocked or gate.blocked
        return str(gate.passages[0])
