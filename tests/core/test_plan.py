"""Health-ordered candidates and shared plans give the same result as a fresh decision."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import MOST_CHANGES, MOST_PLANS, Board, Boards, LruCache
from routewright._core.routing.budget import Room, own_room
from routewright._core.routing.choice import covers
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import decide, find_passed, find_plan
from routewright._core.routing.decision import Decision, decision_of
from routewright._core.routing.logarithms import log2_step, log2_steps, size_class
from routewright._core.routing.plan import Plan
from routewright._core.routing.pool import Pool
from routewright._core.routing.quality import level_of, on_grid
from routewright.errors import NoCandidates
from routewright.wire import DecisionInput, Model, ModelHealth, PriceTier, Pricing, TokenBounds
from tests.tables import table

from .boards import TODAY, after_publication, random_health, random_input, random_pool, recompiled

SIZES = (50, 160, 1_000)


def start(chance: Random, size: int) -> Board:
    return Boards(random_pool(chance, size)).of(health_snapshot({}))


def key_of(given: DecisionInput, policy: str | None = None) -> tuple[object, ...]:
    size = size_class(given.tokens.estimate)
    return policy, given.goal, given.strategy, given.needs, size, given.max_output_tokens, given.as_of, given.workload


def facts_of(decision: Decision) -> tuple[object, ...]:
    """All that a decision says without a walk over all models."""
    return (
        decision.digest, decision.model, decision.chain, decision.front, decision.output_cap,
        decision.fallback_affordable, decision.rejected_counts, decision.reason,
    )  # fmt: skip


def leg_fields(plan: Plan) -> list[dict[str, object]]:
    return [{name: getattr(leg, name) for name in leg.__struct_fields__} for leg in plan.legs]


class Comparison:
    """How many plans of each kind were compared."""

    def __init__(self) -> None:
        self.shared = self.alone = self.refused = self.counted = self.wrong = 0

    def compare(self, given: DecisionInput, board: Board, policy: str | None = None) -> None:
        """A plan that may be shared, the full walk and the replay must be one."""
        plan = find_plan(board, key_of(given, policy), lambda: given)
        covered = plan is not None and covers(plan, given.tokens, given.timeout_ms, own_room(given))
        try:
            alone = decide(given, board)
        except (NoCandidates, CountTokens) as error:
            with pytest.raises(type(error)):
                decide(given, recompiled(board))
            self.counted += isinstance(error, CountTokens)
            self.wrong += covered
            with suppress(NoCandidates):
                decide(replace(given, tokens=replace(given.tokens, counted=True)), board)
                return
            self.refused += 1
            return
        replayed = recompiled(board)
        again = decide(given, replayed)
        assert leg_fields(again) == leg_fields(alone)
        assert facts_of(Decision(again, given, replayed)) == facts_of(Decision(alone, given, board))
        self.alone += 1
        if covered:
            assert plan is not None
            self.shared += 1
            assert leg_fields(plan) == leg_fields(alone)
            assert facts_of(Decision(plan, given, board)) == facts_of(Decision(alone, given, board))


@pytest.mark.parametrize("size", SIZES)
def test_shared_plans_equal_the_full_walk_and_the_replay(size: int, full: bool) -> None:
    weighed, few = Comparison(), 1 if size == 1_000 else 3
    for seed in range(10_000 // 40 if full else few):
        chance = Random(seed * 1_000 + size)
        board = start(chance, size)
        classes = [random_input(chance, board) for _ in range(6)]
        for _ in range(50 if size < 1_000 else 30):
            given = replace(chance.choice(classes), health=board.health)
            estimate = given.tokens.estimate
            other = random_input(chance, board)
            given = replace(
                given,
                tokens=TokenBounds(max(1, estimate // 8), chance.randint(estimate, 4 * estimate), estimate),
                timeout_ms=other.timeout_ms,
                budget_nanos=other.budget_nanos,
                budget_tokens=other.budget_tokens,
            )
            weighed.compare(given, board)
            if chance.random() < 0.5:
                board = after_publication(chance, board)
    assert weighed.alone > 15 * few
    assert weighed.shared > weighed.alone / 5, vars(weighed)
    assert weighed.wrong == 0, "a plan served what deciding alone refuses"
    assert min(weighed.refused, weighed.counted) > 0, "else too little was shown"


def test_the_model_that_is_passed_is_the_one_chosen_if_all_circuits_are_closed() -> None:
    passed = shared = 0
    for seed in range(60):
        chance = Random(seed)
        pool = random_pool(chance, 50)
        healths = {model: replace(random_health(chance), open=chance.random() < 0.4) for model in pool.ids}
        board = Boards(pool).of(health_snapshot(healths))
        closed = {model: replace(health, open=False) for model, health in healths.items()}
        for _ in range(10):
            given = replace(random_input(chance, board), health=board.health)
            if chance.random() < 0.3:
                given = replace(given, prefer=tuple(chance.sample(pool.ids, 2)))
            with suppress(NoCandidates, CountTokens):
                plan, best = decide(given, board), decide(given, Boards(pool).of(health_snapshot(closed)))
                expected = None if best.legs[0].id == plan.legs[0].id else best.legs[0].id
                assert find_passed(plan, given, board) == expected
                passed += expected is not None
                common = find_plan(board, key_of(given), partial(replace, given))
                if common is not None and covers(common, given.tokens, given.timeout_ms, own_room(given)):
                    assert find_passed(common, given, board) == expected
                    shared += expected is not None
    assert min(passed, shared) > 20, (passed, shared)


def test_a_policys_shared_plans_equal_the_full_walk(full: bool) -> None:
    """Lists, weights, floors and ceilings of a policy are in the class: its snapshot names them."""
    weighed = Comparison()
    for seed in range(200 if full else 3):
        chance = Random(seed)
        board = start(chance, 50)
        ids = board.pool.ids
        rules: list[dict[str, Any]] = [
            {"models": tuple(chance.sample(ids, 20))},
            {"models": tuple(chance.sample(ids, 3))},
            {"fallback": tuple(chance.sample(ids, 5))},
            {"weights": (10, 20, 30, 40), "min_quality": 500_000},
            {"max_latency_ms": 9_000},
            {"max_latency_ms": 20_000, "fallback": tuple(chance.sample(ids, 5))},
            {"prefer": tuple(chance.sample(ids, 2)), "models": tuple(chance.sample(ids, 20))},
        ]
        classes = [(f"pol_{n}", random_input(chance, board, needs=0, **each)) for n, each in enumerate(rules)]
        for _ in range(60):
            policy, given = chance.choice(classes)
            weighed.compare(replace(given, health=board.health, policy=policy), board, policy)
            if chance.random() < 0.6:
                board = after_publication(chance, board)
    assert weighed.wrong == 0
    assert weighed.shared > 50, vars(weighed)


@pytest.mark.parametrize("size", SIZES)
def test_followed_orders_equal_freshly_compiled_ones(size: int, full: bool) -> None:
    for seed in range(200 if full else 1):
        chance = Random(seed)
        board = start(chance, size)
        classes = [random_input(chance, board) for _ in range(4)]
        classes.append(random_input(chance, board, max_latency_ms=15_000))
        classes.append(random_input(chance, board, min_quality=400_000))
        classes += [random_input(chance, board, min_quality=400_000) for _ in range(2)]
        for _ in range(12):
            board = after_publication(chance, board)
            fresh = recompiled(board)
            for given in classes:
                if chance.random() < 0.7:
                    order, other = board.order(given), fresh.order(given)
                    assert order.keys == other.keys
                    assert order.of == other.of
                    assert order.eligible.counts == other.eligible.counts
                    if order.of:  # else no plan asks for it
                        assert order.room(board.forecast, None) == other.room(fresh.forecast, None)
                    assert order.one_provider == other.one_provider


def test_a_moved_forecast_equals_a_freshly_compiled_one(full: bool) -> None:
    for seed in range(500 if full else 8):
        chance = Random(seed)
        board = start(chance, 50)
        for _ in range(20):
            forecast, fresh = board.forecast, recompiled(board).forecast
            for name in "output output_p90 ttft_ms ttft_p95_ms latency_p95_ms us_per_token stability open".split():
                assert getattr(forecast, name) == getattr(fresh, name)
            assert list(forecast.open) == sorted(forecast.open)
            for cap in (None, 300, 40_000):
                assert forecast.least_room(cap) == fresh.least_room(cap)
                assert np.array_equal(forecast.latency_ms(cap), fresh.latency_ms(cap))
            assert forecast.most_p90 == fresh.most_p90
            board = after_publication(chance, board)


def test_scalar_and_array_scales_agree() -> None:
    values = [*range(-3, 5_000), *[2**exponent + less for exponent in range(13, 53) for less in (-1, 0, 1)]]
    assert [log2_step(value) for value in values] == log2_steps(np.array(values)).tolist()
    qualities = range(0, 1_000_001, 37)
    assert [level_of(quality) for quality in qualities] == on_grid(np.array(qualities)).tolist()


# --- what a shared plan rests on


def world(seed: int = 1, size: int = 50) -> tuple[Random, Board, DecisionInput]:
    """A board, and a request of a plan that is shared."""
    chance = Random(seed)
    while True:
        board = start(chance, size)
        given = random_input(chance, board, needs=0, max_output_tokens=None, budget_nanos=None, budget_tokens=None)
        plan = find_plan(board, "class", lambda given=given: given)  # type: ignore[misc]
        if plan is not None and 4 < plan.walked < 20 and plan.max_high > 0:
            return chance, board, replace(given, tokens=TokenBounds(1, 10, given.tokens.estimate), timeout_ms=10**9)


def shared_plan(board: Board, given: DecisionInput) -> Plan:
    plan = find_plan(board, "class", lambda: given)
    assert plan is not None
    assert covers(plan, given.tokens, given.timeout_ms)
    return plan


def row_at(board: Board, given: DecisionInput, at: int) -> int:
    return board.order(given).keys[at][-1]


def test_a_plan_is_reused_while_no_walked_model_moves() -> None:
    chance, board, given = world()
    first = shared_plan(board, given)
    behind = row_at(board, given, -1)
    for stability in range(300, 320):
        board = after_publication(chance, board, rows=(), circuits=False).with_health(
            health_snapshot({board.pool.ids[behind]: ModelHealth(stability=stability)}),
            {behind: ModelHealth(stability=stability)},
        )
        assert shared_plan(board, given) is first
    assert first.decision_input.health != board.health, "a call takes the id from its board, the plan is never changed"


@table("unasked", [1, MOST_CHANGES, MOST_CHANGES + 1, 3 * MOST_CHANGES])
def test_a_plan_unused_for_many_publications_is_renewed(unasked: int) -> None:
    chance, board, given = world()
    top = shared_plan(board, given).legs[0].row
    board = after_publication(chance, board, rows=[], circuits=False)
    bad = ModelHealth(stability=300, ttft_ms=60_000, us_per_token=90_000)
    board = board.with_health(health_snapshot({board.pool.ids[top]: bad}), {top: bad})
    behind = row_at(board, given, -2)
    for _ in range(unasked - 1):
        figures = random_health(chance)
        models = {board.pool.ids[top]: bad, board.pool.ids[behind]: figures}
        board = board.with_health(health_snapshot(models), {behind: figures})
    assert leg_fields(shared_plan(board, given)) == leg_fields(decide(given, recompiled(board)))
    assert shared_plan(board, given).legs[0].row != top


def test_a_plan_is_renewed_when_any_walked_model_moves(full: bool) -> None:
    """In a catalogue of one large provider the walk goes on past the best few for another's model."""
    changed = 0
    for seed in range(400 if full else 10):
        chance, board, given = world(seed)
        plan = shared_plan(board, given)
        for at in range(plan.walked):
            board = after_publication(chance, board, rows=[row_at(board, given, at)], circuits=False)
            now, before = find_plan(board, "class", lambda given=given: given), plan  # type: ignore[misc]
            assert now is not None
            assert leg_fields(now) == leg_fields(decide(given, recompiled(board)))
            plan = now
            changed += plan is not before
    assert changed > 20


