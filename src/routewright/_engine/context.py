"""The caller's context: tags, the parent trace, and the cancellation of its task."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Generic, NamedTuple, NoReturn, Self, TypeVar

import anyio.lowlevel
from msgspec import Struct, field
from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.money import usd
from routewright._core.request.read import merge_tags
from routewright._core.routing.budget import Amount, Room, Share, SharedBudget
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Signal, this_task
from routewright.wire import Caller, NestedCall, Purse, RunLimit, Scope
from routewright.wire.ids import RANDOM, SAMPLED, TraceParent, span_id_of
from routewright.wire.money import nanos_of

T = TypeVar("T")


async def raise_cancelled() -> NoReturn:
    """Raise a cancellation that a provider has kept to itself. One by a scope must be raised by the scope, which knows
    no other."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    raise asyncio.CancelledError


class CancelWatch(Struct, eq=False):
    """Tells cancellations of a task during a wait from stray ones."""

    task: asyncio.Task[Any] | None
    """None under trio, which has only scopes."""
    before: int
    """Calls of ``Task.cancel`` before the wait that were not uncancelled."""

    @classmethod
    def here(cls) -> Self:
        """For a wait of this task that begins now."""
        task = this_task()
        return cls(task, 0 if task is None else task.cancelling())

    def is_cancelling(self) -> bool:
        """True if the task is being cancelled, by a scope around it or by ``cancel`` since the wait began."""
        if self.task is not None and self.task.cancelling() > self.before:
            return True
        return anyio.current_effective_deadline() == -inf

    async def drop_stray(self) -> None:
        """Absorb a stray cancellation: in Python 3.13 a task group that a deadline ended repeats an earlier
        cancellation to its parent."""
        task = self.task
        if task is None or not getattr(task, "_must_cancel", False):
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if task.cancelling() > self.before:
                raise

    def must_propagate(self, error: BaseException) -> bool:
        """True if the exception must propagate: it ends the program, this task or this coroutine."""
        # Providers are the code of others: some turn a cancellation into an error of their own, some raise one that
        # nobody asked for. To propagate every CancelledError would let a stray one end the caller's task, where the
        # next model could answer; to catch it would leave a task that nobody can end. So the exception decides nothing,
        # but whether this task is being cancelled. asyncio counts the calls of `Task.cancel`, and a task that cleans up
        # after an earlier one keeps its count, hence `before`; a scope of anyio counts nothing before its next turn,
        # hence the effective deadline in `is_cancelling`. test_a_stray_cancellation_is_a_provider_fault,
        # test_a_cancelled_task_ends_though_the_provider_converts_it,
        # test_a_task_that_was_cancelled_before_still_has_its_fallbacks
        if isinstance(error, Exception):
            return False
        if isinstance(error, BaseExceptionGroup):  # a cancellation in it stays pending
            return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
        if isinstance(error, asyncio.CancelledError):
            return self.is_cancelling()
        if isinstance(error, GeneratorExit):  # if it came through other frames, a provider raised it
            return error.__traceback__ is None or error.__traceback__.tb_next is None
        return isinstance(error, KeyboardInterrupt | SystemExit | anyio.get_cancelled_exc_class())


class Block(Struct, Generic[T], eq=False):
    """A ``with`` block that sets something in this context."""

    value: T
    outer: Block[T] | None
    is_over: bool = False
    """It has ended, but some context still has it."""


@contextmanager
def _setting(variable: ContextVar[Block[T] | None], value: T) -> Iterator[None]:
    block = link = Block(value, variable.get())
    while (outer := link.outer) is not None:  # drop those that are over, else a task that drops generators leaks them
        if outer.is_over:
            link.outer = outer.outer
        else:
            link = outer
    task = this_task()
    variable.set(block)
    try:
        yield
    finally:
        # A generator may be ended by another task, as by the garbage collector, or before a block that began later;
        # then the variable cannot be set back. Otherwise the block is not marked: tasks that started in it keep its
        # value. test_a_generator_that_is_dropped_in_a_run_leaves_nothing_behind
        if variable.get() is block and this_task() is task:
            variable.set(block.outer)
        else:
            block.is_over = True


def _values(variable: ContextVar[Block[T] | None]) -> Iterator[T]:
    """What the blocks around set, innermost first."""
    block = variable.get()
    while block is not None:
        if not block.is_over:
            yield block.value
        block = block.outer


_tags: ContextVar[Block[tuple[TagScopes, Mapping[str, Any]]] | None] = ContextVar("routewright.tags", default=None)
"""Shared by all Routers: contexts keep their variables for ever, so a variable per Router would leak."""


