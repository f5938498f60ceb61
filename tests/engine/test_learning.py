"""Prompt sketches are recorded if enabled, and an account is routed by what its own traffic taught."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from routewright import Caller, Catalogue, MemoryStorage, Policy, Router, Settings, SqliteStorage, ValidationFailed
from routewright.errors import NotFound, ProviderFault, StorageUnavailable
from routewright.learning import Learning
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import AgentState, Delta, Finish, Model, Pricing, UpstreamCall, Usage

from .support import traces_in

pytestmark = pytest.mark.anyio

GOOD = Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
SPARE = Model(id="good/spare", quality=0.6, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
ACME, GLOBEX = Caller("acme"), Caller("globex")
WORDS = ["prove", "lemma", "river", "invoice", "function", "contract", "poem", "sky"]


def answer(call: UpstreamCall) -> Any:
    return [Delta("an answer"), Usage(40, 30), Finish("stop")]


LEARNING = Learning()


def desk(storage: Storage, clock: FakeClock, learning: Learning | None = LEARNING, **more: Any) -> Router:
    own = ScriptedProvider(answer, models=[GOOD, SPARE], clock=clock, name="good")
    providers = [own, *more.pop("others", ())]
    settings = Settings(clock=clock, rng=Random(7), predictor="built-in", learning=learning)
    return Router(providers=providers, catalogue=Catalogue([GOOD, SPARE]), storage=storage, settings=settings, **more)


async def teach(router: Router, caller: Caller = ACME, count: int = 80) -> None:
    """Let users like the spare model, and not the good one."""
    rng = Random(3)
    for number in range(count):
        model = ("good/one", "good/spare")[number % 2]
        prompt = " ".join(rng.choices(WORDS, k=8))
        only = [model] if number % 2 else None
        reply = await router.route(prompt, goal="quality", caller=caller, models=only)
        await router.feedback(reply.trace_id, float(number % 2), caller=caller)


def choice(router: Router, caller: Caller = ACME) -> str:
    return router.decide("prove the lemma", goal="quality", caller=caller).model


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "" if request.param == "memory" else str(tmp_path / "store.db")


def opened(place: str, clock: FakeClock) -> Storage:
    return SqliteStorage(place, clock=clock) if place else MemoryStorage(clock=clock)


async def test_an_account_is_routed_by_its_own_head(place: str) -> None:
    clock = FakeClock()
    async with desk(opened(place, clock), clock) as router:
        await teach(router)
        store = router.traces.as_account("acme")
        assert choice(router) == choice(router, GLOBEX) == "good/one"
        report = await store.learn()
        assert (report.refusal, report.account, report.replayed, report.changed) == ("", "acme", 80, 40)
        assert report.head_quality > report.quality
        assert report.head_cost_usd == report.cost_usd > 0
        assert report.samples == {"feedback": 80}
        assert choice(router) == "good/one", "it was not applied"
        await store.apply_head(report)
        await clock.advance(5.0)
        assert choice(router) == "good/spare"
        decision = router.decide("prove the lemma", goal="quality", caller=ACME)
        assert report.head is not None
        assert decision.reading is not None
        assert decision.reading.predictor == f"{report.head.predictor}+{report.head.id}"
        assert decision.instead_of == "good/one"
        assert f"qualities moved by {report.head.id}; without reading it: good/one" in router.explain(decision)
        for other in (GLOBEX, Caller("acme", environment="sandbox")):
            assert choice(router, other) == "good/one"
        served = await router.route("prove the lemma", goal="quality", caller=ACME)
        assert router.replay(served).digest == served.decision.digest
        assert served.routing.selected_model == "good/spare"
        for caller, model in ((GLOBEX, "good/one"), (ACME, "good/spare"), (GLOBEX, "good/one")):
            reply = await router.route("prove the lemma", goal="quality", caller=caller)
            assert reply.routing.selected_model == model, "accounts share no plan that a head made"


async def test_a_second_router_takes_an_applied_head_within_five_seconds_and_a_reverted_one(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = (desk(SqliteStorage(tmp_path / "store.db", clock=clock), clock) for _ in range(2))
    await teach(first)
    store = first.traces.as_account("acme")
    assert choice(second) == "good/one"
    report = await store.learn()
    await store.apply_head(report)
    for router in (first, second):
        await clock.advance(2.5)
        assert choice(router) == "good/spare"
    again = await store.learn()
    await store.apply_head(again)
    await store.apply_head(again)  # which is no other head
    assert again.changed == 40, "the built-in predictor alone is what a new head is held against"
    assert again.head != report.head == await store.revert_head()
    await clock.advance(5.0)
    assert choice(second) == "good/spare"
    assert await store.revert_head() is None
    await clock.advance(5.0)
    assert choice(first) == choice(second) == "good/one"
    with pytest.raises(NotFound, match="acme has no head in production"):
        await store.revert_head()
    for router in (first, second):
        await router.aclose()


async def test_deletion_removes_sketches_and_heads(place: str) -> None:
    clock = FakeClock()
    storage = opened(place, clock)
    async with desk(storage, clock) as router:
        await teach(router)
        store = router.traces.as_account("acme")
        await store.apply_head(await store.learn())
        await store.delete(everything=True)
        assert await storage.read("acme", AgentState("heads", environment="production")) is None
        await clock.advance(5.0)
        assert choice(router) == "good/one"
        report = await store.learn()
        assert report.samples == {}
        assert report.refusal == "only 0 traces have a score; at least 50 are needed"
        with pytest.raises(ValidationFailed, match="only 0 traces have a score"):
            await store.apply_head(report)


async def test_prompts_are_sketched_only_if_learning_is_on() -> None:
    clock = FakeClock()
    policy = Policy(name="desk", goal="quality")
    for learning, kept in ((LEARNING, 13), (None, 0)):
        storage = MemoryStorage(clock=clock)
        async with desk(storage, clock, learning, policies=[policy]) as router:
            for options in ({}, {"policy_id": "desk"}, {"models": ["good/one"]}, {"goal": "cost"}):
                await router.route("Prove that the lemma holds", **options)
            await router.aclose()
            for trace in await traces_in(storage):
                assert trace.decision_input is not None
                reading = trace.decision_input.reading
                assert len(() if reading is None else reading.sketch) == kept
                assert kept == 0 or reading is not None


async def test_while_the_storage_is_unavailable_the_last_head_is_used(tmp_path: Path) -> None:
    clock = FakeClock()
    storage = SqliteStorage(tmp_path / "store.db", clock=clock)
    async with desk(storage, clock) as router:
        await teach(router)
        store = router.traces.as_account("acme")
        await store.apply_head(await store.learn())
        await clock.advance(5.0)
        assert choice(router) == "good/spare"

        async def away(account: str, query: object) -> None:
            raise StorageUnavailable("away")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(storage, "read", away)
            await clock.advance(60.0)
            assert choice(router) == "good/spare"


JUDGE = Model(id="judge/three", quality=0.1, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, ttft_s=1.0)


def graders(clock: FakeClock, grades: list[str]) -> ScriptedProvider:
    def grade(call: UpstreamCall) -> Any:
        return [Delta(grades.pop(0)), Usage(4_000, 1_000), Finish("stop")]

    return ScriptedProvider(grade, models=[JUDGE], clock=clock, name="judge")


GRADE: list[Line] = [Delta("5"), Usage(4_000, 1_000), Finish("stop")]


def slow_judge(clock: FakeClock, asked: list[float], lines: list[Line]) -> ScriptedProvider:
    """Puts down when it is asked."""

    def grade(call: UpstreamCall) -> list[Line]:
        asked.append(clock.time())
        return lines

    return ScriptedProvider(grade, models=[JUDGE], clock=clock, name="judge")


async def test_a_judge_grades_answers_unless_the_user_did_and_its_own_calls_teach_nothing(place: str) -> None:
    clock, grades = FakeClock(), ["8", "oh well", " 3/10."]
    storage = opened(place, clock)
    learning = Learning(judge="judge/three", judge_share=1.0)
    async with desk(storage, clock, learning, others=[graders(clock, grades)]) as router:
        ids = []
        for prompt in ("Prove it", "Why?", "How?"):
            ids.append((await router.route(prompt, caller=ACME, models=["good/one"])).trace_id)
            if prompt == "How?":
                await router.feedback(ids[-1], 1.0, "mine", caller=ACME)
            await clock.sleep(5.0)
        assert grades == []
        said = [await router.traces.feedback_of(each, account="acme") for each in ids]
        assert [None if each is None else (each.score, each.comment) for each in said] == [
            (0.8, "judge"), None, (1.0, "mine"),
        ]  # fmt: skip
        found = await traces_in(storage, "acme")
        own = [each for each in found if each.metadata.get("routewright") == "quality_judge"]
        assert (len(found), len(own)) == (6, 3), "a grade is not graded"
        for each in own:
            assert each.decision_input is not None
            assert each.decision_input.reading is None or each.decision_input.reading.sketch == ()
        with pytest.raises(ValidationFailed, match="is reserved for judges"):
            await router.feedback(ids[0], 0.1, "judge", caller=ACME)
        await router.feedback(ids[0], 0.1, caller=ACME)
        last = await router.traces.feedback_of(ids[0], account="acme")
        assert last is not None
        assert last.score == 0.1, "the user has the last word"


async def test_a_judge_stays_within_its_daily_budget_and_share() -> None:
    clock, grades = FakeClock(), ["5"] * 100
    for share, budget, asked in ((1.0, 0.008, 2), (1.0, 0.0, 0), (0.0, 1.0, 0), (0.5, 1.0, 8)):
        grades[:] = ["5"] * 100
        learning = Learning(judge="judge/three", judge_share=share, judge_usd_a_day=budget)
        async with desk(MemoryStorage(clock=clock), clock, learning, others=[graders(clock, grades)]) as router:
            for _ in range(16):
                await router.route("Prove it", caller=ACME, models=["good/one"])
                await clock.sleep(5.0)
            assert abs(100 - len(grades) - asked) <= (3 if share == 0.5 else 0)


async def test_a_grade_over_midnight_returns_nothing_to_the_next_day() -> None:
    clock, asked = FakeClock(), list[float]()

    learning = Learning(judge="judge/three", judge_share=1.0, judge_usd_a_day=0.01)
    judge = slow_judge(clock, asked, [Pause(20.0), *GRADE])
    async with desk(MemoryStorage(clock=clock), clock, learning, others=[judge]) as router:
        await clock.advance(86_400 - clock.time() % 86_400 - 10)
        for _ in range(6):
            await router.route("Prove it", caller=ACME, models=["good/one"])
            await clock.sleep(15.0)
        assert len(asked) == 1 + 2, "each costs half a cent"


@pytest.mark.parametrize("fault", [Pause(100.0), ProviderFault("server")], ids=["time-out", "fault"])
async def test_a_grade_that_fails_counts_as_the_most_that_it_can_cost(fault: Any) -> None:
    clock, asked = FakeClock(), list[float]()

    learning = Learning(judge="judge/three", judge_share=1.0, judge_usd_a_day=0.02)
    judge = slow_judge(clock, asked, [fault, *GRADE])
    async with desk(MemoryStorage(clock=clock), clock, learning, others=[judge]) as router:
        counts = []
        for _ in range(6):
            await router.route("Prove it", caller=ACME, models=["good/one"])
            await clock.sleep(90.0)
            counts.append(len(asked))
        assert 0 < counts[0] < counts[1] == counts[-1], "two that cost a cent each spend the day's budget"


async def test_answers_of_the_sandbox_are_not_graded() -> None:
    clock, grades = FakeClock(), ["5"]
    learning = Learning(judge="judge/three", judge_share=1.0)
    storage = MemoryStorage(clock=clock)
    async with desk(storage, clock, learning, others=[graders(clock, grades)]) as router:
        sandbox = Caller("acme", environment="sandbox")
        await router.route("Prove it", caller=sandbox, models=["good/one"])
        await clock.sleep(5.0)
        assert len(await traces_in(storage, "acme")) == 1


def test_learning_needs_the_built_in_predictor_and_valid_settings() -> None:
    with pytest.raises(ValidationFailed, match=r"Settings.learning: learns by the built-in predictor, which is off"):
        Settings(learning=LEARNING, predictor=None)
    wrong: list[dict[str, Any]] = [{"judge": 5}, {"judge_share": 1.5}, {"judge_usd_a_day": -1.0}]
    for options in wrong:
        with pytest.raises(ValidationFailed, match=f"Learning.{next(iter(options))}"):
            Learning(**options)
