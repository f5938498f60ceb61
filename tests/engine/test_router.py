"""The Router's plain functions: decide, explain, replay, models, policies; and its environment variables."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    BudgetExceeded,
    CallableProvider,
    Caller,
    Catalogue,
    Limits,
    MemoryStorage,
    Model,
    NoCandidates,
    OpenAIProvider,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    Settings,
    UpstreamCall,
    ValidationFailed,
)
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.errors import NoProviders, NotFound, UpstreamFailed
from routewright.wire import Availability, Budget, DecisionSpan, Delta, Finish, PolicyFallback, Usage
from tests.tables import table

from .scripted_router import House, traces_in

pytestmark = pytest.mark.anyio


class Recorder:
    """A counter that records the vocabularies it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str, encoding: str) -> int:
        self.asked.append(encoding)
        return len(text) // 4


def test_decide_is_a_plain_function_and_calls_nothing() -> None:
    house = House(["never"])
    decision = house.router.decide("hi", goal="quality")
    assert (decision.model, decision.chain) == ("good/one", ["spare/two"])
    assert house.good.calls == []


def test_decide_counts_tokens_only_if_bounds_do_not_suffice() -> None:
    counter = Recorder()
    model = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=1_500, tokenizer="o200k_base")
    provider = CallableProvider(lambda call: "x", models=[model])
    router = Router(providers=[provider], settings=Settings(tokens=counter))
    assert not router.decide("short").input.tokens.counted
    assert counter.asked == []
    decision = router.decide("word " * 400)
    assert decision.input.tokens.counted
    assert counter.asked == ["o200k_base"]


def test_the_exact_count_decides() -> None:
    window = 2_000
    model = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=window, tokenizer="o200k_base")
    router = Router(providers=[CallableProvider(lambda call: "x", models=[model])])
    fits = router.decide("hello world " * 700)  # 1,400 tokens and an answer of 400
    assert fits.input.tokens.o200k == 1_401 + 7
    with pytest.raises(Exception, match="1 context"):
        router.decide("hello world " * 900)


async def test_answer_decision_and_trace_have_the_same_explanation() -> None:
    router = Router.sandbox()
    answer = await router.route("hi", goal="quality")
    shown = router.explain(answer)
    assert shown == router.explain(await router.trace(answer.trace_id))
    assert shown.partition("\n\nthen:")[0] == router.explain(answer.decision)
    assert "chosen" in shown
    assert "runner-up" in shown
    assert "deprecated: openai/gpt-4.1-nano" in shown


async def test_a_trace_replays_to_the_same_decision_after_health_changed() -> None:
    house = House(lambda call: "a b c", lambda call: "d e f")
    first = await house.router.route("hi", goal="quality")
    for _ in range(20):
        await house.clock.advance(1.0)
        await house.router.route("hi", goal="quality")
    replayed = house.router.replay(await house.router.trace(first.trace_id))
    assert replayed.digest == first.decision.digest
    assert replayed.candidates == first.decision.candidates
    later = house.router.decide("hi", goal="quality")
    assert later.input.health != first.decision.input.health
    assert later.candidates != first.decision.candidates


def test_a_decision_of_other_rules_cannot_be_replayed() -> None:
    router = House(["x"]).router
    with pytest.raises(NotFound, match="needs scoring rules 1; this version"):
        router.replay(replace(router.decide("hi").input, rules=1))


def test_a_decision_whose_snapshots_are_gone_cannot_be_replayed() -> None:
    given = House(["x"]).router.decide("hi").input
    with pytest.raises(NotFound, match="cannot be replayed"):
        Router.sandbox().replay(given)


def test_disabled_and_expired_models_are_listed_as_unavailable() -> None:
    catalogue = Catalogue().overlaid(
        [
            {"id": "openai/gpt-4o", "disabled": True, "availability": Availability(regions=("eu",))},
            {"id": "openai/gpt-4.1", "deprecated_at": "2020-01-01"},
        ]
    )
    models = {model.id: model for model in Router.sandbox(catalogue=catalogue).models()}
    assert models["openai/gpt-4o"].availability == Availability("unavailable", ("eu",))
    assert models["openai/gpt-4.1"].availability.status == "unavailable"
    assert models["openai/gpt-6-luna"].availability.status == "available"
    assert models["zai/glm-4.7-flash"].availability.status == "available"  # a free offer, for those who name it


