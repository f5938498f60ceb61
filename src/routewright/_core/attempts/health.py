"""The health of models, learned from attempts of this process and, through the store, of others."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil, log, log2, sqrt

import msgspec
from msgspec.structs import replace

from routewright._core.routing.forecast import UNKNOWN, Forecast
from routewright._core.routing.pool import Pool
from routewright.wire import HealthSnapshot, Learned, LearnedModel, ModelHealth, Overrun

from .statistics import BUCKETS, EPOCH_S, HALF_LIFE_S, SUMS, Entry, Histogram, observations_in, quantile, scale

PRIOR_GOOD, PRIOR_BAD = 19.0, 1.0  # prior of a model's success rate: one failure in twenty
PRIOR_ANSWERS = 5.0  # weight of the prior length and time to the first token, in answers
PRIOR_SPEED_TOKENS = 2_000.0  # weight of the prior speed, in tokens
DEVIATIONS = 1.0  # the scored success rate is this many standard deviations below the mean
P90_DEVIATIONS = 1.28
LEAST_SEEN = 4.5
"""The least weight of observations for a 95th percentile: five that have faded a little."""
_MOST_HALF_LIVES = 64  # after this many, sums are rescaled
_SPEED_STEPS = 16  # steps per octave in which speeds are published
LOOK_EVERY_S = 10.0  # how often a model's figures are checked for changes by fading
LOOKS = 32  # models checked for fading in one publication; all of them after a pause of ``LOOK_EVERY_S``
FADED = 0.02  # a model with less weight than this counts as never called

OCTAVE_STEP = 2 ** (1 / 8)
_SCALES = "ttft_ms us_per_token ttft_p95_ms latency_p50_ms latency_p95_ms output_tokens output_p90".split()
STEPS: dict[str, float | None] = {
    "stability": 10, **dict.fromkeys(_SCALES, OCTAVE_STEP), "open": None, "probe_at_ms": None, "overrun": None
}  # fmt: skip
"""By how much each figure may differ from the published one: absolutely (stability), by a factor, or not (None)."""


class Sums:
    """Weighted sums over the attempts at one model. Later attempts get exponentially larger weights, so older ones
    fade."""

    __slots__ = ("first", "origin", "whole", *SUMS)

    def __init__(self, now: float) -> None:
        self.origin = now
        self.good = self.bad = 0.0
        self.answers = self.tokens = 0.0
        self.length = self.length_squared = 0.0
        self.us = 0.0
        self.unusual = self.late = 0.0
        self.first: Histogram = defaultdict(float)  # of the times in milliseconds
        self.whole: Histogram = defaultdict(float)

    def weight(self, now: float) -> float:
        """The weight of an observation at ``now``. May rescale the sums."""
        half_lives = (now - self.origin) / HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:
            self._scale(2.0**-half_lives)
            self.origin = now
            half_lives = 0.0
        return float(2.0**half_lives)

    @classmethod
    def of(cls, learned: Learned) -> Sums:
        """Sums from the store. Their time is in Unix seconds."""
        sums = cls(learned.at)
        for name in SUMS:
            setattr(sums, name, getattr(learned, name))
        sums.first.update(learned.first)
        sums.whole.update(learned.whole)
        return sums

    def learned(self, now: float, at: float) -> Learned:
        """The sums rescaled to ``now``, which is ``at`` in Unix seconds."""
        self._scale(1 / self.weight(now))
        self.origin = now
        totals = {name: getattr(self, name) for name in SUMS}
        return Learned(at, first=dict(self.first), whole=dict(self.whole), **totals)

    def _scale(self, factor: float) -> None:
        for name in SUMS:
            setattr(self, name, getattr(self, name) * factor)
        self.first = scale(self.first, factor)
        self.whole = scale(self.whole, factor)


class Health:
    """The health of a pool's models, by row. Use it under a lock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sums: dict[int, Sums] = {}
        self._published: dict[int, ModelHealth] = {}
        self._closed: frozenset[int] = frozenset()
        self._news: set[int] = set()  # rows with observations since the last publication
        self._looks: deque[tuple[float, int]] = deque()  # the next check of each row for fading, soonest first
        self.overruns: dict[int, Overrun] = {}
        """Of rows whose provider has billed more than was admitted, until the process ends."""

    def learn_from(self, other: Health, rows: Mapping[int, int], now: float) -> None:
        """Copy another pool's knowledge. ``rows`` maps this pool's rows to the other's."""
        self._sums = {row: other._sums[theirs] for row, theirs in rows.items() if theirs in other._sums}
        self._looks.extend((now + LOOK_EVERY_S, row) for row in self._sums)
        self._news.update(self._sums)

    def record_overrun(self, row: int, overrun: Overrun) -> None:
        """Record that a provider billed more than was admitted. Later calls are covered by the most that was billed."""
        self.overruns[row] = overrun.merge(self.overruns.get(row))

    def record_fault(self, row: int, now: float) -> None:
        """Record a failure that is the provider's fault. ``now`` in monotonic seconds."""
        sums = self._sums_of(row, now)
        weight = sums.weight(now)  # may rescale the sums: compute it first
        sums.bad += weight

    def record_answers(
        self,
        row: int,
        now: float,
        answers: Sequence[Entry],
        forecast: Forecast,
        unusual: float = 0.0,
        late: float = 0.0,
    ) -> None:
        """Record answers of one model that came at about the same time. An unknown time of the first token is estimated
        from the model's usual ratio. ``unusual``: tokens of the answers' lengths caused by the workload. ``late``: sum
        of octaves of their times caused by it."""
        sums = self._sums_of(row, now)
        weight = sums.weight(now)  # may rescale the sums: compute it first
        usual_ms = forecast.ttft_ms[row]
        ms_per_token = forecast.us_per_token[row] / 1000
        whole_times = sums.whole
        first_times = sums.first
        count = tokens = 0
        length = length_squared = 0
        after_first_ms = 0.0
        for answer in answers:
            output = answer.usage.output
            visible = output - answer.usage.reasoning
            ms = answer.whole_s * 1000
            if answer.first_s is None:
                usually = usual_ms + ms_per_token * visible
                first_ms = ms * usual_ms / (usually if usually > 1.0 else 1.0)
            else:
                first_ms = answer.first_s * 1000
            whole_times[ceil(log(ms) * BUCKETS) if ms > 1.0 else 0] += weight
            first_times[ceil(log(first_ms) * BUCKETS) if first_ms > 1.0 else 0] += weight
            tokens += visible
            if ms > first_ms:
                after_first_ms += ms - first_ms
            if answer.is_usual:
                count += 1
                length += output
                length_squared += output * output
        sums.good += weight * len(answers)
        sums.tokens += weight * tokens
        sums.us += weight * 1000 * after_first_ms
        sums.late += weight * late
        sums.answers += weight * count
        sums.length += weight * length
        sums.length_squared += weight * length_squared
        sums.unusual += weight * unusual

    def publish(self, now: float, closed: Mapping[int, int]) -> dict[int, ModelHealth]:
        """The rows whose figures moved by a step, with the new figures, which are then the published ones. ``closed``:
        rows with an open circuit, with the Unix millisecond of their next probe."""
        rows = self._news | self._due(now) | closed.keys() | self._closed | self.overruns.keys()
        self._news = set()
        self._closed = frozenset(closed)
        updates = {}
        for row in sorted(rows):
            figures = self.figures(row, now)
            if row in closed:
                figures = replace(figures, open=True, probe_at_ms=closed[row])
            if row in self.overruns:
                figures = replace(figures, overrun=self.overruns[row])
            if self._is_news(self._published.get(row, UNKNOWN), figures):
                self._published[row] = updates[row] = figures
        return updates

    def figures(self, row: int, now: float) -> ModelHealth:
        """A model's current figures, published or not."""
        sums = self._sums.get(row)
        return UNKNOWN if sums is None else figures_of(sums, sums.weight(now), self._pool, row)

    def _is_news(self, before: ModelHealth, now: ModelHealth) -> bool:
        return is_moved(before, now)

    def _sums_of(self, row: int, now: float) -> Sums:
        self._news.add(row)
        if (sums := self._sums.get(row)) is None:
            sums = self._sums[row] = Sums(now)
            self._looks.append((now + LOOK_EVERY_S, row))
        return sums

    def _due(self, now: float) -> set[int]:
        """Rows to check for fading. Drops rows that have faded away."""
        due: set[int] = set()
        looks = self._looks
        maximum = len(looks) if looks and looks[0][0] <= now - LOOK_EVERY_S else LOOKS
        while looks and looks[0][0] <= now and len(due) < maximum:
            _, row = looks.popleft()
            due.add(row)
            sums = self._sums[row]
            if sums.good + sums.bad < FADED * sums.weight(now):
                del self._sums[row]
            else:
                looks.append((now + LOOK_EVERY_S, row))
        return due


