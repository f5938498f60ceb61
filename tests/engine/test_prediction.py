"""Decisions that read the prompt: when they read it, what that changes, and what is recorded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from routewright import (
    CallableProvider,
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    NoCandidates,
    Pricing,
    Router,
    Settings,
)
from routewright.errors import ValidationFailed
from routewright.wire import (
    DecisionSpan,
    Policy,
    PolicyClass,
    PolicyGuardrail,
    PolicyMatch,
    Reading,
    UpstreamCall,
)

pytestmark = pytest.mark.anyio

SMALL = Model(id="mine/small", quality=0.35, pricing_per_1m=Pricing(0.1, 0.4), context_window=100_000)
EQUAL = Model(id="mine/equal", quality=0.36, pricing_per_1m=Pricing(0.2, 0.8), context_window=100_000)
LARGE = Model(id="mine/large", quality=0.9, pricing_per_1m=Pricing(3.0, 12.0), context_window=100_000)


class Words:
    """A predictor that looks for the words *easy* and *hard*, and counts how often it is asked."""

    id = "prd_words"

    def __init__(self) -> None:
        self.read_texts: list[str] = []
        self.columns = 0

    def read(self, text: str) -> Reading:
        self.read_texts.append(text)
        step = 12 if "easy" in text else -12 if "hard" in text else 0
        topic = "code" if "code" in text else "other"
        return Reading(self.id, (step, 0), 0.5 - step / 30, topic, 0.25, "en")

    def column(self, cell: tuple[int, ...], models: Sequence[Model]) -> tuple[int, ...] | None:
        self.columns += 1
        if not any(cell):
            return None
        # of what is easy all do well; what is hard parts them
        odds = [math.log((model.quality or 0.3) / (1 - (model.quality or 0.3))) for model in models]
        moved = [each + 4 if cell[0] > 0 else each * 3 for each in odds]
        return tuple(round(1e6 / (1 + math.exp(-each))) for each in moved)


class Own:
    """A predictor of one's own."""

    def predict(self, request: object, models: Sequence[Model]) -> list[float]:
        return [0.5 for _ in models]


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Words:
    found = Words()
    monkeypatch.setattr("routewright.assembly.built_in_predictor", lambda: found)
    return found


async def answer(call: UpstreamCall) -> str:
    return call.model.id


def router(*models: Model, predictor: Any = "built-in", **more: Any) -> Router:
    provider = CallableProvider(answer, name="mine", models=models or (SMALL, EQUAL, LARGE))
    settings = Settings(rng=Random(5), predictor=predictor)
    return Router(providers=[provider], catalogue=Catalogue(()), settings=settings, **more)


async def test_an_easy_prompt_goes_to_the_cheap_model_and_a_hard_one_to_the_able_one(words: Words) -> None:
    async with router() as desk:
        easy, hard = await desk.route("an easy one", goal="quality"), await desk.route("a hard one", goal="quality")
        assert (easy.routing.selected_model, hard.routing.selected_model) == ("mine/small", "mine/large")
        plain = await desk.route("one", goal="quality")
        assert plain.routing.selected_model == "mine/large"
        assert plain.decision.input.quality is None
        assert words.read_texts == ["an easy one", "a hard one", "one"]
        for each in (easy, hard, plain):
            assert desk.replay(each).digest == each.decision.digest


async def test_explain_and_the_trace_say_what_was_read_and_what_it_changed(words: Words) -> None:
    async with router() as desk:
        easy = await desk.route("an easy one", goal="quality")
        said = "prompt: topic other, difficulty 0.10, novelty 0.25, language en; without reading it: mine/large"
        assert said in desk.explain(easy).splitlines()
        trace = await desk.trace(easy.trace_id)
        span = trace.spans[0]
        assert isinstance(span, DecisionSpan)
        assert (span.instead_of, span.reading) == ("mine/large", easy.decision.reading)
        assert said in desk.explain(trace).splitlines()
        assert easy.decision.to_dict()["instead_of"] == "mine/large"
        hard = await desk.route("a hard one", goal="quality")
        assert "without reading it" not in desk.explain(hard)


async def test_equal_readings_share_a_plan(words: Words) -> None:
    async with router() as desk:
        for number in range(20):
            await desk.route(f"an easy one {number}", goal="quality")
        assert len(words.read_texts) == 20
        before = words.columns
        await desk.route("another easy one", goal="quality")
        assert words.columns == before


@pytest.mark.parametrize(
    ("models", "request_"),
    [
        ((SMALL,), {}),
        ((SMALL, EQUAL), {}),
        ((SMALL, EQUAL, LARGE), {"models": ["mine/large"]}),
        ((SMALL, EQUAL, LARGE), {"models": ["mine/small", "mine/equal"]}),
    ],
    ids=["one candidate", "one step of the grid", "a named model", "a whitelist on one step"],
)
async def test_prompts_are_not_read_if_that_cannot_change_the_plan(
    words: Words, models: tuple[Model, ...], request_: dict[str, Any]
) -> None:
    async with router(*models) as desk:
        given = await desk.route("a hard one", goal="quality", **request_)
        assert words.read_texts == []
        assert given.decision.reading is None


