"""How a prompt reading changes predicted qualities, and whether it can change the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import cast

import numpy as np
from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Boards
from routewright._core.routing.inputs import predicted_column, quality_spans
from routewright._core.routing.pool import Pool
from routewright._core.routing.predict import LARGEST_CELL, Predictor
from routewright._core.routing.quality import on_grid
from routewright.wire import Model, Reading

from .worlds import TODAY, random_input, random_pool


class Ease:
    """A predictor by which all models do better, or worse, by the same odds."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def column(self, cell: tuple[int, ...], models: Sequence[Model]) -> tuple[int, ...] | None:
        if not any(cell):
            return None
        priors = [min(max(model.quality or 0.3, 0.001), 0.999) for model in models]
        moved = [math.log(each / (1 - each)) + self.strength * cell[0] / LARGEST_CELL[0] for each in priors]
        return tuple(round(1e6 / (1 + math.exp(-each))) for each in moved)


def ease(strength: float = 2.0) -> Predictor:
    return cast("Predictor", Ease(strength))


def pool(chance: Random, size: int) -> Pool:
    return random_pool(chance, size)


def test_the_zero_cell_keeps_the_priors() -> None:
    models = pool(Random(1), 40)
    assert predicted_column(ease(), (0, 0), models) is models.quality


def test_models_on_one_grid_step_move_alike_and_keep_their_order() -> None:
    for seed in range(50):
        models = pool(Random(seed), 60)
        for step in (-12, -5, 1, 7, 12):
            column = predicted_column(ease(), (step, 0), models)
            before, after = on_grid(models.quality), on_grid(column)
            for level in np.unique(before):
                assert len(np.unique(after[before == level])) == 1
            order = np.argsort(models.quality, kind="stable")
            assert (np.diff(column[order]) >= 0).all()


def test_another_model_does_not_change_the_others_column() -> None:
    models = pool(Random(2), 30)
    more = [*models.models, Model(id="new/one", quality=0.77)]
    column = predicted_column(ease(), (5, 1), models)
    assert predicted_column(ease(), (5, 1), Pool(snapshot(more, TODAY), TODAY))[:30].tolist() == column.tolist()


def test_a_span_contains_every_readings_quality() -> None:
    models = pool(Random(3), 30)
    spans = quality_spans(ease(), models)
    assert [span[0] for span in spans] == models.levels
    for step in range(-12, 13):
        levels = on_grid(predicted_column(ease(), (step, 0), models)) // 100
        assert all(min(span) <= each <= max(span) for span, each in zip(spans, levels.tolist(), strict=True))


def test_a_choice_that_is_not_swayed_is_the_same_for_every_reading(full: bool) -> None:
    swayed = steady = 0
    for seed in range(2_000 if full else 150):
        chance = Random(seed)
        models, predictor = pool(chance, chance.choice([2, 3, 5])), ease(chance.choice([0.2, 1.0, 3.0]))
        board = Boards(models).of(health_snapshot({}))
        given = random_input(chance, board, needs=0)
        order = board.order(given)
        if not order.keys:
            continue
        if order.is_swayed(quality_spans(predictor, models)):
            swayed += 1
            continue
        steady += 1
        for step in range(-12, 13):
            quality = tuple(predicted_column(predictor, (step, 0), models).tolist())
            read = replace(given, reading=Reading("prd_1", (step, 0), 0.5, "other", 0.0), quality=quality)
            assert board.order(read).keys[0][-1] == order.keys[0][-1]
    assert min(swayed, steady) > 20
