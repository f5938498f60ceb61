"""One request from prompt to answer, cost and trace."""

from __future__ import annotations

import pickle
import re
from typing import Any

import anyio
import pytest

from routewright import (
    BudgetExceeded,
    Caller,
    Fallback,
    MemoryStorage,
    Params,
    Policy,
    ProviderFault,
    Router,
    RouteRequest,
    RouterError,
    ValidationFailed,
)
from routewright.errors import NoProviders, NotFound, RouterTimeoutError, UpstreamFailed
from routewright.testing import Pause
from routewright.wire import (
    Budget,
    Delta,
    Finish,
    Message,
    ModelSpan,
    ParamsDict,
    ToolDelta,
    Usage,
)

from .scripted_router import House, said, traces_in

pytestmark = pytest.mark.anyio

ANSWER = said(Delta("Blue "), Delta("light scatters."), Usage(100, 50, cached=20), Finish("stop"))


async def test_an_answer_comes_with_its_model_cost_and_trace() -> None:
    house = House([ANSWER])
    answer = await house.router.route("Why is the sky blue?", goal="quality")
    assert answer.output == str(answer) == "Blue light scatters."
    assert answer.routing.selected_model == answer.response.primary_model == "good/one"
    assert answer.routing.fallback_chain == ["spare/two"]
    assert answer.routing.cost_usd == pytest.approx((100 * 1.0 + 50 * 4.0) / 1e6)
    assert (answer.routing.tokens.input, answer.routing.tokens.output, answer.routing.tokens.cached) == (100, 50, 20)
    assert answer.finish_reason == "stop"
    assert answer.response.fallback_model is None
    assert not answer.routing.cache_hit
    assert answer.routing.policy_version.startswith("inline@")
    assert answer.usage.rate_limit_remaining == 2**53 - 1
    assert answer.usage.rate_limit_reset_unix % 60 == 0
    trace = await house.router.trace(answer.trace_id)
    assert trace == answer.trace
    assert trace.status == "completed"
    assert trace.cost_usd == trace.charged_usd == answer.routing.cost_usd
    assert [span.name for span in trace.spans] == ["decision", "good/one"]


@pytest.mark.parametrize(
    "request_like",
    [
        "hi",
        [{"role": "user", "content": "hi"}],
        [Message("user", "hi")],
        {"messages": [{"role": "user", "content": "hi"}]},
        RouteRequest([Message("user", "hi")]),
    ],
)
async def test_the_four_request_shapes_make_the_same_request(request_like: object) -> None:
    house = House([ANSWER])
    await house.router.route(request_like)  # type: ignore[call-overload]  # each is of the union; the list of them is not
    assert house.good.calls[0].messages == [Message("user", "hi")]


async def test_the_request_reaches_the_provider() -> None:
    house = House([ANSWER])
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    params: ParamsDict = {"temperature": 0.5, "max_output_tokens": 77, "stop": "\n"}
    models = {"models": ["good/one"]}
    with pytest.raises(RouterError, match="tools"):
        await house.router.route("hi", tools=tools, params=params, **models)  # type: ignore[call-overload]
    await house.router.route("hi", params=params, models=["good/one"])
    call = house.good.calls[0]
    assert call.params == Params(temperature=0.5, max_output_tokens=77, stop="\n")
    assert call.max_output_tokens == 77
    assert not call.stream


async def test_a_preferred_model_is_called_first_and_falls_back_to_the_best() -> None:
    asked: list[dict[str, Any]] = [{"prefer": "spare/two"}, {"policy_id": "p"}]
    for each in asked:
        policies = [Policy(name="p", prefer=["spare/two"])]
        house = House(["blue"], [ProviderFault("server")] * 2, policies=policies)
        answer = await house.router.route("hi", goal="quality", **each)
        assert (answer.response.primary_model, answer.routing.selected_model) == ("spare/two", "good/one")
        assert "spare/two, which is preferred, scored" in answer.routing.decision_reason
        assert answer.trace.decision_input is not None
        assert answer.trace.decision_input.prefer == ("spare/two",)
        assert house.router.replay(answer.trace).digest == answer.decision.digest


async def test_retry_after_is_waited_out_when_short_and_moved_on_from_when_long() -> None:
    short = House([ProviderFault("rate_limited", status=429, retry_after=3.0), ANSWER])
    assert (await short.router.route("hi", goal="quality")).routing.selected_model == "good/one"
    assert short.clock.monotonic() == pytest.approx(3.0)
    long = House([ProviderFault("rate_limited", status=429, retry_after=6.0)], [ANSWER])
    assert (await long.router.route("hi", goal="quality")).routing.selected_model == "spare/two"
    assert long.clock.monotonic() == 0.0


