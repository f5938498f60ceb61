"""Following a refusal's suggestion admits the model that it names."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Catalogue, Policy, Router
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.model_selector import CAPABLE, ModelIndex
from routewright._core.money import budget_nanos, sayable
from routewright._core.policy import AppliedPolicy, check_policy
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.decide import decide
from routewright._core.routing.decision import decision_of
from routewright._core.routing.pool import Pool
from routewright._core.routing.quality import micro
from routewright._core.routing.refusal import LEAST_INPUT, LEAST_OUTPUT
from routewright._core.tokens.images import filling_of, rule_of
from routewright.errors import BudgetExceeded, NoCandidates, ValidationFailed
from routewright.wire import Budget, DecisionInput, Images, Model, ModelHealth, Need, Pricing, TokenBounds
from routewright.wire.money import usd_text
from tests.tables import table

from .policies import publish
from .pools import TODAY, board, healths, inputs, pools, seldom
from .test_decision import Case, model, simple

EXACT = 1 << 53


ALIASES = {"first": 0, "last": -1}
"""Short names, and which model of a pool has each."""


@dataclass
class Ruled(Case):
    """A case under a policy, with what the request itself asked for."""

    asked: DecisionInput
    policy: Policy | None
    own: Budget

    @property
    def known(self) -> ModelIndex:
        return ModelIndex(self.pool, {alias: self.pool[row].id for alias, row in ALIASES.items()})

    @property
    def board(self) -> Board:
        boards = Boards(Pool(snapshot(self.pool, TODAY), TODAY), self.known.aliases)
        return boards.of(health_snapshot(self.health))

    @property
    def laid(self) -> AppliedPolicy | None:
        return (
            None
            if self.policy is None
            else AppliedPolicy(publish([self.policy], TODAY, self.known)[0], self.asked.models)
        )


@st.composite
def policies(draw: st.DrawFn, pool: list[Model]) -> Policy:
    """Rules of every kind. What they say picks something, though perhaps nothing of it can serve."""
    providers = [each.provider for each in pool]
    able = [f"capability:{name}" for name, holds in CAPABLE.items() if any(map(holds, pool))]
    tags = [f"tag:{tag}" for each in pool for tag in each.tags or ()]
    words = [*(each.id for each in pool), *ALIASES, *(f"{each}/*" for each in providers), "*", "*?0"]
    words += [*(f"provider:{each}" for each in providers), *able, *tags]
    some = st.lists(st.sampled_from(words), min_size=1, max_size=3, unique=True)
    region_sets: list[list[str]] = [["us"], ["eu"], ["us", "eu"]]
    return Policy(
        name="p",
        models=draw(seldom(some)),
        exclude=draw(seldom(some)),
        capabilities=draw(seldom(st.lists(st.sampled_from([*CAPABLE]), max_size=2, unique=True))),
        regions=draw(seldom(st.sampled_from(region_sets))),
        budget=draw(seldom(st.builds(Budget, seldom(st.floats(0, 3)), seldom(st.integers(1, 60_000))))),
        min_quality=draw(seldom(st.floats(0, 1).map(lambda share: round(share, 3)))),
        max_latency_ms=draw(seldom(st.integers(1, 60_000))),
    )


@st.composite
def ruled(draw: st.DrawFn) -> Ruled:
    pool = draw(pools(1, 6))
    tagged = draw(st.sampled_from(pool)).id
    pool = [replace(each, tags=("eu",)) if each.id == tagged else each for each in pool]
    asked = replace(draw(inputs(pool)), regions=(), weights=None, min_quality=None, max_latency_ms=None)
    output = draw(seldom(st.sampled_from([1, 20, 5_000, EXACT])))
    if output is not None:
        asked = replace(asked, max_output_tokens=output)
    own = Budget(draw(seldom(st.floats(0, 3))), draw(seldom(st.integers(1, 60_000))))
    policy = draw(policies(pool)) if draw(st.booleans()) else None
    case = Ruled(pool, draw(healths(pool)), asked, asked, policy, own)
    try:
        return replaced(case)
    except ValidationFailed:
        reject()  # of words that pick only what they must not, or nothing together


def replaced(case: Ruled, **changed: Any) -> Ruled:
    """A case with changes, and the input that follows."""
    case = dataclasses.replace(case, **changed)
    case.given = under(case)
    return case


def under(case: Ruled) -> DecisionInput:
    """The input as the request and its policy make it together."""
    asked, policy, laid = case.asked, case.policy or Policy(name="none"), case.laid
    models = asked.models
    if laid is not None and laid.snapshot.models is not None:
        models = tuple(each for each in (models or laid.snapshot.models) if each in laid.snapshot.models)
    limits = [each for each in (case.own, policy.budget) if each is not None]
    costs = [budget_nanos(each.max_cost_usd) for each in limits if each.max_cost_usd is not None]
    tokens = [int(each.max_tokens) for each in limits if each.max_tokens is not None]
    return replace(
        asked,
        models=models,
        regions=tuple(policy.regions or ()),
        budget_nanos=min(costs, default=None),
        budget_tokens=min(tokens, default=None),
        min_quality=None if policy.min_quality is None else micro(policy.min_quality),
        max_latency_ms=None if policy.max_latency_ms is None else int(policy.max_latency_ms),
    )


def refused(case: Ruled) -> str | None:
    try:
        decide(case.given, case.board, case.laid)
    except NoCandidates as error:
        return in_attributes(error)
    return None


POLICY = " of policy 'p'"


def in_attributes(error: NoCandidates) -> str:
    """The suggestion without the names that fields have in a dict."""
    return re.sub(r" \(max\w+ in a dict\)", "", error.detail["suggestion"])


class NoSuchPrompt(Exception):
    """No image is as short."""


def follow(changes: list[str], admitted: str, case: Ruled) -> Ruled:
    """Do what a refusal says, in the request, and in the policy where it says so."""
    for change in changes:
        words = change.removesuffix(",")
        if POLICY in words:
            case = ruled_otherwise(words.replace(POLICY, ""), admitted, case)
        else:
            words, _, also = words.partition(", also in ")
            assert also in ("", "policy 'p'")
            case = asked_otherwise(words, admitted, case, also=bool(also))
    return replaced(case)


def ruled_otherwise(words: str, admitted: str, case: Ruled) -> Ruled:
    policy = case.policy or Policy(name="p")
    match words.split():
        case ["add", name, "to", "models"]:
            assert name == repr(admitted)
            policy = replace(policy, models=[*(policy.models or ()), admitted])
        case ["set", "models", "to", name]:
            assert name == repr([admitted])
            policy = replace(policy, models=[admitted])
        case ["drop", *_, "from", "exclude"]:
            out = listed_in(words)
            assert set(out) <= set(policy.exclude or ())
            policy = replace(policy, exclude=[each for each in policy.exclude or () if each not in out])
        case ["drop", *_, "from", "capabilities"]:
            out = listed_in(words)
            assert set(out) <= set(policy.capabilities or ())
            policy = replace(policy, capabilities=[each for each in policy.capabilities or () if each not in out])
        case ["drop", *_, "regions"]:
            dropped = words.removeprefix("drop ").removesuffix(" from the regions").split(", ")
            assert set(dropped) <= set(policy.regions or ())
            policy = replace(policy, regions=[each for each in policy.regions or () if each not in dropped])
        case ["lower", "min_quality", "to", share]:
            assert float(share) < (policy.min_quality or 0)
            policy = replace(policy, min_quality=float(share))
        case ["raise", "max_latency_ms", "to", count]:
            assert int(count) > (policy.max_latency_ms or EXACT)
            policy = replace(policy, max_latency_ms=int(count))
        case ["drop", "max_latency_ms"]:
            policy = replace(policy, max_latency_ms=None)
        case _:
            raise AssertionError(words)
    return dataclasses.replace(case, policy=check_policy(policy, 0))


def listed_in(words: str) -> list[str]:
    return [*ast.literal_eval(f"[{words.removeprefix('drop ').rpartition(' from ')[0]}]")]


def asked_otherwise(words: str, admitted: str, case: Ruled, *, also: bool) -> Ruled:
    """Change the request, and ``also`` the policy's budget."""
    asked, own, policy = case.asked, case.own, case.policy or Policy(name="p")
    limits = policy.budget or Budget()
    match words.split():
        case ["add", name, "to", "'models'"]:
            assert name == repr(admitted)
            asked = replace(asked, models=(*(asked.models or ()), admitted))
        case ["set", "'models'", "to", *_]:
            models = ast.literal_eval(words.partition(" to ")[2])
            assert set(asked.fallback or ()) < {*models} | {admitted, ""}
            asked = replace(asked, models=tuple(models))
        case ["raise", "budget.max_cost_usd", "to", usd]:
            own = replace(own, max_cost_usd=float(usd))
            limits = replace(limits, max_cost_usd=float(usd)) if also else limits
        case ["drop", "budget.max_cost_usd", *_]:
            own = replace(own, max_cost_usd=None)
            limits = replace(limits, max_cost_usd=None) if also else limits
        case ["raise", "budget.max_tokens", "to", count]:
            assert int(count) <= EXACT
            own = replace(own, max_tokens=int(count))
            limits = replace(limits, max_tokens=int(count)) if also else limits
        case ["lower" | "set", "params.max_output_tokens", "to", count]:
            assert 1 <= int(count) <= EXACT
            assert int(count) < (asked.max_output_tokens or EXACT)
            asked = replace(asked, max_output_tokens=int(count))
        case ["shorten", "the", "input", "from", present, "to", count, "tokens"]:
            assert int(count) < int(present)
            images = filling_of(asked.tokens.images, rule_of(admitted)) if asked.needs & Need.IMAGE else 0
            if int(count) < LEAST_INPUT + images:
                raise NoSuchPrompt
            asked = replace(asked, tokens=TokenBounds(int(count), int(count), int(count), counted=True))
        case ["send", "no", "images"]:
            none = ~(Need.IMAGE | Need.IMAGE_URL)
            asked = replace(asked, needs=int(asked.needs & none), tokens=replace(asked.tokens, images=()))
        case ["declare", "no", "tools"]:
            asked = replace(asked, needs=int(asked.needs & ~(Need.TOOLS | Need.TOOL_CHOICE)))
        case ["send", "images", "as", "data:", "URLs"]:
            asked = replace(asked, needs=int(asked.needs & ~Need.IMAGE_URL))
        case ["drop", field] if field in DROPPED:
            asked = replace(asked, needs=int(asked.needs & ~DROPPED[field]))
        case _:
            raise AssertionError(words)
    ruling = None if case.policy is None else replace(policy, budget=limits)
    return dataclasses.replace(case, asked=asked, own=own, policy=ruling)


