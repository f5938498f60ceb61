"""Learns from attempts what each model does of late, and puts it into snapshots (contract 3).

What was seen fades with time, so that a model which failed an hour ago is not held to it. The catalogue's priors count
as a handful of observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, sqrt
from typing import NamedTuple

from msgspec.structs import replace

from routewright.wire import HealthSnapshot, ModelHealth, Usage

from .catalogue import content_id
from .outlook import UNKNOWN, Outlook
from .pool import Pool
from .quantile import Quantiles

HALF_LIFE_S = 300.0
"""After this long an observation counts half."""
PRIOR_GOOD, PRIOR_BAD = 19.0, 1.0
"""What is believed of a model that was never called: one failure in twenty."""
PRIOR_ANSWERS = 5.0
"""How many answers the prior length, speed and time to the first token are worth."""
PRIOR_SPEED_TOKENS = 2_000.0
"""How many tokens the prior speed is worth."""
DEVIATIONS = 1.0
"""Standard deviations from the mean share of successes down to the bound that is scored."""
P90_DEVIATIONS = 1.28
LEAST_SEEN = 4.5
"""Observations below which there is no 95th percentile to speak of: five, some of which may have faded a little."""
ERROR = 0.05
"""Relative error of the times."""
_MOST_HALF_LIVES = 64
"""After so many the sums are brought down to their present measure."""
_SPEED_STEPS = 16
"""To an octave: speeds are published in such steps, so that a trifle makes no new snapshot."""


class Seen(NamedTuple):
    """What one attempt that brought an answer showed. Times in milliseconds."""

    output_tokens: int | None
    """Thinking included; None: the length says nothing."""
    whole_ms: float
    """From the call to the end of its answer."""
    first_ms: float
    """To the first token."""
    tokens: int
    """That came from there on."""


def seen_of(outlook: Outlook, row: int, usage: Usage, whole_ms: float, first_ms: float | None, *, length: bool) -> Seen:
    """What an answer showed. One that was fetched whole is taken to have come as the model's usually do, at another
    pace. ``length``: the model ended it by itself, so that its length says something."""
    tokens = usage.output - usage.reasoning
    if first_ms is None:
        usual_ms = outlook.ttft_ms[row] + outlook.us_per_token[row] * tokens / 1000
        first_ms = whole_ms * outlook.ttft_ms[row] / max(1.0, usual_ms)
    return Seen(usage.output if length else None, whole_ms, first_ms, tokens)


class _Model:
    """Sums over the attempts at one model. What comes later weighs more, which is how the earlier fades."""

    __slots__ = ("answers", "bad", "first", "good", "length", "length_squared", "origin", "tokens", "us", "whole")

    def __init__(self, now: float) -> None:
        self.origin = now
        self.good = self.bad = self.answers = self.length = self.length_squared = self.tokens = self.us = 0.0
        self.first = Quantiles(ERROR)
        self.whole = Quantiles(ERROR)

    def weight(self, now: float) -> float:
        """What counts one at ``now``, in the sums' own measure."""
        half_lives = (now - self.origin) / HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:
            self._rescale(2.0**-half_lives)
            self.origin, half_lives = now, 0.0
        return float(2.0**half_lives)

    def _rescale(self, factor: float) -> None:
        for name in ("good", "bad", "answers", "length", "length_squared", "tokens", "us"):
            setattr(self, name, getattr(self, name) * factor)
        self.first.scale(factor)
        self.whole.scale(factor)


