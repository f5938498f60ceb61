"""Routed calls whose upstream calls the host makes: the path of any other call, in plain code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, assert_never

from msgspec import Struct

from routewright._core.attempts.faults import Fault
from routewright._core.attempts.machine import Wait
from routewright._core.outcome import raise_failure
from routewright._runtime.loop import at_once
from routewright.errors import ProviderFault, RouterError
from routewright.wire import Chunk, FaultKind, UpstreamCall

from .admission import Admission
from .answer import Answer
from .classify import CUT_SHORT, fault_of
from .execute import Execution
from .fleet import Fleet
from .guardrails import GuardrailFailed
from .provider_exchange import Blocked, ProviderExchange
from .request_input import Read
from .route import Engine

SHORTEST_S = 0.001
"""Many clients refuse a time limit of zero."""


class StepCall(Struct, frozen=True):
    """Call this model, and ``feed`` the result."""

    model: str
    upstream: UpstreamCall
    """The request: messages, tools, params, output cap, and the model's catalogue entry."""
    timeout_s: float
    """How long the answer may take; for a streamed answer, its first piece."""
    attempt: int
    """The number of the upstream call within the request, from 1."""

    def __repr__(self) -> str:
        return f"<StepCall {self.attempt} of {self.model} within {self.timeout_s:.3f} s>"  # no prompt: it gets logged

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """For ``rich``, without the prompt."""
        return [("model", self.model), ("timeout_s", self.timeout_s), ("attempt", self.attempt)]


class StepWait(Struct, frozen=True):
    """Wait, then call ``next`` again."""

    seconds: float


class StepDone(Struct, frozen=True):
    """The call has ended: ``Steps.result`` returns the answer, or raises the error."""


Step = StepCall | StepWait | StepDone


