"""Property tests of the decision (contract 3), over random pools."""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from operator import ne

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.request.rules import NUMBERS
from routewright._core.routing.board import MOST_BOARDS, Board, Boards
from routewright._core.routing.constraints import (
    PASSES,
    REASONS,
    CountTokens,
    FitCheck,
    find_failures,
    find_first_failures,
)
from routewright._core.routing.decide import CHAIN_LENGTH, pays_for_any
from routewright._core.routing.decision import Decision, decision_of, explain
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.quality import micro
from routewright._core.routing.scoring import SCORE
from routewright.errors import BudgetExceeded, NoCandidates
from routewright.wire.money import usd_short
from tests.tables import table

from .pools import TODAY, board, healths, inputs, models, pools


@dataclass
class Case:
    pool: list[wire.Model]
    health: dict[str, wire.ModelHealth]
    given: wire.DecisionInput

    @property
    def board(self) -> Board:
        return board(self.pool, self.health)


@st.composite
def cases(draw: st.DrawFn, least: int = 1, most: int = 12) -> Case:
    pool = draw(pools(least, most))
    return Case(pool, draw(healths(pool)), draw(inputs(pool)))


OWN = [REASONS.index(reason) for reason in (wire.Reason.CONTEXT, wire.Reason.BUDGET_TOKENS, wire.Reason.BUDGET_COST)]
"""Columns of the questions that are asked row by row."""


def decided(case: Case) -> Decision | None:
    try:
        return decision_of(case.given, case.board)
    except NoCandidates:
        return None


def ranking(decision: Decision | None) -> list[str]:
    return [] if decision is None else [candidate.model for candidate in decision.candidates]


def simple(**given: object) -> wire.DecisionInput:
    start = wire.DecisionInput(catalogue="c", health="h", as_of=TODAY, tokens=wire.TokenBounds(40, 40, 20), rules=RULES)
    return replace(start, **given)


def model(name: str, **given: object) -> wire.Model:
    start = wire.Model(
        id=name,
        provider=name.partition("/")[0],
        context_window=100_000,
        pricing_per_1m=wire.Pricing(1.0, 4.0),
        quality=0.5,
    )
    return replace(start, **given)


@given(cases())
def test_the_walk_and_the_full_table_agree_on_which_models_fit(case: Case) -> None:
    ask = FitCheck(case.given, case.board.forecast)
    table = find_failures(case.given, ask, case.board.order(case.given).eligible)
    by_row = [ask.fits(row) for row in range(len(case.pool))]
    assert by_row == (~table[:, OWN].any(axis=1)).tolist()
    assert all(ask.affordable_at_best()[by_row]), "what fits is not ruled out at first sight"
    assert find_first_failures(case.given, ask, case.board.order(case.given).eligible).tolist() == [
        row.index(True) if any(row) else PASSES for row in table.tolist()
    ]
    fitting = {case.pool[row].id for row in range(len(case.pool)) if not table[row].any()}
    decision = decided(case)
    if fitting:
        assert decision is not None
        assert set(ranking(decision)) == fitting
        assert ranking(decision)[0] == decision.model
    elif decision is not None:
        assert case.health[decision.model].open, "only a probe may pass where nothing fits"


@given(cases())
def test_floor_and_ceiling_apply_to_fallbacks_too(case: Case) -> None:
    decision, given = decided(case), case.given
    if decision is None:
        return
    numbers = {candidate.model: candidate for candidate in decision.candidates}
    for called in (decision.model, *decision.chain):
        qualities = dict(zip([each.id for each in case.pool], given.quality or (), strict=False))
        if called in numbers:
            seen = numbers[called]
            assert given.min_quality is None or micro(seen.quality) >= given.min_quality
            assert given.max_latency_ms is None or seen.latency_s * 1000 <= given.max_latency_ms
        if given.min_quality is not None and qualities:
            assert qualities[called] >= given.min_quality


@given(cases())
def test_a_plan_has_at_most_four_models_and_repeats_none(case: Case) -> None:
    decision = decided(case)
    if decision is None:
        return
    plan = [decision.model, *decision.chain]
    assert len(plan) == len(set(plan))
    if case.given.fallback is None:
        assert len(plan) <= max(1, len(case.given.prefer)) + CHAIN_LENGTH


