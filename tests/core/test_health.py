"""Decaying health statistics of models: the running sums against a recount of all observations."""

from __future__ import annotations

from itertools import accumulate
from math import sqrt
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.attempts.health import (
    LOOK_EVERY_S,
    LOOKS,
    STEPS,
    Health,
    health_after,
    health_snapshot,
    is_moved,
)
from routewright._core.attempts.statistics import HALF_LIFE_S, Entry
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Boards
from routewright._core.routing.forecast import UNKNOWN
from routewright._core.routing.pool import Pool
from routewright.wire import HealthSnapshot, Model, ModelHealth, Pricing, Usage
from tests.tables import table

from .boards import random_health
from .pools import board

ONE = Model(id="a/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
TWO = Model(id="b/two", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
OUTLOOK = board([ONE, TWO]).forecast
POOL: Pool = OUTLOOK.pool
YEAR_S = 365 * 86_400.0


class AnswerFigures(NamedTuple):
    """What an answer showed. Times in milliseconds."""

    output_tokens: int | None
    """None: the length says nothing."""
    whole_ms: float
    first_ms: float | None
    tokens: int
    """That were not thought."""


ANSWER = AnswerFigures(100, 3_000.0, 500.0, 100)


class Observation(NamedTuple):
    """An attempt and when it was; ``seen``: None where it failed."""

    at: float
    seen: AnswerFigures | None


def entry(at: float, seen: AnswerFigures, row: int = 0) -> Entry:
    output = seen.tokens if seen.output_tokens is None else seen.output_tokens
    first_s = None if seen.first_ms is None else seen.first_ms / 1000
    usage = Usage(40, output, reasoning=output - seen.tokens)
    return Entry(row, at, seen.whole_ms / 1000, first_s, usage, seen.output_tokens is not None, None, False)


def book_answer(health: Health, at: float, seen: AnswerFigures = ANSWER, row: int = 0) -> None:
    health.record_answers(row, at, [entry(at, seen, row)], OUTLOOK)


def note(health: Health, at: float, seen: AnswerFigures | None) -> None:
    health.record_fault(0, at) if seen is None else book_answer(health, at, seen)


def health_of(noted: list[Observation]) -> Health:
    health = Health(POOL)
    for observed in noted:
        note(health, *observed)
    return health


def figures_at(health: Health, now: float) -> ModelHealth:
    return health.figures(0, now)


ANSWERS = st.builds(
    lambda length, first, rest, tokens: AnswerFigures(length, float(first + rest), float(first), tokens),
    st.none() | st.integers(0, 20_000),
    st.integers(1, 60_000),
    st.integers(0, 600_000),
    st.integers(0, 20_000),
)
GAPS = st.sampled_from([0.0, 0.3, 60.0, 300.0, 3_600.0, 40_000.0]) | st.floats(0, 1_000)
HISTORIES = st.lists(st.tuples(GAPS, st.none() | ANSWERS), min_size=1, max_size=40).map(
    lambda history: list(map(Observation, accumulate(gap for gap, _ in history), [seen for _, seen in history]))
)


@given(HISTORIES, GAPS)
def test_running_sums_equal_a_recount_of_all_observations(noted: list[Observation], later: float) -> None:
    now = noted[-1].at + later
    found, exact = figures_at(health_of(noted), now), Exact(noted, now)
    assert found.stability == pytest.approx(exact.stability, abs=0.51)
    assert found.output_tokens == pytest.approx(exact.length, abs=0.51)
    assert found.output_p90 == pytest.approx(exact.p90, rel=1e-6, abs=0.51)
    if exact.speed is not None and found.us_per_token is not None:
        assert found.us_per_token == pytest.approx(exact.speed, rel=0.03, abs=1)
    if abs(exact.answers - 4.5) > 1e-6:
        assert (found.latency_p95_ms is None) == (exact.answers < 4.5) == (found.ttft_p95_ms is None)
    if found.latency_p95_ms is not None:
        assert exact.holds(0.95, found.latency_p95_ms, "whole_ms")


class Exact:
    """The same from the observations themselves, each with its own weight."""

    def __init__(self, noted: list[Observation], now: float) -> None:
        weighed = [(0.5 ** ((now - at) / HALF_LIFE_S), seen) for at, seen in noted]
        self.seen = answered = [(weight, seen) for weight, seen in weighed if seen is not None]
        self.answers = sum(weight for weight, _ in answered)
        good, bad = 19 + self.answers, 1 + sum(weight for weight, seen in weighed if seen is None)
        share = good / (good + bad)
        self.stability = 1000 * (share - sqrt(share * (1 - share) / (good + bad)))
        lengths = [(weight, seen.output_tokens) for weight, seen in answered if seen.output_tokens is not None]
        prior, count = POOL.output[0], 5 + sum(weight for weight, _ in lengths)
        self.length = (5 * prior + sum(weight * length for weight, length in lengths)) / count
        squared = (10 * prior**2 + sum(weight * length**2 for weight, length in lengths)) / count
        self.p90 = self.length + 1.28 * sqrt(max(0.0, squared - self.length**2))
        tokens = sum(weight * seen.tokens for weight, seen in answered)
        us = sum(weight * 1000 * (seen.whole_ms - (seen.first_ms or 0)) for weight, seen in answered)
        self.speed = max(1.0, (2000 * POOL.us_per_token[0] + us) / (2000 + tokens)) if tokens else None

    def holds(self, share: float, found: float, name: str) -> bool:
        """Whether a value is within five per cent of one that has the share below or at it, by a hair's breadth."""
        below = 0.0
        for value, weight in sorted((getattr(seen, name), weight) for weight, seen in self.seen):
            first = below <= share * self.answers * (1 + 1e-6)
            below += weight
            reached = below >= share * self.answers * (1 - 1e-6)
            if first and reached and abs(found - value) <= 0.051 * value + 0.5:
                return True
        return False


def test_a_whole_answers_first_token_is_estimated_from_the_usual_ratio() -> None:
    usual_ms = 1_000.0 + 100 * OUTLOOK.us_per_token[0] / 1_000
    whole = [Observation(0.0, AnswerFigures(100, usual_ms * 2, None, 100))] * 9
    streamed = [Observation(0.0, AnswerFigures(100, usual_ms * 2, 2_000.0, 100))] * 9
    assert figures_at(health_of(whole), 0.0) == figures_at(health_of(streamed), 0.0)


def test_reasoning_tokens_do_not_count_for_speed() -> None:
    thought, said = (
        figures_at(health_of([Observation(0.0, AnswerFigures(100, 3_000.0, 500.0, n))] * 90), 0.0) for n in (40, 100)
    )
    assert thought.output_tokens == said.output_tokens
    assert (thought.us_per_token or 0) > 1.5 * (said.us_per_token or 0)


def test_sums_survive_decades() -> None:
    health, now = Health(POOL), 0.0
    for year in range(50):
        now = year * YEAR_S
        for _ in range(6):
            book_answer(health, now)
            health.record_fault(0, now)
    fresh = health_of([Observation(0.0, ANSWER), Observation(0.0, None)] * 6)
    assert figures_at(health, now) == figures_at(fresh, 0.0)
    quiet = figures_at(health, now + 1_000 * YEAR_S)
    assert (quiet.stability, quiet.output_tokens) == (901, POOL.output[0])
    assert (quiet.ttft_ms, quiet.latency_p95_ms) == (None, None)


@given(st.lists(ANSWERS, min_size=1, max_size=64))
def test_a_batch_of_answers_counts_like_single_ones(seen: list[AnswerFigures]) -> None:
    together, apart = Health(POOL), Health(POOL)
    for health in (together, apart):
        health.record_fault(0, 0.0)
    together.record_answers(0, 77.7, [entry(77.7, each) for each in seen], OUTLOOK)
    for each in seen:
        book_answer(apart, 77.7, each)
    for name in STEPS:
        assert getattr(figures_at(together, 80.0), name) == getattr(figures_at(apart, 80.0), name)


# --- what is news


def test_every_figure_of_a_model_has_its_step() -> None:
    assert set(STEPS) == set(ModelHealth.__struct_fields__)


@table("name", ModelHealth.__struct_fields__)
def test_a_figure_is_news_only_beyond_its_step(name: str) -> None:
    pairs: list[tuple[Any, Any, bool]] = [(1_000, 1_090, False), (1_000, 1_091, True), (1_000, 918, False)]
    pairs += [(1_000, 916, True), (None, 1_000, True), (1_000, None, True), (0, 1, True)]
    if name == "stability":
        pairs = [(900, 910, False), (900, 911, True), (900, 890, False), (900, 889, True)]
    elif STEPS[name] is None:
        pairs = [(False, True, True), (True, False, True)] if name == "open" else [(5, 6, True), (None, 5, True)]
    for before, now, moved in pairs:
        one, other = replace(UNKNOWN, **{name: before}), replace(UNKNOWN, **{name: now})
        assert is_moved(one, other) is moved, (before, now)
        assert not is_moved(one, one)


@given(HISTORIES, GAPS)
def test_published_figures_are_within_a_step_of_current_ones(noted: list[Observation], later: float) -> None:
    health, told = Health(POOL), UNKNOWN
    for each in noted:
        note(health, *each)
        told = health.publish(each.at, {}).get(0, told)
        assert not is_moved(told, figures_at(health, each.at))
    now = noted[-1].at + max(later, LOOK_EVERY_S)
    told = health.publish(now, {}).get(0, told)
    assert not is_moved(told, figures_at(health, now)), "fading is movement"


@given(HISTORIES)
def test_fading_between_two_checks_moves_no_figure_by_a_step(noted: list[Observation]) -> None:
    health, now = health_of(noted), noted[-1].at
    before, after = figures_at(health, now), figures_at(health, now + LOOK_EVERY_S)
    if before.latency_p95_ms is not None and after.latency_p95_ms is None:
        gone = {"ttft_p95_ms": None, "latency_p50_ms": None, "latency_p95_ms": None}
        before = replace(before, **gone)
    before = replace(before, ttft_ms=after.ttft_ms)  # a median with the prior goes by buckets
    assert not is_moved(before, after)


def test_fading_is_checked_a_few_models_at_a_time_and_all_after_a_pause() -> None:
    models = [replace(ONE, id=f"a/m{number:03}") for number in range(200)]
    pool = Pool(snapshot(models, "2026-11-21"), "2026-11-21")
    health = Health(pool)
    for row in range(200):
        health.record_fault(row, 0.0)
    assert len(health.publish(0.0, {})) == 200
    assert len(health.publish(600.0, {})) == 200
    assert [len(health._due(now)) for now in (605.0, 610.0, 610.0, 610.1)] == [0, LOOKS, LOOKS, LOOKS]


def test_faded_sums_are_dropped_and_published_once() -> None:
    health = health_of([Observation(0.0, None)] * 3)
    health.publish(0.0, {})
    told = [health.publish(hours * 3_600.0, {}).get(0) for hours in range(1, 5)]
    assert UNKNOWN in told
    assert told[told.index(UNKNOWN) + 1 :] == [None] * (len(told) - told.index(UNKNOWN) - 1)
    assert not health._sums
    health.record_fault(0, 50_000.0)
    assert health.publish(50_000.0, {})[0].stability < 901


def test_open_circuits_are_published_with_their_probe_time() -> None:
    health = health_of([Observation(0.0, ANSWER)])
    before = figures_at(health, 0.0)
    told = health.publish(0.0, {1: 9_000, 0: 8_000})
    assert list(told) == [0, 1]
    assert told[1] == ModelHealth(open=True, probe_at_ms=9_000)
    assert (told[0].open, told[0].probe_at_ms) == (True, 8_000)
    assert told[0].stability == before.stability
    assert figures_at(health, 0.0) == before
    assert health.publish(0.1, {1: 9_000, 0: 8_000}) == {}
    assert list(health.publish(0.2, {1: 9_001, 0: 8_000})) == [1], "another time of its probe"
    assert health.publish(0.3, {0: 8_000}) == {1: UNKNOWN}, "it closed"


# --- ids


def test_a_snapshots_id_depends_on_its_content_in_any_order() -> None:
    figures = ModelHealth(stability=7)
    once = health_snapshot({"a": figures, "b": UNKNOWN})
    again = health_snapshot({"b": UNKNOWN, "a": figures})
    assert once.id == again.id
    assert once.id.startswith("hea_")
    others = [{"a": figures}, {"a": UNKNOWN, "b": figures}, {"a": figures, "b": figures}, {"b": UNKNOWN, "c": figures}]
    assert health_snapshot({"a": figures}) == once, "a model of which nothing is known is none of it"
    assert len({health_snapshot(other).id for other in others}) == 4


def test_an_updated_snapshot_has_the_id_of_a_full_one(full: bool) -> None:
    for seed in range(1_000 if full else 30):
        chance = Random(seed)
        ids = [f"a/m{number}" for number in range(40)]
        present = health_snapshot({model: random_health(chance) for model in chance.sample(ids, 10)})
        for _ in range(30):
            moved = {model: random_health(chance) for model in chance.sample(ids, 3)}
            before = present.models
            present = health_after(present, moved)
            assert present == HealthSnapshot(health_snapshot(present.models).id, {**before, **moved})
    assert Boards(POOL).of(health_snapshot({})).health == f"hea_{0:032x}"
