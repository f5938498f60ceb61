"""Reasoning options change the estimated cost, length and time of a decision, and budgets still hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.catalogue.prices import hour_price, prices_of, tier_prices, usage_nanos
from routewright._core.policy import apply_policy
from routewright._core.request.read import as_request, keeps_an_hour, needs_of, wishes_of
from routewright._core.routing.board import Boards
from routewright._core.routing.constraints import FitCheck
from routewright._core.routing.decision import decision_of
from routewright._core.routing.inputs import requirements_of
from routewright._core.routing.pool import ANSWER_TOKENS, THINKING_TOKENS, Pool
from routewright._core.routing.request_options import RequestOptions, request_options_of
from routewright._core.tokens.estimate import bounds_of
from routewright.errors import BudgetExceeded, NoCandidates, ValidationFailed
from tests.tables import table

from .pools import TODAY, healths, pools
from .test_decision import model, simple

PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 400}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
MARKED = {"type": "text", "text": "Rules", "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def boards(models: list[wire.Model]) -> Boards:
    return Boards(Pool(snapshot(models, TODAY), TODAY))


def decided(models: list[wire.Model], seen: dict[str, wire.ModelHealth] | None = None, **asked: Any) -> Any:
    asked_input = simple(**asked)
    plain = boards(models).of(health_snapshot(seen or {}))
    return decision_of(asked_input, plain.with_dials(request_options_of(asked_input)))


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}]}


# Effort


@table(
    ("asked", "thought"),
    [
        ({}, THINKING_TOKENS),
        ({"effort": "none"}, 0),
        ({"effort": "low"}, 350),
        ({"effort": "high"}, 2_500),
        ({"thinking_tokens": 512}, 512),
        ({"thinking_tokens": 5_000}, 4_096),
    ],
)
def test_expected_cost_and_time_follow_the_effort(asked: dict[str, Any], thought: int) -> None:
    thinker = model("a/one", reasoning=True, ttft_s=1.0, tokens_per_s=100.0)
    found = decided([thinker], **asked).candidates[0]
    output = ANSWER_TOKENS + thought
    assert found.cost_usd == pytest.approx((20 * 1 + output * 4) / 1e6, rel=0.2)  # of its size class
    assert found.latency_s == pytest.approx(1.0 + output / 100)


def test_learned_lengths_scale_with_effort_like_the_priors() -> None:
    seen = {"a/one": wire.ModelHealth(output_tokens=2_800, output_p90=5_600, ttft_ms=2_000)}
    plain = boards([model("a/one", reasoning=True)]).of(health_snapshot(seen))
    low = plain.with_dials(RequestOptions(effort="none"))
    assert plain.forecast.output == [2_800]
    assert low.forecast.output == [2_800 * ANSWER_TOKENS // (ANSWER_TOKENS + THINKING_TOKENS)]
    assert low.forecast.output_p90 == [1_600]


def test_usage_with_an_effort_is_recorded_as_without() -> None:
    assert RequestOptions(effort="high").as_usual(wire.Usage(10, 600, reasoning=500)) == wire.Usage(
        10, 300, reasoning=200
    )
    assert RequestOptions(effort="none").as_usual(wire.Usage(10, 600, reasoning=100)) == wire.Usage(10, 500)


def test_only_models_that_support_the_effort_fit() -> None:
    pool = [model("a/plain"), model("b/thinks", reasoning=True), model("c/always", reasoning=True)]
    pool[2] = replace(pool[2], unsupported=("reasoning_none", "reasoning_tokens"))

    def kept(reasoning: Any) -> set[str]:
        asks = requirements_of(as_request("Hi", {"params": {"reasoning": reasoning}}))
        found = decided(pool, needs=asks.needs, effort=asks.effort, thinking_tokens=asks.thinking_tokens)
        return {each.model for each in found.candidates}

    assert kept("none") == {"a/plain", "b/thinks"}
    assert kept("low") == {"b/thinks", "c/always"}
    assert kept({"max_tokens": 2_000}) == {"b/thinks"}


# What is not taken beside thinking

TOOLED = int(wire.Need.TOOLS | wire.Need.REASONING | wire.Need.REASONING_TOOLS)


def tooled(id: str, *unsupported: wire.Feature, **given: Any) -> wire.Model:
    return model(id, reasoning=True, modalities=("text", "tool"), unsupported=unsupported, **given)


SHY = tooled("a/shy", "reasoning_tools")
MUTE = tooled("b/mute", "reasoning_tools", "reasoning_none")
ABLE = tooled("c/able", quality=0.1)


def test_tools_with_an_effort_need_a_model_that_combines_them() -> None:
    found = decided([SHY, MUTE, ABLE], needs=TOOLED, effort="low")
    assert [each.model for each in found.candidates] == ["c/able"]
    assert {each.model: each.reason for each in found.rejected} == {
        "a/shy": wire.Reason.PARAMS,
        "b/mute": wire.Reason.TOOLS,
    }
    with pytest.raises(NoCandidates, match=r"drop params\.reasoning to admit a/shy"):
        decided([SHY], needs=TOOLED, effort="low")
    with pytest.raises(NoCandidates, match=r"; declare no tools to admit b/mute"):
        decided([MUTE], needs=TOOLED, effort="low")


@table(
    ("feature", "params", "rest"),
    [
        ("reasoning_tool_choice", {"reasoning": "low"}, {"tools": [{"name": "f"}], "tool_choice": "required"}),
        ("reasoning_tool_choice", {"reasoning": {"max_tokens": 2000}}, {"tools": [{"name": "f"}], "tool_choice": "f"}),
        ("reasoning_sampling", {"reasoning": "low", "temperature": 0.5}, {}),
        ("reasoning_brief", {"reasoning": "low", "max_output_tokens": 1024}, {}),
        ("reasoning_tokens_brief", {"reasoning": {"max_tokens": 1000}, "max_output_tokens": 1024}, {}),
    ],
)
def test_params_unsupported_with_reasoning_exclude_a_model(
    feature: wire.Feature, params: dict[str, Any], rest: dict[str, Any]
) -> None:
    lacking, able = tooled("a/lacking", feature, quality=0.9), tooled("b/able", quality=0.1)

    def asking(params: dict[str, Any]) -> dict[str, Any]:
        asks = requirements_of(as_request("Hi", {"params": params, **rest}))
        return {**asks._asdict(), "goal": "quality"}

    found = decided([lacking, able], **asking(params))
    assert [(each.model, each.reason) for each in found.rejected] == [("a/lacking", wire.Reason.PARAMS)]
    with pytest.raises(NoCandidates, match=r"; drop params\.reasoning to admit a/lacking"):
        decided([lacking], **asking(params))
    alone = {name: value for name, value in params.items() if name != "reasoning"}
    assert decided([lacking, able], **asking(alone)).model == "a/lacking"
    wide = {"reasoning": "low", "temperature": 1, "top_p": 0.95, "max_output_tokens": 1025}
    rest = {}
    assert decided([lacking, able], **asking(wide)).model == "a/lacking"


@table(
    ("feature", "given_"),
    [("reasoning_brief", {"effort": "low"}), ("reasoning_tokens_brief", {"thinking_tokens": 1_024})],
)
def test_a_budget_must_cover_the_shortest_reasoning(feature: wire.Feature, given_: dict[str, Any]) -> None:
    seen, pool = {"a/one": wire.ModelHealth(output_tokens=20, output_p90=30)}, [tooled("a/one", feature)]
    budget = 20 * 1_000 + 1_024 * 4_000
    with pytest.raises(BudgetExceeded):
        decided(pool, seen, budget_nanos=budget, **given_)
    assert decided(pool, seen, budget_nanos=budget + 100_000, **given_).model == "a/one"
    assert decided(pool, seen, budget_nanos=budget, effort="none").model == "a/one"


# Tiers, marks and recordings


def test_flex_costs_as_much_as_batch_at_vendors_that_say_so() -> None:
    listed = wire.Pricing(2.0, 8.0, 0.5, batch_input_usd=1.0, batch_output_usd=4.0)
    for provider, expected in (("openai", (1.0, 4.0)), ("groq", (2.0, 8.0))):
        pool = Pool(snapshot([model(f"{provider}/m", pricing_per_1m=listed)], TODAY), TODAY).with_dials(
            RequestOptions(tier="flex")
        )
        assert (pool.prices[0][0].input, pool.prices[0][0].output) == tuple(usd * 1_000_000 for usd in expected)


def test_a_budget_covers_hour_cache_writes() -> None:
    listed = wire.Pricing(1.0, 4.0, 0.1, 1.25)
    price = prices_of(listed)[0]
    assert hour_price(price) == 2_000_000
    given_ = simple(wishes=int(wire.Need.CACHE_CONTROL), hour_cache=True)
    plain = boards([model("a/one", pricing_per_1m=listed)]).of(health_snapshot({}))
    ask = FitCheck(given_, plain.with_dials(request_options_of(given_)).forecast)
    held = ask.held_output(0) * 4_000_000
    assert ask.worst_picos(0, 40) == 40 * 2_000_000 + held
    assert FitCheck(given_, plain.forecast).worst_picos(0, 40) == 40 * 1_250_000 + held


def test_a_budget_excludes_audio_models_without_an_audio_price() -> None:
    hears = model("a/one", modalities=("text", "audio"))
    asked: dict[str, Any] = {"needs": int(wire.Need.AUDIO), "budget_nanos": 10**9}
    with pytest.raises(BudgetExceeded, match="give the model a price"):
        decided([hears], **asked)
    assert decided([hears], needs=int(wire.Need.AUDIO)).model == "a/one"
    priced = replace(hears, pricing_per_1m=wire.Pricing(1.0, 4.0, audio_input_usd=10.0))
    assert decided([priced], **asked).model == "a/one"
    board = boards([priced]).of(health_snapshot({})).with_dials(RequestOptions(audio=True))
    assert FitCheck(simple(**asked), board.forecast).worst_picos(0, 10) >= 10 * 10_000_000


def test_a_file_counts_as_its_models_window() -> None:
    request = as_request(user(PDF), {})
    bounds, reads = (
        replace(bounds_of(request), counted=True),
        model("a/one", modalities=("text", "file"), context_window=50_000),
    )
    board = boards([reads]).of(health_snapshot({}))
    ask = FitCheck(simple(tokens=bounds, needs=needs_of(request)), board.forecast)
    assert ask.high(0) == 50_000
    assert bounds.estimate < 10_000
    dear = decided([reads], tokens=bounds, needs=needs_of(request), budget_nanos=60_000_000)
    assert dear.model == "a/one"
    with pytest.raises(BudgetExceeded):
        decided([reads], tokens=bounds, needs=needs_of(request), budget_nanos=49_000_000)
    unknown = replace(reads, context_window=None)
    with pytest.raises(BudgetExceeded):
        decided([unknown], tokens=bounds, needs=needs_of(request), budget_nanos=10**12)


def test_returned_reasoning_is_bounded_by_its_bytes() -> None:
    said = {"role": "assistant", "content": "4", "reasoning": {"provider": "a", "items": [{"signature": "x" * 400}]}}
    bounds = bounds_of(as_request([{"role": "user", "content": "2+2"}, said, {"role": "user", "content": "+1"}], {}))
    (thought,) = bounds.images
    assert thought == wire.Images(tokens=len('[{"signature":""}]') // 4 + 100, most=418)


@table(
    ("request_", "needs", "wishes"),
    [
        (user(PDF), wire.Need.FILE, 0),
        (user({"type": "file", "file": {"file_data": "https://x/y.pdf"}}), wire.Need.FILE | wire.Need.FILE_URL, 0),
        (user(MARKED), 0, wire.Need.CACHE_CONTROL),
        ({"messages": [{"role": "user", "content": "x"}], "params": {"service_tier": "flex"}}, 0, wire.Need.FLEX),
        ({"messages": [{"role": "user", "content": "x"}], "params": {"verbosity": "low"}}, 0, wire.Need.VERBOSITY),
        (user(SOUND), wire.Need.AUDIO, 0),
    ],
)
def test_needs_and_wishes_follow_the_request(request_: dict[str, Any], needs: int, wishes: int) -> None:
    request = as_request(request_, {})
    assert needs_of(request) == needs
    assert wishes_of(request) == wishes
    assert keeps_an_hour(request) == bool(wishes & wire.Need.CACHE_CONTROL)


# No dial lets a budget be overspent


@st.composite
def dialled(draw: st.DrawFn) -> tuple[RequestOptions, wire.Pricing]:
    usd = st.sampled_from([0.0, 0.5, 3.0, 25.0])
    known = st.none() | usd
    listed = wire.Pricing(
        draw(usd), draw(usd), draw(known), draw(known), draw(known), draw(usd), reasoning_usd=draw(known),
        audio_input_usd=draw(known), cache_write_hour_usd=draw(known),
        service_tiers=draw(st.sampled_from([(), (wire.ServicePrice("priority", 30.0, 60.0, 1.0, 40.0),)])),
    )  # fmt: skip
    if listed.batch_input_usd is None:
        listed = replace(listed, batch_output_usd=None)
    tier = draw(st.sampled_from(["", "flex", "priority"]))
    return RequestOptions(None, None, tier, hour=draw(st.booleans()), audio=draw(st.booleans())), listed


@given(dialled(), st.sampled_from(["openai", "groq", "other"]), st.data())
def test_no_usage_costs_more_than_the_budget_covers(
    dials: tuple[RequestOptions, wire.Pricing], provider: str, data: st.DataObject
) -> None:
    asked, listed = dials
    pool = Pool(snapshot([model(f"{provider}/m", pricing_per_1m=listed)], TODAY), TODAY).with_dials(asked)
    whole = data.draw(st.integers(0, 10_000))
    parts = sorted(data.draw(st.lists(st.integers(0, whole), min_size=3, max_size=3)))
    cached, written, audio = parts[0], parts[1] - parts[0], parts[2] - parts[1]
    hour = data.draw(st.integers(0, written)) if asked.hour else 0
    output = data.draw(st.integers(0, 5_000))
    thought = data.draw(st.integers(0, output))
    usage = wire.Usage(whole, output, cached, thought, written, hour, audio if asked.audio else 0)
    if pool.held[0]:
        price = pool.dearest(0, whole)
        assert usage_nanos(pool.prices[0], usage) <= -(-(whole * price.input + output * price.output) // 1_000)


@given(pools(), st.data())
def test_a_dialled_board_follows_the_plain_one(pool: list[wire.Model], data: st.DataObject) -> None:
    plain = boards(pool).of(health_snapshot(data.draw(healths(pool))))
    dials = RequestOptions(
        data.draw(st.sampled_from([None, "none", "high"])), None, data.draw(st.sampled_from(["", "flex"]))
    )
    asked = simple(effort=dials.effort, wishes=int(wire.Need.FLEX) if dials.tier else 0)
    first = plain.with_dials(dials)
    first.order(asked)
    moved = {row: wire.ModelHealth(output_tokens=900, stability=500) for row in range(0, len(pool), 2)}
    later = health_snapshot(
        {**plain.forecast.health.models, **{plain.pool.ids[row]: each for row, each in moved.items()}}
    )
    second = plain.with_health(later, moved).with_dials(dials)
    fresh = Boards(Pool(plain.pool.snapshot, TODAY).with_dials(dials)).of(later)
    assert second.order(asked).keys == fresh.order(asked).keys
    assert (second.forecast.output, second.forecast.ttft_ms) == (fresh.forecast.output, fresh.forecast.ttft_ms)


# Policies


def test_policy_params_are_defaults_for_the_request() -> None:
    given_ = wire.Params(reasoning="low", service_tier="flex", max_output_tokens=500, extra={"a": {"x": 1, "y": 1}})
    snapshot_ = wire.PolicySnapshot("p", "p@2026-11-21", wire.Policy(name="p", params=given_))
    asked = as_request("Hi", {"params": {"reasoning": "high", "max_output_tokens": 900, "extra": {"a": {"x": 2}}}})
    laid = apply_policy(asked, snapshot_).params
    assert laid is not None
    assert (laid.reasoning, laid.service_tier, laid.max_output_tokens) == ("high", "flex", 500)
    assert laid.extra == {"a": {"x": 2, "y": 1}}
    assert apply_policy(as_request("Hi", {}), snapshot_).params == given_


# Rules


@table(
    ("params", "path"),
    [
        ({"reasoning": {"max_tokens": 0}}, "params.reasoning.max_tokens"),
        ({"reasoning": {"max_tokens": 900}, "max_output_tokens": 900}, "params.reasoning.max_tokens"),
        ({"extra": {"openai": {"max_tokens": 9}}}, "params.extra.openai.max_tokens"),
        (
            {"extra": {"google": {"generationConfig": {"candidateCount": 2}}}},
            "params.extra.google.generationConfig.candidateCount",
        ),
    ],
)
def test_unsupported_combinations_are_refused_with_their_path(params: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        as_request("Hi", {"params": params})
    assert [problem.path for problem in refused.value.problems] == [path]


def test_reasoning_bounds_share_few_boards() -> None:
    found = {request_options_of(simple(thinking_tokens=tokens)) for tokens in range(1, 100_000, 7)}
    assert len(found) <= 18


def test_a_tiers_missing_prices_scale_with_its_input_price() -> None:
    own = (wire.ServicePrice("priority", 2.0, 8.0, cached_input_usd=0.5),)
    tiers = (wire.PriceTier(200_000, 2.0, 6.0),)
    listed = wire.Pricing(1.0, 4.0, 0.1, tiers=tiers, audio_input_usd=10.0, service_tiers=own)
    long, short = tier_prices("a", listed, "priority")
    assert (short.input, short.output, short.cached, short.audio) == (2_000_000, 8_000_000, 500_000, 20_000_000)
    assert (long.above, long.input, long.output, long.cached) == (200_000, 4_000_000, 12_000_000, 1_000_000)