def is_moved(before: ModelHealth, now: ModelHealth) -> bool:
    """True if a figure differs from its published value by a step, or appeared or disappeared."""
    for name, step in STEPS.items():
        old, new = getattr(before, name), getattr(now, name)
        if old == new:
            continue
        if step is None or old is None or new is None:
            return True
        if abs(new - old) > step if name == "stability" else max(old, new) > step * min(old, new):
            return True
    return False


def health_snapshot(models: Mapping[str, ModelHealth]) -> HealthSnapshot:
    """A snapshot of models' health. Its id is the sum of a digest per model, so it can be updated incrementally."""
    return health_after(HealthSnapshot("hea_0", {}), models)


def health_after(previous: HealthSnapshot, updates: Mapping[str, ModelHealth]) -> HealthSnapshot:
    """The snapshot with some models' health replaced. Its id equals that of ``health_snapshot``."""
    total = int(previous.id.removeprefix("hea_"), 16)
    for model, health in updates.items():
        if (figures := previous.models.get(model)) is not None:
            total -= _digest(model, figures)
        if health != UNKNOWN:
            total += _digest(model, health)
    models = {model: health for model, health in {**previous.models, **updates}.items() if health != UNKNOWN}
    return HealthSnapshot(f"hea_{total % (1 << 128):032x}", models)