async def test_a_mostly_failing_model_is_listed_as_degraded() -> None:
    house = House(lambda call: ProviderFault("auth"), lambda call: "x")
    for _ in range(30):
        await house.router.route("hi", goal="quality", models=["good/one", "spare/two"])
        await house.clock.advance(1.0)
    status = {model.id: model.availability.status for model in house.router.models()}
    assert (status["good/one"], status["spare/two"]) == ("degraded", "available")


def test_policies_are_listed_and_applied_to_requests() -> None:
    policy = Policy(
        name="thrifty", goal="quality", models=["spare/two"], budget=Budget(max_cost_usd=0.05), timeout_ms=5_000,
        fallback=PolicyFallback(models=[]),
    )  # fmt: skip
    router = House(["x"], policies=[policy]).router
    (listed,) = router.policies()
    assert (listed.name, listed.id[:4]) == ("thrifty", "pol_")
    for key in ("thrifty", listed.id):
        decision = router.decide("hi", policy_id=key, budget={"maxCostUsd": 1.0}, timeout_ms=9_000)
        assert (decision.model, decision.chain) == ("spare/two", [])
        assert decision.input.budget_nanos == 50_000_000
        assert decision.input.timeout_ms == 5_000
        assert decision.input.goal == "quality"


async def test_answer_and_trace_name_the_policy() -> None:
    router = House(["x"], policies=[Policy(name="thrifty", created_at="2026-03-04T05:06:07Z")]).router
    answer = await router.route("hi", goal="quality", policy_id="thrifty")
    assert answer.routing.policy_version == answer.trace.policy_version == "thrifty@2026-03-04"
    assert answer.trace.policy_id == router.policies()[0].id
    assert answer.decision.input.policy is not None


def test_a_policy_that_names_an_unknown_model_is_refused_on_first_use() -> None:
    router = House(["x"], policies=[Policy(name="p", models=["good/onee"])]).router
    with pytest.raises(ValidationFailed, match=r"policies\['p'\].models\[0\]: unknown model .* mean 'good/one'"):
        router.decide("hi")


def aliased(**policy: Any) -> Router:
    catalogue = Catalogue().overlaid([], aliases={"fast": "good/one", "spare": "spare/two"})
    return House(["x"], catalogue=catalogue, policies=[Policy(name="p", **policy)] if policy else ()).router


def test_an_alias_is_its_model_in_every_list() -> None:
    narrowed = aliased(models=["good/one"]).decide("hi", policy_id="p", models=["fast"])
    assert narrowed.input.models == ("good/one",)
    beside = aliased().decide("hi", models=["good/one", "spare"], fallback={"models": ["spare/two"]})
    assert beside.input.fallback == ("spare/two",)
    chained = aliased().decide("hi", models=["good/one", "spare/two"], fallback={"models": ["spare"]})
    assert chained.chain == ["spare/two"]
    given = aliased(models=["fast", "spare"], fallback=PolicyFallback(models=["spare"]))
    assert given.policies()[0].models == ["fast", "spare"], "as its author wrote it"
    assert given.decide("hi", policy_id="p").input.models == ("good/one", "spare/two")
    assert given.decide("hi", policy_id="p", models=["good/one"]).chain == []


def test_a_preference_is_an_id_an_alias_or_a_list() -> None:
    wishes: list[Any] = ["spare", "spare/two", ["spare/two"], ("spare",)]
    for prefer in wishes:
        decision = aliased().decide("hi", goal="quality", prefer=prefer)
        assert (decision.model, decision.input.prefer) == ("spare/two", ("spare/two",))
    with pytest.raises(ValidationFailed, match=r"prefer\[0\]: unknown model 'spare/tow'; did you mean 'spare/two'\?"):
        aliased().decide("hi", prefer="spare/tow")


