"""Observations of attempts in mergeable form: streaming quantiles, the sums shared through the store, and the effect of
workloads on the length and time of answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, log, log2
from typing import TypeAlias

from msgspec import Struct

from routewright._core.routing.logarithms import MOST_STEPS, SIZE_STEPS
from routewright._core.routing.pool import Pool
from routewright._core.trace.filter import text_of
from routewright.wire import Learned, LearnedModel, Usage

ERROR = 0.05  # relative error of the quantiles
_RATIO = (1 + ERROR) / (1 - ERROR)
BUCKETS = 1 / log(_RATIO)
"""Buckets of a histogram per factor of e."""

Histogram: TypeAlias = "defaultdict[int, float]"
"""Weights of values by bucket. The bucket of a value above 1 is ``ceil(log(value) * BUCKETS)``, else 0."""


def quantile(weights: Mapping[int, float], share: float, more: float | None = None, weight: float = 0.0) -> float:
    """The quantile of ``share``, as if ``more`` had been counted with ``weight``, too."""
    if more is not None:
        bucket = ceil(log(more) * BUCKETS) if more > 1.0 else 0
        weights = {**weights, bucket: weights.get(bucket, 0.0) + weight}
    rest = share * sum(weights.values())
    bucket = 0
    for bucket in sorted(weights):
        rest -= weights[bucket]
        if rest <= 0:
            break
    return 2 * _RATIO**bucket / (1 + _RATIO) if bucket else 1.0


def scale(weights: Mapping[int, float], factor: float) -> Histogram:
    """The histogram with all weights multiplied, without negligible ones."""
    return defaultdict(float, {bucket: new for bucket, weight in weights.items() if (new := weight * factor) > 1e-9})


EPOCH_S = 2.0
HALF_LIFE_S = 300.0  # of an observation's weight
SUMS = ("good", "bad", "answers", "length", "length_squared", "unusual", "late", "tokens", "us")


def epoch_at(at: float) -> int:
    """The epoch at a time in Unix seconds."""
    return int(at // EPOCH_S)


def add_learned(one: Learned, other: Learned) -> Learned:
    """The sum of both, at the later of their times."""
    at = max(one.at, other.at)
    mine, its = (0.5 ** ((at - learned.at) / HALF_LIFE_S) for learned in (one, other))
    totals = {name: getattr(one, name) * mine + getattr(other, name) * its for name in SUMS}
    histograms: list[dict[int, float]] = []
    for weights, more in ((one.first, other.first), (one.whole, other.whole)):
        total = {bucket: weight * mine for bucket, weight in weights.items()}
        for bucket, weight in more.items():
            total[bucket] = total.get(bucket, 0.0) + weight * its
        histograms.append({bucket: weight for bucket, weight in total.items() if weight > 1e-6})
    overrun = one.overrun.merge(other.overrun) if one.overrun else other.overrun
    return Learned(at, first=histograms[0], whole=histograms[1], overrun=overrun, **totals)


def added(model: str, row: LearnedModel | None, learned: Learned) -> LearnedModel:
    """A model's stored row after adding observations. Late ones count in the row's current epoch."""
    epoch = epoch_at(learned.at)
    if row is None:
        return LearnedModel(model, epoch, Learned(learned.at), learned)
    if epoch > row.epoch:
        return LearnedModel(model, epoch, observations_in(row, epoch), learned)
    return LearnedModel(model, row.epoch, row.settled, add_learned(row.pending, learned))


def observations_in(row: LearnedModel, epoch: int) -> Learned:
    """The observations of a model that count in an epoch."""
    return row.settled if row.epoch >= epoch else add_learned(row.settled, row.pending)


WORK_HALF_LIFE_S = 3_600.0  # workloads change more slowly than the models' speed
MOST_WORKLOADS = 2_048  # the least recently used is dropped
MOST_RATIO = 32.0  # larger ratios of observed to expected count as this
_LEAST_RATIO = 1 / MOST_RATIO
LEAVES_AT = 0.7  # steps from the published value at which a new one is published: each needs its own plans
_MOST_HALF_LIVES = 512  # after this many, sums are rescaled
_FADED = 1e-300  # a smaller weight counts as none
MOST_VALUE_CHARS = 128  # longer metadata values are cut

WorkloadKey = tuple[str | None, ...]
"""A workload: account, environment, policy, and the values of the metadata keys named in the settings."""


class Entry(Struct, frozen=True, gc=False):
    """An answer in the journal."""

    row: int
    """Of its model."""
    ended_at: float
    """Monotonic seconds."""
    whole_s: float
    first_s: float | None
    """Seconds to its first token, if known."""
    usage: Usage
    is_usual: bool
    """Its length is representative: the model ended it, and its usage is known."""
    workload: WorkloadKey | None
    """Its workload."""
    is_first: bool
    """It was the first attempt of a request."""


def values_of(metadata: Mapping[str, object], keys: Sequence[str]) -> tuple[str | None, ...]:
    """The metadata values that identify a workload; None for missing and non-scalar values."""
    return tuple([text and text[:MOST_VALUE_CHARS] for text in [text_of(metadata.get(key)) for key in keys]])


class _Part(Struct):
    """The effect of one workload on length or time."""

    octaves: float = 0.0
    step: int = 0
    """Published: quarter octaves."""
    sums: dict[str, list[float]] = {}
    """By model: weight, weighted ratios, and the weight and octaves already contained in the model's own sums."""