async def test_when_every_attempt_fails_the_error_lists_them_in_order() -> None:
    house = House([ProviderFault("auth")], [ProviderFault("model_not_found")])
    with pytest.raises(UpstreamFailed) as failed:
        await house.router.route("hi", goal="quality")
    attempts = failed.value.detail["attempts"]
    assert [(a["model"], a["error"]) for a in attempts] == [("good/one", "auth"), ("spare/two", "model_not_found")]
    assert failed.value.trace_id is not None
    assert failed.value.request_id is not None
    trace = await house.router.trace(failed.value.trace_id)
    assert (trace.status, trace.error, trace.cost_usd) == ("failed", "router.upstream_failed", 0.0)
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.detail, again.trace_id) == (str(failed.value), failed.value.detail, failed.value.trace_id)


async def test_the_deadline_covers_the_whole_call_and_is_met_to_the_instant() -> None:
    house = House([said(Pause(100.0), *ANSWER)], [said(Pause(100.0), *ANSWER)])
    with pytest.raises(RouterTimeoutError, match="timeout_ms=20000"):
        await house.router.route("hi", goal="quality", timeout_ms=20_000)
    assert house.clock.monotonic() == 20.0
    assert house.left_open == 0


async def test_a_timeout_is_also_pythons_own() -> None:
    house = House([said(Pause(100.0))])
    with pytest.raises(TimeoutError):
        await house.router.route("hi", goal="quality", timeout_ms=1_000, fallback={"models": []})


async def test_the_output_of_a_broken_attempt_is_priced_and_shown() -> None:
    house = House([said(Delta("half"), Usage(100, 10), ProviderFault("reset"))] * 2, [ANSWER])
    answer = await house.router.route("hi", goal="quality")
    broken, served = (100 * 1.0 + 10 * 4.0) / 1e6, (100 * 2.0 + 50 * 8.0) / 1e6
    assert answer.routing.cost_usd == pytest.approx(2 * broken + served)
    assert answer.trace.charged_usd == answer.trace.cost_usd


async def test_without_usage_the_cost_is_estimated_and_marked() -> None:
    house = House([said(Delta("The sky scatters blue light more than red. " * 20), Finish("stop"))])
    answer = await house.router.route("Why is the sky blue? " * 50, goal="quality")
    span = answer.trace.spans[-1]
    assert isinstance(span, ModelSpan)
    assert span.usage_estimated
    assert 150 < answer.routing.tokens.output < 250
    assert 200 < answer.routing.tokens.input < 400
    assert answer.routing.cost_usd > 0


async def test_an_answer_cut_by_the_budget_says_so() -> None:
    cut = said(Delta("a b c"), Usage(10, 300), Finish("length"))
    house = House([cut, cut])
    budget = Budget(max_tokens=1_500)
    answer = await house.router.route("hi", goal="quality", budget=budget, fallback=Fallback(models=[]))
    assert answer.finish_reason == "budget"
    answer = await house.router.route("hi", goal="quality", params={"max_output_tokens": 300})
    assert answer.finish_reason == "length"


async def test_a_budget_that_no_model_fits_is_refused_with_a_hint() -> None:
    house = House([ANSWER])
    with pytest.raises(BudgetExceeded, match=r"raise budget\.max_cost_usd .*to 0\.0040") as refused:
        await house.router.route("hi", budget={"maxCostUsd": 0.000_1})
    rejected = refused.value.detail["rejected_candidates"]
    assert [r["model"] for r in rejected if r["reason"] == "budget_cost"] == ["good/one", "spare/two"]
    assert refused.value.trace_id is not None
    trace = await house.router.trace(refused.value.trace_id)
    assert trace.status == "budget_exceeded"
    assert house.good.calls == []


async def test_tool_calls_come_back_whole() -> None:
    pieces = said(ToolDelta(0, '{"q"', "call_1", "look"), ToolDelta(0, ': "x"}'), Usage(10, 9), Finish("tool_calls"))
    house = House([pieces])
    answer = await house.router.route("hi", goal="quality")
    assert answer.tool_calls is not None
    assert answer.tool_calls[0].function.arguments == '{"q": "x"}'
    assert (answer.tool_calls[0].id, answer.tool_calls[0].function.name) == ("call_1", "look")
    assert answer.finish_reason == "tool_calls"


async def test_a_pause_before_a_retry_is_not_cut_by_the_previous_time_limit() -> None:
    house = House([said(Pause(19.0), ProviderFault("rate_limited", retry_after=3.0)), ANSWER], [ANSWER])
    answer = await house.router.route("hi", goal="quality")
    assert answer.routing.selected_model == "good/one"
    assert house.clock.monotonic() == 22.0


