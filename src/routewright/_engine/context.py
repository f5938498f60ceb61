"""The caller's context: tags, the parent trace, and whether it is this task that is being cancelled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio

from routewright._core.request.read import joined_tags
from routewright._core.trace.ids import RANDOM, SAMPLED, TraceParent, span_id_of
from routewright.loop import current_task


class CancelWatch:
    """What is known of a task's cancellation when a wait in it begins."""

    __slots__ = ("before", "task")

    def __init__(self) -> None:
        try:
            self.task = task = current_task(asyncio.get_running_loop())
        except RuntimeError:  # trio, which has only scopes
            self.task = task = None
        self.before = 0 if task is None else task.cancelling()
        """Calls of ``Task.cancel`` on it that came earlier and were not taken back."""

    def is_on(self, *, by_scopes: bool = True) -> bool:
        """Whether the task is being cancelled, by a scope around it or by calls since the wait began."""
        if self.task is not None and self.task.cancelling() > self.before:
            return True
        return by_scopes and anyio.current_effective_deadline() == -inf

    async def drop_stray(self) -> None:
        """Take in a cancellation that nobody sent: a task group of Python 3.13 that a deadline ended sends its parent
        the one that came before the deadline again."""
        if self.task is None or not self.task._must_cancel:
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.task.cancelling() > self.before:
                raise

    def passes(self, error: BaseException) -> bool:
        """Whether it is no provider's doing: it ends the program, this task or the coroutine that runs here."""
        if isinstance(error, Exception):
            return False
        if isinstance(error, BaseExceptionGroup):  # a cancellation in it is still on afterwards
            return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
        if isinstance(error, asyncio.CancelledError):
            return self.is_on()
        if isinstance(error, GeneratorExit):  # by the frames it came through, a provider raised it
            return error.__traceback__ is None or error.__traceback__.tb_next is None
        return isinstance(error, KeyboardInterrupt | SystemExit | anyio.get_cancelled_exc_class())


_NONE: Mapping[str, Any] = MappingProxyType({})
NO_TAGS: Mapping[TagScopes, Mapping[str, Any]] = MappingProxyType({})
_tags: ContextVar[Mapping[TagScopes, Mapping[str, Any]]] = ContextVar("routewright.tags", default=NO_TAGS)
"""One for all Routers: a context keeps its variables for ever, so a variable for each Router would leak."""


tags_held = _tags.get
"""The tags of all Routers in this context; ``NO_TAGS`` if there are none."""


class TagScopes:
    """The tags of one Router. It refers to nothing, since a context may keep it alive."""

    def here(self) -> Mapping[str, Any]:
        """The tags set in this context; may be empty."""
        return _tags.get().get(self, _NONE)

    @contextmanager
    def scope(self, tags: Mapping[str, Any]) -> Iterator[None]:
        """Set checked tags inside, on top of the outer ones."""
        before = _tags.get()
        _tags.set({**before, self: joined_tags(before.get(self, _NONE), tags)})
        try:
            yield
        finally:
            _tags.set(before)  # not a reset, which fails where a generator is ended in another context


EVERYONE = "*"
"""Stands for all providers where some are named."""

_parent: ContextVar[TraceParent | None] = ContextVar("routewright.traceparent", default=None)


@contextmanager
def within(parent: TraceParent | None) -> Iterator[None]:
    """Make calls inside part of a trace. None removes an outer one."""
    before = _parent.get()
    _parent.set(parent)
    try:
        yield
    finally:
        _parent.set(before)  # not a reset, which fails where a generator is ended in another context


parent_held = _parent.get
"""The parent set in this context, if any."""


def parent_here(sent: TraceParent | None = None) -> TraceParent | None:
    """The trace parent of a call made here: the one set by ``within``, else the active span of OpenTelemetry, else the
    one ``sent`` with the request."""
    parent = _parent.get()
    if parent is None and "opentelemetry.trace" in sys.modules:
        # the span that is active in OpenTelemetry
        get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
        if get_current_span is None:  # or it is just being imported
            parent = None
        else:
            found = get_current_span().get_span_context()
            if not found.is_valid:
                parent = None
            else:
                flags = int(found.trace_flags) & (SAMPLED | RANDOM)
                parent = TraceParent(f"{found.trace_id:032x}", f"{found.span_id:016x}", flags)
    return parent or sent


class Onward(NamedTuple):
    """The trace parent that a call sends to the providers that may have it."""

    parent: TraceParent
    call: str
    """The id of the call's own trace."""
    to: Collection[str]

    def header(self, provider: str, attempt: int) -> str | None:
        """The header that makes a provider's spans children of the attempt; None: send none."""
        if provider not in self.to and EVERYONE not in self.to:
            return None
        return self.parent._replace(span_id=span_id_of(self.call, attempt)).text
