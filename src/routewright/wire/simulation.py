"""What stored traffic would have cost under another policy, or with other models and prices."""

from __future__ import annotations

from typing import Literal

from .plain import Struct


class Estimate(Struct, frozen=True):
    """A figure and its 95 % interval: where the figure of another day of the same traffic lies."""

    value: float
    low: float
    high: float


class Reroute(Struct, frozen=True):
    """Requests that would go to another model. None stands for a refusal."""

    from_model: str | None
    to_model: str | None
    requests: int


class RefusalChange(Struct, frozen=True):
    """Requests that would be refused, or no longer refused, because of one constraint."""

    constraint: str
    """A ``Reason``; ``invalid``: the policy does not allow what the request names."""
    new: int
    gone: int


class BlockedBudget(Struct, frozen=True):
    """A limit of an account that would block requests, although the real traffic stayed within it. Both are all traffic
    of the account, simulated or not. Limits of keys and tags are not checked."""

    account: str
    period: Literal["day", "week", "month"]
    start: str
    """First day of the period, ``YYYY-MM-DD``."""
    limit_usd: float
    expected_usd: float
    """Expected charges of the period."""
    requests: int
    """All of the account that come after the limit is reached."""


class AccountCost(Struct, frozen=True):
    """Expected cost of one account's requests."""

    account: str
    requests: int
    before_usd: float
    after_usd: float


class Drift(Struct, frozen=True):
    """A model whose answers have become longer or shorter than expected."""

    model: str
    ratio: Estimate
    """Actual output tokens by the expected ones."""
    answers: int


class SimulationExample(Struct, frozen=True):
    """One request that would go to another model."""

    trace_id: str
    from_model: str | None
    to_model: str | None
    before: str
    """``explain`` of the decision, or the refusal."""
    after: str
    account: str


class Simulated(Struct, frozen=True, kw_only=True):
    """Figures of a simulation. No model was called."""

    since: str
    until: str
    requests: int
    """Requests whose decision was repeated."""
    skipped: int
    """Requests without a decision that can be repeated: the trace is damaged, a snapshot is gone, or other scoring
    rules decided."""
    rerouted: int
    """Requests that would go to another model, or be refused, or no longer be refused."""
    rerouted_share: Estimate | None
    """Their share of all requests, with Wilson's interval. So is the next one. None: the choices are unknown, too."""
    refused_share: Estimate | None
    """Share of requests that would newly be refused."""
    reroutes: list[Reroute]
    """The most frequent pairs, most frequent first."""
    actual_cost_usd: float
    """What the requests really cost."""
    cost_before_usd: Estimate | None
    """Expected cost as decided. Requests that would newly be refused are in no figure, since a refusal is no saving.
    None, here and below: answers have drifted, a price is unknown, or there are too few to claim anything."""
    cost_after_usd: Estimate | None
    cost_change: Estimate | None
    """Relative change: 0.05 is 5 % more."""
    latency_before_ms: Estimate | None
    """Mean time of a request. None, too, if over 5 % of the requests would go to models with too few outcomes."""
    latency_after_ms: Estimate | None
    latency_change: Estimate | None
    refusals: list[RefusalChange]
    expectations: list[str]
    """Models without an outcome on such requests. Their figures are expectations from catalogue and health."""
    drifts: list[Drift]
    problem: str | None = None
    """Why the estimates are None."""
    latency_problem: str | None = None
    """Why those of the latency are None."""


class SimulationReport(Simulated, frozen=True, kw_only=True):
    """What stored requests would do under another policy."""

    policy: str
    """Name of the policy."""
    version: str
    """The simulated version; ``draft`` if it has no label."""
    blocked: list[BlockedBudget]
    costlier: list[AccountCost]
    """The accounts whose cost rises most, largest rise first. Requests that would newly be refused are left out."""
    examples: list[SimulationExample]
    """At most five requests, those of different changes first."""
    unknown_spent: int
    """Requests of which it is not known how much of its limits the caller had spent, though a class depends on it. The
    class did not apply. Above 5 % of the requests nothing is claimed."""


class WhatIfReport(Simulated, frozen=True, kw_only=True):
    """What stored requests would cost with other models, at other prices, or without the cache."""

    hits: int
    """Requests answered from the cache."""