@pytest.mark.parametrize("cap", [None, 2_000], ids=["others fit", "no other fits"])
def test_a_plan_also_watches_the_walk_for_a_second_provider(cap: int | None, full: bool) -> None:
    """It goes on past the best few, perhaps to the end: whatever comes to stand between is in another's chain."""
    kept = 0
    for seed in range(600 if full else 10):
        chance = Random(seed)
        models = random_pool(chance, 50, ["big"] * 11 + ["small"]).models
        terse = [replace(each, max_output_tokens=1_000) if each.provider == "small" else each for each in models]
        board = Boards(Pool(snapshot(terse, TODAY), TODAY)).of(health_snapshot({}))
        given = random_input(chance, board, needs=0, max_output_tokens=cap, budget_nanos=None, budget_tokens=None)
        given = replace(given, tokens=TokenBounds(1, 10, given.tokens.estimate), timeout_ms=10**9)
        small = [row for row, provider in enumerate(board.pool.provider) if provider == "small"] or [0]
        for _ in range(12):
            before = find_plan(board, "class", lambda given=given: given)  # type: ignore[misc]
            rows = chance.choice([[chance.choice(small)], [chance.randrange(50)]])
            board = after_publication(chance, board, rows=rows, circuits=False)
            now = find_plan(board, "class", lambda given=given: given)  # type: ignore[misc]
            if now is not None:
                assert leg_fields(now) == leg_fields(decide(given, recompiled(board)))
                kept += now is before
    assert kept > 20


