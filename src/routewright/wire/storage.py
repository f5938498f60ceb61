"""Writes, queries and scans of a storage. A new feature adds a kind here instead of a method there (contract 1).

A batch of writes is applied completely or not at all. A write whose ``expect`` does not hold fails the batch with
``PreconditionFailed``, which names the write. All kinds are tagged, so that msgspec can decode them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .account import AllAccounts, Durability, Environment, Expect, KeyByDigest, Keys, PutAccount, PutKey, RevokeKey
from .agent import AgentState, PutAgentState
from .decision import DecisionInput, Snapshot
from .events import Incidents, PutEvent, PutIncident, StoredEvent
from .ledger import AddCredit, LedgerRow, LedgerRows, LedgerSums, Stands
from .policy import AddLearned, LearnedSince, Policy, PolicyRecords, PutPolicyRecord
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
    """Remove the account's idempotency results, agent states, events and deliveries."""

    environment: Environment | None = None
    """None: either."""
    durability: Durability = "committed"


FilterKey = str  # a field of the filter grammar: ``status``, or ``metadata.team``
FilterOp = Literal["=", "!=", ">=", "<=", ">", "<"]


class Term(Struct, frozen=True):
    """One condition on a trace. ``!=`` is the exact complement of ``=``."""

    key: FilterKey
    op: FilterOp
    value: str | float | bool
    """A number for ``cost_usd`` and ``duration_ms``, a bool for flags, else a string. For ``metadata``: a string with
    ``=`` and ``!=``, else a number."""


class Selection(Struct, frozen=True, kw_only=True):
    """Selects traces of an account that match all given fields."""

    environment: Environment | None = None
    """None: either."""
    since: str | None = None
    """Created at this time or later, in the format of ``Trace.created_at``."""
    until: str | None = None
    """Created before this time."""
    terms: tuple[Term, ...] = ()


class PutTrace(Struct, frozen=True, tag=True):
    """Create or replace a trace and its counts in the roll-ups. Feedback stays. Fails the batch with
    ``PreconditionFailed`` if the other environment has a trace with this id."""

    trace: Trace
    expect: Expect | None = None
    rollup_keys: tuple[str, ...] = ()
    """Metadata keys that usage can be grouped by, besides ``tenant`` and ``workflow``."""
    rows: tuple[LedgerRow, ...] = ()
    """Ledger rows of its attempts, booked in the same batch. A storage without accounts ignores them."""
    durability: Durability = "buffered"


class PutFeedback(Struct, frozen=True, tag=True):
    """Create or replace a user's rating of an answer, 0 to 1."""

    trace_id: str
    score: float
    comment: str | None
    at: float
    """Unix seconds."""
    expect: Expect | None = None
    """Refers to the trace. A trace of another ``environment`` counts as absent."""
    environment: Environment | None = None
    """None: either."""
    durability: Durability = "buffered"


class PutSnapshot(Struct, frozen=True, tag=True):
    """Store a snapshot. Its id is derived from its content, so storing it twice has no effect. Applied under
    ``SYSTEM_ACCOUNT``.

    It is removed when no trace refers to it, but not within a day after it was last put.
    """

    snapshot: Snapshot
    expect: Expect | None = None
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "buffered"


class PutPolicyVersion(Struct, frozen=True, tag=True):
    """Assign a version to the content of a policy, unless it has one: the next free label of its name and day. Applied
    under ``SYSTEM_ACCOUNT``. Versions are never removed, so a label never refers to two contents."""

    content: str
    """Hash of the whole policy, its name included."""
    name: str
    created_at: str
    """Its date goes into the label."""
    policy: Policy | None = None
    """The content itself, and below, who publishes it and why: kept with the label."""
    by: str = ""
    note: str = ""
    expect: None = None
    durability: Durability = "committed"


class PolicyVersions(Struct, frozen=True, tag=True):
    """``PolicyVersion`` records of the contents that have one. Queried under ``SYSTEM_ACCOUNT``."""

    contents: tuple[str, ...] = ()
    name: str | None = None
    """Instead of contents: all versions of this policy name, newest first."""


class DeleteTraces(Selection, frozen=True, tag=True):
    """Remove traces, oldest first, with their feedback and their counts in the roll-ups. Must be alone in its batch."""

    id: str | None = None
    """Only the trace with this id."""
    limit: int = 500
    """Most traces to remove, so that no batch takes long; ``Written.count`` is the number removed. Below 1: none."""
    expect: None = None
    durability: Durability = "committed"


class SetRetention(Struct, frozen=True, tag=True):
    """Set how long traces are kept before ``sweep`` removes them. Roll-ups stay. Applied under ``SYSTEM_ACCOUNT``."""

    production_s: float | None = None
    """None: forever."""
    sandbox_s: float | None = None
    expect: None = None
    durability: Durability = "committed"


