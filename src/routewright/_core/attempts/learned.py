"""Quantiles of what comes one by one, within a known relative error, in little memory: counts in buckets whose bounds
grow by a constant factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, log, log2
from typing import Any

from routewright._core.routing.pool import Pool
from routewright._core.routing.scale import MOST_STEPS, SIZE_STEPS
from routewright._core.trace.filter import text_of
from routewright.wire import Learned, LearnedModel, Usage


class Quantiles:
    """Weighted values above zero; smaller ones count as 1. Buckets lie ``error`` around their middle."""

    __slots__ = ("_ratio", "buckets", "weights")

    def __init__(self, error: float) -> None:
        self._ratio = (1 + error) / (1 - error)
        self.buckets = 1 / log(self._ratio)
        """To an e-fold: the bucket of a value above 1 is ``ceil(log(value) * buckets)``, else 0."""
        self.weights: defaultdict[int, float] = defaultdict(float)
        """Of each bucket. A value is counted by adding its weight."""

    @property
    def total(self) -> float:
        """Of all weights."""
        return sum(self.weights.values())

    def at(self, share: float, more: float | None = None, weight: float = 0.0) -> float:
        """The value below which a share of the weight lies, as if ``more`` had been counted with ``weight``, too."""
        weights: dict[int, float] = self.weights
        if more is not None:
            bucket = self.bucket(more)
            weights = {**weights, bucket: weights.get(bucket, 0.0) + weight}
        left = share * sum(weights.values())
        for bucket in sorted(weights):
            left -= weights[bucket]
            if left <= 0:
                return self._middle(bucket)
        return self._middle(max(weights, default=0))

    def scale(self, factor: float) -> None:
        """Multiply every weight; what is next to nothing is forgotten."""
        scaled = {bucket: new for bucket, weight in self.weights.items() if (new := weight * factor) > 1e-9}
        self.weights = defaultdict(float, scaled)

    def bucket(self, value: float) -> int:
        """The bucket of a value."""
        return ceil(log(value) * self.buckets) if value > 1.0 else 0

    def _middle(self, bucket: int) -> float:
        return 2 * self._ratio**bucket / (1 + self._ratio) if bucket else 1.0


EPOCH_S = 2.0
HALF_LIFE_S = 300.0  # after this long an observation counts half
SUMS = ("good", "bad", "answers", "length", "length_squared", "unusual", "late", "tokens", "us")


def epoch_at(at: float) -> int:
    """The epoch of a time in Unix seconds."""
    return int(at // EPOCH_S)


def plus(one: Learned, other: Learned) -> Learned:
    """Both together, at the later of their times."""
    at = max(one.at, other.at)
    mine, its = (0.5 ** ((at - each.at) / HALF_LIFE_S) for each in (one, other))
    sums = {name: getattr(one, name) * mine + getattr(other, name) * its for name in SUMS}
    first = _together(one.first, mine, other.first, its)
    whole = _together(one.whole, mine, other.whole, its)
    return Learned(at, first=first, whole=whole, **sums)


def added(model: str, row: LearnedModel | None, more: Learned) -> LearnedModel:
    """What is kept of a model when more is added. What comes late counts in the epoch in which it comes."""
    epoch, nothing = epoch_at(more.at), Learned(more.at)
    if row is None:
        return LearnedModel(model, epoch, nothing, more)
    if epoch > row.epoch:
        return LearnedModel(model, epoch, known_in(row, epoch), more)
    return LearnedModel(model, row.epoch, row.settled, plus(row.pending, more))


def known_in(row: LearnedModel, epoch: int) -> Learned:
    """What is known of a model in an epoch."""
    return row.settled if row.epoch >= epoch else plus(row.settled, row.pending)


def _together(one: dict[int, float], mine: float, other: dict[int, float], its: float) -> dict[int, float]:
    """The weights of both; what is next to nothing is forgotten."""
    both = {bucket: weight * mine for bucket, weight in one.items()}
    for bucket, weight in other.items():
        both[bucket] = both.get(bucket, 0.0) + weight * its
    return {bucket: weight for bucket, weight in both.items() if weight > 1e-6}


WORK_HALF_LIFE_S = (
    3_600.0  # After this long an observation counts half. Work changes more slowly than the models' pace.
)
MOST_WORKLOADS = 2_048  # the one that was quiet for longest is forgotten
MOST_RATIO = 32.0  # what is further from what was expected counts as this far
LEAVES_AT = 0.7  # steps from the published one at which another is published: plans are compiled for each
_MOST_HALF_LIVES = 512  # after so many the sums are brought down to their present measure
_FADED = 1e-300  # weight below which nothing is left of what was seen
MOST_VALUE_CHARS = 128  # of a metadata value; the rest of it does not count

Whose = tuple[str | None, ...]
"""A workload: account, environment, policy, and the values of the metadata keys that the settings name."""
Entry = tuple[int, float, float, float | None, Usage, bool, Whose | None, bool]
"""An answer as the journal holds it: the row of its model, when it ended (monotonic seconds), how long it took in
seconds, and its first token, where that is known; its usage; whether its length says something, since the model ended
it by itself and its usage is known; whose call it answered; whether it was the first attempt of a request."""


def values_of(metadata: Mapping[str, Any], keys: Sequence[str]) -> tuple[str | None, ...]:
    """What metadata says under the keys that make a workload. What is no scalar says nothing."""
    texts = [text_of(metadata.get(key)) for key in keys]
    return tuple([text and text[:MOST_VALUE_CHARS] for text in texts])


class _Part:
    """The part of a workload in one respect."""

    __slots__ = ("octaves", "step", "sums")

    def __init__(self) -> None:
        self.octaves = 0.0
        self.step = 0  # published: quarter octaves
        self.sums: dict[str, list[float]] = {}
        """By model: weight, weighed ratios, and the weight and octaves that the model's own sums have of these."""


