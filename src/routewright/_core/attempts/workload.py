"""Parts what attempts show between the work and the model: how much longer, and later, the answers of a workload are.

Of a workload's answers by each model it keeps the mean ratio to what the catalogue expects of that model. In octaves
such a ratio is the workload's part plus the model's part, each of which is probably small: the least squares of both,
improved by one step with each answer, where a part of nothing counts as a number of observations. Nothing in the ratios
depends on what was published before, so the parts cannot drive each other away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from routewright._core.routing.pool import Pool
from routewright._core.routing.scale import MOST_STEPS, SIZE_STEPS
from routewright._core.trace.filter import text_of
from routewright.wire import Usage

HALF_LIFE_S = 3_600.0  # After this long an observation counts half. Work changes more slowly than the models' pace.
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
        half_lives = (now - self._origin) / HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:
            factor, self._origin, half_lives = 2.0**-half_lives, now, 0.0
            places: list[_Split | _Part] = [*self._splits, *(part for both in self._parts.values() for part in both)]
            for sums in [each for place in places for each in place.sums.values()]:
                sums[:] = [number * factor for number in sums]
        return float(2.0**half_lives)
