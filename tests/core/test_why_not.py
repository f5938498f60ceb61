"""``why_not``: each suggested change alone makes the model the first choice, and no smaller change does."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import fields_of, mark_unavailable, overlay, snapshot
from routewright._core.catalogue.prices import pricing_on
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.decide import decide
from routewright._core.routing.pool import Pool
from routewright._core.routing.scoring import WEIGHTS
from routewright._core.routing.what_if import HUNDREDTHS, PARTS, Change, WhyNot, why_not
from routewright.errors import NoCandidates
from routewright.wire import DecisionInput, Model, ModelHealth, PriceTier, Pricing, Reason, TokenBounds

from . import pools
from .test_decision import model as model_of
from .test_decision import simple


def plain(**changes: object) -> DecisionInput:
    tokens = TokenBounds(100, 100, 100, 100, 100, counted=True)
    return replace(DecisionInput(rules=2, catalogue="c", health="h", as_of=pools.TODAY, tokens=tokens), **changes)


def catalogue(*rows: Model) -> list[Model]:
    return list(overlay((), [fields_of(row) for row in rows]))


CHEAP = Model(id="a/cheap", quality=0.5, pricing_per_1m=Pricing(0.1, 0.4), ttft_s=0.5, tokens_per_s=100)
DEAR = Model(id="b/dear", quality=0.7, pricing_per_1m=Pricing(2, 8), ttft_s=0.5, tokens_per_s=100)


def ask(model: str, *rows: Model, **changes: object) -> WhyNot:
    return why_not(plain(**changes), pools.board(catalogue(*rows)), model)


def change(why: WhyNot, what: str) -> Change:
    return next(each for each in why.changes if each.what == what)


def chosen(asked: DecisionInput, board: Board) -> str | None:
    try:
        return decide(asked, board).legs[0].id
    except NoCandidates:
        return None


def test_an_expensive_model_gets_the_price_quality_and_goal_it_needs() -> None:
    why = ask("b/dear", CHEAP, DEAR)
    assert str(why).splitlines()[0] == "b/dear is number 2 of 2 models that fit; a/cheap is chosen."
    assert {each.what for each in why.changes} >= {"models", "prices", "quality"}
    share = change(why, "prices").value or 0.0
    assert 0 < share < 0.5
    assert f"${2 * share:g} in and ${8 * share:g} out per million tokens" in change(why, "prices").description


def test_a_preference_is_named_as_reason_and_as_change() -> None:
    why = ask("b/dear", CHEAP, DEAR, prefer=("a/cheap",))
    assert why.is_preferred
    assert str(why).splitlines()[0] == (
        "b/dear is number 2 of 2 models that fit; a/cheap, which is preferred, is chosen."
    )
    assert change(why, "prefer").description == "prefer names it first: ['b/dear', 'a/cheap']"
    assert change(why, "models").description == "models names it alone: ['b/dear'], and prefer no other"
    assert {each.what for each in why.changes} == {"models", "prefer"}, "no price or goal stands against a preference"
    assert str(ask("b/dear", CHEAP, DEAR, prefer=("b/dear",))) == "b/dear is chosen, since it is preferred."


def test_a_rejected_model_gets_all_reasons_and_its_admission() -> None:
    why = ask("b/dear", CHEAP, DEAR, budget_nanos=1_000_000, models=("a/cheap",))
    assert why.rejected_by == (Reason.WHITELIST, Reason.BUDGET_COST)
    assert why.place is None
    assert "add 'b/dear' to 'models' and raise budget.max_cost_usd (maxCostUsd in a dict) to " in (why.admission or "")
    assert "To be considered: add 'b/dear' to 'models'" in str(why)


def test_a_rejection_no_request_can_change_is_reported_so() -> None:
    why = ask("b/dear", CHEAP, replace(DEAR, deprecated_at="2026-01-01"))
    assert (why.rejected_by, why.admission, why.changes) == ((Reason.DEPRECATED,), None, ())
    assert str(why).endswith("No change of the request admits it.")


def test_a_provider_without_a_key_is_named_with_the_variable_it_needs() -> None:
    models = mark_unavailable(catalogue(CHEAP, DEAR), frozenset({"a/cheap"}))
    boards = Boards(Pool(snapshot(models, pools.TODAY), pools.TODAY), variables={"a": "A_API_KEY", "b": "B_API_KEY"})
    board = boards.of(health_snapshot({}))
    why = why_not(plain(), board, "b/dear")
    assert (why.rejected_by, why.variable) == ((Reason.PROVIDER_UNAVAILABLE,), "B_API_KEY")
    assert str(why).endswith("admits it. Set B_API_KEY in the environment to use its provider.")
    assert why_not(plain(), board, "a/cheap").variable is None


def test_a_late_model_gets_the_timeout_it_needs() -> None:
    slow = replace(CHEAP, ttft_s=90.0, quality=0.95)
    why = ask("a/cheap", slow, DEAR, timeout_ms=30_000)
    assert (change(why, "timeout_ms").value or 0) > 90_000


def test_latency_improves_by_first_token_and_speed_together() -> None:
    slow = replace(CHEAP, ttft_s=30.0, tokens_per_s=10_000)
    why = ask("a/cheap", slow, replace(DEAR, pricing_per_1m=slow.pricing_per_1m), strategy="latency-optimized")
    fast_s = change(why, "latency").value or 0.0
    assert 0 < fast_s < 30
    assert change(why, "latency").description == f"its answers take at most {fast_s:g} s, not 30.04 s"
    quick = replace(slow, ttft_s=fast_s - 0.05, tokens_per_s=10_000)
    pool = catalogue(quick, replace(DEAR, pricing_per_1m=slow.pricing_per_1m))
    assert chosen(plain(strategy="latency-optimized"), pools.board(pool)) == "a/cheap"


def _applied(each: Change, asked: DecisionInput, pool: list[Model], health: dict[str, ModelHealth], model: str) -> bool:
    """Whether the model is chosen with the change made by other means than the rule's own."""
    row = next(place for place, known in enumerate(pool) if known.id == model)
    value = each.value or 0.0
    changed, seen, now = pool[row], health.get(model, ModelHealth()), asked
    match each.what:
        case "models":
            now = replace(asked, models=(model,))
        case "prefer":
            now = replace(asked, prefer=(model, *(each for each in asked.prefer if each != model)))
        case "timeout_ms":
            now = replace(asked, timeout_ms=int(value))
        case "prices":
            present = pricing_on(changed, asked.as_of)
            assert present is not None
            changed = replace(changed, pricing_per_1m=_times(present, value), price_changes=None)
        case "quality" if asked.quality is None:
            changed = replace(changed, quality=value)
        case "quality":
            assert asked.quality is not None
            now = replace(asked, quality=(*asked.quality[:row], round(value * 1e6), *asked.quality[row + 1 :]))
        case "stability":
            seen = replace(seen, stability=round(value * PARTS))
        case _:
            return True  # directions and latencies have tests of their own
    board = pools.board([*pool[:row], changed, *pool[row + 1 :]], {**health, model: seen})
    return chosen(now, board) == model


