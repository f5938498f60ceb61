"""The kinds of write and query a storage knows. A new feature adds a kind here, never a method there (contract 1). A
batch of writes is applied whole or not at all. A write whose ``expect`` does not hold fails the batch with
``PreconditionFailed``, which names the write. Writes, queries and scans are tagged, so msgspec reads what it wrote."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .account import AllAccounts, Durability, Environment, Expect, KeyByDigest, Keys, PutAccount, PutKey, RevokeKey
from .agent import AgentState, PutAgentState
from .decision import Snapshot
from .events import Incidents, PutEvent, PutIncident, StoredEvent
from .ledger import AddCredit, Correct, LedgerRow, LedgerRows, LedgerSums, LedgerSumsOfAll, Stands
from .policy import AddLearned, LearnedSince
from .trace import Trace
from .webhook import (
    ClaimDeliveries,
    Claimed,
    DeleteEndpoint,
    Deliveries,
    EndAttempt,
    Endpoints,
    PutEndpoint,
    ReplayDeliveries,
)


class DeleteResults(Struct, frozen=True, tag=True):
    """Remove the results of all idempotency keys of the account, its agent states, events and deliveries."""

    environment: Environment | None = None
    """None: of either."""
    durability: Durability = "committed"


FilterKey = str  # A name of the filter's grammar: ``status``, or ``metadata.team``.
FilterOp = Literal["=", "!=", ">=", "<=", ">", "<"]


class Term(Struct, frozen=True):
    """One condition on a trace. ``!=`` keeps exactly what ``=`` leaves out."""

    key: FilterKey
    op: FilterOp
    value: str | float | bool
    """Of the key's kind: a number for ``cost_usd`` and ``duration_ms``, true or false for flags, else a text. Of
    ``metadata`` it is a text for ``=`` and ``!=``, and a number for the others."""


class Selection(Struct, frozen=True, kw_only=True):
    """Traces of an account: those for which everything holds that is said."""

    environment: Environment | None = None
    """None: of either."""
    since: str | None = None
    """Created then or later, in the form of ``Trace.created_at``."""
    until: str | None = None
    """Created before then."""
    terms: tuple[Term, ...] = ()


class PutTrace(Struct, frozen=True, tag=True):
    """Keep a trace, in place of an earlier one of the same id, and count it in the roll-ups in place of that. Feedback
    stays. One of the other environment keeps its place: then this fails the batch with ``PreconditionFailed``."""

    trace: Trace
    expect: Expect | None = None
    rollup_keys: tuple[str, ...] = ()
    """Metadata that usage can be grouped by, besides ``tenant`` and ``workflow``."""
    rows: tuple[LedgerRow, ...] = ()
    """What its attempts cost, to be booked with it. A storage without accounts keeps none."""
    durability: Durability = "buffered"


JUDGE = "judge"  # comment of feedback that a judge gave


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
    durability: Durability = "buffered"


class PutSnapshot(Struct, frozen=True, tag=True):
    """Keep a snapshot; its id is made from its content, so keeping it twice is keeping it once. Said under
    ``SYSTEM_ACCOUNT``.

    It goes when no trace names it any more, but not within a day after it was last put.
    """

    snapshot: Snapshot
    expect: Expect | None = None
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "buffered"


class PutPolicyVersion(Struct, frozen=True, tag=True):
    """Give the content of a policy a version, unless it has one: the next free label of its name and day. Said under
    ``SYSTEM_ACCOUNT``. Versions are never removed, so that no label ever names two contents."""

    content: str
    """A hash of all that the policy says, its name included."""
    name: str
    created_at: str
    """Its date is the day of the label."""
    expect: None = None
    durability: Durability = "committed"


class PolicyVersions(Struct, frozen=True, tag=True):
    """A list of the ``PolicyVersion`` of those contents that have one. Asked under ``SYSTEM_ACCOUNT``."""

    contents: tuple[str, ...]


class PolicyVersion(Struct, frozen=True):
    """How a content of a policy is called."""

    content: str
    label: str
    """``<policy_name>@<YYYY-MM-DD>``, with ``.2`` ... for further ones of a day."""
    created_at: str


class DeleteTraces(Selection, frozen=True, tag=True):
    """Remove traces, oldest first, with their feedback, and take them out of the roll-ups. Alone in its batch."""

    id: str | None = None
    """Only this one."""
    limit: int = 500
    """At most so many, so that no batch takes long; ``Written.count`` says how many it were. Below 1: none."""
    expect: None = None
    durability: Durability = "committed"


class SetRetention(Struct, frozen=True, tag=True):
    """Say how long traces are kept before ``sweep`` removes them. Roll-ups stay. Said under ``SYSTEM_ACCOUNT``."""

    production_s: float | None = None
    """None: for ever."""
    sandbox_s: float | None = None
    expect: None = None
    durability: Durability = "committed"


Write = (
    PutTrace
    | PutFeedback
    | PutSnapshot
    | PutPolicyVersion
    | AddLearned
    | DeleteTraces
    | SetRetention
    | PutAccount
    | PutKey
    | RevokeKey
    | AddCredit
    | Correct
    | DeleteResults
    | PutIncident
    | PutEvent
    | PutAgentState
    | PutEndpoint
    | DeleteEndpoint
    | ClaimDeliveries
    | EndAttempt
    | ReplayDeliveries
)


class Written(Struct, frozen=True):
    """Result of one write; ``created`` is False where something of that id was there before."""

    created: bool
    count: int = 1
    """How many things it was about."""
    events: tuple[StoredEvent, ...] = ()
    """What it led to, kept in the same batch."""
    claimed: Claimed | None = None
    """Of ``ClaimDeliveries``; None: the storage has no endpoints."""


class TraceById(Struct, frozen=True, tag=True):
    """One trace of the account, or None."""

    id: str
    environment: Environment | None = None
    """Only a trace of this one; None: of either."""


class FeedbackByTrace(Struct, frozen=True, tag=True):
    """The ``PutFeedback`` of a trace, or None."""

    trace_id: str
    environment: Environment | None = None
    """Only of a trace of this one; None: of either, even of one that is not there."""


class SnapshotById(Struct, frozen=True, tag=True):
    """One snapshot, or None. Asked under ``SYSTEM_ACCOUNT``."""

    id: str


class CurrentRetention(Struct, frozen=True, tag=True):
    """The ``SetRetention`` that holds. Asked under ``SYSTEM_ACCOUNT``."""


class RollupKeys(Struct, frozen=True, tag=True):
    """A list of the metadata that the account's usage was ever counted by, in order, ``tenant`` and ``workflow``
    aside."""


class _Days(Struct, frozen=True, kw_only=True):
    """Counts of some days, both ends included, ``YYYY-MM-DD``."""

    first: str
    last: str
    environment: Environment | None = None
    """None: of both."""


class UsageCounts(_Days, frozen=True, tag=True):
    """A ``GroupedUsage``: what each of the largest groups used a day, or an hour, and what all traces did."""

    group_by: str
    """``model``, ``tenant``, ``workflow`` or ``metadata.<key>``."""
    hourly: bool = False
    groups: int = 100
    """How many groups, by requests over all the days, then by name."""


class UsageCount(Struct, frozen=True):
    """One row of ``UsageCounts``."""

    start: str
    """``YYYY-MM-DD``, or ``YYYY-MM-DDTHH``."""
    group: str | None
    """Empty: of traces without a model. None: of all groups that are not among the largest, or of all traces."""
    requests: int
    errors: int
    cost_nanos: int
    charged_nanos: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int


class GroupedUsage(Struct, frozen=True):
    """The answer to ``UsageCounts``, all parts of the same moment."""

    groups: list[UsageCount]
    all: list[UsageCount]
    """Of all traces, those without a group included."""
    runs: dict[str, int] = {}
    """Agent runs by the status they ended with."""


class CacheCounts(_Days, frozen=True, tag=True):
    """A list of ``CacheCount``: look-ups in the cache by how old the entry was."""


class CacheCount(Struct, frozen=True):
    """One row of ``CacheCounts``."""

    age: str
    """Seconds that the entry was at most old, ``older``, or ``miss``."""
    lookups: int
    saved_nanos: int


class FallbackCounts(_Days, frozen=True, tag=True):
    """A list of ``FallbackCount``."""


class FallbackCount(Struct, frozen=True):
    """One row of ``FallbackCounts``."""

    kind: str
    """``request``: those that called a model, and those of them that a fallback served; ``reason``: of these;
    ``model``: attempts, and successful ones; or ``run``: agent runs, and completed ones."""
    name: str
    """The reason, the model, the status of runs, or empty."""
    total: int
    counted: int


class LatencyCounts(_Days, frozen=True, tag=True):
    """A list of ``LatencyCount``."""


class LatencyCount(Struct, frozen=True):
    """One row of ``LatencyCounts``."""

    model: str
    strategy: str
    buckets: dict[int, int]
    """Requests by the bucket of their latency (``_core/analytics/rollup.py``)."""


Query = (
    TraceById
    | FeedbackByTrace
    | SnapshotById
    | PolicyVersions
    | LearnedSince
    | CurrentRetention
    | RollupKeys
    | UsageCounts
    | CacheCounts
    | FallbackCounts
    | LatencyCounts
    | Stands
    | LedgerSums
    | LedgerSumsOfAll
    | KeyByDigest
    | Keys
    | AllAccounts
    | Incidents
    | AgentState
    | Endpoints
)


class TraceItems(Selection, frozen=True, tag=True):
    """The account's traces without their spans, newest first; the key of an item is its ``key``."""


class Traces(Selection, frozen=True, tag=True):
    """The same, whole."""


class Events(Struct, frozen=True, tag=True):
    """The account's events, newest first; the key of one is its id."""


Scan = TraceItems | Traces | LedgerRows | Events | Deliveries
