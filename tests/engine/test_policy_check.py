"""``Router.check_policies`` agrees with actual routing, also without a provider."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from routewright import (
    Budget,
    CallableProvider,
    Catalogue,
    Model,
    NoCandidates,
    Policy,
    Pricing,
    Router,
    ValidationFailed,
)
from routewright.wire import (
    Availability,
    Capability,
    Goal,
    PolicyFallback,
    PolicyWeights,
    Strategy,
)

NAMES = ("alpha", "beta", "gamma")
MODELS = {
    name: [
        Model(
            id=f"{name}/m{size}",
            quality=0.3 + 0.2 * size + 0.05 * place,
            pricing_per_1m=Pricing(0.1 * 4**size * (place + 1), 0.4 * 4**size),
            context_window=(2_000, 16_000, 200_000)[size],
            ttft_s=0.2 * (size + 1),
            availability=Availability(regions=(("us",), ("us", "eu"), ())[place]),
            structured_output=size == 2,
            tags=("small",) if size == 0 else None,
        )
        for size in range(3)
    ]
    for place, name in enumerate(NAMES)
}
SELECTORS = ["alpha/*", "*/m2", "*m1", "provider:beta", "capability:json", "gamma/m0", "tag:small"]
WEIGHED = ("quality", "cost", "latency", "stability")
CAPABILITIES: list[list[Capability] | None] = [None, None, ["json"]]
IDS = [model.id for models in MODELS.values() for model in models]
GOALS: list[Goal | None] = [None, "cost", "quality", "stability"]
STRATEGIES: list[Strategy | None] = [None, "balanced", "cost-optimized", "quality-first", "latency-optimized"]


def router(names: Sequence[str], *policies: Policy) -> Router:
    """Every model is known wherever it stands; only those of these providers are served."""
    catalogue = Catalogue([model for models in MODELS.values() for model in models])
    serving = [CallableProvider(lambda call: call.model.id, models=MODELS[name], name=name) for name in names]
    return Router(providers=serving, catalogue=catalogue, policies=policies)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    named = draw(st.none() | st.lists(st.sampled_from(IDS), min_size=1, unique=True))
    picked = draw(st.none() | st.lists(st.sampled_from(SELECTORS), min_size=1, unique=True))
    chain = draw(st.none() | st.lists(st.sampled_from(named or IDS), unique=True)) if picked is None else None
    cost = draw(st.none() | st.floats(0, 0.01).map(lambda usd: round(usd, 6)))
    weights = draw(st.none() | st.none() | st.permutations([55, 30, 15, 0]))
    return Policy(
        name="p",
        goal=draw(st.sampled_from(GOALS)) if weights is None else None,
        strategy=draw(st.sampled_from(STRATEGIES)) if weights is None else None,
        weights=None if weights is None else PolicyWeights(**dict(zip(WEIGHED, weights, strict=True))),
        models=named if picked is None else picked,
        exclude=None if chain is not None else draw(st.sampled_from([None, None, ["*/m0"], ["provider:alpha"]])),
        capabilities=None if chain is not None else draw(st.sampled_from(CAPABILITIES)),
        min_quality=draw(st.sampled_from([None, None, 0.5, 0.7])),
        max_latency_ms=draw(st.sampled_from([None, None, 4_300, 4_500])),
        fallback=None if chain is None else PolicyFallback(models=chain),
        regions=draw(st.sampled_from([None, None, ["us"], ["eu"]])),
        budget=Budget(max_cost_usd=cost, max_tokens=draw(st.none() | st.integers(1, 20_000))),
        timeout_ms=draw(st.sampled_from([None, 1_000, 60_000])),
    )


def chosen(router: Router, prompt: str) -> str | None:
    try:
        return router.decide(prompt, policy_id="p").model
    except NoCandidates:
        return None


def test_a_check_agrees_with_what_routing_then_does(full: bool) -> None:
    served = broken = 0

    @settings(max_examples=1_000 if full else 10)
    @given(policies(), st.sampled_from([1, 300, 5_000, 60_000]).map(lambda words: "word " * words))
    def hold(policy: Policy, prompt: str) -> None:
        try:
            desk = router(NAMES, policy)
            desk.policies()
        except ValidationFailed as error:
            if "allows no model" not in str(error):
                raise
            return  # which is said at once
        nonlocal served, broken
        said = desk.check_policies(prompt)[0]
        assert said.model == chosen(desk, prompt)
        assert said.servable == (said.problem is None)
        if said.servable:
            decision = desk.decide(prompt, policy_id="p")
            assert [*said.chain] == decision.chain
            assert said.fitting >= len(decision.candidates)  # which may do without counting tokens
            assert said.estimated_cost_usd == decision.front[0].cost_usd
            answer = desk.blocking.route(prompt, policy_id="p")
            assert answer.output == said.model
            assert answer.routing.cost_usd <= (said.worst_cost_usd or 0)
        for loss in said.losses:
            without = router([name for name in NAMES if name != loss.provider], policy)
            assert loss.model == chosen(without, prompt), loss
        served, broken = served + said.servable, broken + bool(said.breaks_without)
        desk.blocking.close()

    hold()
    assert min(served, broken) > (100 if full else 0)


def test_it_names_the_providers_that_a_policy_can_use_and_depends_on() -> None:
    wide, narrow = Policy(name="wide"), Policy(name="narrow", models=["beta/m1"])
    first, second = router(NAMES, wide, narrow).check_policies()
    assert [loss.provider for loss in first.losses] == [*NAMES]
    assert (first.breaks_without, second.breaks_without) == ([], ["beta"])


def test_a_policy_that_nobody_serves_says_why_and_what_to_change() -> None:
    said = router(NAMES, Policy(name="eu", regions=["mars"])).check_policies()[0]
    assert not said.servable
    assert "9 region; drop mars from the regions of policy 'eu' to admit" in (said.problem or "")


def test_it_lists_the_models_that_end_soonest_first() -> None:
    ends = {"a/one": "2999-02-01", "a/two": "2998-01-01", "a/three": None}
    models = [Model(id=name, quality=0.5, deprecated_at=end) for name, end in ends.items()]
    desk = Router.sandbox(catalogue=Catalogue(models), policies=[Policy(name="p")])
    said = desk.check_policies()[0]
    assert [(end.model, end.deprecated_at) for end in said.ends] == [("a/two", "2998-01-01"), ("a/one", "2999-02-01")]


def test_it_says_where_a_budget_pays_for_no_fallback() -> None:
    tight, ample = (Policy(name=name, budget=Budget(max_cost_usd=usd)) for name, usd in (("t", 0.0017), ("a", 1)))
    checks = router(["alpha"], tight, ample).check_policies()
    assert [(said.servable, said.fallback_affordable) for said in checks] == [(True, False), (True, True)]