def _times(listed: Pricing, share: float) -> Pricing:
    tiers = tuple(
        PriceTier(tier.above_tokens, round(tier.input_usd * share, 9), round(tier.output_usd * share, 9))
        for tier in listed.tiers
    )
    return Pricing(round(listed.input_usd * share, 9), round(listed.output_usd * share, 9), tiers=tiers)


@given(st.data())
def test_each_change_alone_makes_the_model_win_and_no_smaller_one_does(data: st.DataObject) -> None:
    pool = data.draw(pools.pools(least=2, most=6))
    health = data.draw(pools.healths(pool))
    asked = data.draw(pools.inputs(pool))
    board = pools.board(pool, health)
    why = why_not(asked, board, data.draw(st.sampled_from(pool)).id)
    assume(why.admission is None)
    step = {"prices": 1 / PARTS, "quality": -1 / HUNDREDTHS, "stability": -1 / PARTS}
    for each in why.changes:
        assert _applied(each, asked, pool, health, why.model), each
        if each.what in step and each.value is not None:
            less = Change(each.what, each.description, each.value + step[each.what])
            assert not _applied(less, asked, pool, health, why.model), each


@given(st.data())
def test_exactly_the_listed_goals_and_strategies_choose_the_model(data: st.DataObject) -> None:
    pool = data.draw(pools.pools(least=2, most=6))
    asked = data.draw(pools.inputs(pool))
    board = pools.board(pool)
    for why in (why_not(asked, board, model.id) for model in pool):
        if why.admission is None and why.changes:
            assert _named_directions(why) == {
                (goal, strategy)
                for strategy, goals in WEIGHTS.items()
                for goal in goals
                if chosen(replace(asked, goal=goal, strategy=strategy, weights=None), board) == why.model
            }


def _named_directions(why: WhyNot) -> set[tuple[str, ...]]:
    said = " ".join(each.description for each in why.changes if each.what == "goal")
    return set(re.findall(r"goal=([\w-]+) strategy=([\w-]+)", said))


@given(st.data())
def test_ranks_agree_with_the_walk(data: st.DataObject) -> None:
    pool = data.draw(pools.pools(least=2, most=8))
    asked = data.draw(pools.inputs(pool))
    board = pools.board(pool)
    whys = [why_not(asked, board, model.id) for model in pool]
    places = [why.place for why in whys if why.place is not None]
    assert sorted(places) == list(range(1, len(places) + 1))
    assert all((why.place is None) == bool(why.rejected_by) or board.forecast.open for why in whys)


def test_an_open_circuit_is_reported_with_its_probe_time() -> None:
    at = 1_795_305_600_000  # 2026-11-22T00:00:00Z
    pool = [model_of("a/shaky", quality=0.9), model_of("b/steady", quality=0.3)]
    seen = pools.board(pool, {"a/shaky": ModelHealth(open=True, probe_at_ms=at)})
    told = why_not(simple(goal="quality"), seen, "a/shaky")
    assert told.admission == "wait until 00:00:00 UTC, when its circuit allows a probe call"
    both = why_not(simple(goal="quality", models=("b/steady",)), seen, "a/shaky")
    assert both.admission is not None
    assert both.admission.endswith(" and wait until 00:00:00 UTC, when its circuit allows a probe call")
