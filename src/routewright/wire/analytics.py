"""Reports, and figures for people. Nothing is billed by these: ledgers count whole nano-dollars."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from .plain import Struct
from .response import Tokens

NANOS_PER_USD = 1_000_000_000


def in_usd(nanos: int | None) -> float | None:
    """An amount in dollars; of none none."""
    return None if nanos is None else nanos / NANOS_PER_USD


def usd_short(dollars: float) -> str:
    """Write dollars for sentences: cents from a dollar up, else two significant digits."""
    if dollars >= 1:
        return f"${dollars:,.2f}"
    return f"${dollars:.2g}" if dollars >= 0.0001 or not dollars else f"${Decimal(f'{dollars:.2g}'):f}"


def usd_between(dollars: float, between: tuple[float, float] | None) -> str:
    """Write what something cost; where that was estimated, also what it can have cost."""
    if between is None:
        return usd_short(dollars)
    low, high = map(usd_short, between)
    return f"{usd_short(dollars)} ({low} to {high})"


def time_short(ms: float) -> str:
    """Write a time: milliseconds below a second, else seconds."""
    if ms >= 999.5:
        return f"{ms / 1000:,.1f} s"
    return f"{ms:.0f} ms" if ms >= 9.95 or not ms else f"{ms:.1f} ms"


def counted(count: int, one: str) -> str:
    """Write how many: ``1 span``, ``1,200 spans``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def tokens_short(tokens: Tokens) -> str:
    """Write what a call used: ``10 tokens in (4 cached), 23 out``."""
    cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
    return f"{counted(tokens.input, 'token')} in{cached}, {tokens.output:,} out"


Bucket = Literal["hour", "day", "week", "month"]


class UsageRow(Struct, frozen=True, kw_only=True):
    """What one group used in one bucket."""

    bucket_start: str
    """RFC 3339. Weeks begin on Monday."""
    group: str | None
    """The value that is grouped by; None: traces without one; ``other``: also what ``rest`` marks."""
    rest: bool = False
    """The row is that of all groups but the hundred largest."""
    requests: int
    errors: int
    """Requests that ended in an error. One that its caller left is none."""
    cost_usd: float
    """Paid upstream."""
    charged_usd: float
    """Billed to the account."""
    tokens: Tokens


class UsageTotals(Struct, frozen=True, kw_only=True):
    """The sums over all rows."""

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
    """In the order of time; within a bucket the groups with most requests first."""
    totals: UsageTotals
    runs: dict[str, int] = {}
    """Agent runs by the status they ended with. Their model calls are among the requests."""


class TtlBucket(Struct, frozen=True):
    """Hits on entries up to an age: what a shorter ``ttl_seconds`` would have kept."""

    up_to_s: float | None
    """None: older than all others."""
    hits: int


class CacheReport(Struct, frozen=True, kw_only=True):
    """What the response cache did (spec 4.7)."""

    start_date: str
    end_date: str
    hit_rate: float | None
    """Hits among look-ups; None: there were none."""
    hits: int
    misses: int
    saved_usd: float
    ttl_distribution: list[TtlBucket]
    """Hits by the age of their entries, youngest first; each hit is in one bucket."""


class FallbackCandidate(Struct, frozen=True, kw_only=True):
    """How attempts at a model ended. Those that were left before they ended are not among them."""

    model: str
    attempts: int
    success_rate: float


class FallbackReport(Struct, frozen=True, kw_only=True):
    """How often another model than the chosen one served the request (spec 4.7)."""

    start_date: str
    end_date: str
    triggered: int
    rate: float | None
    """Among the requests for which a model was called; None: there were none."""
    reasons: dict[str, int]
    """Why the chosen model did not serve, as the event ``router.fallback_triggered`` says."""
    candidates: list[FallbackCandidate]
    """Most attempts first."""


class LatencyRow(Struct, frozen=True, kw_only=True):
    """How long completed requests took that one model served under one strategy, cache hits aside."""

    model: str
    strategy: str
    count: int
    p50_ms: float
    """Each quantile is within 1 % of the exact one."""
    p95_ms: float
    p99_ms: float


class LatencyReport(Struct, frozen=True, kw_only=True):
    """Latency of the whole request by model and strategy (spec 4.7)."""

    start_date: str
    end_date: str
    data: list[LatencyRow]
    """Most requests first."""
