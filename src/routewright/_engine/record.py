"""What stays of a call once it is over: its outcome, its trace, and the events that it caused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from routewright._core.alerts import WINDOW_S, ErrorBursts
from routewright._core.call import End
from routewright._core.decision import Decision
from routewright.errors import InternalError, RouterError
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    DecisionInput,
    Environment,
    ErrorBurst,
    PolicyChanged,
    PutEvent,
    Snapshot,
    Trace,
)

from .capture import Capturing
from .course import Course
from .entry import Entry
from .event import Hooks, events_of
from .failure import failure
from .identity import Ids
from .outcome import Facts, Outcome
from .spool import Spool
from .trace import TraceLog
from .waiting import Happening

if TYPE_CHECKING:
    from .ending import Ending

FIND_S = 0.25
DAY_S = 24 * 3600.0
"""Within so long the same change of a policy is the same event."""


class Records:
    """Keeps what became of each call. Safe to use from several loops and threads."""

    def __init__(
        self,
        log: TraceLog,
        hooks: Hooks,
        spool: Spool,
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
        self._spool = spool
        self._ids = ids
        self._clock = clock
        self._bursts = ErrorBursts()
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what began before a fork is the parent's to keep, though a child drops its copy of it."""
        self._dropped: deque[tuple[Entry, Course, float]] = deque()
        self._since = self._clock.monotonic()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Give an id to the request of an error that leaves no trace."""
        try:
            yield
        except RouterError as error:
            error.request_id = error.request_id or self._ids("req_")
            raise

    def announce(self, happened: Sequence[PolicyChanged], environment: Environment) -> None:
        """Keep what happened to policies, and tell the hooks. Several processes that take the same policies in force
        keep it once."""
        now = self._clock.time()
        events = events_of(happened, Caller(SYSTEM_ACCOUNT, environment), self._ids, now)
        told = zip(events, happened, strict=True)
        kept = [PutEvent(event.stored, _once(changed), DAY_S, now) for event, changed in told]
        if kept:
            self._spool.put(SYSTEM_ACCOUNT, kept)
        self._hooks.announce(events)

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
        if not self._is_of_parent(entry):
            ending = None if entry.admission is None else entry.admission.ending(outcome, course.used.nanos)
            self._keep(entry, outcome, ending)
        return outcome

    async def commit(self, trace_id: str | None, until: float) -> None:
        """Wait until a call's trace is committed, or could not be for now, but no longer than ``until``."""
        await self._log.commit(trace_id, until)

    async def find(self, caller: Caller, trace_id: str) -> Trace | None:
        """A trace, if it is still kept, and can be read without waiting for long."""
        with suppress(RouterError), self._clock.deadline(self._clock.monotonic() + FIND_S):
            return await self._log.trace(caller, trace_id)
        return None

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
        if not self._is_of_parent(entry):
            self._keep(entry, Outcome(facts, entry.request.budget, told))

    def drop(self, entry: Entry, course: Course) -> None:
        """Take a call that nobody holds any more. To be called in a finaliser, which may run anywhere: so it takes no
        lock, and the trace is kept by whoever comes by."""
        if self._is_of_parent(entry):
            return
        course.settle()
        if self._log.is_closed:  # nobody comes by any more
            self.conclude(entry, course)
            self._log.lose(entry.admitted.trace_id)
            return
        self._dropped.append((entry, course, self._clock.monotonic()))

    def keep_dropped(self) -> None:
        """Keep the traces of calls that were dropped."""
        while self._dropped:
            try:
                entry, course, at = self._dropped.popleft()
            except IndexError:  # another thread took it
                return
            try:
                self.conclude(entry, course, at)
            finally:
                if entry.admission is not None:
                    entry.admission.abandon()

    def _is_of_parent(self, entry: Entry) -> bool:
        """Whether a call began before this process was forked: its parent keeps what becomes of it."""
        return entry.admitted.started_at < self._since

    def _keep(self, entry: Entry, outcome: Outcome, ending: Ending | None = None) -> None:
        snapshots: list[Snapshot] = [entry.board.outlook.pool.snapshot, entry.board.outlook.health]
        if entry.laid is not None:
            snapshots.append(entry.laid.published)
        self._log.put(outcome.facts, snapshots, self._happened(entry.admitted.caller, outcome), ending)

    def _happened(self, caller: Caller, outcome: Outcome) -> Sequence[Happening]:
        """The events that a call caused."""
        events, burst = outcome.events, self._burst(caller, outcome)
        if not events and burst is None:
            return ()
        told = [Happening(event) for event in events_of(events, caller, self._ids, self._clock.time())]
        if burst is None:
            return told
        (event,) = events_of([burst], caller, self._ids, self._clock.time())
        return [*told, Happening(event, f"{event.type}:{caller.environment}", WINDOW_S)]

    def _burst(self, caller: Caller, outcome: Outcome) -> ErrorBurst | None:
        """Count how a call of an account ended; one that its caller left says nothing."""
        error = outcome.error
        if error is None and outcome.facts.served is None:
            return None
        failed = error is not None and error.status >= 500
        with self._guard.lock:
            whose = caller.account, caller.environment
            return self._bursts.ended(whose, self._clock.monotonic(), error=failed)


def _once(changed: PolicyChanged) -> str:
    """What tells a change of a policy from others."""
    return f"{changed.type}:{changed.policy_id}:{changed.from_version}:{changed.to_version}"