class Steps:
    """A routed call whose HTTP you do: ``next`` says what to do, ``feed`` takes the result.

        with router.steps("Why is the sky blue?") as steps:
            while True:
                match steps.next():
                    case StepCall() as call:
                        steps.feed(my_http(call))
                    case StepWait(seconds):
                        time.sleep(seconds)
                    case StepDone():
                        break
        print(steps.result.output)

    Use it from one thread at a time. Leaving the context early ends the call as cancelled."""

    def __init__(
        self, engine: Engine, begun: Execution | Answer, wait: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        """``begun`` is an ``Answer`` if the idempotency key has one. ``wait`` awaits in plain code."""
        self._engine = engine
        self._wait = wait
        self._error: RouterError | None = None
        self._answer: Answer | None = None
        if isinstance(begun, Answer):
            self._answer = begun
        else:
            self._execution = begun

    def __del__(self) -> None:
        """Record the cost of steps that are dropped before their end."""
        if self._answer is None:
            self._engine.log.drop(self._execution.call, self._execution)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def next(self) -> Step:
        """The next thing to do. Raises ``RuntimeError`` while the result of a call is missing."""
        if self._answer is not None:
            return StepDone()
        execution = self._execution
        if execution.exchange is not None:
            raise RuntimeError(f"call {len(execution.call.attempts)} has not ended: feed() its result first")
        if execution.payer is not None and execution.call.attempts:
            self._wait(execution.widen)
        match step := execution.advance():
            case ProviderExchange():
                step.is_entered = True  # whatever the host does with it
                attempt = step.attempt
                return StepCall(attempt.model, step.upstream, self._left_s(step), attempt.number)
            case Wait(seconds):
                execution.pause_s = 0.0  # the host pauses
                return StepWait(seconds)
            case None:
                self._conclude()
                return StepDone()
            case other:
                assert_never(other)

    def feed(self, outcome: Iterable[Chunk] | ProviderFault) -> None:
        """Pass the result of the call: its chunks, including a ``Finish``, or a ``ProviderFault``. An iterator is read
        until it ends or the time is up; if it raises anything but a ``ProviderFault``, that counts as ``server``.
        Raises ``RuntimeError`` if no call is running, and ``TypeError`` for anything else."""
        if (exchange := self._exchange()) is None:
            raise RuntimeError("no call is running; call next() first, and feed() once for each StepCall")
        if isinstance(outcome, str | bytes | Mapping) or not isinstance(outcome, Iterable | ProviderFault):
            raise TypeError(f"feed() takes a list of chunks or a ProviderFault, got {type(outcome).__name__}")
        execution = self._execution
        try:
            fault = self._read(exchange, outcome)
        except GuardrailFailed as error:
            self._drop()
            execution.end_with(error)
        else:
            if execution.exchange is not None:  # otherwise the outcome's code has closed it
                is_late = fault.kind is FaultKind.TIMEOUT and fault.answered
                execution.end_attempt(exchange, fault, abandoned=is_late)
        if execution.machine.end is not None and self._answer is None:  # as above
            self._conclude()

    @property
    def idle_s(self) -> float:
        """How long the next piece of a streamed answer may take from now. Raises ``RuntimeError`` if no call is
        running."""
        if (exchange := self._exchange()) is None:
            raise RuntimeError("no call is running, so there is no time limit; call next() first")
        return self._left_s(exchange)

    @property
    def result(self) -> Answer:
        """The answer, once the call has ended. Raises the error it ended with."""
        if self._answer is None:
            raise RuntimeError("the call has not ended; call next() until it returns StepDone")
        if self._error is not None:
            raise_failure(self._error)
        if not self._answer.is_served:
            raise RuntimeError("the call was left before its end, so there is no answer")
        return self._answer

    def close(self) -> None:
        """End the call; its trace has the output so far. Safe to call twice."""
        if self._answer is None:
            self._drop()
            self._conclude()

    def _exchange(self) -> ProviderExchange | None:
        """The exchange of the running call."""
        return None if self._answer is not None else self._execution.exchange

    def _left_s(self, exchange: ProviderExchange) -> float:
        """How long the attempt may stay silent from now."""
        return max(exchange.wake_at - exchange.clock.monotonic(), SHORTEST_S)

    def _drop(self) -> None:
        """Abandon the present attempt, if any, without blaming the provider."""
        if self._execution.exchange is not None:
            self._execution.drop(self._execution.exchange)

    def _conclude(self) -> None:
        execution = self._execution
        call, admission = execution.call, execution.admission
        self._answer, self._error = self._engine.log.conclude(call, execution)
        if admission is not None:
            self._wait(partial(self._engine.leave, call, admission))

    def _read(self, exchange: ProviderExchange, outcome: Iterable[Chunk] | ProviderFault) -> Fault:
        """Read chunks to their end; returns the fault that applies if the answer is not complete then."""
        if isinstance(outcome, ProviderFault):
            return self._fault_of(exchange, outcome)
        is_whole = isinstance(outcome, Sequence)  # it is complete and paid for, so its time is not checked
        exchange.waits_since = exchange.clock.monotonic()
        try:
            for chunk in outcome:
                output = exchange.take(chunk)
                if exchange.attempt.screen is not None and output is not None:
                    at_once(exchange.screen(output))
                if not is_whole and exchange.clock.monotonic() >= exchange.wake_at:
                    return exchange.silence()._replace(answered=True)
        except Blocked as blocked:
            return blocked.fault
        except GuardrailFailed:
            raise
        except Exception as error:  # the host's iterator may raise anything
            return self._fault_of(exchange, error)
        finally:
            if isinstance(outcome, Generator):
                with suppress(Exception):
                    outcome.close()
        return CUT_SHORT

    def _fault_of(self, exchange: ProviderExchange, error: Exception) -> Fault:
        """Classify the host's exception. After a time-out without a status the model may have been billed."""
        fault = fault_of(error, exchange.attempt.provider, answered=True)
        if fault.kind is FaultKind.TIMEOUT:
            return fault._replace(answered=fault.answered or getattr(error, "status", None) is None)
        return fault


async def begin(engine: Engine, read: Read, admission: Admission, fleet: Fleet) -> Execution | Answer:
    """Admit a limited call and choose a model. Returns the earlier answer if its idempotency key has one."""
    try:
        start = await engine.start(admission, read, fleet=fleet)
        if isinstance(start, Execution):
            return start
        admission.release()
        return await engine.replay(start, admission.caller)
    except BaseException as error:
        admission.annotate(error)
        admission.release()
        raise
