"""The writes and queries of a storage. A new feature adds a kind here, not a method to ``Storage`` (contract 1). A
batch of writes is atomic. If the ``expect`` of a write does not hold, the batch fails with ``PreconditionFailed``,
which names the write. Writes, queries and scans are tagged, so that msgspec decodes what it encoded."""

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
    """One condition on a trace. ``!=`` selects exactly the traces that ``=`` does not."""

    key: FilterKey
    op: FilterOp
    value: str | float | bool
    """A number for ``cost_usd`` and ``duration_ms``, a boolean for flags, else a string. For ``metadata``, a string
    with ``=`` and ``!=`` and a number with the other operators."""


class Selection(Struct, frozen=True, kw_only=True):
    """Selects the traces of an account that meet all conditions."""

    environment: Environment | None = None
    """None: of either."""
    since: str | None = None
    """Earliest creation time, inclusive, in the format of ``Trace.created_at``."""
    until: str | None = None
    """Latest creation time, exclusive."""
    terms: tuple[Term, ...] = ()


class PutTrace(Struct, frozen=True, tag=True):
    """Store a trace. It replaces an earlier trace with the same id, in the roll-ups too; feedback stays. If that trace
    has the other environment, the batch fails with ``PreconditionFailed``."""

    trace: Trace
    expect: Expect | None = None
    rollup_keys: tuple[str, ...] = ()
    """Metadata that usage can be grouped by, besides ``tenant`` and ``workflow``."""
    rows: tuple[LedgerRow, ...] = ()
    """Ledger rows of its attempts, booked in the same batch. A storage without accounts drops them."""
    durability: Durability = "buffered"


JUDGE = "judge"  # comment of feedback from a judge


class PutFeedback(Struct, frozen=True, tag=True):
    """Store a user's score of an answer, 0..1. Replaces earlier feedback."""

    trace_id: str
    score: float
    comment: str | None
    at: float
    """Unix seconds."""
    expect: Expect | None = None
    """Precondition on the trace. A trace of another environment than ``environment`` counts as missing."""
    environment: Environment | None = None
    """None: of either."""
    durability: Durability = "buffered"


class PutSnapshot(Struct, frozen=True, tag=True):
    """Store a snapshot under ``SYSTEM_ACCOUNT``. Its id is a hash of its content, so the write is idempotent.

    It is removed once no trace names it, but no sooner than a day after it was last put.
    """

    snapshot: Snapshot
    expect: Expect | None = None
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "buffered"


class PutPolicyVersion(Struct, frozen=True, tag=True):
    """Give a policy's content a version, unless it has one: the next free label for its name and day. Written under
    ``SYSTEM_ACCOUNT``. Versions are never removed, so a label never names two contents."""

    content: str
    """Hash of the whole policy, including its name."""
    name: str
    created_at: str
    """Its date becomes the day of the label."""
    expect: None = None
    durability: Durability = "committed"


class PolicyVersions(Struct, frozen=True, tag=True):
    """Returns a list with the ``PolicyVersion`` of each content that has one. Queried under ``SYSTEM_ACCOUNT``."""

    contents: tuple[str, ...]


class PolicyVersion(Struct, frozen=True):
    """The label of a policy's content."""

    content: str
    label: str
    """``<policy_name>@<YYYY-MM-DD>``; further versions of the same day end in ``.2`` ..."""
    created_at: str


class DeleteTraces(Selection, frozen=True, tag=True):
    """Remove traces with their feedback, oldest first, and subtract them from the roll-ups. Alone in its batch."""

    id: str | None = None
    """Only this one."""
    limit: int = 500
    """Maximum number to remove, so that no batch takes long; below 1: none. ``Written.count`` is the number removed."""
    expect: None = None
    durability: Durability = "committed"


class SetRetention(Struct, frozen=True, tag=True):
    """Set how long traces are kept before ``sweep`` removes them. Roll-ups stay. Written under ``SYSTEM_ACCOUNT``."""

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
    """Result of one write; ``created`` is False if the id already existed."""

    created: bool
    count: int = 1
    """Number of records written or removed."""
    events: tuple[StoredEvent, ...] = ()
    """Events that followed from the write, stored in the same batch."""
    claimed: Claimed | None = None
    """Result of ``ClaimDeliveries``. None: the storage has no endpoints."""


class TraceById(Struct, frozen=True, tag=True):
    """One trace of the account, or None."""

    id: str
    environment: Environment | None = None
    """None: either."""


class FeedbackByTrace(Struct, frozen=True, tag=True):
    """The ``PutFeedback`` of a trace, or None."""

    trace_id: str
    environment: Environment | None = None
    """Environment of the trace. None: either, and the trace may be missing."""


class SnapshotById(Struct, frozen=True, tag=True):
    """One snapshot, or None. Asked under ``SYSTEM_ACCOUNT``."""

    id: str


class CurrentRetention(Struct, frozen=True, tag=True):
    """The current ``SetRetention``. Queried under ``SYSTEM_ACCOUNT``."""


class RollupKeys(Struct, frozen=True, tag=True):
    """Sorted list of the metadata keys that the account's usage was ever grouped by, without ``tenant`` and
    ``workflow``."""


class _Days(Struct, frozen=True, kw_only=True):
    """A range of days, ``YYYY-MM-DD``, both ends inclusive."""

    first: str
    last: str
    environment: Environment | None = None
    """None: of both."""


class UsageCounts(_Days, frozen=True, tag=True):
    """Returns a ``GroupedUsage``: usage per day or hour of the largest groups, and of all traces."""

    group_by: str
    """``model``, ``tenant``, ``workflow`` or ``metadata.<key>``."""
    hourly: bool = False
    groups: int = 100
    """Number of groups, ranked by requests over the whole range, then by name."""


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
    """Result of ``UsageCounts``. All parts are read at the same moment."""

    groups: list[UsageCount]
    all: list[UsageCount]
    """All traces, including those without a group."""
    runs: dict[str, int] = {}
    """Agent runs by the status they ended with."""


class CacheCounts(_Days, frozen=True, tag=True):
    """Returns a list of ``CacheCount``: cache look-ups by age of the entry."""


class CacheCount(Struct, frozen=True):
    """One row of ``CacheCounts``."""

    age: str
    """Upper bound of the entry's age in seconds, ``older``, or ``miss``."""
    lookups: int
    saved_nanos: int


class FallbackCounts(_Days, frozen=True, tag=True):
    """Returns a list of ``FallbackCount``."""


class FallbackCount(Struct, frozen=True):
    """One row of ``FallbackCounts``."""

    kind: str
    """What ``total`` and ``counted`` are. ``request``: requests that called a model, and those served by a fallback;
    ``reason``: the latter by reason; ``model``: attempts, and successful ones; ``run``: agent runs, and completed."""
    name: str
    """The reason, the model, the status of runs, or empty."""
    total: int
    counted: int


class LatencyCounts(_Days, frozen=True, tag=True):
    """Returns a list of ``LatencyCount``."""


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
    """The account's traces without spans, newest first. The key of an item is its ``key``."""


class Traces(Selection, frozen=True, tag=True):
    """The account's traces with spans, newest first."""


class Events(Struct, frozen=True, tag=True):
    """The account's events, newest first. The key of an event is its id."""


Scan = TraceItems | Traces | LedgerRows | Events | Deliveries
