"""Runs guardrails on requests and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

from routewright._core.call import Call
from routewright._core.guardrails.screen import REST, AnswerGate, Hit, PassageGate, RequestGate
from routewright._core.guardrails.texts import PIECE_CHARS, Passage
from routewright._runtime.loop import in_plain_code, this_loop
from routewright.errors import InternalError, RouterTimeoutError
from routewright.protocols import Clock, Guardrail
from routewright.wire import Delta, Finish, FunctionCall, ToolCall, ToolDelta
from routewright.wire.json_scan import quoted

from .capture import REST_S
from .context import CancelWatch

T = TypeVar("T")
Resting = Callable[[], Awaitable[None]]
"""Called between two pieces of a long text."""

_TURN: RunVar[anyio.Semaphore] = RunVar("routewright.guardrails")


async def rest(clock: Clock) -> None:
    """Let others go on. One search of a long text continues at a time in an event loop, however many there are:
    otherwise each round of the loop would take as long as a piece of all of them together."""
    if (turn := _TURN.get(None)) is None:
        turn = anyio.Semaphore(1)
        _TURN.set(turn)
    async with turn:
        await clock.sleep(0 if clock.virtual else REST_S)


class GuardrailFailed(InternalError):
    """A guardrail returned no verdict, so the text is blocked."""


async def pass_gate(gate: PassageGate | AnswerGate, resting: Resting) -> None:
    """Get the verdict of every guardrail. Raises ``GuardrailFailed``, for any exception of a guardrail but an exit or
    this task's cancellation."""
    while True:
        ask = gate.next()
        if ask is REST:
            await resting()
            continue
        if ask is None:
            return
        watch, label = CancelWatch.here(), f"the guardrail {quoted(ask.guardrail.name)}"
        try:
            verdict: object = ask.guardrail.check(ask.text, ask.stage)
            if isinstance(verdict, Awaitable):
                if in_plain_code():
                    if isinstance(verdict, Coroutine):
                        verdict.close()  # else Python warns that it was not awaited
                    hint = "use Router.route or Router.stream"
                    raise GuardrailFailed(f"{label} has to be awaited, which plain code cannot; {hint}")
                verdict = await verdict
        except GuardrailFailed:
            raise
        except BaseException as error:
            in_loop = this_loop() is not None
            if watch.must_propagate(error) if in_loop else isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # the error's message may hold the text
            raise GuardrailFailed(f"{label} failed with {type(error).__name__}") from error
        try:
            gate.take(verdict)
        except InternalError as error:
            raise GuardrailFailed(error.message) from error


async def pass_in_time(gate: RequestGate, clock: Clock, call: Call) -> None:
    """``pass_gate`` for a request. Raises ``RouterTimeoutError`` at the call's deadline."""
    problem = f"timeout_ms={call.timeout_ms} ran out while a guardrail checked the request"
    late = f"{problem}; raise timeout_ms, send a shorter text, or use a faster guardrail"

    async def check_time() -> None:
        if clock.monotonic() >= call.deadline:
            raise RouterTimeoutError(late)

    if in_plain_code():
        await pass_gate(gate, check_time)
        return
    with clock.deadline(call.deadline) as limit:
        await pass_gate(gate, partial(rest, clock))
    if limit.expired:
        raise RouterTimeoutError(late)


class Screen:
    """Checks one streamed answer. Text passes as soon as it is known to be harmless; tool calls and JSON answers once
    they are complete."""

    def __init__(self, guardrails: Sequence[Guardrail], *, as_json: bool, resting: Resting) -> None:
        self._guardrails = guardrails
        self._as_json = as_json
        self._resting = resting
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
        passed = ""
        for start in range(0, len(text), PIECE_CHARS):
            if self.blocked is not None:
                break
            if start > 0:
                await self._resting()
            self._gate.feed(text[start : start + PIECE_CHARS])
            passed += await self._passed()
        return passed

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
        await pass_gate(self._gate, self._resting)
        self.blocked = self._gate.blocked
        text = self._gate.text
        self._text.append(text)
        return text

    async def _passage(self, text: str) -> str:
        """Check a complete JSON text; returns it redacted."""
        gate = PassageGate([Passage(text, is_json=True)], self._guardrails, "output")
        await pass_gate(gate, self._resting)
        self._later += gate.hits
        self.blocked = self.blocked or gate.blocked
        return str(gate.passages[0])
