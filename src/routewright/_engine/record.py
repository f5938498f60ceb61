"""Ends calls: makes answers and errors, and passes traces, events and settlements to the trace log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from routewright._core.attempt import Attempt
from routewright._core.attempts.journal import HITS_WINDOW_S, WINDOW_S
from routewright._core.attempts.machine import End
from routewright._core.call import Call, Serving
from routewright._core.routing.decide import exceeds_windows
from routewright._core.routing.decision import Decision
from routewright.errors import (
    BlockedByPolicy,
    ContentRefused,
    InternalError,
    NoCandidates,
    RouterError,
    RouterTimeoutError,
    UpstreamFailed,
)
from routewright.identity import Ids
from routewright.loop import Signal
from routewright.protocols import Clock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Budget,
    CacheEvicted,
    Caller,
    Environment,
    FaultKind,
    Message,
    PolicyChanged,
    PutEvent,
    Snapshot,
    Trace,
)
from routewright.worker import Job, Worker

from .answer import Answer
from .capture import Captured, Capturing
from .execute import Execution
from .hooks import Hooks, events_of
from .prompt_caches import Warmth
from .trace_log import TraceLog

FIND_S = 0.25
DAY_S = 24 * 3600.0
"""Equal changes of a policy within this time are one event."""
_NO_EVENTS: Sequence[PutEvent] = ()
_BEGUN = "part of the answer had been read; read events, with on_partial 'restart', to have it begun again"
_REMEDIES = {
    FaultKind.AUTH: "check the provider's key",
    FaultKind.CONTEXT_OVERFLOW: "shorten the input, or widen 'models'",
    FaultKind.MODEL_NOT_FOUND: "check the model's provider_model_id, and whether the key may use it",
    FaultKind.INVALID_OUTPUT: "ask for a simpler output_type, say what its fields mean, or let better models answer",
    FaultKind.REQUEST: "the provider takes no such request: check what the model can do, and the provider's base_url",
}
"""What to do about faults that a retry does not fix."""

_log = logging.getLogger(__name__)


class Records:
    """Records the outcome of calls. Safe to use from several loops and threads."""

    def __init__(
        self,
        log: TraceLog,
        hooks: Hooks,
        worker: Worker,
        ids: Ids,
        clock: Clock,
        capture: Capturing | None = None,
        warmth: Warmth | None = None,
    ) -> None:
        self.commits = log.commits
        """True if calls wait until their traces are committed."""
        self._capture = capture
        self.warmth = warmth
        self.log = log
        self._hooks = hooks
        self._ending = Job(worker, self._end_dropped, 0.0)
        self._ids = ids
        self.clock = clock
        worker.renewals.add(self)

    def renew(self) -> None:
        """Start empty: calls that began before a fork are recorded by the parent."""
        self.dropped: deque[tuple[Call, Execution, float]] = deque()
        self.under_way: set[Call] = set()
        self._over: Signal | None = None
        """Set when a call ends; ``all_ended`` waits for it."""
        self._since = self.clock.monotonic()

    def captured(self, messages: Callable[[], Sequence[Message]]) -> Captured | None:
        """The texts to keep according to the settings. ``messages`` is called only if there are any."""
        return None if self._capture is None else self._capture.of(messages(), None)

    def announce(self, happened: Sequence[PolicyChanged], environment: Environment) -> None:
        """Store events of policy changes, and call the hooks. Processes that publish the same policies store one
        event."""
        now = self.clock.time()
        events = events_of(happened, Caller(SYSTEM_ACCOUNT, environment), self._ids, now)
        kept = []
        for event, changed in zip(events, happened, strict=True):
            once = f"{changed.type}:{changed.policy_id}:{changed.from_version}:{changed.to_version}"
            kept.append(PutEvent(event.stored, once, DAY_S, now))
        if kept:
            self.log.announce(kept)
        self._hooks.put(None, events)

    def conclude(
        self,
        call: Call,
        execution: Execution | None,
        *,
        error: RouterError | None = None,
        left: bool = False,
        behind: bool = False,
        at: float | None = None,
    ) -> tuple[Answer, RouterError | None]:
        """End a call and pass its trace to the log. Returns the answer, and the error if the call failed.

        ``left``: the plan was abandoned. ``error``: the call failed before it had a plan. The caller must ``commit``,
        except with ``left`` or ``behind``. ``at``: monotonic seconds; None: now."""
        served, board, plan, fleet = call.served, call.board, call.plan, call.fleet
        hold = lookup = None
        data = None
        if execution is not None:
            data, hold, lookup = execution.data, execution.hold, execution.lookup
            if call.request.budget is not None or (hold is not None and hold.run is not None):
                call.used = execution.used
            end = execution.machine.end
            if not left and end is not None and end is not End.SUCCEEDED:
                error = execution.error or failure(call, execution)
        if error is not None:
            error.trace_id, error.request_id, error.cost_nanos = call.id, self._ids("req_"), call.cost_nanos
        # a redactor need not read a prompt that no model can take
        if self._capture is not None and not (
            isinstance(error, NoCandidates) and exceeds_windows(call.decision_input, board)
        ):
            call.captured = self._capture.of(call.request.messages, served)
            call.text_bytes = call.captured.size
        output, tool_calls, reasoning = "", None, None
        if served is not None and served.screen is None:
            output, tool_calls = "".join(served.text), None if served.pieces is None else served.tool_calls
        elif served is not None:
            output, tool_calls = served.answer, served.answer_calls
        if served is not None and served.thoughts is not None:
            reasoning = served.reasoning()
        answer = Answer(call, board, output, tool_calls, data, reasoning)
        snapshots: Sequence[Snapshot] = board.snapshots if call.policy is None else (*board.snapshots, call.policy)
        if plan is not None and plan.counts is None:
            plan.counts = Decision(plan, call.decision_input, board).rejected_counts
        budget = call.request.budget
        if call.warm is not None and self.warmth is not None and served is not None and call.attempts:
            self.warmth.answered(call, served)
        call.end(error, self.clock.monotonic() if at is None else at)
        evicted = None
        if lookup is not None:
            lookup.ended(call, output, tool_calls)
            evicted = lookup.evicted
        self.under_way.discard(call)
        if call.started_at < self._since:  # it began before a fork: the parent records it
            return answer, error
        grant = facts = None
        if hold is not None and hold.grant is not None and execution is not None:
            grant, hold.grant = hold.grant, None
            facts = hold.facts(call, answer if error is None and served is not None else None, call.used.nanos)
        events = _NO_EVENTS
        sandbox = call.caller.environment == "sandbox"
        if error is not None or served is None or served.place or sandbox or not call.attempts or evicted is not None:
            events = self._events(call, error, budget, fleet, evicted)
        self.log.put(call, snapshots, events, grant, facts, behind=behind or left)
        if self._over is not None:
            self._over.set()
        return answer, error

    async def commit(self, call: Call) -> None:
        """Settle a call and write its trace; one try, at most until the call's deadline."""
        await self.log.commit(call.id, call.deadline)
        call.waited_s = self.clock.monotonic() - call.ended_at

    async def write_last(self, trace_id: str) -> None:
        """Write the trace of a call whose Router was closed while it ran."""
        if self.log.queue.is_closed:
            await self.log.write_last(trace_id)

    async def find(self, caller: Caller, trace_id: str) -> Trace | None:
        with suppress(RouterError), self.clock.deadline(self.clock.monotonic() + FIND_S):
            return await self.log.trace(caller, trace_id)
        return None

    def undecided(self, call: Call, error: BaseException) -> None:
        failed = error if isinstance(error, RouterError) else None  # None: the caller left
        if failed is None and isinstance(error, Exception):
            failed = InternalError(type(error).__name__)
        self.conclude(call, None, error=failed)

    def drop(self, call: Call, execution: Execution) -> None:
        """Queue a call that was dropped before its end. Takes no lock, since finalisers call it; the background or the
        next call records it."""
        if call.started_at < self._since:  # as in ``conclude``
            return
        execution.settle(execution.exchange)
        if self.log.queue.is_closed:  # there is no next call
            self.conclude(call, execution, behind=True)
            self.log.lose(call.id)
            return
        self.dropped.append((call, execution, self.clock.monotonic()))
        if execution.hold is not None:
            self._ending.poke()
        if self._over is not None:
            self._over.set()

    async def all_ended(self) -> None:
        """Wait until no call is running."""
        while True:
            self._over = over = Signal()
            self.keep_dropped()
            if not self.under_way:
                return
            await over.wait()

    def keep_dropped(self) -> None:
        while self.dropped:
            try:
                call, execution, at = self.dropped.popleft()
            except IndexError:  # another thread took it
                return
            hold = execution.hold
            try:
                self.conclude(call, execution, behind=True, at=at)
            finally:
                if hold is not None:
                    hold.release()

    async def _end_dropped(self) -> None:
        self.keep_dropped()

    def _events(
        self, call: Call, error: RouterError | None, budget: Budget | None, fleet: Serving, evicted: CacheEvicted | None
    ) -> Sequence[PutEvent]:
        caused, burst = call.events(error, budget), None
        # calls that were left do not count; answers outside the sandbox are counted with the model's health
        if error is not None or (call.served is not None and (call.environment == "sandbox" or not call.attempts)):
            failed = error is not None and error.status >= 500
            burst = fleet.ended((call.caller.account, call.environment), error=failed)
        if not caused and burst is None and evicted is None:
            return ()
        caller, now, durability = call.caller, self.clock.time(), self.log.durability
        events = events_of(caused, caller, self._ids, now)
        kept = [PutEvent(event.stored, at=now, durability=durability) for event in events]
        for once, window_s in ((burst, WINDOW_S), (evicted, HITS_WINDOW_S)):
            if once is not None:
                (event,) = events_of([once], caller, self._ids, now)
                kept.append(PutEvent(event.stored, f"{event.type}:{caller.environment}", window_s, now, durability))
        return kept


