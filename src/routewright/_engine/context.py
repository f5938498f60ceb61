"""The caller's context: tags, the parent trace, and the cancellation of its task."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import anyio.lowlevel
from msgspec import Struct, field

from routewright._core.money import usd
from routewright._core.request.read import merge_tags
from routewright._runtime.loop import this_task
from routewright.wire import Caller, NestedCall, RunLimit, Tokens
from routewright.wire.ids import RANDOM, SAMPLED, TraceParent, span_id_of

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


_NONE: Mapping[str, Any] = MappingProxyType({})
NO_TAGS: Mapping[TagScopes, Mapping[str, Any]] = MappingProxyType({})
_tags: ContextVar[Mapping[TagScopes, Mapping[str, Any]]] = ContextVar("routewright.tags", default=NO_TAGS)
"""Shared by all Routers: contexts keep their variables for ever, so a variable per Router would leak."""


current_tags = _tags.get
"""The tags of all Routers in this context; ``NO_TAGS`` if there are none."""


@contextmanager
def _setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)  # not a reset, which fails where a generator is ended in another context


class TagScopes:
    """The tags of one Router. Has no references, since a context may keep it alive."""

    def here(self) -> Mapping[str, Any]:
        """The tags set in this context; may be empty."""
        return _tags.get().get(self, _NONE)

    @contextmanager
    def scope(self, tags: Mapping[str, Any]) -> Iterator[None]:
        """Set checked tags inside, on top of the outer ones."""
        with _setting(_tags, {**_tags.get(), self: merge_tags(self.here(), tags)}):
            yield


class RunScope(Struct, eq=False):
    """An agent run, for calls of its Router that its tools make."""

    router: object
    """The ``Admissions`` of its Router."""
    caller: Caller
    limit: RunLimit | None = None
    """The purse of the run. None: nothing limits it."""
    room_nanos: int | None = None
    """What a call may cost, if the run has a budget but no purse of its own."""
    ended: deque[NestedCall] = field(default_factory=deque)
    """Calls that ended and are not recorded by the run yet."""
    is_over: bool = False


class InsideTool(NamedTuple):
    """The tool call that this context belongs to."""

    scope: RunScope
    step: int
    outer: InsideTool | None

    @property
    def limit(self) -> RunLimit | None:
        """The purse of the run."""
        return self.scope.limit

    def record(self, trace_id: str, nanos: int, model: str | None, tokens: Tokens | None) -> None:
        """Record a call, or a run, that ended."""
        self.scope.ended.append(NestedCall(self.step, trace_id, usd(nanos), model, tokens))


_tool: ContextVar[InsideTool | None] = ContextVar("routewright.tool", default=None)
current_tool = _tool.get
"""The innermost tool call of an agent, of any Router."""


def inside_tool(scope: RunScope, step: int) -> AbstractContextManager[None]:
    """Make calls in the block, and in tasks started there, part of a run."""
    return _setting(_tool, InsideTool(scope, step, _tool.get()))


def find_tool(router: object, caller: Caller | None = None) -> InsideTool | None:
    """The tool call that this context belongs to, of a run of this Router that has not ended. None for a ``caller`` of
    another account or environment: its calls are not charged to the run."""
    tool = _tool.get()
    while tool is not None and (tool.scope.router is not router or tool.scope.is_over):
        tool = tool.outer
    if tool is None or caller is None:
        return tool
    owner = tool.scope.caller
    return tool if (owner.account, owner.environment) == (caller.account, caller.environment) else None


EVERYONE = "*"
"""Stands for all providers where some are named."""

_parent: ContextVar[TraceParent | None] = ContextVar("routewright.traceparent", default=None)


def within(parent: TraceParent | None) -> AbstractContextManager[None]:
    """Make calls in the block part of a trace. None removes an outer one."""
    return _setting(_parent, parent)


current_parent = _parent.get
"""The parent set in this context, if any."""


def find_parent(sent: TraceParent | None = None) -> TraceParent | None:
    """The trace parent of a call made here: the one set by ``within``, else the active span of OpenTelemetry, else the
    one ``sent`` with the request."""
    parent = _parent.get()
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
