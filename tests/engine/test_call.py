"""The events of a finished call, and that it keeps no text alive."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import anyio
import pytest

from routewright import (
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    errors,
)
from routewright._core.call import Call
from routewright._engine.request_input import RawRequest
from routewright.errors import ContentRefused
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import (
    DecisionSpan,
    Delta,
    FallbackSpan,
    Finish,
    ModelSpan,
    Usage,
)
from tests.tables import table

from .scripted_router import GOOD, SPARE, Ask, House, both_ways, said, streamed, traces_in

pytestmark = pytest.mark.anyio
ANSWER = said(Delta("canary-answer"), Usage(10, 5), Finish("stop"))


async def call_of(house: House, **options: Any) -> Call:
    """A call once it is answered."""
    answer = await house.router._parts.engine.route(RawRequest("hi", {"goal": "quality"} | options), Caller())
    assert isinstance(answer._call, Call)
    return answer._call


async def test_only_the_fallback_that_served_is_shown_as_used() -> None:
    down = said(Pause(1.0), ProviderFault("auth"))
    third = Model(id="third/three", like="good/one", quality=0.1, pricing_per_1m=Pricing(1.0, 4.0))
    clock = FakeClock()
    scripts = {GOOD: [down], SPARE: [down], third: [ANSWER]}
    providers = [ScriptedProvider(script, models=[model], clock=clock) for model, script in scripts.items()]
    router = Router(providers=providers, catalogue=Catalogue(()), settings=Settings(clock=clock))
    spans = (await router.route("hi", goal="quality")).trace.spans
    found = [(span.from_model, span.to_model, span.used) for span in spans if isinstance(span, FallbackSpan)]
    assert found == [("good/one", "spare/two", False), ("spare/two", "third/three", True)]


@both_ways
@pytest.mark.parametrize("text", [[Delta("half an answer")], []])
async def test_a_call_left_early_is_charged_only_if_content_was_delivered(text: list[Line], ask: Ask) -> None:
    storage = MemoryStorage()
    house = House([said(Usage(100, 20), *text, Pause(30.0))], storage=storage)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, house.router)
        await house.clock.advance(1.0)
        group.cancel_scope.cancel()
    (trace,) = await traces_in(storage)
    assert trace.status == "cancelled"
    assert trace.cost_usd == pytest.approx((100 * 1.0 + 20 * 4.0) / 1e6)
    assert trace.charged_usd == (trace.cost_usd if text and ask is streamed else 0.0)


async def test_an_ordinary_call_emits_no_event() -> None:
    assert (await call_of(House([ANSWER]))).events(None, None) == []


async def test_an_answer_can_be_pickled_without_its_prompt() -> None:
    house = House([ANSWER])
    answer = await house.router.route("canary-prompt", goal="quality")
    pickled = pickle.dumps(answer)
    assert b"canary-prompt" not in pickled
    again = pickle.loads(pickled)
    assert (again.output, again.response) == ("canary-answer", answer.response)
    assert b"canary" not in pickle.dumps(answer.trace)


@table("kind", [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)])
def test_every_error_can_be_pickled_and_copied(kind: type[RouterError]) -> None:
    error = kind("no", detail={"why": ["a"]}, trace_id="tr_1", request_id="req_1")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is kind
        assert again.__dict__ == error.__dict__
        assert str(again) == "no"


async def test_an_answer_without_a_finish_reason_is_truncated() -> None:
    house = House([said(Delta("x"), Finish("")), said(Delta("y"), Finish("stop"))])
    answer = await house.router.route("hi", goal="quality")
    assert answer.output == "y"
    assert [span.error for span in answer.trace.spans if isinstance(span, ModelSpan)] == ["truncated", None]


CUT = "abort error timeout cancelled Canceled USER_CANCEL network_error insufficient_system_resource".split()


@pytest.mark.parametrize("word", CUT)
async def test_an_answer_that_the_vendor_cut_is_a_fault_and_the_next_model_answers(word: str) -> None:
    for stream in (False, True):
        house = House([said(Delta("half"), Finish(word))], [said(Delta("whole"), Finish("stop"))])
        asked: dict[str, Any] = {"goal": "quality", "fallback": {"maxRetries": 0}}
        if stream:
            async with house.router.stream("hi", **asked) as events:
                async for _ in events:
                    pass
            answer = events.result
        else:
            answer = await house.router.route("hi", **asked)
        first, second = (span for span in answer.trace.spans if isinstance(span, ModelSpan))
        assert (answer.output, first.error, second.finish_reason) == ("whole", "truncated", "stop")


async def test_the_breaker_counts_answers_that_the_vendor_cut() -> None:
    house = House([said(Delta("half"), Finish("abort"))] * 9, [said(Delta("whole"), Finish("stop"))] * 9)
    for _ in range(6):
        await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    assert (len(house.good.calls), len(house.spare.calls)) == (5, 6)


@pytest.mark.parametrize("word", ["SAFETY", "RECITATION", "SPII", "refusal", "guardrail_intervened", "sensitive"])
async def test_a_filtered_answer_is_a_refusal_whatever_the_vendor_calls_it(word: str) -> None:
    with pytest.raises(ContentRefused):
        await House([said(Delta("half"), Finish(word))]).router.route("hi", goal="quality")


@pytest.mark.parametrize(
    ("word", "common"), [("end_turn", "stop"), ("MAX_TOKENS", "length"), ("tool_use", "tool_calls")]
)
async def test_finish_reasons_of_vendors_map_to_the_common_ones(word: str, common: str) -> None:
    answer = await House([said(Delta("x"), Finish(word))]).router.route("hi", goal="quality")
    assert answer.finish_reason == common


async def test_calls_that_share_a_plan_are_stored_with_a_decision_of_their_own() -> None:
    answer = said(Delta("canary-answer"), Usage(9, 5), Finish("stop"))  # no more than was admitted
    house = House([answer] * 4)
    budget = {"budget": {"maxCostUsd": 0.5}}
    calls = [await call_of(house, **options) for options in (budget, {}, {}, budget)]
    assert len({call.plan for call in calls}) == 1
    for call in calls:
        span, decision = call.spans[0], call.decision
        assert isinstance(span, DecisionSpan)
        assert decision is not None
        assert span.digest == decision.digest
        assert span.rejected == decision.rejected_counts
        span.rejected["context"] = 1  # the reader's own
    caps = [call.decision.output_cap for call in calls if call.decision is not None]
    assert caps[0] == caps[3] is not None
    assert caps[1] is caps[2] is None


async def test_the_references_of_an_error_show_no_answer() -> None:
    house = House([said(Delta("canary"), Finish("stop"))] * 2, [said(Delta("canary"), Finish("stop"))] * 2)
    with pytest.raises(RouterError) as caught:
        await house.router.route("hi", goal="quality", output_type=int)
    shown, frame = list[str](), caught.value.__traceback__
    while frame is not None:
        shown += [repr(each) for name, each in frame.tb_frame.f_locals.items() if name not in ("house", "shown")]
        frame = frame.tb_next
    assert "canary" not in "".join(shown)