class _Split:
    """Splits differences in length or time into a part per workload and a part per model."""

    def __init__(self, of_workload: float, of_model: float) -> None:
        """The weights of the priors, in observations: that a workload, or a model, is as usual."""
        self._of_workload = of_workload
        self._of_model = of_model
        self.sums: dict[str, list[float]] = {}
        """By model, over all workloads: weight, and weighted octaves without the workloads' parts."""

    def learn(self, part: _Part, model: str, count: int, total: float, weight: float) -> None:
        """Learn from observations of one model in one workload. ``total``: the sum of their ratios."""
        # A long answer has two explanations: this workload's answers are long, or the model's are at the moment. Means
        # by workload alone blame the workload for a slow model, and then every model looks slow to it. Both parts are
        # estimated in turns, each from what the other leaves unexplained, with priors that say which one usually
        # varies. A model's sums contain the rest of each workload, so a new estimate must replace the old rest and not
        # add to it, or the parts drift: the last two sums remember what was put in
        # (``test_parts_do_not_drift_over_time``, ``test_a_slowdown_is_attributed_to_the_model_at_once``).
        sums = part.sums.setdefault(model, [0.0, 0.0, 0.0, 0.0])
        self.sums.setdefault(model, [0.0, 0.0])
        sums[0] += count * weight
        sums[1] += total * weight
        ratios = [
            (self.sums[name], part_sums, part_sums[0], log2(part_sums[1] / part_sums[0]))
            for name, part_sums in part.sums.items()
            if part_sums[0] > _FADED
        ]
        total_weight = self._of_workload * weight
        octaves = 0.0
        for model_sums, _, ratio_weight, ratio in ratios:
            total_weight += ratio_weight
            octaves += ratio_weight * (ratio - model_sums[1] / (model_sums[0] + self._of_model * weight))
        part.octaves = octaves / total_weight
        for model_sums, part_sums, ratio_weight, ratio in ratios:
            rest = ratio_weight * (ratio - part.octaves)
            model_sums[0] += ratio_weight - part_sums[2]
            model_sums[1] += rest - part_sums[3]
            part_sums[2:] = ratio_weight, rest
        steps = part.octaves * SIZE_STEPS
        if abs(steps - part.step) > LEAVES_AT:
            part.step = max(-MOST_STEPS, min(MOST_STEPS, round(steps)))


class Workloads:
    """The effects of workloads. Use it under a lock; ``steps`` may be read without."""

    def __init__(self) -> None:
        self.steps: dict[WorkloadKey, tuple[int, int]] = {}
        """Quarter octaves by which a workload's answers are longer and slower than usual, if not (0, 0)."""
        self._splits = _Split(0.5, 16.0), _Split(8.0, 4.0)
        # lengths depend mostly on the workload, times mostly on the model, which may be slow at the moment
        self._parts: dict[WorkloadKey, tuple[_Part, _Part]] = {}
        self._origin: float | None = None

    def record_answers(self, row: int, now: float, answers: Sequence[Entry], pool: Pool) -> tuple[float, float]:
        """Learn from answers of one model to one workload. Returns the workload's part: the tokens beyond a usual
        workload's, and the sum of octaves of their times."""
        workload = answers[0].workload
        if workload is None:
            return 0.0, 0.0
        if self._origin is None:
            self._origin = now
        half_lives = (now - self._origin) / WORK_HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:  # rescale the sums
            factor = 2.0**-half_lives
            half_lives = 0.0
            self._origin = now
            holders: list[_Split | _Part] = [*self._splits, *(part for both in self._parts.values() for part in both)]
            for row_sums in [sums for holder in holders for sums in holder.sums.values()]:
                row_sums[:] = [number * factor for number in row_sums]
        weight = float(2.0**half_lives)
        length, time = parts = self._parts.pop(workload, None) or (_Part(), _Part())
        self._parts[workload] = parts  # moved to the end: least recently used first
        if len(self._parts) > MOST_WORKLOADS:
            oldest = next(iter(self._parts))
            del self._parts[oldest]
            self.steps.pop(oldest, None)
        count = tokens = 0
        ratios = times = 0.0
        for answer in answers:
            usage = answer.usage
            if answer.is_usual:
                count += 1
                tokens += usage.output
                ratios += min(max(usage.output / pool.output[row], _LEAST_RATIO), MOST_RATIO)
            ms = pool.ttft_ms[row] + pool.us_per_token[row] * (usage.output - usage.reasoning) / 1000 + _LEAST_RATIO
            times += min(max(answer.whole_s * 1000 / ms, _LEAST_RATIO), MOST_RATIO)
        if count:
            self._splits[0].learn(length, pool.ids[row], count, ratios, weight)
        self._splits[1].learn(time, pool.ids[row], len(answers), times, weight)
        if (length.step, time.step) != (0, 0):
            self.steps[workload] = length.step, time.step
        else:
            self.steps.pop(workload, None)
        return tokens - tokens / 2.0**length.octaves, time.octaves * len(answers)