current_tags = _tags.get
"""The innermost block of tags, of any Router; None if there is none."""


class TagScopes:
    """The tags of one Router. Has no references, since a context may keep it alive."""

    def here(self) -> Mapping[str, Any]:
        """The tags set in this context; may be empty."""
        tags: Mapping[str, Any] = {}
        for scopes, inner in _values(_tags):
            if scopes is self:
                tags = {**inner, **tags}
        return tags

    def scope(self, tags: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Set checked tags inside, on top of the outer ones. Raises ``ValidationFailed`` if they are too large."""
        merge_tags(self.here(), tags)
        return _setting(_tags, (self, tags))


UNLIMITED_NANOS = 2**62
MOST_CALLS = 1_000
"""Calls that a run lists in its trace; it counts the cost of all."""
_UNUSED = Amount()


class RunScope(Struct, eq=False):
    """A run, for calls of its Router inside: a run of an agent, or a block of ``Router.run``. Safe to use from
    several loops and threads."""

    router: object
    """The ``Ids`` of its Router, which stay the same after a fork."""
    caller: Caller
    right: Scope
    """What an API key must be allowed to use."""
    within: InsideRun | None = None
    """The run that it was started in."""
    id: str = ""
    """Its trace id."""
    began: float = 0.0
    """Start on the monotonic scale."""
    cap_nanos: int | None = None
    """Its budget."""
    has_purse: bool = False
    """Its calls are paid from a purse in the storage. A run within another uses that of the other."""
    budget: SharedBudget | None = None
    """Limits its calls in this process: in the sandbox, and within another run."""
    used_nanos: int = 0
    """The most that its calls and tools can have cost, those of runs within it included."""
    tool_nanos: int = 0
    """The cost of tools, which the purse in the storage does not count."""
    ended: deque[NestedCall] = field(default_factory=deque)
    """Calls that ended and are not recorded by the run yet; at most ``MOST_CALLS``."""
    ended_nanos: int = 0
    """The cost of all calls that ended."""
    waiting: list[Signal] = field(default_factory=list)
    """Set when the budget may have more room; shared with the runs around it."""
    booking: Guard = field(default_factory=Guard)
    """Held while its money changes; shared with the runs around it."""
    is_short: bool = False
    """The last call that ended was refused for a lack of money."""
    is_over: bool = False

    def begin(self, id: str, used_nanos: int = 0, tool_nanos: int = 0) -> None:
        """Open its purse. ``used_nanos``: by earlier steps; ``tool_nanos``: by their tools."""
        self.id = id
        self.used_nanos = used_nanos
        self.tool_nanos = tool_nanos
        if self.within is not None:
            self.waiting = self.within.scope.waiting
            self.booking = self.within.scope.booking
            self.budget = self.within.scope.budget
        if self.cap_nanos is not None and (self.within is not None or self.caller.environment == "sandbox"):
            self.budget = SharedBudget(Room(self.cap_nanos - used_nanos, None), self.budget)

    @property
    def limit(self) -> RunLimit | None:
        """The purse in the storage that pays for its calls, if any."""
        if self.within is not None:
            return self.within.scope.limit
        most = UNLIMITED_NANOS if self.cap_nanos is None else max(0, self.cap_nanos - self.tool_nanos)
        return RunLimit(self.id, most) if self.has_purse else None

    @property
    def purse(self) -> Purse | None:
        """The budget with the least left, of its own and those of the runs around it."""
        runs = (run for run in self.around() if run.cap_nanos is not None)
        purses = [Purse("agent_run", f"run:{run.id}", run.cap_nanos, run.used_nanos) for run in runs]
        return min(purses, key=lambda purse: purse.left_nanos or 0, default=None)

    def around(self) -> Iterator[RunScope]:
        """The run, and those around it."""
        yield self
        if self.within is not None:
            yield from self.within.scope.around()

    def spend(self, nanos: int) -> None:
        """Book the cost of a tool."""
        with self.booking.lock:
            for run in self.around():
                run.used_nanos += nanos
                run.tool_nanos += nanos
            if self.budget is not None:
                self.budget.spend(Amount(nanos))

    def close(self) -> None:
        """End the run: later calls are not part of it."""
        with self.booking.lock:
            self.is_over = True


class InsideRun(NamedTuple):
    """A place in a run."""

    scope: RunScope
    step: int | None
    """The step of a tool call; 0 in a run without steps. None: model calls of the run itself, which records them."""

    @property
    def is_free(self) -> bool:
        """True if its calls need not be booked here."""
        return self.step is None and self.scope.within is None and self.scope.budget is None

    def add(self, call: NestedCall, at: float) -> None:
        """Record a call, or a run, that started at a monotonic time. If the run is over, it is one of the run around
        it."""
        scope = self.scope
        if scope.is_over:
            if scope.within is not None:
                scope.within.add(call, at)
        elif self.step is not None:
            scope.ended_nanos += nanos_of(call.cost_usd)
            if len(scope.ended) < MOST_CALLS:
                scope.ended.append(replace(call, step=self.step, start_ms=round((at - scope.began) * 1000, 3)))


class RunShare(Struct, eq=False):
    """The part of a call in a run (``CallInRun``)."""

    inside: InsideRun
    share: Share | None = None
    """What it holds of the run's budget."""

    def reserve(self, whole: Amount, start: Amount) -> Share | Signal:
        """Reserve what the call may use with all its attempts, or what it needs to start. If other calls hold even
        that: returns when to try again."""
        scope = self.inside.scope
        assert scope.budget is not None, "else nothing has to be reserved"
        with scope.booking.lock:
            # leaves room for a call by the reader of a stream, which would wait for the stream
            is_ample = scope.budget.free.without(start).holds(whole)
            self.share = scope.budget.reserve(whole if is_ample else start)
            if self.share is not None:
                return self.share
            scope.waiting.append(Signal())
            return scope.waiting[-1]

    def record(self, call: Call) -> None:
        """Book the end of the call."""
        model = None if call.served is None else call.served.leg.id
        took_ms = round((call.ended_at - call.started_at) * 1000, 3)
        failed = call.status != "completed"
        with self.inside.scope.booking.lock:
            for run in self.inside.scope.around():
                run.used_nanos += call.used.nanos
                run.is_short = run.is_short and failed
            ended = NestedCall(0, call.id, usd(call.cost_nanos), model, call.tokens, 0.0, took_ms, failed)
            self.inside.add(ended, call.started_at)
            self.release(call.used)

    def release(self, used: Amount = _UNUSED) -> None:
        """Return what it holds. Safe to call twice."""
        scope = self.inside.scope
        with scope.booking.lock:
            share, self.share = self.share, None
            if share is not None and scope.budget is not None:
                scope.budget.settle(share, used)
                while scope.waiting:
                    scope.waiting.pop().set()


_inside: ContextVar[Block[InsideRun] | None] = ContextVar("routewright.run", default=None)
current_run = _inside.get
"""The innermost run, of any Router; None if there is none."""


def inside_run(scope: RunScope, step: int) -> AbstractContextManager[None]:
    """Make calls in the block, and in tasks started there, part of a run."""
    return _setting(_inside, InsideRun(scope, step))


def find_run(router: object, caller: Caller | None = None) -> InsideRun | None:
    """The innermost run of this Router that has not ended. None for a ``caller`` of another account or environment: its
    calls are not charged to the run."""
    runs = (inside for inside in _values(_inside) if inside.scope.router is router and not inside.scope.is_over)
    inside = next(runs, None)
    if inside is None or caller is None:
        return inside
    owner = inside.scope.caller
    return inside if (owner.account, owner.environment) == (caller.account, caller.environment) else None


EVERYONE = "*"
"""Stands for all providers where some are named."""

_parent: ContextVar[Block[TraceParent | None] | None] = ContextVar("routewright.traceparent", default=None)


def within(parent: TraceParent | None) -> AbstractContextManager[None]:
    """Make calls in the block part of a trace. None removes an outer one."""
    return _setting(_parent, parent)


current_parent = _parent.get
"""The innermost block that sets a parent; None if there is none."""


def find_parent(sent: TraceParent | None = None) -> TraceParent | None:
    """The trace parent of a call made here: the one set by ``within``, else the active span of OpenTelemetry, else the
    one ``sent`` with the request."""
    parent = next(_values(_parent), None)
    if parent is None and "opentelemetry.trace" in sys.modules:
        # None while another thread imports the module
        get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
        span = None if get_current_span is None else get_current_span().get_span_context()
        if span is not None and span.is_valid:
            flags = int(span.trace_flags) & (SAMPLED | RANDOM)
            parent = TraceParent(f"{span.trace_id:032x}", f"{span.span_id:016x}", flags)
    return parent or sent


class Onward(NamedTuple):
    """The trace parent of a call, and the providers that it is sent to."""

    parent: TraceParent
    call: str
    """The id of the call's own trace."""
    to: Collection[str]

    def header(self, provider: str, attempt: int) -> str | None:
        """The header that makes a provider's spans children of the attempt; None: send none."""
        if provider not in self.to and EVERYONE not in self.to:
            return None
        return self.parent._replace(span_id=span_id_of(self.call, attempt)).text