def failure(call: Call, execution: Execution) -> RouterError:
    """The error of a failed call. Callers with a key do not see addresses of upstreams; the log does."""
    attempts = call.attempts
    texts = [attempt.fault_text for attempt in attempts]
    kind, said = _told(call, execution, _tried(attempts, texts))
    detail, outside = _detail(attempts, texts), None
    if any(attempt.fault_public for attempt in attempts):
        texts = [attempt.fault_public or attempt.fault_text for attempt in attempts]
        outside = _told(call, execution, _tried(attempts, texts))[1], _detail(attempts, texts)
        if call.caller.key_id is not None:
            _log.warning("call %s: %s", call.id, said)
            (said, detail), outside = outside, None
    error = kind(said, detail=detail, trace_id=call.id)
    error.outside = outside
    if execution.cause is not None:
        error.__cause__, execution.cause = execution.cause, None
    return error


def _detail(attempts: Sequence[Attempt], texts: Sequence[str]) -> dict[str, Any]:
    entries = [
        {
            "model": attempt.model,
            "attempt": attempt.number,
            "error": str(attempt.fault),
            "message": text,
            "latency_ms": round((attempt.ended_at - attempt.started_at) * 1000, 3),
        }
        for attempt, text in zip(attempts, texts, strict=True)
    ]
    return {"attempts": entries}


