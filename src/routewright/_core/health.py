"""Learns from attempts what each model does of late, and puts it into snapshots (contract 3).

What was seen fades with time, so that a model which failed an hour ago is not held to it. The catalogue's priors count
as a handful of observations.
"""

from __future__ import annotations

from math import sqrt

from routewright.wire import HealthSnapshot, ModelHealth

from .catalogue import content_id
from .pool import Pool

HALF_LIFE_S = 300.0
"""After this long an observation counts half."""
PRIOR_GOOD, PRIOR_BAD = 19.0, 1.0
"""What is believed of a model that was never called: one failure in twenty."""
PRIOR_ANSWERS = 5.0
"""How many answers the prior length is worth."""
DEVIATIONS = 1.0
"""Standard deviations from the mean share of successes down to the bound that is scored."""
P90_DEVIATIONS = 1.28


class _Seen:
    """Faded sums over the attempts at one model."""

    __slots__ = ("answers", "at", "bad", "good", "length", "length_squared")

    def __init__(self, at: float) -> None:
        self.at = at
        self.good = self.bad = self.answers = self.length = self.length_squared = 0.0

    def fade(self, now: float) -> None:
        left = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        self.at = now
        self.good *= left
        self.bad *= left
        self.answers *= left
        self.length *= left
        self.length_squared *= left


class Health:
    """Collects attempts; ``snapshot`` says what they show."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self.changed = False
        """Something was collected since the last snapshot."""

    def __bool__(self) -> bool:
        """Whether anything was collected at all."""
        return bool(self._seen)

    def failed(self, model: str, now: float) -> None:
        """An attempt failed by the provider's fault. ``now`` in monotonic seconds."""
        self._faded(model, now).bad += 1

    def answered(self, model: str, now: float, output_tokens: int | None) -> None:
        """An attempt brought an answer of so many tokens, thinking included; None: its length says nothing."""
        seen = self._faded(model, now)
        seen.good += 1
        if output_tokens is None:
            return
        seen.answers += 1
        seen.length += output_tokens
        seen.length_squared += output_tokens * output_tokens

    def snapshot(self, pool: Pool, now: float) -> HealthSnapshot:
        """Freeze what is known at ``now`` under an id made from the content."""
        self.changed = False
        for seen in self._seen.values():
            seen.fade(now)
        models = {model: _health(seen, pool.output[pool.row[model]]) for model, seen in sorted(self._seen.items())}
        return health_snapshot(models)

    def _faded(self, model: str, now: float) -> _Seen:
        self.changed = True
        seen = self._seen.setdefault(model, _Seen(now))
        seen.fade(now)
        return seen


def health_snapshot(models: dict[str, ModelHealth]) -> HealthSnapshot:
    """Put models' health under an id made from the content."""
    return HealthSnapshot("hea_" + content_id(models), models)


def _health(seen: _Seen, prior_length: int) -> ModelHealth:
    good, tries = PRIOR_GOOD + seen.good, PRIOR_GOOD + PRIOR_BAD + seen.good + seen.bad
    share = good / tries
    bound = share - DEVIATIONS * sqrt(share * (1 - share) / tries)
    answers = PRIOR_ANSWERS + seen.answers
    mean = (PRIOR_ANSWERS * prior_length + seen.length) / answers
    # The prior's spread is as wide as its mean, which puts its 90th percentile at about 2.3 times the mean.
    squared = (PRIOR_ANSWERS * 2 * prior_length**2 + seen.length_squared) / answers
    p90 = mean + P90_DEVIATIONS * sqrt(max(0.0, squared - mean * mean))
    return ModelHealth(stability=round(1000 * bound), output_tokens=round(mean), output_p90=round(p90))