def _digest(model: str, health: ModelHealth) -> int:
    return int.from_bytes(blake2b(msgspec.json.encode((model, health)), digest_size=16).digest())


def figures_of(sums: Sums, weight: float, pool: Pool, row: int) -> ModelHealth:
    """A model's figures from its sums. ``weight``: of an observation at the present time."""
    good = PRIOR_GOOD + sums.good / weight
    tries = good + PRIOR_BAD + sums.bad / weight
    share = good / tries
    lower_bound = share - DEVIATIONS * sqrt(share * (1 - share) / tries)
    prior = pool.output[row]
    answers = PRIOR_ANSWERS + sums.answers / weight
    mean = (PRIOR_ANSWERS * prior + sums.length / weight) / answers
    # the prior's standard deviation equals its mean, so its 90th percentile is about 2.3 times the mean
    squared = (PRIOR_ANSWERS * 2 * prior**2 + sums.length_squared / weight) / answers
    usual = mean - sums.unusual / weight / answers
    p90 = round(mean + P90_DEVIATIONS * sqrt(max(0.0, squared - mean * mean)))
    late = 2 ** (sums.late / sums.good) if sums.good else 1.0
    ttft_ms = quantile(sums.first, 0.5, pool.ttft_ms[row] * late, PRIOR_ANSWERS * weight) / late if sums.first else None
    us_per_token = None
    if sums.tokens:
        us = PRIOR_SPEED_TOKENS * pool.us_per_token[row] + sums.us / late / weight
        us /= PRIOR_SPEED_TOKENS + sums.tokens / weight
        us_per_token = max(1, round(2 ** (round(log2(max(us, 1.0)) * _SPEED_STEPS) / _SPEED_STEPS)))
    is_enough = sum(sums.whole.values()) / weight >= LEAST_SEEN
    return ModelHealth(
        stability=round(1000 * lower_bound),
        ttft_ms=None if ttft_ms is None else round(ttft_ms),
        ttft_p95_ms=round(quantile(sums.first, 0.95)) if is_enough else None,
        us_per_token=us_per_token,
        latency_p50_ms=round(quantile(sums.whole, 0.5)) if is_enough else None,
        latency_p95_ms=round(quantile(sums.whole, 0.95)) if is_enough else None,
        output_tokens=round(usual),
        output_p90=p90,
    )


