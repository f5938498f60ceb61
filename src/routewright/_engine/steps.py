"""A call that its host makes: the same course as any other's, but somebody else does what it says. Plain code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, assert_never

from msgspec import Struct

from routewright._core.attempts.machine import Wait
from routewright.errors import ProviderFault, RouterError
from routewright.wire import Caller, Chunk, FaultKind, UpstreamCall

from .admission import Admission
from .answer import Answer
from .fault import CUT_SHORT, Fault
from .fleet import Fleet
from .guardrail import GuardrailFailed, done_now
from .progress import Blocked, Exchange, Progress
from .reading import Read
from .route import Engine, raise_failure

SHORTEST_S = 0.001
"""Many clients take no time limit of zero."""


class StepCall(Struct, frozen=True):
    """Call this model, and ``feed`` what came of it."""

    model: str
    upstream: UpstreamCall
    """What to ask: messages, tools, params, output cap, and the model's row of the catalogue."""
    timeout_s: float
    """How long the answer may take; of one that is read while it comes, its first piece."""
    attempt: int
    """1, 2 ... over all calls of the request."""

    def __repr__(self) -> str:
        # no prompt: a repr ends up in logs
        return f"<StepCall {self.attempt} of {self.model} within {self.timeout_s:.3f} s>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What ``rich`` prints: no prompt either."""
        return [("model", self.model), ("timeout_s", self.timeout_s), ("attempt", self.attempt)]


class StepWait(Struct, frozen=True):
    """Let this time pass, then ask again."""

    seconds: float


class StepDone(Struct, frozen=True):
    """Nothing is left to do: ``Steps.result`` gives the answer, or raises what ended the call."""


Step = StepCall | StepWait | StepDone