class _Split:
    """One respect in which answers differ by workload and by model."""

    def __init__(self, of_workload: float, of_model: float) -> None:
        """How many observations it counts that a workload, or a model, is as usual."""
        self._of_workload = of_workload
        self._of_model = of_model
        self.sums: dict[str, list[float]] = {}
        """Of each model, over all workloads: weight, and weighed octaves without the workloads' parts."""

    def learn(self, part: _Part, model: str, count: int, total: float, weight: float) -> None:
        """Observations of one model in one workload: their number, and the sum of their ratios."""
        models, sums = self.sums, part.sums.setdefault(model, [0.0, 0.0, 0.0, 0.0])
        models.setdefault(model, [0.0, 0.0])
        sums[0] += count * weight
        sums[1] += total * weight
        left = [(models[name], each) for name, each in part.sums.items() if each[0] > _FADED]
        seen = [(own, each, each[0], log2(each[1] / each[0])) for own, each in left]
        weighed, octaves, prior = self._of_workload * weight, 0.0, self._of_model * weight
        for own, _, weight, ratio in seen:
            weighed += weight
            octaves += weight * (ratio - own[1] / (own[0] + prior))
        part.octaves = octaves / weighed
        for own, each, weight, ratio in seen:
            rest = weight * (ratio - part.octaves)
            own[0] += weight - each[2]
            own[1] += rest - each[3]
            each[2:] = weight, rest
        at = part.octaves * SIZE_STEPS
        if abs(at - part.step) > LEAVES_AT:
            part.step = max(-MOST_STEPS, min(MOST_STEPS, round(at)))


class Workloads:
    """The parts of workloads. To be used under a lock, but for ``steps``."""

    def __init__(self) -> None:
        self.steps: dict[Whose, tuple[int, int]] = {}
        """By how many quarter octaves answers are longer, and take more time, where that is not as usual."""
        self._splits = _Split(0.5, 16.0), _Split(8.0, 4.0)
        # lengths differ by the work above all, and what the first answers leave to the model counts for all accounts;
        # times differ by the model first, which may be slow just now
        self._parts: dict[Whose, tuple[_Part, _Part]] = {}
        self._origin: float | None = None

    def answered(self, row: int, now: float, answers: Sequence[Entry], pool: Pool) -> tuple[float, float]:
        """Learn from answers of one model to one workload. Returns what of them is the work's: how many of their tokens
        usual work would not have made, and the octaves of their times, added up."""
        whose, weight = answers[0][6], self._weight(now)
        if whose is None:
            return 0.0, 0.0
        length, time = parts = self._parts.pop(whose, None) or (_Part(), _Part())
        self._parts[whose] = parts  # the last, which is forgotten last
        if len(self._parts) > MOST_WORKLOADS:
            first = next(iter(self._parts))
            del self._parts[first]
            self.steps.pop(first, None)
        model, output, ttft_ms, us = pool.ids[row], pool.output[row], pool.ttft_ms[row], pool.us_per_token[row]
        count, tokens, ratios, times, least = 0, 0, 0.0, 0.0, 1 / MOST_RATIO
        for _, _, whole_s, _, usage, tells, _, _ in answers:
            if tells:
                count += 1
                tokens += usage.output
                ratios += min(max(usage.output / output, least), MOST_RATIO)
            ms = ttft_ms + us * (usage.output - usage.reasoning) / 1000 + least
            times += min(max(whole_s * 1000 / ms, least), MOST_RATIO)
        if count:
            self._splits[0].learn(length, model, count, ratios, weight)
        self._splits[1].learn(time, model, len(answers), times, weight)
        if (length.step, time.step) != (0, 0):
            self.steps[whose] = length.step, time.step
        else:
            self.steps.pop(whose, None)
        return tokens - tokens / 2.0**length.octaves, time.octaves * len(answers)

    def _weight(self, now: float) -> float:
        """What counts one at ``now``, in the sums' own measure."""
        if self._origin is None:
            self._origin = now
        half_lives = (now - self._origin) / WORK_HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:
            factor, self._origin, half_lives = 2.0**-half_lives, now, 0.0
            places: list[_Split | _Part] = [*self._splits, *(part for both in self._parts.values() for part in both)]
            for sums in [each for place in places for each in place.sums.values()]:
                sums[:] = [number * factor for number in sums]
        return float(2.0**half_lives)