DROPPED = {
    "tool_choice": Need.TOOL_CHOICE,
    "params.response_format": Need.JSON | Need.JSON_OBJECT | Need.JSON_SCHEMA,
    "params.temperature": Need.TEMPERATURE,
    "params.top_p": Need.TOP_P,
    "params.stop": Need.STOP,
    "params.seed": Need.SEED,
}


def admits(case: Ruled, model: str) -> bool:
    """Whether a case is served by a model: ranked, or probed where breakers alone are in the way."""
    try:
        decision = decision_of(case.given, case.board)
    except NoCandidates:
        return False
    seen = case.health.get(model)
    return (seen is not None and seen.open) or model in [candidate.model for candidate in decision.candidates]


def out_of_reach(each: Model) -> bool:
    """No request gets this model: it is gone, or has room for none."""
    gone = each.deprecated_at is not None and each.deprecated_at <= TODAY
    return (
        gone or each.disabled or each.availability.status == "unavailable" or (each.context_window or 0) <= LEAST_INPUT
    )


def test_a_suggestion_admits_the_named_model_and_every_part_is_needed(full: bool) -> None:
    @settings(max_examples=10_000 if full else 15, suppress_health_check=[*HealthCheck])
    @given(ruled())
    def hold(case: Ruled) -> None:
        suggestion = refused(case)
        assume(suggestion is not None)
        assert suggestion is not None
        if suggestion.startswith("no change"):
            assert all(out_of_reach(each) for each in case.pool), suggestion
            return
        said, _, admitted = suggestion.rpartition(" to admit ")
        changes = said.split(" and ")
        assert admits(follow(changes, admitted, case), admitted), suggestion
        for place in range(len(changes)):
            others = changes[:place] + changes[place + 1 :]
            try:
                assert not admits(follow(others, admitted, case), admitted), f"{changes[place]} of {suggestion}"
            except (ValidationFailed, NoSuchPrompt):
                continue  # the one makes no sense without the other

    hold()


