"""Wrong cache answers stay within the allowed error rate, for any questions and shifting topics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.eval_cache import Ints, Stream, drifting, entry, rows, shuffled
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.cache.calibration import WINDOW, Bound, Calibration
from routewright._core.cache.guards import NOTHING, offer
from routewright.backends.embed import HashedEmbedder
from routewright.wire import CacheMatch, Observation
from tests.tables import table

QUESTION = "when will my new card arrive"
ONE = "How do I close my account?"


def matches(*found: tuple[str, str, float]) -> list[CacheMatch]:
    """Of prompts, answers and similarities."""
    return [CacheMatch(entry(at, text, answer), near) for at, (text, answer, near) in enumerate(found)]


def stream(name: str, count: int) -> Stream:
    chosen = np.random.default_rng(7).permutation(np.array(rows(name)))[:count]
    return Stream([row["text"] for row in chosen], [row["label"] for row in chosen], HashedEmbedder())


LEAST = {0.01: 0.32, 0.02: 0.43, 0.05: 0.58}
"""Hits by bound."""
ORDERS = {"shuffled": shuffled, "drifting": drifting}


def played(
    source: Stream, order: Callable[[Stream, int], Ints], bound: float, seeds: range
) -> tuple[list[float], float]:
    """Of each seed the errors of the second half as a share of the bound, and the mean share of hits."""
    done = [source.play(order(source, seed), Bound(bound), seed) for seed in seeds]
    return [float(one.half().wrong.mean()) / bound for one in done], float(np.mean([one.hit.mean() for one in done]))


@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_holds_on_a_short_stream(order: str, full: bool) -> None:
    errors, hits = played(stream("banking77", 2_500), ORDERS[order], 0.05, range(3 if full else 1))
    assert np.mean(errors) <= 1.1
    assert max(errors) <= 1.5
    assert hits > 0.3


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bound", LEAST)
@pytest.mark.parametrize("name", ["banking77", "clinc150"])
def test_the_bound_holds_over_ten_seeds(name: str, bound: float, order: str, full: bool) -> None:
    if not full:
        pytest.skip("run with --full")
    errors, hits = played(stream(name, 20_000), ORDERS[order], bound, range(10))
    assert np.mean(errors) <= 1.1
    assert max(errors) <= 1.5
    assert hits >= LEAST[bound] or order == "drifting"


def test_exploration_detects_a_wrong_cache() -> None:
    """Candidates that look right and never are: what is served of them ends soon."""
    calibration, wrong = Calibration(), []
    draws = np.random.default_rng(0).random(3_000)
    near = matches(("when will my card arrive", "soon", 0.95), ("when does my card arrive", "soon", 0.94))
    for draw in draws:
        calibration.count()
        made = offer(QUESTION, near, calibration, Bound(0.05))
        wrong.append(draw < made.serve)
        if not wrong[-1]:
            calibration.learn(Observation(made.features, False, 1 / (1 - made.serve)))
    assert sum(wrong[1_000:]) <= 0.05 * 2_000


def test_nothing_is_served_if_no_error_is_allowed() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.count()
        made = offer(QUESTION, matches((QUESTION + " please", "soon", 0.99)), calibration, Bound(0.0))
        assert made.serve == 0
        calibration.learn(Observation(made.features, True, 1.0))


@table(
    ("kept", "serve"),
    [("When will my new card arrive?", 1), ("when will my new card arrive!", 0), ("when will the new card arrive", 0)],
)
def test_a_fresh_cache_serves_only_the_same_words(kept: str, serve: float) -> None:
    calibration = Calibration()
    calibration.count()
    assert offer(QUESTION, matches((kept, "soon", 1.0)), calibration, Bound(0.01)).serve == serve


def test_right_answers_are_served_in_time() -> None:
    calibration = Calibration()
    for _ in range(2 * WINDOW):
        calibration.count()
        made = offer(QUESTION, matches(("when will my card arrive", "soon", 0.9)), calibration, Bound(0.01))
        calibration.learn(Observation(made.features, True, 1 / (1 - made.serve)))
    assert made.serve == pytest.approx(0.98)
    assert made.probability > 0.98


def test_a_threshold_serves_similar_matches_that_pass_the_guards() -> None:
    bound = Bound(threshold=0.8)
    near = matches(("how do I open my account", "so", 0.95), ("how can I close an account", "thus", 0.85))
    made = offer(ONE, near, Calibration(), bound)
    assert made.match is near[1]
    assert made.refused_by == "opposites"
    assert made.serve == pytest.approx(0.98)
    assert offer(ONE, matches(("how can I close an account", "thus", 0.79)), Calibration(), bound).serve == 0


def test_an_offer_without_a_candidate_says_which_guard_refused() -> None:
    made = offer(ONE, matches(("How do I open my account?", "so", 0.95)), Calibration(), Bound())
    assert (made.match, made.refused_by, made.serve) == (None, "opposites", 0.0)
    assert offer(ONE, [], Calibration(), Bound()) == NOTHING


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(1, 1_000)), min_size=20, max_size=60))
def test_no_order_of_observations_breaks_the_model(seen: list[tuple[float, bool, float]]) -> None:
    calibration = Calibration()
    for similarity, right, weight in seen:
        calibration.count()
        made = offer(QUESTION, matches(("when will my card arrive", "soon", similarity)), calibration, Bound(0.05))
        assert 0 <= made.serve <= 0.98
        assert 0 <= made.probability <= 1
        assert 0 <= made.risk <= 1
        calibration.learn(Observation(made.features, right, weight))