class Steps:
    """One call whose HTTP is yours: ``next`` says what to do, ``feed`` is told what happened.

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

    To be used by one thread at a time. Leaving the context early ends the call as cancelled.
    """

    def __init__(
        self, engine: Engine, progress: HostedProgress, wait: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        """``wait`` awaits something, where nobody can."""
        self._engine = engine
        self._progress = progress
        self._wait = wait
        self._answer: Answer | None = None
        self._error: RouterError | None = None

    @classmethod
    def again(cls, answer: Answer) -> Self:
        """Those of a call that is over, which was made under the same idempotency key: there is nothing to do."""
        steps = cls.__new__(cls)
        steps._answer, steps._error = answer, None
        return steps

    def __del__(self) -> None:
        """Without ``with`` it may be dropped before its end; what it cost is not."""
        if self._answer is None:
            self._engine.records.drop(self._progress.call, self._progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next(self) -> Step:
        """Say what to do now. Raises ``RuntimeError`` while a call waits to be fed."""
        if self._answer is not None:
            return StepDone()
        if self._progress.exchange is not None:
            raise RuntimeError(f"call {len(self._progress.call.attempts)} has not ended: feed() what came of it first")
        if self._progress.call.hold is not None:
            self._wait(self._progress.widen)
        match step := self._progress.advance():
            case Exchange():
                return self._call(step)
            case Wait(seconds):
                return StepWait(seconds)
            case None:
                self._conclude()
                return StepDone()
            case other:
                assert_never(other)

    def feed(self, outcome: Iterable[Chunk] | ProviderFault) -> None:
        """Tell how the call went: its chunks with a ``Finish`` among them, or a ``ProviderFault``.

        What is no list is read as it comes, until it ends or the time does; a ``ProviderFault`` may be raised there,
        and any other exception counts as ``server``. Raises ``RuntimeError`` if nothing was to be called.
        """
        if self._answer is not None or self._progress.exchange is None:
            raise RuntimeError("nothing is being called: ask next() first, and feed() once for each StepCall")
        self._progress.feed(outcome)
        if self._progress.end is not None and self._answer is None:  # it may be left while it is fed
            self._conclude()

    @property
    def idle_s(self) -> float:
        """How long the next piece of an answer that is read while it comes may take from now. Raises ``RuntimeError``
        if nothing is being called."""
        if self._answer is not None or self._progress.exchange is None:
            raise RuntimeError("nothing is being called, so nothing is waited for")
        return self._progress.left_s

    @property
    def result(self) -> Answer:
        """The answer, once all is done. Raises what ended the call otherwise."""
        if self._answer is None:
            raise RuntimeError("the call has not ended: ask next() until it gives StepDone")
        if self._error is not None:
            raise_failure(self._error)
        if not self._answer.is_served:
            raise RuntimeError("the call was left before its end, so there is no answer")
        return self._answer

    def close(self) -> None:
        """End the call. What was produced so far is in its trace. Twice is once."""
        if self._answer is None:
            self._progress.leave()
            self._conclude()

    def _call(self, exchange: Exchange) -> StepCall:
        attempt = exchange.attempt
        return StepCall(attempt.model, exchange.upstream, self._progress.left_s, attempt.number)

    def _conclude(self) -> None:
        call, hold = self._progress.call, self._progress.call.hold
        self._answer, self._error = self._engine.records.conclude(call, self._progress)
        if hold is not None:
            self._wait(partial(self._engine.leave, call, hold))


class HostedProgress(Progress):
    """A plan whose calls somebody else makes."""

    @property
    def left_s(self) -> float:
        """How long the present attempt may stay silent from now."""
        assert self.exchange is not None, "something is being called"
        return max(self.exchange.wake_at - self.clock.monotonic(), SHORTEST_S)

    def feed(self, outcome: Iterable[Chunk] | ProviderFault) -> None:
        """Take what came of the present attempt. Raises ``TypeError`` for what is neither chunks nor a fault."""
        given: object = outcome
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | ProviderFault):
            what = type(given).__name__
            raise TypeError(f"feed() takes chunks or a ProviderFault, got {what}; make a list of chunks of it")
        exchange = self.exchange
        assert exchange is not None, "something is being called"
        try:
            if isinstance(outcome, ProviderFault):
                fault = self._hosts_fault(exchange, outcome)
            else:
                fault = self._read(exchange, outcome)
        except GuardrailFailed as error:
            self.leave()
            self.end_with(error)
            return
        if self.exchange is None:  # it was left while it was fed
            return
        self.ended(exchange, fault, abandoned=fault.kind is FaultKind.TIMEOUT and fault.answered)
        self.exchange = None

    def leave(self) -> None:
        """Leave the present attempt, if any, for no fault of its own: another may probe in its place."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._leave_behind(exchange)

    def _read(self, exchange: Exchange, chunks: Iterable[Chunk]) -> Fault:
        """Take chunks until they end, and say what is wrong if the answer has not ended by then."""
        try:
            return self._taken(exchange, chunks)
        except Blocked as blocked:
            return blocked.fault
        except GuardrailFailed:
            raise
        except Exception as error:
            return self._hosts_fault(exchange, error)
        finally:
            if isinstance(chunks, Generator):
                with suppress(Exception):  # a bad good-bye changes nothing
                    chunks.close()

    def _taken(self, exchange: Exchange, chunks: Iterable[Chunk]) -> Fault:
        comes = not isinstance(chunks, Sequence)
        exchange.since = self.clock.monotonic()
        for chunk in chunks:
            part = self._take(exchange, chunk)
            if exchange.attempt.screen is not None and part is not None:
                done_now(self._screened(exchange, part))
            if comes and self.clock.monotonic() >= exchange.wake_at:  # a list is there already, and paid for
                return self._silence(exchange)._replace(answered=True)
        return CUT_SHORT

    def _hosts_fault(self, exchange: Exchange, error: Exception) -> Fault:
        """What is said of a fault. A time-out without a status is the host's own: the model may have been at work."""
        said = self._fault_of(error, exchange.attempt, entered=True)
        if said.kind is FaultKind.TIMEOUT:
            return said._replace(answered=said.answered or getattr(error, "status", None) is None)
        return said


async def begin(engine: Engine, read: Read, caller: Caller, fleet: Fleet) -> HostedProgress | Answer:
    """Admit a call that is limited, and choose; it waits for nothing that others hold. Or give the answer that was
    given to it before."""
    with engine.records.named():
        hold = Admission(engine.admissions, read, caller, patient=False)
        async with AsyncExitStack() as entering:
            await entering.enter_async_context(hold)
            kept = await hold.begin()
            if kept is not None:
                return await engine.replayed(kept, caller)
            call = engine.admit(read, caller, fleet, hold)
            engine.guard_now(call)
            await engine.afford(call)
            entering.pop_all()  # from now on it is the call that leaves it
            return engine.progress(HostedProgress, call)