def suggested(given: DecisionInput, *pool: Model, policy: Policy | None = None) -> str:
    laid = None if policy is None else AppliedPolicy(publish([policy], TODAY, ModelIndex(pool, {}))[0], given.models)
    with pytest.raises(NoCandidates) as caught:
        decide(given, board([*pool]), laid)
    return in_attributes(caught.value)


def test_one_shorter_answer_is_preferred_to_two_changes() -> None:
    small = model("a/small", max_output_tokens=1_000)
    asked = simple(max_output_tokens=EXACT, budget_nanos=1_000_000)
    assert suggested(asked, small) == "lower params.max_output_tokens to 240 to admit a/small"
    twice = simple(max_output_tokens=900, budget_nanos=1_000_000, budget_tokens=100)
    assert suggested(twice, small) == "lower params.max_output_tokens to 60 to admit a/small"
    assert (
        suggested(replace(twice, budget_tokens=None), small) == "raise budget.max_cost_usd to 0.00364 to admit a/small"
    )
    wide = simple(tokens=TokenBounds(99_990, 99_990, 99_990), max_output_tokens=60_000)
    assert suggested(wide, model("a/one")) == "shorten the input from 99990 to 40000 tokens to admit a/one"
    assert suggested(replace(wide, max_output_tokens=150_000), model("a/one")) == (
        "lower params.max_output_tokens to 50000 and shorten the input from 99990 to 50000 tokens to admit a/one"
    )