@pytest.mark.parametrize("more", [{"models": ["mine/small", "mine/large"]}, {"prefer": ["mine/nobody"]}])
async def test_lists_of_models_are_read_for_too(words: Words, more: dict[str, Any]) -> None:
    nobody = Model(id="mine/nobody", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), disabled=True)
    async with router(SMALL, LARGE, nobody) as desk:
        easy = await desk.route("an easy one", goal="quality", **more)
        assert easy.routing.selected_model == "mine/small"
        assert easy.decision.instead_of == "mine/large"
        assert desk.replay(easy).digest == easy.decision.digest


@pytest.mark.parametrize("more", [{}, {"models": ["mine/small", "mine/equal"]}])
async def test_named_models_are_read_for_if_readings_separate_them(
    words: Words, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    def column(cell: tuple[int, ...], models: Sequence[Model]) -> tuple[int, ...] | None:
        return tuple(900_000 if model.id == "mine/equal" and any(cell) else 350_000 for model in models)

    monkeypatch.setattr(words, "column", column)
    async with router(SMALL, EQUAL) as desk:
        given = await desk.route("a hard one", goal="quality", **more)
        assert given.routing.selected_model == "mine/equal"
        assert given.decision.reading is not None


async def test_a_budget_that_a_shared_plan_does_not_cover_is_decided_by_the_same_reading(words: Words) -> None:
    async with router() as desk:
        await desk.route("a hard one", goal="quality")
        hard = await desk.route("a hard one", goal="quality", budget={"maxCostUsd": 0.0015})
        assert hard.routing.selected_model == "mine/small"
        assert hard.decision.reading is not None
        assert desk.replay(hard).digest == hard.decision.digest


@pytest.mark.parametrize("predictor", [None, Own()], ids=["none", "own"])
async def test_prediction_can_be_turned_off(words: Words, predictor: Own | None) -> None:
    async with router(predictor=predictor) as desk:
        given = await desk.route("a hard one", goal="quality")
        assert (words.read_texts, given.decision.reading) == ([], None)


async def test_a_quality_floor_applies_to_the_catalogues_quality(words: Words) -> None:
    """Its author knew that alone: else what is easy would let any model in, and what is hard none."""
    policy = Policy(name="good", min_quality=0.8)
    async with router(policies=[policy]) as desk:
        for prompt in ("an easy one", "a hard one"):
            assert (await desk.route(prompt, policy_id="good")).routing.selected_model == "mine/large"
    async with router(SMALL, EQUAL, policies=[policy]) as desk:
        with pytest.raises(NoCandidates, match=r"lower min_quality of policy 'good' to 0\.36"):
            await desk.route("an easy one", policy_id="good")


def test_decide_and_why_not_read_the_prompt_as_route_does(words: Words) -> None:
    desk = router()
    assert desk.decide("an easy one", goal="quality").model == "mine/small"
    assert desk.why_not("an easy one", "mine/large", goal="quality").chosen == "mine/small"


async def test_only_the_last_turn_of_the_user_is_read(words: Words) -> None:
    async with router() as desk:
        turns: list[dict[str, Any]] = [
            {"role": "system", "content": "hard"},
            {"role": "user", "content": "hard"},
            {"role": "assistant", "content": "hard"},
            {"role": "user", "content": [{"type": "text", "text": "an easy"}, {"type": "text", "text": "one"}]},
        ]
        await desk.route(turns, goal="quality")
        assert words.read_texts == ["an easy\none"]


# --- classes of a policy

CODE = PolicyClass(name="hard code", match=PolicyMatch(topic="code", difficulty=">0.7"), models=["mine/large"])
CLASSED = Policy(name="p", classes=[CODE])


async def test_a_class_of_a_policy_has_its_own_rules(words: Words) -> None:
    async with router(policies=[CLASSED]) as desk:
        code = await desk.route("hard code", policy_id="p")
        other = await desk.route("easy code", policy_id="p")
        assert (code.routing.selected_model, other.routing.selected_model) == ("mine/large", "mine/small")
        assert code.routing.policy_version == other.routing.policy_version
        assert "the policy's class 'hard code'" in desk.explain(code)
        assert "class" not in desk.explain(other).partition("prompt:")[2]
        trace = await desk.trace(code.trace_id)
        assert trace.policy_id == desk.policies()[0].id
        for each in (code, other):
            assert desk.replay(each).digest == each.decision.digest


async def test_a_class_has_its_own_guardrails(words: Words) -> None:
    strict = PolicyClass(
        match=PolicyMatch(topic="code"), guardrails=[PolicyGuardrail(deny=["secret"], action="redact")]
    )
    async with router(policies=[Policy(name="p", classes=[strict])]) as desk:
        for prompt, hits in (("a secret", 0), ("code with a secret", 1)):
            trace = await desk.trace((await desk.route(prompt, policy_id="p")).trace_id)
            assert [span.type for span in trace.spans].count("guardrail") == hits


@pytest.mark.parametrize("predictor", [None, Own()], ids=["none", "own"])
async def test_classes_need_the_built_in_predictor(predictor: Own | None) -> None:
    desk = router(policies=[CLASSED], predictor=predictor)
    with pytest.raises(ValidationFailed) as caught:
        await desk.route("x")
    said = "match by the built-in predictor, which is off; take predictor='built-in' in the settings"
    assert str(caught.value) == f"policies['p'].classes: {said}"


# --- exploration


async def test_a_policy_explores_its_share_and_records_the_propensity(words: Words) -> None:
    policy = Policy(name="p", goal="quality", explore_models=0.2)
    async with router(policies=[policy], storage=MemoryStorage()) as desk:
        seen: Counter[tuple[str, int, bool]] = Counter()
        for _ in range(300):
            given = await desk.route("one", policy_id="p")
            told = given.decision.input
            seen[given.routing.selected_model, told.propensity, told.explored] += 1
            assert desk.replay(given).digest == given.decision.digest
            assert ("which is explored" in given.routing.decision_reason) == told.explored
        assert {*seen} == {
            ("mine/large", 800_000, False), ("mine/small", 100_000, True), ("mine/equal", 100_000, True),
        }  # fmt: skip
        assert 30 < seen.total() - seen["mine/large", 800_000, False] < 90


def test_why_not_explores_nothing(words: Words) -> None:
    desk = router(policies=[Policy(name="p", goal="quality", explore_models=0.2)])
    chosen = {desk.why_not("one", "mine/equal", policy_id="p").chosen for _ in range(50)}
    assert chosen == {"mine/large"}


async def test_dearer_models_are_explored_from_earned_credit(words: Words) -> None:
    policy = Policy(name="p", strategy="cost-optimized", explore_models=0.1)
    async with router(SMALL, LARGE, policies=[policy]) as desk:
        explored = 0
        for _ in range(700):
            explored += (await desk.route("one", policy_id="p")).decision.input.explored
        assert 0 < explored <= 700 * 0.1 / 28  # it costs thirty times as much


async def test_a_preference_of_the_request_is_not_explored_away(words: Words) -> None:
    policy = Policy(name="p", explore_models=0.2)
    async with router(policies=[policy]) as desk:
        for _ in range(30):
            given = await desk.route("one", policy_id="p", prefer=["mine/equal"])
            assert given.routing.selected_model == "mine/equal"
            assert given.decision.input.propensity == 0


async def test_a_model_that_is_expected_to_be_late_is_not_explored(words: Words) -> None:
    slow = Model(id="mine/slow", quality=0.8, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=40.0)
    async with router(LARGE, slow, policies=[Policy(name="p", goal="quality", explore_models=0.2)]) as desk:
        for timeout_ms, some in ((20_000, False), (60_000, True)):
            told = [(await desk.route("one", policy_id="p", timeout_ms=timeout_ms)).decision.input for _ in range(60)]
            assert any(each.explored for each in told) == some


async def test_a_model_is_explored_where_one_behind_it_needs_a_count_of_tokens(words: Words) -> None:
    models = [
        Model(id=f"mine/{at}", quality=0.9, pricing_per_1m=Pricing(1 + at / 10, 4), context_window=window)
        for at, window in enumerate([100_000] * 4 + [2_500])
    ]  # the last is no fallback of the best, but one of what is explored
    async with router(*models, policies=[Policy(name="p", explore_models=0.2)]) as desk:
        told = [(await desk.route("word " * count, policy_id="p")).decision for count in range(500, 2_100, 40)]
        assert "estimated" in {each.token_count for each in told if each.input.explored}
        assert all(desk.replay(each).digest == each.digest for each in told)


async def test_exploration_credit_is_separate_by_account(words: Words) -> None:
    policy = Policy(name="p", strategy="cost-optimized", explore_models=0.1)
    provider = CallableProvider(answer, name="mine", models=[SMALL, LARGE])
    settings = Settings(rng=Random(5), predictor="built-in")
    async with Router(providers=[provider], catalogue=Catalogue(()), settings=settings, policies=[policy]) as desk:
        for _ in range(60):
            await desk.route("long " * 10_000, policy_id="p", caller=Caller("rich"))
            await desk.route("long " * 10_000, policy_id="p", caller=Caller("poor", environment="sandbox"))
        told = [(await desk.route("one", policy_id="p", caller=Caller("poor"))).decision.input for _ in range(200)]
        assert not any(each.explored for each in told), "a tenth of 200 pays for 20, and one costs 28"


async def test_a_decision_alone_explores_nothing_and_earns_no_credit(words: Words) -> None:
    policy = Policy(name="p", strategy="cost-optimized", explore_models=0.1)
    async with router(SMALL, LARGE, policies=[policy]) as desk:
        for _ in range(60):
            assert not desk.decide("long " * 10_000, policy_id="p").input.explored
            assert not (await desk.prepare("long " * 10_000, policy_id="p").decide()).input.explored
            assert desk.check_policies("long " * 10_000)
        told = [(await desk.route("one", policy_id="p")).decision.input for _ in range(200)]
        assert not any(each.explored for each in told), "a tenth of 200 pays for 20, and one costs 28"