def test_a_low_ranked_model_that_loses_room_is_counted_as_rejected(full: bool) -> None:
    shown = 0
    for seed in range(200 if full else 20):
        _, board, given = world(seed)
        plan = shared_plan(board, given)
        roomy = replace(given, tokens=TokenBounds(1, plan.max_high, given.tokens.estimate))
        behind = [key[-1] for key in board.order(given).keys[plan.walked + 1 :]]
        for row in behind:
            window = board.pool.window[row]
            if window - window // 2 >= plan.max_high:
                continue
            figures = ModelHealth(stability=300, output_tokens=window)
            later = board.with_health(health_snapshot({board.pool.ids[row]: figures}), {row: figures})
            now = find_plan(later, "class", lambda given=given: given)  # type: ignore[misc]
            assert now is not None
            if not covers(now, roomy.tokens, roomy.timeout_ms):
                shown += 1
            else:
                assert now.counts == decision_of(roomy, recompiled(later)).rejected_counts
            break
    assert shown > 3


def test_any_circuit_change_renews_a_plan() -> None:
    _, board, given = world()
    for at in (0, 2, -1):
        plan, row = shared_plan(board, given), row_at(board, given, at)
        model = board.pool.ids[row]
        shut = ModelHealth(open=True, probe_at_ms=1)
        opened = board.with_health(health_snapshot({model: shut}), {row: shut})
        during = shared_plan(opened, given)
        assert leg_fields(during) == leg_fields(decide(given, recompiled(opened)))
        assert during.counts != plan.counts, "the reason says how many circuits are open"
        assert row not in [leg.row for leg in during.legs]
        board = opened.with_health(health_snapshot({model: ModelHealth()}), {row: ModelHealth()})
        after = shared_plan(board, given)
        assert (leg_fields(after), after.counts) == (leg_fields(plan), plan.counts)


