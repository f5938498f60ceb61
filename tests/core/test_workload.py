"""Statistics split by workload and model, compared with simulated worlds of known quality."""

from __future__ import annotations

from math import log2
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.attempts.health import Health
from routewright._core.attempts.statistics import (
    MOST_VALUE_CHARS,
    MOST_WORKLOADS,
    WORK_HALF_LIFE_S,
    Entry,
    WorkloadKey,
    Workloads,
    values_of,
)
from routewright._core.routing.decision import decision_of, explain
from routewright._core.routing.logarithms import MOST_STEPS, RATIOS, scale
from routewright.wire import Model, Pricing, Usage

from .boards import random_input
from .pools import board

IDS = "alpha/one", "beta/two", "gamma/three"
MODELS = [
    Model(id=name, quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0) for name in IDS
]
OUTLOOK = board(MODELS).forecast
POOL = OUTLOOK.pool
USUAL = POOL.output[0]
ACME: WorkloadKey = ("acme", "production", None)


def entry(
    row: int = 0, whose: WorkloadKey | None = ACME, *, length: float = 1.0, time: float = 1.0, tells: bool = True
) -> Entry:
    """An answer that is so many times as long, and took so many times as long for that, as the catalogue says."""
    tokens = round(USUAL * length)
    ms = time * (POOL.ttft_ms[row] + POOL.us_per_token[row] * tokens / 1000)
    return Entry(row, 0.0, ms / 1000, None, Usage(40, tokens), tells, whose, True)


class Factors(NamedTuple):
    """How many times as long as usual the answers of a workload are, and how many times the usual time they take."""

    length: float
    time: float


def answered(work: Workloads, row: int, now: float, one: Entry) -> Factors:
    unusual, late = work.record_answers(row, now, [one], POOL)
    tokens = one.usage.output
    return Factors(tokens / (tokens - unusual), 2.0**late)


def learn(work: Workloads, count: int = 1, *, now: float = 0.0, **given: Any) -> Factors:
    for _ in range(count):
        factors = answered(work, 0, now, entry(**given))
    return factors


def test_a_slowdown_is_attributed_to_the_model_at_once() -> None:
    work, health = Workloads(), Health(POOL)
    for now, time in ((0.0, 1.0), (300.0, 4.0)):
        for _ in range(200):
            answers = [entry(time=time)]
            health.record_answers(0, now, answers, OUTLOOK, *work.record_answers(0, now, answers, POOL))
    seen = health.figures(0, 300.0)
    assert seen.us_per_token is not None
    assert seen.us_per_token > 2 * POOL.us_per_token[0]
    assert work.steps.get(ACME, (0, 0))[1] <= 2


def test_models_and_workloads_each_get_their_own_part() -> None:
    """Noisy answers; who asks which model is up to chance, and one model is asked by few."""
    chance, work, health = Random(24), Workloads(), Health(POOL)
    models, tempers = [0.5, 1.0, 2.0], [1.0, 2.0, 0.5]
    jobs = {("acme", "production", str(n)): 2.0 ** chance.uniform(-2.5, 2.5) for n in range(12)}
    found: dict[WorkloadKey, Factors] = {}
    for n in range(6_000):
        whose = chance.choice([*jobs])
        row = chance.choices([0, 1, 2], [5, 3, 1])[0]
        length = jobs[whose] * models[row] * chance.lognormvariate(-0.18, 0.6)
        one = entry(row, whose, length=length, time=tempers[row] * chance.lognormvariate(0.0, 0.3))
        factors = found[whose] = answered(work, row, n / 10, one)
        unusual = one.usage.output * (1 - 1 / factors.length)
        health.record_answers(row, n / 10, [one], OUTLOOK, unusual, log2(factors.time))
    level = sum(models) / 3
    for whose, job in jobs.items():
        for row, model in enumerate(models):
            figures = health.figures(row, 600.0)
            assert figures.output_tokens is not None
            assert figures.output_tokens / USUAL * found[whose].length == pytest.approx(job * model, rel=0.35)
        assert found[whose].length == pytest.approx(job * level, rel=0.4)
    lengths = [health.figures(row, 600.0).output_tokens or 0 for row in range(3)]
    assert lengths[1] / lengths[0] == pytest.approx(2.0, rel=0.25)
    assert lengths[2] / lengths[1] == pytest.approx(2.0, rel=0.25)
    assert all(abs(step) < 3 for _, step in work.steps.values()), "their paces are the models' own"


