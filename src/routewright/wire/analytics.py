"""Analytics reports. Billing uses the ledger's nano-dollars instead."""

from __future__ import annotations

from typing import Literal

from .plain import Struct
from .response import Tokens

Bucket = Literal["hour", "day", "week", "month"]


class UsageRow(Struct, frozen=True, kw_only=True):
    """Usage of one group in one time bucket."""

    bucket_start: str
    """RFC 3339. Weeks start on Monday."""
    group: str | None
    """Value of the grouping key. None: traces without it. ``other`` if ``rest`` is true."""
    rest: bool = False
    """True: the row sums all groups except the hundred largest."""
    requests: int
    errors: int
    """Requests that ended in an error, without those cancelled by the caller."""
    cost_usd: float
    """Paid upstream."""
    charged_usd: float
    """Billed to the account."""
    tokens: Tokens


class UsageTotals(Struct, frozen=True, kw_only=True):
    """Totals of all rows."""

    requests: int = 0
    errors: int = 0
    cost_usd: float = 0.0
    charged_usd: float = 0.0
    tokens: Tokens = Tokens()


class UsageReport(Struct, frozen=True, kw_only=True):
    """Requests, money and tokens by time and group (spec 4.6)."""

    start_date: str
    end_date: str
    bucket: Bucket
    group_by: str
    data: list[UsageRow]
    """By time, then by number of requests, largest group first."""
    totals: UsageTotals
    runs: dict[str, int] = {}
    """Number of agent runs by final status. Their model calls are counted in ``requests``."""


class TtlBucket(Struct, frozen=True):
    """Hits on entries up to an age. Shows how many hits a shorter ``ttl_seconds`` would keep."""

    up_to_s: float | None
    """None: older than all other buckets."""
    hits: int


class CacheReport(Struct, frozen=True, kw_only=True):
    """Results of the response cache (spec 4.7)."""

    start_date: str
    end_date: str
    hit_rate: float | None
    """Share of look-ups that were hits. None: no look-ups."""
    hits: int
    misses: int
    saved_usd: float
    ttl_distribution: list[TtlBucket]
    """Hits by age of the entry, youngest first. Each hit is in one bucket."""


class FallbackCandidate(Struct, frozen=True, kw_only=True):
    """Success rate of the attempts at one model, cancelled ones excluded."""

    model: str
    attempts: int
    success_rate: float


class FallbackReport(Struct, frozen=True, kw_only=True):
    """How often a fallback served the request (spec 4.7)."""

    start_date: str
    end_date: str
    triggered: int
    rate: float | None
    """Share of the requests that called a model. None: there were none."""
    reasons: dict[str, int]
    """Number of fallbacks by what was wrong with the first model: a kind of fault, or another word of
    ``FallbackSpan.fault``. Those counted by earlier versions have the words of ``FallbackSpan.reason``."""
    passed_by: dict[str, int]
    """By model, calls that went past it, because its key or circuit was bad, to a model of lower rank. A backup serves
    these calls without any fallback."""
    candidates: list[FallbackCandidate]
    """Most attempts first."""


class LatencyRow(Struct, frozen=True, kw_only=True):
    """Latency of completed requests by one model and strategy, without cache hits."""

    model: str
    strategy: str
    count: int
    p50_ms: float
    """Each quantile is within 1 % of the exact one."""
    p95_ms: float
    p99_ms: float


class LatencyDay(Struct, frozen=True, kw_only=True):
    """Latency of the completed requests of a day, without cache hits."""

    day: str
    """``YYYY-MM-DD`` (UTC)."""
    model: str | None
    """None: all models."""
    count: int
    p50_ms: float
    """Like the others, within 1 % of the exact one."""
    p95_ms: float
    p99_ms: float


class LatencyReport(Struct, frozen=True, kw_only=True):
    """Latency of the whole request by model and strategy (spec 4.7)."""

    start_date: str
    end_date: str
    data: list[LatencyRow]
    """Most requests first."""