def test_a_plan_for_a_probe_is_not_shared() -> None:
    _, board, given = world()
    shut = {row: ModelHealth(open=True, probe_at_ms=row + 1) for row in range(len(board.pool))}
    board = board.with_health(health_snapshot({board.pool.ids[row]: each for row, each in shut.items()}), shut)
    assert find_plan(board, "class", lambda: given) is None
    assert decide(given, board).legs


def test_plans_for_client_lists_are_not_shared() -> None:
    _, board, given = world()
    ids, column = tuple(board.pool.ids), tuple(board.pool.qualities)
    for own in ({"models": ids}, {"fallback": ids[:3]}, {"quality": column}, {"prefer": ids[:1], "policy": "pol"}):
        asked_for = replace(given, **own)
        assert find_plan(board, f"class with {own}", lambda asked_for=asked_for: asked_for) is None  # type: ignore[misc]


def test_a_cap_that_fills_the_window_has_no_shared_plan() -> None:
    narrow = Model(id="a/narrow", provider="a", context_window=4_000, max_output_tokens=8_000)
    tiers = (PriceTier(2_000, 2.0, 8.0),)
    wide = Model(id="b/wide", provider="b", context_window=100_000, pricing_per_1m=Pricing(1.0, 4.0, tiers=tiers))
    board = Boards(Pool(snapshot([narrow, wide], TODAY), TODAY)).of(health_snapshot({}))
    given = random_input(Random(1), board, needs=0, max_output_tokens=5_000, budget_nanos=None, budget_tokens=None)
    assert find_plan(board, "class", lambda: given) is None
    assert decide(given, board).models == ["b/wide"]


