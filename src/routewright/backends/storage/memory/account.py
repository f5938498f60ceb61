"""What is kept of one account."""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from routewright._core.account import is_compromised
from routewright._core.accounts.books import Books
from routewright._core.analytics.rollup import Rollups
from routewright._core.webhooks.outbox import Outbox
from routewright.protocols import TraceDraft
from routewright.wire import PutFeedback, Snapshot, Trace

VALUES = 1_000
"""Of a group so many are told apart within an hour, those that came first: so no flood of names drives the hours before
out of the roll-ups, nor makes each trace take longer. A report names a hundred."""


class KeptAccount:
    """One account: its books, and its traces with what belongs to them."""

    def __init__(self, newest: int, outbox: Outbox) -> None:
        self.books = Books(newest, outbox.emit)
        self.traces: OrderedDict[str, TraceDraft] = OrderedDict()
        self.text_bytes = 0
        self.uncounted: dict[str, TraceDraft] = {}
        """Those that are not in the roll-ups yet: drafts are made into traces for that only when somebody asks."""
        self.rollups = Rollups(VALUES)
        self.feedback: OrderedDict[str, PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, tuple[Snapshot, float]] = OrderedDict()
        """With the time at which they were last put, 0 of those that came with a trace."""

    def seen(self, trace: Trace) -> Trace:
        """A trace as it is to be seen: compromised, if its key was revoked within a day after it or before."""
        revoked_at = self.books.revoked_since(trace.key_id)
        if revoked_at is None or trace.compromised or not is_compromised(trace.created_at, revoked_at):
            return trace
        return replace(trace, compromised=True)

    def forget_traces(self) -> None:
        """Begin without traces."""
        self.traces.clear()
        self.uncounted.clear()
        self.feedback.clear()
        self.text_bytes = 0
