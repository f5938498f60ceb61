"""What stays of a call once it is over: its outcome, its trace, and the events that it caused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from routewright._core.alerts import ErrorBursts
from routewright._core.call import End
from routewright._core.decision import Decision
from routewright.errors import InternalError, RouterError
from routewright.fork import Guard
from routewright.protocols import Clock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    DecisionInput,
    Environment,
    ErrorBurst,
    PushedEvent,
    Snapshot,
)

from .capture import Capturing
from .course import Course
from .entry import Entry
from .event import Hooks, events_of
from .failure import failure
from .identity import Ids
from .outcome import Facts, Outcome
from .trace import TraceLog


class Records:
    """Keeps what became of each call. Safe to use from several loops and threads."""

    def __init__(
        self,
        log: TraceLog,
        hooks: Hooks,
        ids: Ids,
        clock: Clock,
        rollup_keys: tuple[str, ...] = (),
        capture: Capturing | None = None,
    ) -> None:
        self.commits = log.commits
        """Whether calls wait until their traces are committed."""
        self._capture = capture
        self._rollup_keys = rollup_keys
        self._log = log
        self._hooks = hooks
        self._ids = ids
        self._clock = clock
        self._dropped: deque[tuple[Entry, Course, float]] = deque()
        self._bursts = ErrorBursts()
        self._guard = Guard()

    def announce(self, happened: Sequence[PushedEvent], environment: Environment) -> None:
        """Tell the hooks what happened outside of any call."""
        if happened and self._hooks.hear_events:
            of_nobody = Caller(SYSTEM_ACCOUNT, environment)
            self._hooks.announce(events_of(happened, of_nobody, self._ids, self._clock.time()))

    def conclude(self, entry: Entry, course: Course, at: float | None = None) -> Outcome:
        """Make the outcome of a course that ended or was left, at present if not said otherwise, and keep its trace."""
        decision, error = Decision(course.plan), None
        decision.settle(course.plan.reading)
        if course.end is not None and course.end is not End.SUCCEEDED:
            error = course.error or failure(entry.admitted, course)
            error.trace_id = entry.admitted.trace_id
            error.request_id = self._ids("req_")
        ended_at = self._clock.monotonic() if at is None else at
        facts = Facts(entry.admitted, decision, course.attempts, course.served, error, ended_at, self._rollup_keys)
        if self._capture is not None:
            facts.captured = self._capture.of(entry.request.messages, course.served)
        outcome = Outcome(facts, entry.request.budget, error, course.data)
        self._keep(entry, outcome)
        return outcome

    async def commit(self, trace_id: str | None, until: float) -> None:
        """Wait until a call's trace is committed, or could not be for now, but no longer than ``until``."""
        await self._log.commit(trace_id, until)

    def undecided(self, entry: Entry, given: DecisionInput, error: BaseException) -> None:
        """Keep the trace of a call that ended before a model was chosen."""
        told = error if isinstance(error, RouterError) else None  # without one the trace says that the caller left
        if told is not None:
            told.trace_id, told.request_id = entry.admitted.trace_id, self._ids("req_")
        elif isinstance(error, Exception):
            told = InternalError(type(error).__name__)
        ended_at = self._clock.monotonic()
        facts = Facts(entry.admitted._replace(given=given), None, [], None, told, ended_at, self._rollup_keys)
        if self._capture is not None:
            facts.captured = self._capture.of(entry.request.messages, None)
        self._keep(entry, Outcome(facts, entry.request.budget, told))

    def drop(self, entry: Entry, course: Course) -> None:
        """Take a call that nobody holds any more. To be called in a finaliser, which may run anywhere: so it takes no
        lock, and the trace is kept by whoever comes by."""
        course.settle()
        self._dropped.append((entry, course, self._clock.monotonic()))

    def keep_dropped(self) -> None:
        """Keep the traces of calls that were dropped."""
        while self._dropped:
            with suppress(IndexError):  # another thread took it
                self.conclude(*self._dropped.popleft())

    def _keep(self, entry: Entry, outcome: Outcome) -> None:
        snapshots: list[Snapshot] = [entry.board.outlook.pool.snapshot, entry.board.outlook.health]
        if entry.laid is not None:
            snapshots.append(entry.laid.published)
        happened: Sequence[PushedEvent] = outcome.events if self._hooks.hear_events else ()
        burst = self._burst(entry.admitted.caller, outcome)
        if burst is not None:
            happened = [*happened, burst]
        events = events_of(happened, entry.admitted.caller, self._ids, self._clock.time()) if happened else ()
        self._log.put(outcome.facts, snapshots, events)

    def _burst(self, caller: Caller, outcome: Outcome) -> ErrorBurst | None:
        """Count how a call of an account ended; one that its caller left says nothing."""
        error = outcome.error
        if error is None and outcome.facts.served is None:
            return None
        failed = error is not None and error.status >= 500
        with self._guard.lock:
            whose = caller.account, caller.environment
            return self._bursts.ended(whose, self._clock.monotonic(), error=failed)