def test_floor_and_ceiling_are_suggested_with_the_admitting_value() -> None:
    policy = Policy(name="x", min_quality=0.6, max_latency_ms=3_000)
    asked = simple(min_quality=600_000, max_latency_ms=3_000)
    quick = {"tokens_per_s": 1_000.0}
    assert suggested(asked, model("a/poor", quality=0.42, **quick), policy=policy) == (
        "lower min_quality of policy 'x' to 0.42 to admit a/poor"
    )
    slow = model("a/slow", quality=0.7, ttft_s=8.0)
    assert suggested(asked, slow, policy=policy) == "raise max_latency_ms of policy 'x' to 12000 to admit a/slow"
    endless = replace(slow, tokens_per_s=0.001)
    assert suggested(asked, endless, policy=policy) == "drop max_latency_ms of policy 'x' to admit a/slow"
    assert suggested(asked, model("a/long", quality=0.7), policy=policy) == (
        "set params.max_output_tokens to 200 to admit a/long"
    )


def test_the_model_nearest_to_floor_and_ceiling_is_suggested_before_the_cheapest() -> None:
    cheap = model("a/cheap", quality=0.1, pricing_per_1m=Pricing(0.1, 0.1), ttft_s=9.0)
    near = model("b/near", quality=0.8, pricing_per_1m=Pricing(9.0, 9.0), ttft_s=8.0)
    floor, ceiling = Policy(name="x", min_quality=0.9), Policy(name="x", max_latency_ms=3_000)
    assert suggested(simple(min_quality=900_000), cheap, near, policy=floor) == (
        "lower min_quality of policy 'x' to 0.8 to admit b/near"
    )
    asked = simple(max_latency_ms=3_000, max_output_tokens=16)
    assert suggested(asked, cheap, near, policy=ceiling).endswith("to admit b/near")


def test_a_model_with_an_open_circuit_is_suggested_last() -> None:
    shut = {"a/one": ModelHealth(open=True)}
    with pytest.raises(NoCandidates, match=r"raise budget.max_tokens \(maxTokens in a dict\) to 1040 to admit a/one"):
        decision_of(simple(budget_tokens=10), board([model("a/one")], shut))
    pool = [model("a/one"), model("b/gone", disabled=True), model("c/dear", context_window=99_000, quality=0.1)]
    with pytest.raises(NoCandidates, match=r"to admit c/dear"):
        decision_of(simple(budget_tokens=10), board(pool, shut))


def test_tiny_answers_and_empty_prompts_are_not_suggested() -> None:
    long = simple(tokens=TokenBounds(99_995, 99_995, 99_995), max_output_tokens=4_000)
    assert suggested(long, model("a/one")) == "shorten the input from 99995 to 96000 tokens to admit a/one"
    assert LEAST_OUTPUT > 5
    tiny = model("a/tiny", context_window=LEAST_INPUT + 3)
    assert suggested(simple(), tiny).startswith("no change")


@table(("beside", "said"), [(0, "raise"), (9, "raise"), (10, "shorten the input from 1340 to 9")])
def test_an_input_is_not_shortened_below_the_shortest_prompt(beside: int, said: str) -> None:
    """Neither its bound nor what it is expected to be, which may lie far below."""
    most = LEAST_INPUT + beside + 16
    counted = TokenBounds(10, 4_000, 1_000, o200k=1_000, cl100k=1_000, counted=True)
    given = simple(tokens=counted, max_output_tokens=16, budget_tokens=most)
    policy = Policy(name="p", budget=Budget(max_tokens=most))
    assert suggested(given, model("a/one"), policy=policy).startswith(said)


def test_a_suggested_cap_leaves_room_for_reasoning() -> None:
    policy = Policy(name="thrifty", budget=Budget(max_cost_usd=0.01))
    thinker = model("a/thinker", pricing_per_1m=Pricing(10.0, 40.0), reasoning=True)
    assert suggested(simple(budget_nanos=10_000_000), thinker, policy=policy).startswith("raise budget.max_cost_usd")
    cheaper = replace(thinker, pricing_per_1m=Pricing(1.0, 9.0))
    assert suggested(simple(budget_nanos=10_000_000), cheaper, policy=policy).startswith("set params.max_output_tokens")