def test_a_preference_outside_models_is_refused_and_outside_a_policys_is_skipped() -> None:
    said = "prefer: 'spare/two' of the preference 'spare/two' is outside the whitelist 'good/one'; add it to 'models'"
    with pytest.raises(ValidationFailed, match=said):
        aliased().decide("hi", models=["good/one"], prefer="spare")
    decision = aliased(models=["good/one"]).decide("hi", policy_id="p", prefer="spare")
    assert (decision.model, decision.chain) == ("good/one", [])
    assert decision.reason.endswith("; preferred, but rejected: spare/two (whitelist)")


def test_the_preference_of_a_policy_comes_after_the_requests() -> None:
    router = aliased(prefer=["spare"])
    assert router.decide("hi", goal="quality", policy_id="p").model == "spare/two"
    both = router.decide("hi", goal="quality", policy_id="p", prefer="good/one")
    assert (both.model, both.chain) == ("good/one", ["spare/two"])
    assert router.decide("hi", goal="quality").model == "good/one"


def test_an_alias_of_an_unknown_model_is_refused_by_name() -> None:
    catalogue = Catalogue().overlaid([], aliases={"fast": "cerebras/gemma-4-31"})
    said = r"aliases\['fast'\]: stands for the unknown model 'cerebras/gemma-4-31'; did you mean 'cerebras/gemma-4-31b'"
    with pytest.raises(ValidationFailed, match=said):
        Router.sandbox(catalogue=catalogue).decide("hi")


def test_an_alias_may_stand_for_a_model_that_a_provider_declares_but_not_be_its_id() -> None:
    provider = CallableProvider(lambda call: "x", models=[Model(id="mine/one")])
    named = Catalogue(aliases={"fast": "mine/one"})
    assert Router(providers=[provider], catalogue=named).decide("hi", models=["fast"]).model == "mine/one"
    taken = Catalogue(aliases={"mine/one": "openai/gpt-4.1"})
    with pytest.raises(ValidationFailed, match=r"aliases\['mine/one'\]: is the id of a model; use another name"):
        Router(providers=[provider], catalogue=taken).decide("hi")


def test_a_file_name_in_the_wrong_place_gets_a_hint() -> None:
    wrong: Any = "models.toml"
    with pytest.raises(ValidationFailed, match=r"Catalogue.load\(path\)"):
        Router(catalogue=wrong)
    with pytest.raises(ValidationFailed, match=r"read_policies\(path\)"):
        Router(policies=wrong)
    with pytest.raises(ValidationFailed, match=r"Caller\(account=...\)"):
        Router.sandbox().decide("hi", caller=wrong)


def test_a_provider_without_models_is_told_to_declare_some() -> None:
    provider = OpenAIProvider("a-key", name="openrouter", environ={})
    with pytest.raises(NoProviders, match="no models are known for openrouter; pass models="):
        Router(providers=[provider]).decide("hi")


def test_another_router_with_the_same_catalogue_replays_at_once() -> None:
    decision = Router.sandbox().decide("hi")
    assert Router.sandbox().replay(decision.input).digest == decision.digest


async def test_the_exception_of_a_function_is_shown_by_class_and_place_only() -> None:
    def broken(call: UpstreamCall) -> str:
        raise ZeroDivisionError("canary")

    model = Model(id="mine/broken", pricing_per_1m=Pricing(0.1, 0.1))
    router = Router(providers=[CallableProvider(broken, models=[model])])
    with pytest.raises(UpstreamFailed, match=r"ZeroDivisionError in test_router.py, line \d+") as failed:
        await router.route("hi", fallback={"maxRetries": 0})
    assert "canary" not in str(failed.value) + str(failed.value.detail)


async def test_an_exhausted_script_raises() -> None:
    with pytest.raises(UpstreamFailed, match="the script of 'good' has no turn for call 1: add one"):
        await House([]).router.route("hi", goal="quality", fallback={"models": []})


def test_a_chain_outside_the_whitelist_names_both_lists() -> None:
    with pytest.raises(ValidationFailed, match=r"spare/two.*good/one"):
        House(["x"]).router.decide("hi", models=["good/one"], fallback={"models": ["spare/two"]})


def test_two_providers_of_one_model_are_refused() -> None:
    model = Model(id="a/one", pricing_per_1m=Pricing(1, 1))
    providers = [CallableProvider(lambda call: "x", models=[model], name=name) for name in ("first", "second")]
    with pytest.raises(ValidationFailed, match="'first' and 'second' both serve 'a/one'"):
        Router(providers=providers).decide("hi")