def test_parts_do_not_drift_over_time() -> None:
    """Means of lengths and medians of times are not those of their logarithms, which must not add up."""
    chance, work = Random(7), Workloads()
    seen = []
    for n in range(20_000):
        one = entry(length=chance.lognormvariate(0.0, 1.0), time=chance.lognormvariate(0.0, 0.7))
        factors = answered(work, 0, n / 2, one)
        if n in (2_000, 19_999):
            seen.append(factors)
    assert seen[1].length == pytest.approx(seen[0].length, rel=0.15)
    assert seen[1].time == pytest.approx(seen[0].time, rel=0.15)


def test_observations_fade_when_the_workload_changes() -> None:
    work = Workloads()
    learn(work, 50, length=8.0)
    answered(work, 1, 0.0, entry(1, length=8.0))
    assert learn(work, 5, now=8 * WORK_HALF_LIFE_S, length=1.0).length < 1.6
    assert learn(work, 5, now=2_000 * WORK_HALF_LIFE_S, length=0.5).length == pytest.approx(0.55, abs=0.06)


def test_steps_are_bounded_and_a_usual_workload_has_none() -> None:
    work = Workloads()
    learn(work, 500, length=1_000.0, time=1 / 1_000)
    assert work.steps[ACME][0] == MOST_STEPS
    usual = Workloads()
    learn(usual, 20)
    assert usual.steps == {}


def test_a_cut_answer_teaches_no_length() -> None:
    assert Workloads().record_answers(0, 0.0, [entry(length=8.0, tells=False)], POOL)[0] == 0.0
    assert Workloads().record_answers(0, 0.0, [entry(whose=None, length=8.0)], POOL) == (0.0, 0.0)


def test_the_least_recently_used_workload_is_dropped() -> None:
    work = Workloads()
    for n in range(MOST_WORKLOADS + 10):
        work.record_answers(0, 0.0, [entry(whose=(str(n), "production", None), length=0.1)], POOL)
    assert len(work._parts) == MOST_WORKLOADS
    assert [("9", "production", None) in work.steps, ("10", "production", None) in work.steps] == [False, True]


def test_a_workload_is_identified_by_short_scalar_metadata() -> None:
    metadata = {"task": "x" * 500, "n": 3, "tags": ["a"]}
    assert values_of(metadata, ("task", "n", "tags", "none")) == ("x" * MOST_VALUE_CHARS, "3", None, None)


def test_budgets_use_observed_lengths_without_the_workload_split() -> None:
    plain, parted = Health(POOL), Health(POOL)
    for _ in range(30):
        answers = [entry(length=5.0, time=3.0)]
        plain.record_answers(0, 0.0, answers, OUTLOOK)
        parted.record_answers(0, 0.0, answers, OUTLOOK, 4 * USUAL, log2(3.0))
    one, other = plain.figures(0, 0.0), parted.figures(0, 0.0)
    assert other.output_tokens == USUAL
    assert other.ttft_ms == pytest.approx(POOL.ttft_ms[0], rel=0.06)
    assert other.us_per_token == pytest.approx(POOL.us_per_token[0], rel=0.06)
    usual = {"output_tokens": None, "ttft_ms": None, "us_per_token": None}
    assert replace(one, **usual) == replace(other, **usual)


@given(st.lists(st.integers(0, 1 << 40), min_size=2), st.integers(-MOST_STEPS, MOST_STEPS))
def test_scaling_keeps_the_order_and_no_step_keeps_the_number(numbers: list[int], step: int) -> None:
    found = [scale(number, step) for number in sorted(numbers)]
    assert found == sorted(found)
    assert [scale(number, 0) for number in numbers] == numbers
    assert RATIOS[4] == 2_048
    assert RATIOS[-8] == 256


def test_a_decision_uses_its_workloads_figures_but_not_for_budgets() -> None:
    world = board(MODELS)
    given = replace(random_input(Random(1), world), goal="cost", strategy="balanced", needs=0, workload=None,
                    max_output_tokens=None, budget_nanos=None, budget_tokens=None, timeout_ms=60_000)  # fmt: skip
    usual, half = decision_of(given, world), decision_of(replace(given, workload=(-4, 4)), world)
    one, other = usual.front[0], half.front[0]
    assert one.cost_usd is not None
    assert other.cost_usd is not None
    assert other.cost_usd < one.cost_usd
    same = decision_of(replace(given, workload=(0, 0)), world)
    assert (same.front, same.reason) == (usual.front, usual.reason)
    assert "this workload's answers are 50% as long as usual and take 200% of the usual time" in explain(half)
    assert "workload" not in explain(usual) + explain(same)
    assert [each.held for each in half._plan.legs] == [each.held for each in usual._plan.legs]
    assert [each.patience_s for each in half._plan.legs] == [each.patience_s for each in usual._plan.legs]
