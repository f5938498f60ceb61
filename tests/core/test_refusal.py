"""What a refusal suggests, done to the letter, admits the model that it names."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Policy, Router
from routewright._core.decision import decide
from routewright._core.image import filling_of, rule_of
from routewright._core.money import budget_nanos, sayable, usd_text
from routewright._core.plan import build_plan
from routewright._core.refusal import LEAST_INPUT, LEAST_OUTPUT
from routewright.errors import NoCandidates
from routewright.wire import Availability, Budget, DecisionInput, Images, Model, Need, Pricing, TokenBounds

from .pools import TODAY, board, inputs, pools, seldom
from .test_decision import Case, model, simple

EXACT = 1 << 53


@dataclass
class Ruled(Case):
    """A case under a policy, and the budget as the request itself gave it."""

    policy: Policy | None
    own: Budget


@st.composite
def ruled(draw: st.DrawFn) -> Ruled:
    pool = draw(pools(1, 6))
    asked = draw(inputs(pool))
    output = draw(seldom(st.sampled_from([1, 20, 5_000, EXACT])))
    if output is not None:
        asked = replace(asked, max_output_tokens=output)
    own = Budget(draw(seldom(st.floats(0, 3))), draw(seldom(st.integers(1, 60_000))))
    if not draw(st.booleans()):
        return Ruled(pool, {}, under(replace(asked, regions=()), own, None), None, own)
    ids = [each.id for each in pool]
    policy = Policy(
        name="p",
        models=draw(seldom(st.lists(st.sampled_from(ids), min_size=1, unique=True))),
        regions=list(asked.regions) or None,
        budget=draw(seldom(st.builds(Budget, seldom(st.floats(0, 3)), seldom(st.integers(1, 60_000))))),
    )
    if asked.models is not None and policy.models is not None:
        policy = replace(policy, models=[*policy.models, asked.models[0]])
    return Ruled(pool, {}, under(asked, own, policy), policy, own)


def under(asked: DecisionInput, own: Budget, policy: Policy | None) -> DecisionInput:
    """The input as the request and its policy make it together."""
    policy = policy or Policy(name="none")
    models = asked.models
    if policy.models is not None:
        models = tuple(each for each in (models or policy.models) if each in policy.models)
    limits = [each for each in (own, policy.budget) if each is not None]
    costs = [budget_nanos(each.max_cost_usd) for each in limits if each.max_cost_usd is not None]
    tokens = [int(each.max_tokens) for each in limits if each.max_tokens is not None]
    return replace(
        asked,
        models=models,
        regions=tuple(policy.regions or ()),
        budget_nanos=min(costs, default=None),
        budget_tokens=min(tokens, default=None),
    )


def refused(case: Ruled) -> str | None:
    try:
        build_plan(case.given, case.board, case.policy)
    except NoCandidates as error:
        return str(error.detail["suggestion"])
    return None


def follow(suggestion: str, case: Ruled) -> tuple[str, DecisionInput]:
    """Do what a refusal says, in the request, and in the policy where it says so. Names the model to be admitted."""
    said, _, admitted = suggestion.rpartition(" to admit ")
    assert admitted
    asked, own, policy = case.given, case.own, case.policy or Policy(name="p")
    limits = policy.budget or Budget()
    for change in said.split(" and "):
        words, _, also = change.removesuffix(",").partition(", also in ")
        assert also in ("", "policy 'p'")
        match words.split():
            case ["add", name, "to", "models"]:
                assert name == repr(admitted)
                asked = replace(asked, models=(*(asked.models or ()), admitted))
                if also:
                    policy = replace(policy, models=[*(policy.models or ()), admitted])
            case ["set", "models", "to", *_]:
                models = ast.literal_eval(words.partition(" to ")[2])
                assert set(asked.fallback or ()) < {*models} | {admitted, ""}
                asked = replace(asked, models=tuple(models))
            case ["raise", "budget.maxCostUsd", "to", usd]:
                own = replace(own, max_cost_usd=float(usd))
                limits = replace(limits, max_cost_usd=float(usd)) if also else limits
            case ["drop", "budget.maxCostUsd", *_]:
                own = replace(own, max_cost_usd=None)
                limits = replace(limits, max_cost_usd=None) if also else limits
            case ["raise", "budget.maxTokens", "to", count]:
                assert int(count) <= EXACT
                own = replace(own, max_tokens=int(count))
                limits = replace(limits, max_tokens=int(count)) if also else limits
            case ["lower" | "set", "params.max_output_tokens", "to", count]:
                assert 1 <= int(count) <= EXACT
                assert int(count) < (asked.max_output_tokens or EXACT)
                asked = replace(asked, max_output_tokens=int(count))
            case ["shorten", "the", "input", "to", count, "tokens"]:
                assert int(count) >= LEAST_INPUT + (
                    filling_of(asked.tokens.images, rule_of(admitted)) if asked.needs & Need.IMAGE else 0
                )
                asked = replace(asked, tokens=TokenBounds(int(count), int(count), int(count), counted=True))
            case ["send", "no", "images"]:
                asked = replace(asked, needs=asked.needs & ~1, tokens=replace(asked.tokens, images=()))
            case ["declare", "no", "tools"]:
                asked = replace(asked, needs=asked.needs & ~2)
            case ["drop", "params.response_format"]:
                asked = replace(asked, needs=asked.needs & ~4)
            case ["drop", *_]:
                dropped = words.removeprefix("drop ").removesuffix(" from the regions of policy 'p'").split(", ")
                assert set(dropped) <= set(policy.regions or ())
                policy = replace(policy, regions=[each for each in policy.regions or () if each not in dropped])
            case _:
                raise AssertionError(words)
    return admitted, under(asked, own, replace(policy, budget=limits))


def out_of_reach(each: Model) -> bool:
    """No request gets this model: it is gone, or has room for none."""
    gone = each.deprecated_at is not None and each.deprecated_at <= TODAY
    return (
        gone or each.disabled or each.availability.status == "unavailable" or (each.context_window or 0) <= LEAST_INPUT
    )


def test_what_a_refusal_suggests_admits_the_model_that_it_names(full: bool) -> None:
    @settings(max_examples=10_000 if full else 300)
    @given(ruled())
    def hold(case: Ruled) -> None:
        suggestion = refused(case)
        if suggestion is None:
            return
        if suggestion.startswith("no change"):
            assert all(out_of_reach(each) for each in case.pool), suggestion
            return
        admitted, changed = follow(suggestion, case)
        assert admitted in [candidate.model for candidate in decide(changed, case.board).candidates], suggestion

    hold()


def suggested(given: DecisionInput, *pool: Model, policy: Policy | None = None) -> str:
    with pytest.raises(NoCandidates) as caught:
        build_plan(given, board([*pool]), policy)
    return str(caught.value.detail["suggestion"])


def test_a_budget_is_worked_out_for_the_output_that_is_suggested_with_it() -> None:
    small = model("a/small", max_output_tokens=1_000)
    asked = simple(max_output_tokens=EXACT, budget_nanos=1_000_000)
    # 40 tokens in at $1, 1,000 out at $4 per million
    assert suggested(asked, small) == (
        "lower params.max_output_tokens to 1000 and raise budget.maxCostUsd to 0.00404 to admit a/small"
    )
    both = replace(asked, budget_nanos=None, budget_tokens=500)
    assert suggested(both, small) == (
        "lower params.max_output_tokens to 1000 and raise budget.maxTokens to 1040 to admit a/small"
    )


def test_no_answer_of_a_few_tokens_and_no_prompt_of_none_is_suggested() -> None:
    long = simple(tokens=TokenBounds(99_995, 99_995, 99_995), max_output_tokens=4_000)
    assert suggested(long, model("a/one")) == "shorten the input to 96000 tokens to admit a/one"
    assert LEAST_OUTPUT > 5
    tiny = model("a/tiny", context_window=LEAST_INPUT + 3)
    assert suggested(simple(), tiny).startswith("no change")


def test_where_no_image_fits_none_is_suggested() -> None:
    images = (Images(1_024, 1_024),)
    fits = LEAST_INPUT + filling_of(images, rule_of("a/sees"))
    seeing = model("a/sees", modalities=("text", "image"), context_window=fits + 400)
    long = simple(needs=Need.IMAGE, tokens=TokenBounds(90_000, 90_000, 90_000, images=images))
    assert suggested(long, seeing) == f"shorten the input to {fits} tokens to admit a/sees"
    narrow = replace(seeing, context_window=(seeing.context_window or 0) - 1)
    assert suggested(long, narrow) == f"send no images and shorten the input to {fits - 1} tokens to admit a/sees"


def test_under_a_policys_budget_a_shorter_answer_is_suggested_where_that_helps() -> None:
    dear = model("a/dear", pricing_per_1m=Pricing(10.0, 40.0))
    policy = Policy(name="thrifty", budget=Budget(max_cost_usd=0.01))
    assert suggested(simple(budget_nanos=10_000_000), dear, policy=policy) == (
        "set params.max_output_tokens to 240 to admit a/dear"
    )
    assert suggested(simple(budget_nanos=10_000_000), dear) == "raise budget.maxCostUsd to 0.0404 to admit a/dear"


def test_a_limit_of_the_policy_is_named_where_the_request_cannot_help_itself() -> None:
    dear, far = model("a/dear", pricing_per_1m=Pricing(1_000.0, 40.0)), model("b/far")
    policy = Policy(name="thrifty", models=["a/dear"], budget=Budget(max_cost_usd=0.01), regions=["eu"])
    asked = simple(models=("a/dear",), budget_nanos=10_000_000, regions=("eu",))
    assert suggested(asked, dear, policy=policy) == (
        "drop eu from the regions of policy 'thrifty' and raise budget.maxCostUsd to 0.08, also in policy 'thrifty', "
        "to admit a/dear"
    )
    assert suggested(asked, model("a/dear", disabled=True), far, policy=policy) == (
        "add 'b/far' to models, also in policy 'thrifty', and drop eu from the regions of policy 'thrifty' "
        "to admit b/far"
    )


def test_the_region_to_drop_is_the_one_that_the_model_is_not_served_from() -> None:
    served = model("a/one", availability=Availability(regions=("us",)))
    policy = Policy(name="p", regions=["us", "eu"])
    asked = simple(regions=("us", "eu"))
    assert suggested(asked, served, policy=policy) == "drop eu from the regions of policy 'p' to admit a/one"


def test_a_free_tier_is_offered_only_where_nothing_else_is_left() -> None:
    free = model("c/free", pricing_per_1m=Pricing(0.0, 0.0), free_tier=True)
    assert suggested(simple(), free) == "set models to ['c/free'] to admit c/free"
    assert suggested(simple(fallback=("b/off",)), free, model("b/off", disabled=True)) == (
        "set models to ['b/off', 'c/free'] to admit c/free"
    )
    dear = model("a/dear")
    assert suggested(simple(budget_nanos=1), free, dear).endswith("to admit a/dear")
    assert suggested(simple(), replace(free, disabled=True)).startswith("no change")


def test_the_router_knows_which_limit_is_the_policys() -> None:
    policy = Policy(name="thrifty", budget=Budget(max_cost_usd=0.0000001), models=["openai/gpt-5.5"])
    router = Router.sandbox(policies=[policy])
    with pytest.raises(NoCandidates, match=r"to 0\.105185, also in policy 'thrifty', to admit openai"):
        router.decide("Write a limerick about rivers.", policy_id="thrifty")


@given(st.integers(0, 10**18 * 4))
def test_a_suggested_amount_survives_being_written_and_read(amount: int) -> None:
    said = sayable(amount)
    assert 0 <= said - amount < 10 ** max(0, len(str(amount)) - 15)
    assert budget_nanos(float(usd_text(said))) == said