def test_providers_come_from_the_environment_where_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("MISTRAL_API_KEY", "canary-too")
    router = Router()
    assert router.decide("hi").model.split("/")[0] in ("openai", "mistral")
    named = {model.provider for model in router.models() if model.availability.status == "available"}
    assert {"openai", "mistral"} <= named
    assert "canary" not in repr(router) + repr(vars(router._parts)) + repr(router._parts._providers)


def forget_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in ENDPOINTS.values():
        for variable in (*vendor.key_variables, vendor.url_variable or ""):
            monkeypatch.delenv(variable, raising=False)


def test_a_named_model_without_a_provider_gets_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys(monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    models = ["anthropic/claude-haiku-5-5", "amazon-bedrock/amazon.nova-pro-v1:0", "mistral/mistral-large-4"]
    said = "set ANTHROPIC_API_KEY and MISTRAL_API_KEY in the environment to use the models of anthropic and mistral"
    with pytest.raises(NoCandidates, match=f"to admit openai/.*; or {said}$"):
        Router().decide("hi", models=models)
    gone = Model(id="openai/gone", deprecated_at="2020-01-01")
    alone = Router(catalogue=Catalogue([gone, Model(id=models[0])]))
    with pytest.raises(NoCandidates, match="helps: set ANTHROPIC_API_KEY in the environment to use"):
        alone.decide("hi", models=models[:1])
    with pytest.raises(NoCandidates, match=r"to admit openai/[^;]*$"):
        Router(providers=[OpenAIProvider()]).decide("hi", models=models)


def test_without_a_key_in_the_environment_the_error_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys(monkeypatch)
    with pytest.raises(NoProviders, match="set a provider's key in the environment"):
        Router().decide("hi")


def test_a_default_output_cap_can_be_set() -> None:
    settings = Settings(limits=Limits(default_max_output_tokens=1_500))
    assert (
        Router.sandbox(settings=settings).decide("hi", budget={"maxCostUsd": 5.0}, models=["openai/gpt-4.1"]).output_cap
        == 1_500
    )
    with pytest.raises(ValidationFailed, match="at least 1"):
        Limits(default_max_output_tokens=0)


class Hunch:
    """A predictor that likes one model."""

    def predict(self, request: object, models: list[Model]) -> list[float] | None:
        return [0.99 if model.id == "spare/two" else 0.01 for model in models]


def test_a_custom_quality_predictor_is_used_and_replays() -> None:
    house = House(["x"])
    settings = Settings(predictor=Hunch())  # type: ignore[arg-type]
    router = Router(providers=[house.good, house.spare], settings=settings)
    decision = router.decide("hi", goal="quality")
    assert decision.model == "spare/two"
    assert decision.candidates[0].quality == 0.99
    assert router.replay(decision).digest == decision.digest


async def test_production_health_does_not_reach_the_sandbox() -> None:
    house = House([ProviderFault("server")], lambda call: "x")
    await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    await house.clock.advance(1.0)
    seen = house.router.decide("hi", goal="quality")
    stability = {candidate.model: candidate.stability for candidate in seen.candidates}
    assert stability["good/one"] < 0.9 < stability["spare/two"]
    sandbox = house.router.as_caller(Caller(environment="sandbox"))
    decision = sandbox.decide("hi")
    assert {candidate.stability for candidate in decision.candidates} == {0.901}


async def test_production_and_sandbox_traces_are_separate() -> None:
    house = House(["x"])
    sandbox = house.router.as_caller(Caller(environment="sandbox"))
    trace_id = (await sandbox.route("hi")).trace_id
    assert (await sandbox.trace(trace_id)).environment == "sandbox"
    with pytest.raises(NotFound):
        await house.router.trace(trace_id)
    with pytest.raises(NotFound):
        await house.router.feedback(trace_id, 1.0)


async def test_a_view_of_a_sandbox_router_stays_in_the_sandbox() -> None:
    assert (await Router.sandbox().as_caller(Caller("mine")).route("hi")).trace.environment == "sandbox"


async def test_cut_answers_are_not_counted_in_the_output_length() -> None:
    house = House(lambda call: [Delta("a"), Usage(10, 8), Finish("length")], [])
    before = house.router.decide("hi", goal="quality").candidates[0].cost_usd
    for _ in range(50):
        await house.router.route("hi", goal="quality", params={"max_output_tokens": 8})
        await house.clock.advance(1.0)
    assert house.router.decide("hi", goal="quality").candidates[0].cost_usd == before


async def test_the_sandbox_bills_nothing_and_reports_the_usual_latency() -> None:
    storage = MemoryStorage()
    router = Router.sandbox({"hi": "hello there"}, storage=storage)
    answer = await router.route("hi", models=["openai/gpt-4.1"])
    assert answer.output == "hello there"
    assert answer.routing.cost_usd > 0
    assert 5_000 <= answer.routing.latency_ms < 6_000
    (trace,) = await traces_in(storage)
    assert (trace.environment, trace.charged_usd) == ("sandbox", 0.0)
    assert trace.cost_usd == answer.routing.cost_usd


async def test_sandbox_faults_are_injected_by_model() -> None:
    router = Router.sandbox(faults={"openai/gpt-4.1": "auth", "openai/gpt-4o": ["server"]})
    models = ["openai/gpt-4.1", "openai/gpt-4o"]
    answer = await router.route("hi", models=models, goal="quality")
    assert answer.routing.selected_model == "openai/gpt-4o"
    spans = [span.name for span in answer.trace.spans]
    assert spans == ["decision", "openai/gpt-4.1", "fallback", "openai/gpt-4o", "openai/gpt-4o"]
    with pytest.raises(ValidationFailed, match="known kinds: connect"):
        await Router.sandbox(faults={"*": "explode"}).route("hi")
    with pytest.raises(ValidationFailed, match="did you mean 'openai/gpt-4o'"):
        await Router.sandbox(faults={"openai/gpt-40": "auth"}).route("hi")


async def test_the_sandbox_answers_tools_and_schemas_in_kind() -> None:
    router = Router.sandbox()
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "weather", "parameters": schema}
    called = await router.route("hi", tools=[tool], tool_choice="required")
    assert called.tool_calls is not None
    assert called.tool_calls[0].function.arguments == '{"n": 0}'
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    assert (await router.route("hi", params={"response_format": wanted})).output == '{"n": 0}'


