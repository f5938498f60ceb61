"""Versions of a policy, compared by the requests that they served."""

from __future__ import annotations

from .plain import Struct


class Figure(Struct, frozen=True):
    """A measured figure with its 95 % interval."""

    value: float | None
    """None: there is nothing to measure it by."""
    interval: tuple[float, float] | None = None
    """None: the numbers are too few for one."""
    count: int = 0
    """Number of requests, or ratings, that it is measured by."""


class VersionFigures(Struct, frozen=True, kw_only=True):
    """What the requests of a version cost, how long they took, and how they ended."""

    version: str
    requests: int
    cost_usd: Figure
    """Paid upstream per request."""
    error_rate: Figure
    """Share of the requests that ended in an error, without those cancelled by the caller."""
    latency_ms: Figure
    """Mean of the completed requests. Like the next two, it includes cache hits."""
    p50_ms: Figure
    """Median."""
    p95_ms: Figure
    """95th percentile."""
    feedback: Figure
    """Mean score of the rated answers, 0 to 1."""


class Difference(Struct, frozen=True, kw_only=True):
    """The difference between the two versions of a share in one figure."""

    change: Figure
    """The shared version's figure less that of the base; ``count`` is the smaller one of the two."""
    significant: bool
    """True: the interval does not contain zero."""
    verdict: str
    """``lower``, ``higher``, ``no difference above 10 %``, or ``too few: ...`` with the number that is needed."""


class ShareComparison(Struct, frozen=True, kw_only=True):
    """The two versions of a share, by the requests that it assigned. Other requests differ in more than their version:
    they came before the share, or lack its ``metadata`` key."""

    base: VersionFigures
    shared: VersionFigures
    """The version that was published to a share of the traffic."""
    differences: dict[str, Difference]
    """By field of ``VersionFigures``."""


class PolicyComparison(Struct, frozen=True, kw_only=True):
    """The versions of a policy that served in a time, and its latest share (``Console.compare``)."""

    name: str
    since: str
    """The time of the oldest requests."""
    versions: list[VersionFigures]
    """Newest first, with all of their requests."""
    share: ShareComparison | None = None
    """None: no share assigned requests to two versions."""