Write = (
    PutTrace
    | PutFeedback
    | PutSnapshot
    | PutPolicyVersion
    | PutPolicyRecord
    | AddLearned
    | DeleteTraces
    | SetRetention
    | PutAccount
    | PutKey
    | RevokeKey
    | AddCredit
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
    """Result of one write. ``created`` is False if the id existed before."""

    created: bool
    count: int = 1
    """Number of records affected."""
    events: tuple[StoredEvent, ...] = ()
    """Events that it caused, stored in the same batch."""
    claimed: Claimed | None = None
    """Result of ``ClaimDeliveries``. None: the storage has no endpoints."""


class TraceById(Struct, frozen=True, tag=True):
    """One trace of the account, or None."""

    id: str
    environment: Environment | None = None
    """Only a trace of this environment. None: either."""


class FeedbackByTrace(Struct, frozen=True, tag=True):
    """The ``PutFeedback`` of a trace, or None."""

    trace_id: str
    environment: Environment | None = None
    """Only for a trace of this environment. None: either, even if the trace does not exist."""


class FeedbackByTraces(Struct, frozen=True, tag=True):
    """The ``PutFeedback`` records of these traces that have one, in any order and environment."""

    trace_ids: tuple[str, ...]


class SnapshotById(Struct, frozen=True, tag=True):
    """One snapshot, or None. Queried under ``SYSTEM_ACCOUNT``."""

    id: str


class SnapshotsById(Struct, frozen=True, tag=True):
    """Those snapshots that are stored and not damaged, in any order. Queried under ``SYSTEM_ACCOUNT``."""

    ids: tuple[str, ...]


class CurrentRetention(Struct, frozen=True, tag=True):
    """The current ``SetRetention``. Queried under ``SYSTEM_ACCOUNT``."""


class RollupKeys(Struct, frozen=True, tag=True):
    """All metadata keys that the account's usage was counted by, sorted, without ``tenant`` and ``workflow``."""


class _Days(Struct, frozen=True, kw_only=True):
    """Counts of a range of days ``YYYY-MM-DD``, both ends included."""

    first: str
    last: str
    environment: Environment | None = None
    """None: both."""


class UsageCounts(_Days, frozen=True, tag=True):
    """A ``GroupedUsage``: usage of the largest groups and of all traces, per day or hour."""

    group_by: str
    """``model``, ``tenant``, ``workflow`` or ``metadata.<key>``."""
    hourly: bool = False
    groups: int = 100
    """Number of groups: those with the most requests over all days, then by name."""


class UsageCount(Struct, frozen=True):
    """One row of ``UsageCounts``."""

    start: str
    """``YYYY-MM-DD``, or ``YYYY-MM-DDTHH``."""
    group: str | None
    """Empty: traces without a model. None: all smaller groups together, or all traces."""
    requests: int
    errors: int
    cost_nanos: int
    charged_nanos: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int


class GroupedUsage(Struct, frozen=True):
    """Result of ``UsageCounts``, read in one transaction."""

    groups: list[UsageCount]
    all: list[UsageCount]
    """All traces, including those without a group."""
    runs: dict[str, int] = {}
    """Number of agent runs by final status."""


class CacheCounts(_Days, frozen=True, tag=True):
    """``CacheCount`` records: cache look-ups by age of the entry."""


class CacheCount(Struct, frozen=True):
    """One row of ``CacheCounts``."""

    age: str
    """Upper bound of the entry's age in seconds, ``older``, or ``miss``."""
    lookups: int
    saved_nanos: int


class FallbackCounts(_Days, frozen=True, tag=True):
    """``FallbackCount`` records."""


class FallbackCount(Struct, frozen=True):
    """One row of ``FallbackCounts``."""

    kind: str
    """``request``: requests that called a model, and those served by a fallback; ``reason``: fallbacks by fault;
    ``passed``: requests by the better model that they went past; ``model``: attempts, and successful ones; ``run``:
    agent runs, and completed ones."""
    name: str
    """Fault, model, status of runs, or empty."""
    total: int
    counted: int


class LatencyCounts(_Days, frozen=True, tag=True):
    """``LatencyCount`` records."""


class LatencyCount(Struct, frozen=True):
    """One row of ``LatencyCounts``."""

    model: str
    strategy: str
    buckets: dict[int, int]
    """Number of requests by bucket of the latency. Buckets are logarithmic, within 1 %."""


Query = (
    TraceById
    | FeedbackByTrace
    | FeedbackByTraces
    | SnapshotById
    | SnapshotsById
    | PolicyVersions
    | PolicyRecords
    | LearnedSince
    | CurrentRetention
    | RollupKeys
    | UsageCounts
    | CacheCounts
    | FallbackCounts
    | LatencyCounts
    | Stands
    | LedgerSums
    | KeyByDigest
    | Keys
    | AllAccounts
    | Incidents
    | AgentState
    | Endpoints
)


class TraceItems(Selection, frozen=True, tag=True):
    """The account's traces without their spans, newest first, keyed by ``key``."""


class Traces(Selection, frozen=True, tag=True):
    """The account's complete traces, newest first, keyed by ``key``."""


class Decisions(Selection, frozen=True, tag=True):
    """The ``DecisionRecord`` of the account's traces, oldest first, keyed by ``key``. That of a damaged trace has no
    ``decision_input``."""

    newest_first: bool = False


class DecisionRecord(Struct, frozen=True, gc=False):
    """What a simulation needs of a trace."""

    id: str
    created_at: str
    decision_input: DecisionInput | None
    chosen: str | None
    """The model. None: the request was refused, or no Router decided."""
    hit: bool
    """The cache had the answer."""
    cost_nanos: int
    charged_nanos: int
    duration_ms: float
    output_tokens: int | None
    """Length of the answer. None: no whole answer of the first attempt."""
    metadata: bytes | None = None
    """As JSON."""

    @property
    def key(self) -> str:
        """Sort key, as that of the trace."""
        return f"{self.created_at}{self.id}"


class Events(Struct, frozen=True, tag=True):
    """The account's events, newest first, keyed by id."""


Scan = TraceItems | Traces | Decisions | LedgerRows | Events | Deliveries