def test_text_beside_an_image_is_counted_and_the_image_bounded() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "word " * 500}, image]}]
    asked = {"messages": messages, "models": ["openai/gpt-6-luna"]}
    decision = Router.sandbox().decide(asked, budget={"maxTokens": 41_000})
    assert decision.input.tokens.o200k is not None
    assert decision.token_count == "estimated"
    with pytest.raises(BudgetExceeded):
        Router.sandbox().decide(asked, budget={"maxTokens": 36_000})


@table(
    ("models", "vocabularies"),
    [
        (["openai/gpt-4.1"], {"o200k_base"}),
        (["openai/gpt-4.1", "mistral/mistral-large-2512"], {"o200k_base", "cl100k_base"}),
    ],
)
def test_a_second_vocabulary_is_counted_only_for_another_vendors_models(
    models: list[str], vocabularies: set[str]
) -> None:
    counter = Recorder()
    router = Router.sandbox(settings=Settings(tokens=counter))
    router.decide("hello there " * 250, budget={"maxTokens": 3_000}, models=models)
    assert set(counter.asked) == vocabularies


async def test_decision_spans_say_whether_tokens_were_counted() -> None:
    router = Router.sandbox()
    loose = await router.route("hi")
    tight = await router.route("x" * 3_000, budget={"maxTokens": 3_000}, models=["openai/gpt-4.1"])
    other = await router.route("hello there " * 250, budget={"maxTokens": 3_000}, models=["mistral/mistral-large-2512"])
    spans = [answer.trace.spans[0] for answer in (loose, tight, other)]
    counts = [span.token_count for span in spans if isinstance(span, DecisionSpan)]
    assert counts == ["bounds", "exact", "estimated"]
    with pytest.raises(BudgetExceeded):
        await router.route("hello " * 3_000, budget={"maxTokens": 3_000}, models=["openai/gpt-4.1"])