def test_sending_no_images_is_suggested_if_none_fits() -> None:
    images = (Images(1_024, 1_024),)
    fits = LEAST_INPUT + filling_of(images, rule_of("a/sees"))
    seeing = model("a/sees", modalities=("text", "image"), context_window=fits + 400)
    long = simple(needs=Need.IMAGE, tokens=TokenBounds(90_000, 90_000, 90_000, images=images))
    assert (
        suggested(long, seeing)
        == f"shorten the input from {90_000 + fits - LEAST_INPUT} to {fits} tokens to admit a/sees"
    )
    narrow = replace(seeing, context_window=(seeing.context_window or 0) - 1)
    assert (
        suggested(long, narrow)
        == f"send no images and shorten the input from 90000 to {fits - 1} tokens to admit a/sees"
    )


def test_a_shorter_answer_is_suggested_under_a_policys_budget() -> None:
    dear = model("a/dear", pricing_per_1m=Pricing(10.0, 40.0))
    policy = Policy(name="thrifty", budget=Budget(max_cost_usd=0.01))
    assert suggested(simple(budget_nanos=10_000_000), dear, policy=policy) == (
        "set params.max_output_tokens to 240 to admit a/dear"
    )
    assert suggested(simple(budget_nanos=10_000_000), dear) == "raise budget.max_cost_usd to 0.0404 to admit a/dear"


def test_the_error_is_budget_exceeded_only_if_a_budget_alone_excludes_a_model() -> None:
    dear = model("a/dear", modalities=("text",))
    asked = simple(needs=Need.TOOLS, budget_nanos=1)
    with pytest.raises(NoCandidates) as caught:
        decide(asked, board([dear]), None)
    assert type(caught.value) is NoCandidates
    with pytest.raises(BudgetExceeded):
        decide(asked, board([dear, model("b/able", modalities=("text", "tool"))]), None)


def test_a_free_tier_model_must_be_named_by_a_policy_that_omits_it() -> None:
    free, off = model("c/free", pricing_per_1m=Pricing(0.0, 0.0), free_tier=True), model("c/off", disabled=True)
    policies = [Policy(name="glob", models=["c/*"]), Policy(name="out", exclude=["c/free"])]
    router = Router.sandbox(catalogue=Catalogue([free, off]), policies=policies)
    with pytest.raises(NoCandidates, match=r"; add 'c/free' to models of policy 'glob' to admit c/free$"):
        router.decide("Hello", policy_id="glob")
    both = r"set models of policy 'out' to \['c/free'\] and drop 'c/free' from exclude of policy 'out' to admit c/free$"
    with pytest.raises(NoCandidates, match=both):
        router.decide("Hello", policy_id="out")
    alone = r"; drop 'c/free' from exclude of policy 'out' to admit c/free$"
    with pytest.raises(NoCandidates, match=alone):
        router.decide("Hello", policy_id="out", prefer=["c/free"])  # which names it


def test_each_need_and_each_change_of_the_policy_counts_before_money() -> None:
    asked = simple(needs=Need.IMAGE | Need.TOOLS)
    blind, dear = model("a/blind", modalities=("text",)), model("b/dear", modalities=("text", "tool"))
    dear = replace(dear, pricing_per_1m=Pricing(10.0, 40.0))
    assert suggested(asked, blind, dear) == "send no images to admit b/dear"
    gone = model("c/gone", modalities=("text", "tool"), deprecated_at="2026-01-01T00:00:00Z")
    policy = Policy(name="p", exclude=["a/*"], capabilities=["tools"])
    catalogue = Catalogue([blind, replace(dear, modalities=("text",)), gone])
    with pytest.raises(NoCandidates, match=r"; drop 'a/\*' from exclude .* and drop 'tools' .* to admit a/blind$"):
        Router.sandbox(catalogue=catalogue, policies=[policy]).decide("Hello", policy_id="p", models=["a/blind"])


def test_the_router_tells_policy_limits_from_the_requests() -> None:
    policy = Policy(name="thrifty", budget=Budget(max_cost_usd=0.0000001), models=["openai/gpt-5.5"])
    router = Router.sandbox(policies=[policy])
    with pytest.raises(NoCandidates, match=r"to 0\.105075, also in policy 'thrifty', to admit openai"):
        router.decide("Write a limerick about rivers.", policy_id="thrifty")


@given(st.integers(0, 10**18 * 4))
def test_a_suggested_amount_round_trips_as_text(amount: int) -> None:
    said = sayable(amount)
    assert 0 <= said - amount < 10 ** max(0, len(str(amount)) - 15)
    assert budget_nanos(float(usd_text(said))) == said
