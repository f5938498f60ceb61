"""Traces on their way into memory, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from routewright._core.analytics.rollup import Rollups, counted_of
from routewright._core.trace.filter import matches
from routewright.protocols import TraceDraft
from routewright.wire import Environment, LedgerRow, PutTrace, Selection, Trace


class Whole:
    """A trace that was given as one, read as a draft is. Making it fails for what cannot be copied or counted."""

    def __init__(self, write: PutTrace) -> None:
        self.wordless = write.trace.copy()
        """It may hold its content, and is not to be given away."""
        self.id = self.wordless.id
        self.key = self.wordless.key
        self.rollup_keys = write.rollup_keys
        content = self.wordless.content
        self.rows: tuple[LedgerRow, ...] = write.rows
        self.text_bytes = 0 if content is None else len(msgspec.json.encode(content))
        self.counted = counted_of(self.wordless)
        Rollups().count(self.counted, self.rollup_keys)

    line = None
    is_void = False

    def void(self, is_void: bool) -> None:
        """Nothing: it is a trace that was given whole."""

    @property
    def environment(self) -> Environment:
        """The trace's."""
        return self.wordless.environment

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        """Those of its decision input."""
        given = self.wordless.decision_input
        return None if given is None else (given.catalogue, given.health, given.policy)

    @property
    def trace(self) -> Trace:
        """One for whoever asks."""
        return self.wordless.copy()


def selected(kept: Iterable[TraceDraft], asked: Selection, seen: Callable[[Trace], Trace]) -> Iterator[TraceDraft]:
    """Those that are asked for. For the terms of a filter alone a trace is made, as it is ``seen`` without content."""
    for each in kept:
        created_at = each.key.removesuffix(each.id)
        if (
            asked.environment in (None, each.environment)
            and (asked.since is None or created_at >= asked.since)
            and (asked.until is None or created_at < asked.until)
            and (not asked.terms or matches(seen(each.wordless), asked.terms))
        ):
            yield each
