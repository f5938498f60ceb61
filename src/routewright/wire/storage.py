"""The kinds of write and query a storage knows. A new feature adds a kind here, never a method there (contract 1).

A batch of writes is applied whole or not at all. A write whose ``expect`` does not hold fails the batch with
``PreconditionFailed``, which names the write. Writes, queries and scans are tagged, so msgspec reads what it wrote.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .account import Environment
from .decision import Snapshot
from .trace import Trace

SYSTEM_ACCOUNT = "_system"
"""Holds what belongs to no account: snapshots."""

Expect = Literal["absent", "present"]


class PutTrace(Struct, frozen=True, tag=True):
    """Keep a trace, in place of an earlier one of the same id."""

    trace: Trace
    expect: Expect | None = None


class PutFeedback(Struct, frozen=True, tag=True):
    """Keep what a user thought of an answer, 0..1, in place of what was said before."""

    trace_id: str
    score: float
    comment: str | None
    at: float
    """Unix seconds."""
    expect: Expect | None = None
    """Speaks of the trace, which is there only if it is of ``environment``."""
    environment: Environment | None = None
    """None: of either."""


class PutSnapshot(Struct, frozen=True, tag=True):
    """Keep a snapshot; its id is made from its content, so keeping it twice is keeping it once."""

    snapshot: Snapshot
    expect: Expect | None = None


Write = PutTrace | PutFeedback | PutSnapshot


class Written(Struct, frozen=True):
    """Result of one write; ``created`` is False where something of that id was there before."""

    created: bool


class TraceById(Struct, frozen=True, tag=True):
    """One trace of the account, or None."""

    id: str
    environment: Environment | None = None
    """Only a trace of this one; None: of either."""


class FeedbackByTrace(Struct, frozen=True, tag=True):
    """The ``PutFeedback`` of a trace, or None."""

    trace_id: str


class SnapshotById(Struct, frozen=True, tag=True):
    """One snapshot, or None. Asked under ``SYSTEM_ACCOUNT``."""

    id: str


Query = TraceById | FeedbackByTrace | SnapshotById


class Traces(Struct, frozen=True, tag=True):
    """The account's traces, newest first; the key of an item is its id."""

    environment: Environment | None = None


Scan = Traces
