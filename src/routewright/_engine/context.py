"""What a context says of the calls made in it: a Router's tags, and the trace of the whole system that they belong to.

Both follow the context: over awaits, into tasks and copied contexts.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from routewright._core.request.read import joined_tags
from routewright._core.traceparent import RANDOM, SAMPLED, TraceParent, span_id_of

_NONE: Mapping[str, Any] = MappingProxyType({})
NO_TAGS: Mapping[TagScopes, Mapping[str, Any]] = MappingProxyType({})
_tags: ContextVar[Mapping[TagScopes, Mapping[str, Any]]] = ContextVar("routewright.tags", default=NO_TAGS)
"""One for all Routers: a context keeps its variables for ever, so that one a Router would never go."""


tags_held = _tags.get
"""The tags of all Routers that hold in this context; ``NO_TAGS`` where none do."""


class TagScopes:
    """The tags of one Router. It refers to nothing, since a context may hold on to it."""

    def here(self) -> Mapping[str, Any]:
        """What holds in this context; empty where nothing does."""
        return _tags.get().get(self, _NONE)

    @contextmanager
    def scope(self, tags: Mapping[str, Any]) -> Iterator[None]:
        """Let checked tags hold inside, over those that hold already."""
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
    """Let calls inside belong to a trace; None: to none that was said before."""
    before = _parent.get()
    _parent.set(parent)
    try:
        yield
    finally:
        _parent.set(before)  # not a reset, which fails where a generator is ended in another context


parent_held = _parent.get
"""The parent that was said around here, if any."""


def parent_here(sent: TraceParent | None = None) -> TraceParent | None:
    """What a call made here belongs to: what was said around it, else the active span of OpenTelemetry, which knows
    better where it is than the header that was ``sent`` with the request."""
    parent = _parent.get()
    if parent is None and "opentelemetry.trace" in sys.modules:
        parent = _active_span()
    return parent or sent


def _active_span() -> TraceParent | None:
    """The span that is active in OpenTelemetry. Where nobody has imported that, none is."""
    get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_current_span is None:  # or it is just being imported
        return None
    found = get_current_span().get_span_context()
    if not found.is_valid:
        return None
    flags = int(found.trace_flags) & (SAMPLED | RANDOM)
    return TraceParent(f"{found.trace_id:032x}", f"{found.span_id:016x}", flags)


class Onward(NamedTuple):
    """The trace parent that a call sends to the providers that may have it."""

    parent: TraceParent
    call: str
    """The id of the call's own trace."""
    to: Collection[str]

    def header(self, provider: str, attempt: int) -> str | None:
        """What a provider is told, whose own spans then follow from the attempt; None: nothing."""
        if provider not in self.to and EVERYONE not in self.to:
            return None
        return self.parent._replace(span_id=span_id_of(self.call, attempt)).text