@given(cases(least=4))
def test_the_first_fallback_is_from_another_provider_if_one_fits(case: Case) -> None:
    decision = decided(case)
    if decision is None or case.given.fallback is not None or case.given.prefer:
        return
    ranked = ranking(decision)
    mine = decision.model.partition("/")[0]
    elsewhere = [model_id for model_id in ranked if not model_id.startswith(mine + "/")]
    if elsewhere:
        assert decision.chain[0] == elsewhere[0]
    others = [model_id for model_id in ranked if model_id not in (decision.model, *decision.chain[:1])]
    assert decision.chain[1:] == others[: CHAIN_LENGTH - 1]


@given(cases(least=3), st.data())
def test_preferred_models_come_before_the_usual_chain(case: Case, data: st.DataObject) -> None:
    """A second opinion: the whole table says who passes, the ranking without a preference who follows."""
    ids = [each.id for each in case.pool]
    case.given = replace(case.given, prefer=tuple(data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))))
    prefer, fallback = case.given.prefer, case.given.fallback
    decision, plain = decided(case), decided(Case(case.pool, case.health, replace(case.given, prefer=())))
    table = find_failures(case.given, FitCheck(case.given, case.board.forecast), case.board.order(case.given).eligible)
    passing = {model_id for model_id, row in zip(ids, table, strict=True) if not row.any()}
    first = [model_id for model_id in prefer if model_id in passing]
    if decision is None:
        assert not passing
        return
    if not first:  # but a free offer may be probed since it was named
        assert plain is None or [decision.model, *decision.chain] == [plain.model, *plain.chain]
        return
    rest = [model_id for model_id in ranking(plain) if model_id in passing and model_id not in first]
    assert ranking(decision) == first + rest
    if fallback is not None:
        behind = [model_id for model_id in fallback if model_id not in first]
        assert decision.chain[len(first) - 1 :] == [model_id for model_id in decision.chain if model_id in behind]
        assert [decision.model, *decision.chain[: len(first) - 1]] == first
        return
    providers = {model_id.partition("/")[0] for model_id in first}
    elsewhere = [model_id for model_id in rest if model_id.partition("/")[0] not in providers]
    if len(providers) == 1 and elsewhere:
        rest = elsewhere[:1] + [model_id for model_id in rest if model_id != elsewhere[0]]
    assert [decision.model, *decision.chain] == first + rest[:CHAIN_LENGTH]


@given(cases(least=2))
def test_every_preferred_model_is_tried_first_or_its_rejection_is_explained(case: Case) -> None:
    decision = decided(case)
    if decision is None:
        return
    why = {each.model: each.reason for each in decision.rejected}
    passing = [model_id for model_id in case.given.prefer if model_id not in why]
    told = [f"{model_id} ({why[model_id]})" for model_id in case.given.prefer if model_id in why]
    assert [decision.model, *decision.chain][: len(passing)] == passing
    assert decision.reason.partition("; preferred, but rejected: ")[2] == ", ".join(told)
    assert ("which is preferred" in decision.reason) == (decision.model in case.given.prefer)


@given(cases(), models(99))
def test_adding_a_model_never_reorders_the_others(case: Case, other: wire.Model) -> None:
    if case.given.quality is not None:
        return  # a column has a number for each model
    before = ranking(decided(case))
    if any(model_id in case.health and case.health[model_id].open for model_id in before):
        return  # a probe, which gives way to whatever is not in doubt
    with_other = Case([*case.pool, other], case.health, case.given)
    after = [model_id for model_id in ranking(decided(with_other)) if model_id != other.id]
    assert after == before


@given(cases(), st.data())
def test_a_lower_price_never_lowers_the_rank(case: Case, data: st.DataObject) -> None:
    before = ranking(decided(case))
    priced = [(index, model.pricing_per_1m) for index, model in enumerate(case.pool) if model.id in before]
    chosen = [(index, pricing) for index, pricing in priced if pricing is not None]
    if not chosen:
        return
    index, pricing = data.draw(st.sampled_from(chosen))
    cheaper_id = case.pool[index].id
    factor = data.draw(st.floats(0.1, 1.0))
    lower = replace(
        pricing,
        input_usd=pricing.input_usd * factor,
        output_usd=pricing.output_usd * data.draw(st.floats(0.1, 1.0)),
        tiers=tuple(
            replace(tier, input_usd=tier.input_usd * factor, output_usd=tier.output_usd * factor)
            for tier in pricing.tiers
        ),
    )
    pool = [*case.pool]
    pool[index] = replace(pool[index], pricing_per_1m=lower)
    after = ranking(decided(Case(pool, case.health, case.given)))
    ahead_before = set(before[: before.index(cheaper_id)])
    ahead_after = set(after[: after.index(cheaper_id)])
    assert ahead_after <= ahead_before


