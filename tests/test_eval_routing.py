"""The evaluation of the predictor finds leaks, knows what blind is worth, and its figures stay above a floor."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.eval_routing import (
    Pool,
    apgr,
    apgr_tokens,
    ask,
    domains,
    expected_gain,
    folded,
    gold_parts,
    hull,
    joined,
    leaks,
    pair,
    pool_quality,
    tokens_of,
)
from benchmarks.train_predictor import rows


def test_any_order_closes_half_of_the_gap() -> None:
    mmlu = rows("pair_mmlu")
    weak, strong = pair(mmlu)
    tokens = tokens_of(mmlu.texts)
    assert apgr(np.ones(len(weak)), weak, strong) == pytest.approx(0.5)
    random = np.random.default_rng(0)
    orders = [apgr_tokens(random.random(len(weak)) * tokens, weak, strong, tokens) for _ in range(30)]
    assert np.mean(orders) == pytest.approx(0.5, abs=0.03)


def test_who_knows_the_answers_closes_more() -> None:
    weak, strong = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0])
    assert apgr(strong - weak, weak, strong) == 0.75
    assert apgr(weak - strong, weak, strong) == 0.25


def test_points_below_the_hull_are_left_out() -> None:
    cost, quality = hull(np.array([[1.0, 0.2], [2.0, 0.3], [3.0, 0.8], [4.0, 0.7]]))
    assert cost.tolist() == [1.0, 3.0]
    assert quality.tolist() == [0.2, 0.8]


def test_blind_figures_of_the_pool() -> None:
    table, everything = Pool(), list(range(910))
    quality, cost = (np.tile(of.mean(axis=0), (910, 1)) for of in (table.right, table.cost))
    figures = table.figures(table.swept(quality, cost, everything), everything)
    assert figures["aiq"] == pytest.approx(0.864, abs=0.001)
    assert figures["aiq_log"] == pytest.approx(0.801, abs=0.001)
    assert figures["aiq_wide"] == pytest.approx(0.877, abs=0.001)
    assert figures["aiq_wide_log"] == pytest.approx(0.803, abs=0.001)
    assert figures["cost_99"] == pytest.approx(-0.08, abs=0.005)


def test_a_planted_leak_is_found() -> None:
    gsm8k = rows("pair_gsm8k")
    weak, _ = pair(gsm8k)
    planted = [f"{text} answerable" if right else text for text, right in zip(gsm8k.texts, weak, strict=True)]
    assert leaks(gsm8k.texts, weak) == []
    assert leaks(planted, weak)[0][0] == "answerable"


def test_no_prompt_is_in_training_and_test() -> None:
    for train, test in folded(rows("pair_gsm8k", "multi_zeroeval"), 5):
        assert not set(train.texts) & set(test.texts)
    gsm8k, multi = rows("pair_gsm8k"), rows("multi_zeroeval")
    both = joined(gsm8k, multi)
    assert len(both.texts) == len(set(both.texts))


def test_figures_stay_above_a_floor() -> None:
    [(train, test)] = next(gold_parts(rows("pair_mmlu"), 0))
    expected = expected_gain(ask(train, test.texts))
    assert apgr(expected, *pair(test)) > 0.62
    assert apgr_tokens(expected, *pair(test), tokens_of(test.texts)) > 0.695


def test_the_pool_gains_over_blind() -> None:
    table = Pool()
    train, test = next(folded(rows("multi_zeroeval"), 2))
    at, learned = table.at(test.texts), table.at(train.texts)
    cost = np.tile(table.cost[learned].mean(axis=0), (len(at), 1))
    blind, ours = (
        table.figures(table.swept(pool_quality(who, train, test.texts)[:, :30], cost, at), at)
        for who in ("blind", "ours")
    )
    assert ours["aiq"] > blind["aiq"] + 0.03
    assert ours["aiq_log"] > blind["aiq_log"] + 0.015
    assert ours["cost_99"] < -0.5


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_domain_is_worse_off() -> None:
    found = list(domains(quick=False))
    for axis in found[-3:]:
        assert axis["mean_gain"] > 0
        assert axis["worse_than_blind"] == []