def _tried(attempts: Sequence[Attempt], texts: Sequence[str]) -> str:
    """The models that failed and why, in order. Models that failed alike at one address are listed together."""
    told: list[tuple[list[str], Attempt, str]] = []
    for attempt, text in zip(attempts, texts, strict=True):
        if told and attempt.fault_public and told[-1][1].fault_text == attempt.fault_text:
            if attempt.model not in told[-1][0]:
                told[-1][0].append(attempt.model)
        else:
            told.append(([attempt.model], attempt, text))
    return ", then ".join(f"{', '.join(models)} ({text})" for models, _, text in told) or "nothing"


def _told(call: Call, execution: Execution, tried: str) -> tuple[type[RouterError], str]:
    match execution.end:
        case End.TIMED_OUT:
            timeout_ms = call.decision_input.timeout_ms
            said = f"no answer within timeout_ms={timeout_ms}; tried {tried}; allow more time or a faster model"
            return RouterTimeoutError, said
        case End.BLOCKED:
            return BlockedByPolicy, f"a guardrail blocked every answer: {tried}"
        case End.REFUSED:
            models = {attempt.model for attempt in call.attempts}
            if len(models) > 1:
                return ContentRefused, f"the content was refused: {tried}"
            return ContentRefused, f"{models.pop()} refused the content; other providers were not asked"
    hints = {attempt.hint or _REMEDIES.get(attempt.fault or FaultKind.SERVER) for attempt in call.attempts}
    remedy = _BEGUN if execution.broke_off else (hints.pop() if len(hints) == 1 else None) or "try again later"
    return UpstreamFailed, f"every attempt failed: {tried}; {remedy}"
