"""A call that its host makes: the same course as any other's, but somebody else does what it says. Plain code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, assert_never

from msgspec import Struct

from routewright._core.call import Wait
from routewright.errors import ProviderFault
from routewright.wire import Caller, Chunk, FaultKind, UpstreamCall

from .admission import Admission
from .answer import Answer
from .course import Course
from .entry import Entry
from .fault import CUT_SHORT, Told
from .fleet import Fleet
from .guardrail import GuardrailFailed, done_now
from .line import Blocked, Line
from .outcome import Outcome
from .reading import Read
from .replay import Replayed
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


class Begun(NamedTuple):
    """A call whose model is chosen."""

    entry: Entry
    course: HostedCourse


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

    def __init__(self, engine: Engine, begun: Begun, wait: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]):
        """``wait`` awaits something, where nobody can."""
        self._engine = engine
        self._entry = begun.entry
        self._course = begun.course
        self._wait = wait
        self._outcome: Outcome | Replayed | None = None

    @classmethod
    def again(cls, replayed: Replayed) -> Self:
        """Those of a call that is over, which was made under the same idempotency key: there is nothing to do."""
        steps = cls.__new__(cls)
        steps._outcome = replayed
        return steps

    def __del__(self) -> None:
        """Without ``with`` it may be dropped before its end; what it cost is not."""
        if self._outcome is None:
            self._engine.records.drop(self._entry, self._course)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next(self) -> Step:
        """Say what to do now. Raises ``RuntimeError`` while a call waits to be fed."""
        if self._outcome is not None:
            return StepDone()
        if self._course.line is not None:
            raise RuntimeError(f"call {len(self._course.attempts)} has not ended: feed() what came of it first")
        if self._entry.admission is not None:
            self._wait(self._course.widen)
        match step := self._course.advance():
            case Line():
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
        if self._outcome is not None or self._course.line is None:
            raise RuntimeError("nothing is being called: ask next() first, and feed() once for each StepCall")
        self._course.feed(outcome)
        if self._course.end is not None and self._outcome is None:  # it may be left while it is fed
            self._conclude()

    @property
    def idle_s(self) -> float:
        """How long the next piece of an answer that is read while it comes may take from now. Raises ``RuntimeError``
        if nothing is being called."""
        if self._outcome is not None or self._course.line is None:
            raise RuntimeError("nothing is being called, so nothing is waited for")
        return self._course.left_s

    @property
    def result(self) -> Answer:
        """The answer, once all is done. Raises what ended the call otherwise."""
        if self._outcome is None:
            raise RuntimeError("the call has not ended: ask next() until it gives StepDone")
        if isinstance(self._outcome, Outcome) and raise_failure(self._outcome).facts.served is None:
            raise RuntimeError("the call was left before its end, so there is no answer")
        return Answer(self._outcome)

    def close(self) -> None:
        """End the call. What was produced so far is in its trace. Twice is once."""
        if self._outcome is None:
            self._course.leave()
            self._conclude()

    def _call(self, line: Line) -> StepCall:
        attempt = line.attempt
        return StepCall(attempt.model, line.upstream, self._course.left_s, attempt.call.number)

    def _conclude(self) -> None:
        self._outcome = outcome = self._engine.records.conclude(self._entry, self._course)
        if self._entry.admission is not None:
            self._wait(partial(self._engine.leave, self._entry, outcome))


class HostedCourse(Course):
    """A plan whose calls somebody else makes."""

    @property
    def left_s(self) -> float:
        """How long the present attempt may stay silent from now."""
        assert self.line is not None, "something is being called"
        return max(self.line.wake_at - self._clock.monotonic(), SHORTEST_S)

    def feed(self, outcome: Iterable[Chunk] | ProviderFault) -> None:
        """Take what came of the present attempt. Raises ``TypeError`` for what is neither chunks nor a fault."""
        given: object = outcome
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | ProviderFault):
            what = type(given).__name__
            raise TypeError(f"feed() takes chunks or a ProviderFault, got {what}; make a list of chunks of it")
        line = self.line
        assert line is not None, "something is being called"
        try:
            fault = self._fault(line, outcome) if isinstance(outcome, ProviderFault) else self._read(line, outcome)
        except GuardrailFailed as error:
            self.leave()
            self.fail(error)
            return
        if self.line is None:  # it was left while it was fed
            return
        self.ended(line, fault, abandoned=fault.kind is FaultKind.TIMEOUT and fault.answered)
        self.line = None
        self.end = self._machine.end

    def leave(self) -> None:
        """Leave the present attempt, if any, for no fault of its own: another may probe in its place."""
        line, self.line = self.line, None
        if line is not None:
            self._leave_behind(line)

    def _read(self, line: Line, chunks: Iterable[Chunk]) -> Told:
        """Take chunks until they end, and say what is wrong if the answer has not ended by then."""
        try:
            return self._taken(line, chunks)
        except Blocked as blocked:
            return blocked.told
        except GuardrailFailed:
            raise
        except Exception as error:
            return self._fault(line, error)
        finally:
            if isinstance(chunks, Generator):
                with suppress(Exception):  # a bad good-bye changes nothing
                    chunks.close()

    def _taken(self, line: Line, chunks: Iterable[Chunk]) -> Told:
        comes = not isinstance(chunks, Sequence)
        line.since = self._clock.monotonic()
        for chunk in chunks:
            part = self._take(line, chunk)
            if line.attempt.screen is not None and part is not None:
                done_now(self._screened(line, part))
            if comes and self._clock.monotonic() >= line.wake_at:  # a list is there already, and paid for
                return self._silence(line)._replace(answered=True)
        return CUT_SHORT

    def _fault(self, line: Line, error: Exception) -> Told:
        """What is said of a fault. A time-out without a status is the host's own: the model may have been at work."""
        said = self._told(error, line.attempt, entered=True)
        if said.kind is FaultKind.TIMEOUT:
            return said._replace(answered=said.answered or getattr(error, "status", None) is None)
        return said


async def begin(engine: Engine, read: Read, caller: Caller, fleet: Fleet) -> Begun | Replayed:
    """Let a call in that is limited, and choose; it waits for nothing that others hold. Or give what it was answered
    when it was made before."""
    with engine.records.named():
        admission = Admission(engine.admissions, read, caller, patient=False)
        async with AsyncExitStack() as entering:
            await entering.enter_async_context(admission)
            kept = await admission.begin()
            if kept is not None:
                return await engine.replayed(kept, caller)
            entry, plan = await engine.afford(engine.guarded_now(engine.admit(read, caller, fleet, admission)))
            entering.pop_all()  # from now on it is the call that leaves it
            return Begun(entry, engine.course(HostedCourse, entry, plan))