async def test_content_after_a_finish_reason_is_not_lost() -> None:
    house = House([said(Delta("all"), Finish("stop"), Delta(" more"), Finish("length"), Usage(10, 7))])
    answer = await house.router.route("hi", goal="quality")
    assert (answer.output, answer.finish_reason, answer.routing.tokens.output) == ("all more", "length", 7)


async def test_an_unexpected_exception_is_a_fault_and_hides_the_prompt() -> None:
    def broken(_: object) -> str:
        raise ZeroDivisionError("the prompt was: my secret")

    house = House(broken, [ANSWER])
    answer = await house.router.route("my secret", goal="quality", fallback={"maxRetries": 0})
    assert answer.routing.selected_model == "spare/two"
    assert "my secret" not in repr(answer.trace)


async def test_a_cancelled_call_frees_its_provider_and_leaves_a_trace() -> None:
    storage = MemoryStorage()
    house = House([said(Delta("some"), Pause(50.0), Finish("stop"))], storage=storage)
    async with anyio.create_task_group() as group:
        group.start_soon(house.router.route, "hi")
        await house.clock.advance(1.0)
        assert house.left_open == 1
        group.cancel_scope.cancel()
    assert house.left_open == 0
    traces = await traces_in(storage)
    assert [trace.status for trace in traces] == ["cancelled"]
    assert traces[0].cost_usd > 0
    assert traces[0].charged_usd == 0, "nothing had reached the caller"


async def test_unknown_models_and_policies_name_the_nearest() -> None:
    house = House([ANSWER], policies=[Policy(name="careful")])
    with pytest.raises(ValidationFailed, match=r"models\[0\]: unknown model 'good/onee'; did you mean 'good/one'\?"):
        await house.router.route("hi", models=["good/onee"])
    with pytest.raises(ValidationFailed, match="did you mean 'careful'"):
        await house.router.route("hi", policy_id="carefull")


@pytest.mark.parametrize("word", ["good/*", "good/on?", "provider:good", "tag:eu", "capability:tools"])
def test_a_request_names_models_and_no_patterns(word: str) -> None:
    router = House([ANSWER]).router
    message = f"[0]: {word!r} is a pattern; a request names ids or aliases; patterns are for policies and keys"
    for options in ({"models": [word]}, {"prefer": word}, {"fallback": {"models": [word]}}):
        with pytest.raises(ValidationFailed, match=re.escape(message)):
            router.decide("hi", **options)


def test_a_chain_outside_the_whitelist_is_told_of_prefer() -> None:
    with pytest.raises(ValidationFailed, match="; to say only which model is first, use 'prefer' in place of 'models'"):
        House([ANSWER]).router.decide("hi", models=["good/one"], fallback={"models": ["spare/two"]})


async def test_accounts_do_not_see_each_others_traces() -> None:
    house = House([ANSWER])
    mine, other = Caller("mine"), Caller("other")
    answer = await house.router.route("hi", caller=mine)
    assert (await house.router.trace(answer.trace_id, caller=mine)).account == "mine"
    with pytest.raises(NotFound):
        await house.router.trace(answer.trace_id, caller=other)
    with pytest.raises(NotFound):
        await house.router.as_caller(other).feedback(answer.trace_id, 1.0)
    await house.router.as_caller(mine).feedback(answer.trace_id, 0.5, "fine")


async def test_feedback_is_a_number_from_zero_to_one_on_a_known_trace() -> None:
    house = House([ANSWER])
    answer = await house.router.route("hi")
    await house.router.feedback("trc_" + answer.trace_id[3:], 1)
    for score in (-0.1, 1.1, float("nan"), True, "1"):
        with pytest.raises(ValidationFailed, match="from 0"):
            await house.router.feedback(answer.trace_id, score)  # type: ignore[arg-type]


async def test_without_a_provider_the_error_says_how_to_get_one() -> None:
    with pytest.raises(NoProviders, match=r"OPENAI_API_KEY.*providers=.*Router.sandbox"):
        await Router(providers=[]).route("hi")


async def test_metadata_is_in_the_trace_and_text_is_not() -> None:
    house = House([said(Delta("canary-answer"), Finish("stop"))])
    answer = await house.router.route("canary-prompt", metadata={"team": "search"})
    assert answer.trace.metadata == {"team": "search"}
    for shown in (repr(answer.trace), repr(answer), repr(answer.decision), repr(answer.decision.input)):
        assert "canary" not in shown