class Health:
    """Collects attempts; ``snapshot`` says what they show."""

    def __init__(self) -> None:
        self._seen: dict[str, _Model] = {}
        self.changed = False
        """Something was collected since the last snapshot."""

    def __bool__(self) -> bool:
        """Whether anything was collected at all."""
        return bool(self._seen)

    def failed(self, model: str, now: float) -> None:
        """An attempt failed by the provider's fault. ``now`` in monotonic seconds."""
        known = self._model(model, now)
        weight = known.weight(now)  # first: it may bring the sums down
        known.bad += weight

    def answered(self, model: str, now: float, seen: Seen) -> None:
        """An attempt brought an answer."""
        known = self._model(model, now)
        weight = known.weight(now)
        known.good += weight
        known.whole.add(seen.whole_ms, weight)
        known.first.add(seen.first_ms, weight)
        known.tokens += weight * seen.tokens
        known.us += weight * 1000 * max(0.0, seen.whole_ms - seen.first_ms)
        if seen.output_tokens is not None:
            known.answers += weight
            known.length += weight * seen.output_tokens
            known.length_squared += weight * seen.output_tokens * seen.output_tokens

    def snapshot(self, pool: Pool, now: float, kept_away: Mapping[str, int] | None = None) -> HealthSnapshot:
        """Freeze what is known at ``now`` under an id made from the content. ``kept_away``: models whose circuit is
        open, with the Unix millisecond of their next probe."""
        self.changed = False
        models = {model: _health(seen, seen.weight(now), pool, pool.row[model]) for model, seen in self._seen.items()}
        for model, probe_at_ms in (kept_away or {}).items():
            models[model] = replace(models.get(model, UNKNOWN), open=True, probe_at_ms=probe_at_ms)
        return health_snapshot(dict(sorted(models.items())))

    def _model(self, model: str, now: float) -> _Model:
        self.changed = True
        known = self._seen.get(model)
        if known is None:
            known = self._seen[model] = _Model(now)
        return known


def health_snapshot(models: dict[str, ModelHealth]) -> HealthSnapshot:
    """Put models' health under an id made from the content."""
    return HealthSnapshot("hea_" + content_id(models), models)


def _health(seen: _Model, weight: float, pool: Pool, row: int) -> ModelHealth:
    """What the sums say at a time when one counts ``weight``."""
    good = PRIOR_GOOD + seen.good / weight
    tries = good + PRIOR_BAD + seen.bad / weight
    share = good / tries
    bound = share - DEVIATIONS * sqrt(share * (1 - share) / tries)
    length, p90 = _length(seen, weight, pool.output[row])
    first, whole = seen.first, seen.whole
    enough = whole.total / weight >= LEAST_SEEN
    return ModelHealth(
        stability=round(1000 * bound),
        ttft_ms=round(first.at(0.5, pool.ttft_ms[row], PRIOR_ANSWERS * weight)) if first.total else None,
        ttft_p95_ms=round(first.at(0.95)) if enough else None,
        us_per_token=_speed(seen, weight, pool.us_per_token[row]) if seen.tokens else None,
        latency_p50_ms=round(whole.at(0.5)) if enough else None,
        latency_p95_ms=round(whole.at(0.95)) if enough else None,
        output_tokens=length,
        output_p90=p90,
    )


def _length(seen: _Model, weight: float, prior: int) -> tuple[int, int]:
    """Mean and 90th percentile of an answer's tokens."""
    answers = PRIOR_ANSWERS + seen.answers / weight
    mean = (PRIOR_ANSWERS * prior + seen.length / weight) / answers
    # The prior's spread is as wide as its mean, which puts its 90th percentile at about 2.3 times the mean.
    squared = (PRIOR_ANSWERS * 2 * prior**2 + seen.length_squared / weight) / answers
    return round(mean), round(mean + P90_DEVIATIONS * sqrt(max(0.0, squared - mean * mean)))


def _speed(seen: _Model, weight: float, prior: int) -> int:
    """Microseconds a token, in steps."""
    us = (PRIOR_SPEED_TOKENS * prior + seen.us / weight) / (PRIOR_SPEED_TOKENS + seen.tokens / weight)
    return max(1, round(2 ** (round(log2(max(us, 1.0)) * _SPEED_STEPS) / _SPEED_STEPS)))