class SharedHealth(Health):
    """Health shared by all processes of a store. Observations of this process are collected until ``take``, and count
    once they are read back from the store. What an epoch publishes depends only on what is stored for it, so all
    processes publish the same."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.epoch = -1  # of ``_learned``
        self._learned: dict[int, Learned] = {}
        self._looked_at: dict[int, float] = {}  # the time that each row's figures were computed for

    def take(self, now: float, at: float) -> dict[str, Learned]:
        """Remove and return what was collected, by model. ``now`` is ``at`` in Unix seconds."""
        learned = {}
        for row, sums in self._sums.items():
            learned[self._pool.ids[row]] = replace(sums.learned(now, at), overrun=self.overruns.get(row))
        self.forget()
        return learned

    def forget(self) -> None:
        """Drop what was collected."""
        self._sums.clear()

    def know(self, rows: Sequence[LearnedModel], epoch: int) -> None:
        """Move to an epoch. ``rows``: the models changed since the previous one."""
        self.epoch = epoch
        for model in rows:
            if (pool_row := self._pool.row.get(model.model)) is not None:
                learned = self._learned[pool_row] = observations_in(model, epoch)
                if learned.overrun is not None:
                    self.record_overrun(pool_row, learned.overrun)
                self._looked_at.pop(pool_row, None)

    def figures(self, row: int, now: float) -> ModelHealth:
        """A model's figures in this epoch, rounded to steps."""
        if row not in self._learned:
            return UNKNOWN
        sums = Sums.of(self._learned[row])
        weight = sums.weight(self._look_at(row))
        if sums.good + sums.bad < FADED * weight:
            return UNKNOWN
        return in_steps(figures_of(sums, weight, self._pool, row))

    def _is_news(self, before: ModelHealth, now: ModelHealth) -> bool:
        return before != now

    def _sums_of(self, row: int, now: float) -> Sums:
        return self._sums.setdefault(row, Sums(now))

    def _due(self, now: float) -> set[int]:
        """Rows that changed, and those to check for fading."""
        look_at = {row: self._look_at(row) for row in self._learned}
        due = {row for row, at in look_at.items() if self._looked_at.get(row) != at}
        self._looked_at = look_at
        return due

    def _look_at(self, row: int) -> float:
        """The time to compute a row's figures for: its last change plus a whole number of ``LOOK_EVERY_S``."""
        at = self._learned[row].at
        return at + max(0.0, self.epoch * EPOCH_S - at) // LOOK_EVERY_S * LOOK_EVERY_S


def in_steps(figures: ModelHealth) -> ModelHealth:
    """The figures rounded to their steps, so that small changes are not published."""
    steps: dict[str, int] = {}
    for name, step in STEPS.items():
        value = getattr(figures, name)
        if step is None or not value:
            continue
        if name == "stability":
            steps[name] = round(value / step) * round(step)
        else:
            steps[name] = round(step ** round(log(value, step)))
    return replace(figures, **steps)