def place(candidate: wire.Candidate) -> tuple[float, ...]:
    """What orders candidates, the best first; ids, which are in the pool's order, come last."""
    cost = float("inf") if candidate.cost_usd is None else candidate.cost_usd
    return -candidate.score, -candidate.quality, cost, candidate.latency_s, -candidate.stability


@given(cases(least=4))
def test_candidates_are_sorted_by_score_then_figures_then_id_and_late_ones_by_latency(case: Case) -> None:
    decision = decided(case)
    if decision is None:
        return
    found, timeout_s = decision.candidates, case.given.timeout_ms / 1000
    found = [candidate for candidate in found if candidate.model not in case.given.prefer]
    assert [each.late for each in found] == [each.latency_s > timeout_s for each in found]
    assert found == sorted(found, key=lambda c: (c.late, c.latency_s if c.late else 0, *place(c), c.model))


def test_a_model_without_a_price_scores_zero_for_cost() -> None:
    found = decision_of(simple(), board([model("a/unknown", pricing_per_1m=None), model("b/dear")])).candidates
    assert [(each.model, each.terms[1] > 0) for each in found] == [("b/dear", True), ("a/unknown", False)]


@given(cases(), st.data())
def test_tightening_a_constraint_never_admits_a_model(case: Case, data: st.DataObject) -> None:
    loose = set(ranking(decided(case)))
    given = case.given
    named = given.models or tuple(m.id for m in case.pool if not m.free_tier)  # a free offer is called by its name
    narrower = named[: data.draw(st.integers(1, len(named)))] if named else None
    tight = data.draw(
        st.sampled_from(
            [
                replace(given, budget_nanos=(given.budget_nanos or 10**9) // 2),
                replace(given, budget_tokens=max(1, (given.budget_tokens or 10**5) // 2)),
                replace(given, models=narrower),
                replace(given, needs=given.needs | 1),
                replace(given, needs=given.needs | 2),
                replace(given, needs=given.needs | 4),
                replace(given, regions=(*given.regions, "eu")),
                replace(given, as_of="2026-11-25"),
                replace(given, timeout_ms=500),
                replace(given, min_quality=max(given.min_quality or 0, 500_000)),
                replace(given, max_latency_ms=min(given.max_latency_ms or 10_000, 10_000)),
                replace(given, tokens=replace(given.tokens, high=given.tokens.high + 5_000, o200k=None, cl100k=None)),
            ]
        )
    )
    if given.budget_nanos is None or (tight.budget_nanos or 0) <= given.budget_nanos:
        probes = {model for model, health in case.health.items() if health.open}  # where all others are ruled out
        assert set(ranking(decided(Case(case.pool, case.health, tight)))) - probes <= loose


def test_policy_weights_replace_goal_and_strategy() -> None:
    pool = [
        model("a/good", quality=0.9, pricing_per_1m=wire.Pricing(9.0, 9.0), ttft_s=9.0),
        model("b/cheap", pricing_per_1m=wire.Pricing(0.1, 0.1), ttft_s=9.0),
        model("c/quick", tokens_per_s=1_000.0),
    ]
    seen = {"d/steady": wire.ModelHealth(stability=999)}
    pool.append(model("d/steady", ttft_s=9.0))
    each = [(100, 0, 0, 0), (0, 100, 0, 0), (0, 0, 100, 0), (0, 0, 0, 100)]
    asked = [simple(goal="quality", strategy="quality-first", weights=weights) for weights in each]
    assert [decision_of(given, board(pool, seen)).model for given in asked] == [each.id for each in pool]
    assert decision_of(asked[1], board(pool, seen)).reason.startswith(
        "weights quality=0 cost=100 latency=0 stability=0: b/cheap scored"
    )


def test_the_quality_floor_applies_to_the_quality_in_use() -> None:
    pool = [model("a/good", quality=0.6), model("b/poor", quality=0.599)]
    decision = decision_of(simple(min_quality=600_000), board(pool))
    assert [(each.model, each.reason) for each in decision.rejected] == [("b/poor", wire.Reason.QUALITY_FLOOR)]
    predicted = decision_of(simple(min_quality=600_000, quality=(100_000, 700_000)), board(pool))
    assert (predicted.model, predicted.chain) == ("b/poor", [])
    with pytest.raises(NoCandidates):
        decision_of(simple(min_quality=600_001), board(pool))


def test_the_latency_ceiling_applies_to_the_whole_answer() -> None:
    pool = [model("a/quick"), model("b/slow", ttft_s=1.001)]  # four seconds for the answer
    decision = decision_of(simple(max_latency_ms=5_000), board(pool))
    assert [(each.model, each.reason) for each in decision.rejected] == [("b/slow", wire.Reason.LATENCY_CEILING)]
    assert decision_of(simple(max_latency_ms=5_000, max_output_tokens=300), board(pool)).rejected == []
    slowed = board(pool, {"a/quick": wire.ModelHealth(ttft_ms=1_001)})
    with pytest.raises(NoCandidates):
        decision_of(simple(max_latency_ms=5_000), slowed)


@table(
    ("feature", "need", "reason", "words"),
    [
        ("temperature", wire.Need.TEMPERATURE, wire.Reason.PARAMS, "drop params.temperature"),
        ("top_p", wire.Need.TOP_P, wire.Reason.PARAMS, "drop params.top_p"),
        ("stop", wire.Need.STOP, wire.Reason.PARAMS, "drop params.stop"),
        ("seed", wire.Need.SEED, wire.Reason.PARAMS, "drop params.seed"),
        ("tool_choice", wire.Need.TOOLS | wire.Need.TOOL_CHOICE, wire.Reason.TOOLS, "drop tool_choice"),
        ("image_url", wire.Need.IMAGE | wire.Need.IMAGE_URL, wire.Reason.MODALITY, "send images as data: URLs"),
        (
            "json_object",
            wire.Need.JSON | wire.Need.JSON_OBJECT,
            wire.Reason.RESPONSE_FORMAT,
            "drop params.response_format",
        ),
        (
            "json_schema",
            wire.Need.JSON | wire.Need.JSON_SCHEMA,
            wire.Reason.RESPONSE_FORMAT,
            "drop params.response_format",
        ),
    ],
)
def test_a_model_without_a_requested_ability_is_rejected(
    feature: wire.Feature, need: wire.Need, reason: wire.Reason, words: str
) -> None:
    able = model("a/able", modalities=("text", "image", "tool"), structured_output=True, quality=0.5)
    lacking = replace(able, id="b/lacking", unsupported=(feature,), quality=0.99)
    asked = simple(goal="quality", needs=int(need))
    decision = decision_of(asked, board([able, lacking]))
    assert decision.model == "a/able"
    assert [(r.model, r.reason) for r in decision.rejected] == [("b/lacking", reason)]
    assert decision_of(simple(goal="quality"), board([able, lacking])).model == "b/lacking"
    with pytest.raises(NoCandidates, match=words):
        decision_of(asked, board([lacking]))


def test_a_free_tier_model_is_used_only_if_named() -> None:
    free = model("a/free", pricing_per_1m=wire.Pricing(0.0, 0.0), free_tier=True)
    pool = [free, model("b/paid", quality=0.4)]
    assert decision_of(simple(strategy="cost-optimized"), board(pool)).model == "b/paid"
    assert decision_of(simple(models=("a/free",)), board(pool)).model == "a/free"
    assert decision_of(simple(fallback=("a/free",)), board(pool)).chain == ["a/free"]


MOST_TOKENS = int(NUMBERS[wire.Model]["context_window"].high)
MOST_USD = NUMBERS[wire.Pricing]["input_usd"].high


@table("tokens", [1, MOST_TOKENS // 2, MOST_TOKENS, 10**10])
@table("cap", [None, MOST_TOKENS // 2, 2**53])
@table("budget", [0, 10**9, 10**17, 10**30])
def test_the_largest_figures_do_not_overflow(tokens: int, cap: int | None, budget: int) -> None:
    most = {"context_window": MOST_TOKENS, "max_output_tokens": MOST_TOKENS, "tokens_per_s": 0.001, "ttft_s": 3_600}
    pool = [
        model("a/dear", pricing_per_1m=wire.Pricing(MOST_USD, MOST_USD), **most),
        model("b/tiered", pricing_per_1m=wire.Pricing(0, 0, tiers=(wire.PriceTier(1, MOST_USD, MOST_USD),)), **most),
        model("c/free", pricing_per_1m=wire.Pricing(0, 0), **most),
    ]
    given = simple(
        tokens=wire.TokenBounds(tokens, tokens, tokens, counted=True), max_output_tokens=cap, budget_nanos=budget
    )
    small, case = board(pool), Case(pool, {}, given)
    fits = [pool[row].id for row in range(3) if FitCheck(given, small.forecast).fits(row)]
    assert sorted(ranking(decided(case))) == fits


def test_models_on_one_step_of_the_quality_grid_are_ranked_by_cost() -> None:
    pool = [
        model("a/dear", quality=0.955, pricing_per_1m=wire.Pricing(4.0, 20.0)),
        model("b/cheap", quality=0.95, pricing_per_1m=wire.Pricing(2.0, 10.0)),
    ]
    assert decision_of(simple(goal="quality", strategy="quality-first"), board(pool)).model == "b/cheap"


def test_a_model_with_an_open_circuit_is_used_only_as_a_last_resort() -> None:
    shut = {
        "a/one": wire.ModelHealth(open=True, probe_at_ms=2_000),
        "b/two": wire.ModelHealth(open=True, probe_at_ms=1_000),
    }
    pool = [model("a/one", quality=0.9), model("b/two")]
    assert decision_of(simple(), board([*pool, model("c/three", quality=0.1)], shut)).model == "c/three"
    probe = decision_of(simple(), board(pool, shut))
    assert probe.model == "b/two"
    assert probe.chain == []
    assert ranking(probe) == ["b/two"]
    assert [rejection.model for rejection in probe.rejected] == ["a/one"]
    assert "chosen  b/two" in explain(probe)


def test_a_copied_input_has_the_digest_of_the_original() -> None:
    given = simple(goal="cost", strategy="balanced", timeout_ms=60_000)
    digests = {
        decision_of(copied, board([model("a/one")])).digest
        for copied in (
            given,
            pickle.loads(pickle.dumps(given)),
            msgspec.json.decode(msgspec.json.encode(given), type=wire.DecisionInput),
            msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=wire.DecisionInput),
        )
    }
    assert len(digests) == 1


def test_a_decision_outlives_its_board_and_returns_copies() -> None:
    pool = [model("a/one", quality=0.9), model("b/two"), model("c/small", context_window=60)]
    boards = Boards(Pool(snapshot(pool, TODAY), TODAY))
    first = boards.of(health_snapshot({}))
    decision, gone = decision_of(simple(), first), weakref.ref(first)
    before = decision.candidates, decision.rejected, decision.digest
    decision.front.clear()
    decision.chain.clear()
    decision.rejected_counts.clear()
    del first
    for stability in range(MOST_BOARDS):
        boards.of(health_snapshot({"a/one": wire.ModelHealth(stability=stability)}))
    assert gone() is None
    assert (decision.candidates, decision.rejected, decision.digest) == before
    assert decision.rejected_counts == {wire.Reason.CONTEXT: 1}
    assert [candidate.model for candidate in decision.front] == ["a/one", "b/two"]


def test_undecided_token_bounds_ask_for_a_count() -> None:
    pool = [model("a/small", context_window=1_000)]
    open_question = wire.TokenBounds(300, 2_000, 700)
    with pytest.raises(CountTokens):
        decision_of(simple(tokens=open_question), board(pool))
    counted = replace(open_question, low=400, high=500, counted=True)
    assert decision_of(simple(tokens=counted), board(pool)).model == "a/small"


def test_the_window_check_uses_the_expected_count_and_the_budget_the_upper_bound() -> None:
    pool = [model("a/other", context_window=10_000)]
    counted = wire.TokenBounds(100, 12_000, 6_000, 6_000, 6_000, counted=True)
    assert decision_of(simple(tokens=counted), board(pool)).model == "a/other"
    assert decision_of(simple(tokens=counted, max_output_tokens=1_960), board(pool)).model == "a/other"
    for refused in ({"max_output_tokens": 1_961}, {"budget_tokens": 12_255}):
        with pytest.raises(NoCandidates):
            decision_of(simple(tokens=counted, **refused), board(pool))
    within = decision_of(simple(tokens=counted, budget_tokens=20_000), board(pool))
    assert within.output_cap == 1_960, "what is left of the window"


def test_preferring_a_free_tier_model_names_it() -> None:
    free = model("a/free", pricing_per_1m=wire.Pricing(0.0, 0.0), free_tier=True)
    decision = decision_of(simple(prefer=("a/free",)), board([free, model("b/paid")]))
    assert (decision.model, decision.chain, decision.rejected) == ("a/free", ["b/paid"], [])
    alone = simple(prefer=("a/free",), budget_nanos=1)
    assert pays_for_any(alone, board([free, model("b/paid")]))
    assert decision_of(alone, board([free, model("b/paid")])).model == "a/free"
    closed = board([free], {"a/free": wire.ModelHealth(open=True, probe_at_ms=1)})
    assert decision_of(simple(prefer=("a/free",)), closed).model == "a/free", "a probe, since nothing else is left"


def test_only_a_set_preference_enters_the_digest() -> None:
    pool = [model("a/one", quality=0.9), model("b/two")]
    plain, preferred = (decision_of(simple(prefer=prefer), board(pool)) for prefer in ((), ("a/one",)))
    assert plain.model == preferred.model
    assert plain.digest != preferred.digest
    before = [*msgspec.structs.astuple(plain.input)[: wire.DecisionInput.__struct_fields__.index("prefer")]]
    outcome = [plain.model, *plain.chain, plain.output_cap, plain.fallback_affordable, round(plain.score * SCORE)]
    assert plain.digest == blake2b(msgspec.json.encode([before, outcome]), digest_size=16).hexdigest()


def test_the_output_cap_leaves_room_for_the_cheapest_fallback() -> None:
    pool = [model("a/one", quality=0.99), model("b/two", quality=0.2)]
    # 40 tokens in at $1, out at $4 per million: a 90th percentile of 1,000 tokens costs $0.00404
    roomy = decision_of(simple(budget_nanos=20_000_000, goal="quality"), board(pool))
    assert roomy.fallback_affordable
    assert roomy.output_cap == (20_000 - 4_040 - 40) // 4
    tight = decision_of(simple(budget_nanos=5_000_000, goal="quality"), board(pool))
    assert not tight.fallback_affordable
    assert tight.output_cap == (5_000 - 40) // 4


def test_room_is_reserved_for_one_fallback_and_not_the_most_expensive() -> None:
    pool = [
        model("a/one", quality=0.99),
        model("b/dear", quality=0.4, pricing_per_1m=wire.Pricing(2.0, 8.0)),
        model("c/cheap", quality=0.2, max_output_tokens=300),
    ]
    by_cost = decision_of(simple(budget_nanos=10_000_000, goal="quality"), board(pool))
    assert by_cost.chain == ["b/dear", "c/cheap"]
    assert by_cost.fallback_affordable
    assert by_cost.output_cap == (10_000 - 1_240 - 40) // 4
    by_tokens = decision_of(simple(budget_tokens=2_000, goal="quality"), board(pool))
    assert by_tokens.fallback_affordable
    assert by_tokens.output_cap == 2_000 - 340 - 40


def test_a_generous_budget_caps_at_the_default() -> None:
    assert decision_of(simple(budget_nanos=10**12), board([model("a/one")])).output_cap == 4_096


def test_a_model_known_to_need_more_than_the_default_cap_gets_more() -> None:
    seen = {"a/one": wire.ModelHealth(output_tokens=5_000, output_p90=9_000)}
    assert decision_of(simple(budget_nanos=10**12), board([model("a/one")], seen)).output_cap == 9_000


def test_an_unknown_price_is_rejected_under_a_cost_budget_only() -> None:
    pool = [model("a/unpriced", pricing_per_1m=None)]
    assert decision_of(simple(), board(pool)).candidates[0].cost_usd is None
    with pytest.raises(
        BudgetExceeded,
        match=r"drop budget.max_cost_usd \(or give the model a price: none is known\) to admit a/unpriced",
    ):
        decision_of(simple(budget_nanos=10**12), board(pool))


def test_the_reason_is_one_sentence_with_the_decisions_numbers() -> None:
    pool = [model("a/one", quality=0.92, ttft_s=1.0), model("b/two"), model("c/small", context_window=60)]
    decision = decision_of(simple(goal="quality"), board(pool))
    assert decision.reason == (
        f"goal=quality strategy=balanced: a/one scored {decision.score:.2f} (quality 0.92, cost $0.0016, p50 5.0 s); "
        f"runner-up b/two {decision.candidates[1].score:.2f}; 1 of 3 rejected (1 context)"
    )


@given(cases())
def test_counts_and_sentence_agree_with_the_table(case: Case) -> None:
    decision = decided(case)
    if decision is None:
        return
    counts = Counter(each.reason for each in decision.rejected)
    assert list(decision.rejected_counts.items()) == [(each, counts[each]) for each in wire.Reason if counts[each]]
    assert ("rejected (" in decision.reason) == bool(counts.keys() - {wire.Reason.WHITELIST})
    for each in decision.front[:2]:
        assert f"{each.model}" in decision.reason
        assert f" {each.score:.2f}" in decision.reason
    cost = decision.front[0].cost_usd
    assert ("price unknown" if cost is None else f"cost {usd_short(cost)}") in decision.reason
    assert f"(quality {decision.front[0].quality:.2f}, " in decision.reason
    assert f", p50 {decision.front[0].latency_s:.1f} s)" in decision.reason


def test_a_refusal_lists_only_named_models_and_suggests_no_free_tier() -> None:
    pool = [model("a/dear", pricing_per_1m=wire.Pricing(50.0, 200.0)), model("b/cheap")]
    pool.append(model("c/free", pricing_per_1m=wire.Pricing(0.0, 0.0), free_tier=True))
    with pytest.raises(BudgetExceeded, match=r"budget_cost; raise budget.max_cost_usd .* to 0.202 to admit a/dear"):
        decision_of(simple(models=("a/dear",), budget_nanos=10_000_000), board(pool))
    pool.append(model("d/gone", deprecated_at="2026-10-23"))
    with pytest.raises(NoCandidates, match=r"d/gone deprecated since 2026-10-23; add 'b/cheap' to 'models'"):
        decision_of(simple(models=("d/gone",)), board(pool))


def test_different_plans_for_one_input_have_different_digests() -> None:
    given = simple(goal="quality", budget_nanos=6_000_000)
    one, two = (
        model("a/one", quality=0.99, max_output_tokens=1_000),
        model("b/two", pricing_per_1m=wire.Pricing(0.1, 0.4)),
    )
    pools = [
        [one, two],
        [replace(one, quality=0.8), two],  # another score
        [replace(one, max_output_tokens=900), two],  # another cap
        [one, replace(two, pricing_per_1m=wire.Pricing(1.0, 4.0))],  # a fallback that the budget does not pay for
    ]
    found = [decision_of(given, board(pool)) for pool in pools]
    plans = [(plan.model, plan.chain, plan.score, plan.output_cap, plan.fallback_affordable) for plan in found]
    assert [sum(map(ne, plan, plans[0])) for plan in plans] == [0, 1, 1, 1]
    assert len({plan.digest for plan in found}) == 4


@given(cases())
def test_every_refusal_lists_rejections_and_a_suggestion(case: Case) -> None:
    try:
        decision_of(case.given, case.board)
    except NoCandidates as error:
        refused = error
    else:
        return
    assert refused.status == 422
    asked = [model.id for model in case.pool] if case.given.models is None else case.given.models
    assert [each["model"] for each in refused.detail["rejected_candidates"]] == [*asked]
    assert f"no model fits: {len(asked)} {'considered' if case.given.models is None else 'requested'}, " in str(refused)
    assert refused.detail["suggestion"]
    assert refused.detail["suggestion"] in str(refused)


def test_a_large_catalogue_keeps_fewer_orders() -> None:
    small, large = board([model("a/one")]), board([model(f"a/m{number}") for number in range(4_000)])
    for timeout in range(40):
        for kept in (small, large):
            kept.order(simple(max_output_tokens=2**timeout, goal="quality"))
    assert len(small.lineage.orders) == 40
    assert len(large.lineage.orders) <= 33
