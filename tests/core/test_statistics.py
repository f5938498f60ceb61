"""Merged statistics of processes: all agree in the same epoch, and nothing is lost."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.attempts.health import (
    LOOK_EVERY_S,
    Health,
    SharedHealth,
    health_after,
    health_snapshot,
    in_steps,
)
from routewright._core.attempts.statistics import EPOCH_S, HALF_LIFE_S, added, epoch_at, observations_in
from routewright._core.routing.forecast import UNKNOWN
from routewright.wire import HealthSnapshot, Learned, LearnedModel, ModelHealth

from .test_health import ANSWERS, POOL, AnswerFigures, note

START = 1_795_255_200.0
"""Unix seconds at the monotonic 0."""
MODEL = POOL.ids[0]


class Note(NamedTuple):
    """An attempt in one of three processes, which wrote down afterwards what it had learned, or did not yet."""

    gap_s: float
    process: int
    seen: AnswerFigures | None
    writes: bool


NOTES = st.lists(
    st.builds(Note, st.sampled_from([0.0, 0.4, 2.0, 60.0]), st.integers(0, 2), st.none() | ANSWERS, st.booleans()),
    max_size=30,
)


class Store:
    """One row of a storage, and the processes that write to it."""

    def __init__(self, processes: int) -> None:
        self.healths = [SharedHealth(POOL) for _ in range(processes)]
        self.row: LearnedModel | None = None

    def write(self, process: int, now: float) -> None:
        for model, learned in self.healths[process].take(now, START + now).items():
            self.row = added(model, self.row, learned)

    def rows(self, epoch: int) -> list[LearnedModel]:
        return [self.row] if self.row is not None and self.row.epoch >= epoch else []


@given(NOTES)
def test_many_processes_learn_the_same_as_one(notes: list[Note]) -> None:
    one, store, now = Health(POOL), Store(3), 1.0
    for each in notes:
        now += each.gap_s
        note(one, now, each.seen)
        note(store.healths[each.process], now, each.seen)
        if each.writes:
            store.write(each.process, now)
    for process in range(3):
        store.write(process, now)
    reader = SharedHealth(POOL)
    epoch = epoch_at(START + now) + 1
    reader.know(store.rows(-1), epoch)
    known = None if store.row is None else observations_in(store.row, epoch)
    exact = one.figures(0, now if known is None else known.at - START)
    found = reader.figures(0, 0.0)
    assert abs(found.stability - exact.stability) <= 6
    for name in ("output_tokens", "output_p90", "ttft_ms", "latency_p50_ms"):
        value, true = getattr(found, name), getattr(exact, name)
        assert value == true or value == pytest.approx(true, rel=0.05, abs=1), name


@given(NOTES)
def test_early_and_late_readers_publish_the_same_snapshot(notes: list[Note]) -> None:
    store, now = Store(3), 1.0
    boards = [HealthSnapshot(health_snapshot({}).id, {})] * 2
    early, late = SharedHealth(POOL), SharedHealth(POOL)
    for each in [*notes, Note(10.0, 0, None, True), Note(LOOK_EVERY_S + 3.0, 0, None, False)]:
        now += each.gap_s
        note(store.healths[each.process], now, each.seen)
        if each.writes:
            store.write(each.process, now)
        boards[0] = published(early, store, now, boards[0])
    boards[1] = published(late, store, now, boards[1])
    assert boards[0] == boards[1]
    assert boards[0].models, "they know something"


def published(health: SharedHealth, store: Store, now: float, before: HealthSnapshot) -> HealthSnapshot:
    epoch = epoch_at(START + now)
    if epoch != health.epoch:
        health.know(store.rows(health.epoch), epoch)
    return health_after(before, {POOL.ids[row]: figures for row, figures in health.publish(now, {}).items()})


def test_observations_are_taken_once() -> None:
    health = SharedHealth(POOL)
    note(health, 1.0, None)
    taken = health.take(1.0 + HALF_LIFE_S, START)
    assert {model: (learned.at, learned.bad) for model, learned in taken.items()} == {MODEL: (START, 0.5)}
    assert health.take(2.0, START) == {}


def test_own_observations_count_once_read_back() -> None:
    health, store = SharedHealth(POOL), Store(0)
    store.healths = [health]
    note(health, 1.0, None)
    assert published(health, store, 1.0, health_snapshot({})).models == {}
    store.write(0, 1.0)
    assert published(health, store, 1.5, health_snapshot({})).models == {}
    assert list(published(health, store, 1.0 + EPOCH_S, health_snapshot({})).models) == [MODEL]


def test_faded_knowledge_leaves_the_snapshot() -> None:
    health, store, board = SharedHealth(POOL), Store(0), health_snapshot({})
    store.row = added(MODEL, None, Learned(START, bad=1.0))
    seen = []
    for now in (3.0, 3.0 + HALF_LIFE_S, 3.0 + 10 * HALF_LIFE_S):
        board = published(health, store, now, board)
        seen.append(board.models.get(MODEL, UNKNOWN).stability)
    assert seen[0] < seen[1] < seen[2] == UNKNOWN.stability
    assert board == health_snapshot({})


@given(st.builds(ModelHealth, stability=st.integers(0, 1000), output_p90=st.none() | st.integers(0, 10**6)))
def test_figures_are_rounded_to_their_steps(figures: ModelHealth) -> None:
    rounded = in_steps(figures)
    assert in_steps(rounded) == rounded
    assert abs(rounded.stability - figures.stability) <= 5
    if figures.output_p90 is not None and rounded.output_p90 is not None:
        error = abs(rounded.output_p90 - figures.output_p90)
        assert error <= 0.045 * figures.output_p90 + 0.5  # half a step, and to a whole number
    assert (rounded.output_p90 is None) == (figures.output_p90 is None)