def test_an_older_board_uses_its_own_health_and_keeps_later_plans() -> None:
    chance, board, given = world()
    before = shared_plan(board, given)
    top = before.legs[0].row
    later = after_publication(chance, board, rows=[top], circuits=False)
    after = shared_plan(later, given)
    assert leg_fields(shared_plan(board, given)) == leg_fields(before)
    assert shared_plan(later, given) is after


def test_two_successors_of_a_board_do_not_share_orders() -> None:
    chance, board, given = world()
    shared_plan(board, given)
    one, two = (after_publication(chance, board, rows=[row_at(board, given, 0)], circuits=False) for _ in range(2))
    for each in (one, two, one):
        assert leg_fields(shared_plan(each, given)) == leg_fields(decide(given, recompiled(each)))
        assert each.order(given).keys == recompiled(each).order(given).keys


def test_a_plan_refers_to_no_board_or_pool() -> None:
    _, board, given = world()
    plan = shared_plan(board, given)
    held = [getattr(plan, name) for name in plan.__struct_fields__]
    held += [getattr(leg, name) for leg in plan.legs for name in leg.__struct_fields__]
    kinds = {type(each).__name__ for each in held}
    assert kinds.isdisjoint(("Board", "Boards", "Forecast", "Pool", "Order", "Eligible", "HealthSnapshot"))


def test_the_lru_cache_keeps_recent_values_within_its_size() -> None:
    kept: LruCache[int, int] = LruCache(MOST_PLANS)
    for number in range(10_000):
        kept.put(number, number)
        assert kept[0] == 0, "in use all the time"
        assert len(kept) <= MOST_PLANS
    assert [kept[10_000 - back] for back in range(1, 100)] == [10_000 - back for back in range(1, 100)]
    assert kept[5] is None


def test_a_plans_budget_bounds_are_exact(full: bool) -> None:
    """Never more than the full walk admits; and a budget with room for all that were walked is always enough."""
    for seed in range(300 if full else 6):
        chance, board, given = world(seed)
        plan = shared_plan(board, given)
        for _ in range(20):
            tokens = TokenBounds(1, chance.randint(1, plan.flat_to), given.tokens.estimate)
            nanos = -(-(tokens.high * plan.worst_input + plan.worst_output) // 1_000)
            assert covers(plan, tokens, 10**9, Room(nanos, tokens.high + plan.worst_held))
            assert not covers(plan, tokens, 10**9, Room(nanos - 1, None))
            assert not covers(plan, tokens, 10**9, Room(None, tokens.high + plan.worst_held - 1))
            limited = replace(given, tokens=tokens, budget_nanos=nanos, budget_tokens=tokens.high + plan.worst_held)
            alone = decide(limited, board)
            assert leg_fields(alone) == leg_fields(plan)
            if nanos < 10**18:  # else a model without a price was walked over, which no budget pays for
                most = tokens.high + plan.worst_held
                assert plan.rejections(tokens.high, nanos, most) == Decision(alone, limited, board).rejected_counts
                for money in (nanos, chance.randint(nanos, 10 * nanos), 10**15):
                    if covers(plan, tokens, 10**9, Room(money, None)):
                        rich = replace(given, tokens=tokens, budget_nanos=money)
                        counts = Decision(decide(rich, board), rich, board).rejected_counts
                        assert plan.rejections(tokens.high, money, None) == counts
        if plan.flat_to < plan.max_high:  # some model's price has another tier
            assert covers(plan, TokenBounds(1, plan.flat_to + 1, 5), 10**9)
            assert not covers(plan, TokenBounds(1, plan.flat_to + 1, 5), 10**9, Room(10**15, None))
        assert not covers(plan, TokenBounds(1, plan.max_high + 1, 5), 10**9)
        assert not covers(plan, TokenBounds(1, 1, 5), plan.max_latency_ms - 1)
        assert not covers(plan, TokenBounds(1, 1, 5, counted=True), 10**9)
