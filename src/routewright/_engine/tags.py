"""Which tags hold where a Router is called? They follow the context: over awaits, into tasks and copied contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from routewright._core.request.read import joined_tags

_NONE: Mapping[str, Any] = MappingProxyType({})
NO_TAGS: Mapping[TagScopes, Mapping[str, Any]] = MappingProxyType({})
_held: ContextVar[Mapping[TagScopes, Mapping[str, Any]]] = ContextVar("routewright.tags", default=NO_TAGS)
"""One for all Routers: a context keeps its variables for ever, so that one a Router would never go."""


tags_held = _held.get
"""The tags of all Routers that hold in this context; ``NO_TAGS`` where none do."""


class TagScopes:
    """The tags of one Router. It refers to nothing, since a context may hold on to it."""

    def here(self) -> Mapping[str, Any]:
        """What holds in this context; empty where nothing does."""
        return _held.get().get(self, _NONE)

    @contextmanager
    def scope(self, tags: Mapping[str, Any]) -> Iterator[None]:
        """Let checked tags hold inside, over those that hold already."""
        before = _held.get()
        _held.set({**before, self: joined_tags(before.get(self, _NONE), tags)})
        try:
            yield
        finally:
            _held.set(before)  # not a reset, which fails where a generator is ended in another context
