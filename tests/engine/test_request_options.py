"""Request options reach the vendor and are priced; reasoning is returned and can be sent back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from routewright import Agent, Console, MemoryStorage, Model, Policy, Pricing, Router, Settings
from routewright.errors import NoCandidates, ProviderFault, ValidationFailed
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import (
    Budget,
    Caller,
    Delta,
    Finish,
    Message,
    OutputDelta,
    Params,
    PolicyGuardrail,
    Reasoning,
    ReasoningDelta,
    RouteCompleted,
    RouteFallback,
    RouteStarted,
    ServicePrice,
    Thought,
    ToolDelta,
    Usage,
)

from .scripted_router import House, said

pytestmark = pytest.mark.anyio

SIGNED = {"type": "thinking", "thinking": "2 and 2", "signature": "c2ln"}
THINKS = Model(
    id="good/one", quality=0.9, reasoning=True, context_window=100_000,
    pricing_per_1m=Pricing(1.0, 4.0, 0.1, 1.25, service_tiers=(ServicePrice("priority", 2.0, 8.0),)),
)  # fmt: skip
TOOLED = Model(id="good/one", reasoning=True, modalities=("text", "tool"), pricing_per_1m=Pricing(1.0, 4.0))


def thinking(*after: Any) -> list[Any]:
    return said(Thought("2 and "), Thought("2"), Thought(item=SIGNED), *after)


def router_of(*scripts: Any, models: tuple[Model, ...] = (THINKS,), **options: Any) -> tuple[Router, ScriptedProvider]:
    clock = FakeClock()
    provider = ScriptedProvider(scripts, models=models, clock=clock)
    return Router(providers=[provider], settings=Settings(clock=clock), **options), provider


ANSWER = (Delta("4"), Usage(10, 30, reasoning=20), Finish("stop"))


async def test_reasoning_comes_with_the_answer_and_can_be_sent_back() -> None:
    router, provider = router_of(thinking(*ANSWER), "5")
    answer = await router.route("2 + 2")
    thought = Reasoning("good", [SIGNED], "2 and 2")
    assert (answer.output, answer.reasoning, answer.response.reasoning) == ("4", thought, thought)
    turns = [Message("user", "2 + 2"), Message("assistant", "4", reasoning=answer.reasoning), Message("user", "+ 1")]
    await router.route(turns)
    assert provider.calls[1].messages[1].reasoning == thought


async def test_a_stream_sends_reasoning_before_the_text_that_follows() -> None:
    more = {"type": "thinking", "thinking": "call it", "signature": "eA=="}
    call = ToolDelta(0, "{}", "c1", "clock")
    ends = Thought("call it"), Thought(item=more), call, Usage(10, 30), Finish("tool_calls")
    tools = [{"type": "function", "function": {"name": "clock"}}]
    router, _ = router_of(thinking(Delta("Let me see."), *ends), models=(TOOLED,))
    async with router.stream("What time is it?", tools=tools) as stream:
        events = [event async for event in stream]
    kinds = [event.event for event in events]
    assert kinds == [
        "route.started", "reasoning.delta", "output.delta", "reasoning.delta", "tool_call.delta", "route.completed"
    ]  # fmt: skip
    told = [event.data for event in events if isinstance(event, ReasoningDelta)]
    assert [(each.text, each.items) for each in told] == [("2 and 2", [SIGNED]), ("call it", [more])]
    assert [event.id for event in events] == [1, 2, 3, 4, 5, 6]
    (end,) = [event.data for event in events if isinstance(event, RouteCompleted)]
    assert end.reasoning == Reasoning("good", [SIGNED, more], "2 and 2call it")


async def test_reasoning_of_a_failed_model_is_not_in_the_answer() -> None:
    house = House([thinking(ProviderFault("server"))] * 2, ["fine"])
    async with house.router.stream("Hi") as stream:
        events = [event async for event in stream]
    assert not [event for event in events if isinstance(event, ReasoningDelta)]
    assert [event.data.text for event in events if isinstance(event, OutputDelta)] == ["fine"]
    assert [event.data.restart for event in events if isinstance(event, RouteFallback)] == [False]
    assert stream.result.reasoning is None


async def test_output_guardrails_withhold_reasoning() -> None:
    policy = Policy(name="safe", guardrails=[{"patterns": ["email"], "action": "redact", "stages": ["output"]}])  # type: ignore[list-item]
    router, _ = router_of(thinking(*ANSWER), policies=[policy])
    answer = await router.route("2 + 2", policy_id="safe")
    assert (answer.output, answer.reasoning) == ("4", None)


async def test_invalid_reasoning_is_a_fault() -> None:
    house = House([said(Thought(3), *ANSWER)], ["fine"])  # type: ignore[arg-type]
    answer = await house.router.route("Hi", fallback={"maxRetries": 0})
    assert answer.routing.selected_model == "spare/two"


# Tools and thinking

CLOCK = [{"type": "function", "function": {"name": "clock"}}]
SHY = replace(THINKS, modalities=("text", "tool"), unsupported=("reasoning_tools",))


async def test_reasoning_is_turned_off_for_models_that_cannot_combine_it_with_tools() -> None:
    router, provider = router_of("Hi", "Hi", "Hi", models=(SHY,))
    answer = await router.route("Hi", tools=CLOCK, params={"temperature": 0.5})
    await router.route("Hi", tools=CLOCK)
    await router.route("Hi")
    asked = [each.params for each in provider.calls]
    assert asked == [Params(temperature=0.5, reasoning="none"), Params(reasoning="none"), Params()]
    again = router.replay(answer)
    assert (again.digest, again.candidates) == (answer.decision.digest, answer.decision.candidates)
    quiet, usual = (router.decide("Hi", tools=tools).candidates[0].cost_usd for tools in (CLOCK, None))
    assert quiet is not None
    assert usual is not None
    assert quiet < usual / 2, "a thousand tokens less of thought"


async def test_tools_with_an_effort_go_only_to_models_that_take_both() -> None:
    able = replace(SHY, id="good/two", unsupported=(), quality=0.1)
    router, provider = router_of("Hi", models=(SHY, able))
    answer = await router.route("Hi", tools=CLOCK, params={"reasoning": "low"}, goal="quality")
    assert answer.routing.selected_model == "good/two"
    assert provider.calls[0].params == Params(reasoning="low")
    alone, provider = router_of("Hi", models=(SHY,))
    with pytest.raises(NoCandidates, match=r"drop params\.reasoning to admit good/one"):
        await alone.route("Hi", tools=CLOCK, params={"reasoning": "low"})
    assert not provider.calls


# Wishes


async def test_unsupported_options_are_named() -> None:
    plain = Model(id="good/one", unsupported=("verbosity", "cache_control"), pricing_per_1m=Pricing(1.0, 4.0))
    router, provider = router_of("Hi", "Hi", models=(plain,))
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    asked = {"messages": [{"role": "user", "content": [part]}], "params": {"verbosity": "low", "service_tier": "auto"}}
    answer = await router.route(asked)
    assert answer.routing.ignored_params == ["verbosity", "cache_control"]
    assert provider.calls[0].params == Params(verbosity="low", service_tier="auto")
    assert (await router.route("Hi")).routing.ignored_params == []


@pytest.mark.parametrize(("told", "nanos"), [("", 140_000), ("priority", 140_000), ("default", 70_000)])
async def test_a_call_is_priced_by_the_tier_that_served_it(told: str, nanos: int) -> None:
    router, _ = router_of(said(Delta("4"), Usage(10, 15, tier=told), Finish("stop")))
    answer = await router.route("2 + 2", params={"service_tier": "priority"})
    assert round(answer.routing.cost_usd * 1e9) == nanos


async def test_an_effort_does_not_change_the_statistics_of_plain_calls() -> None:
    hard = said(Delta("4"), Usage(10, 2_600, reasoning=2_500), Finish("stop"))
    router, _ = router_of(*[hard] * 60)
    for _ in range(60):
        await router.route("2 + 2", params={"reasoning": "high"})
    router.models()  # publishes what was learned
    expected = router.decide("2 + 2").candidates[0].cost_usd
    assert expected is not None
    assert expected * 1e6 == pytest.approx(4 * (100 + 1_000), rel=0.1), "a hundred words, and the usual thought"


# Fields of one vendor


BIAS = {"good": {"logit_bias": {"1": 2}}}
SEARCH: dict[str, dict[str, Any]] = {"good": {"web_search_options": {}}}


async def test_extra_fields_reach_the_provider() -> None:
    router, provider = router_of("Hi")
    await router.route("Hi", params={"extra": SEARCH})
    assert provider.calls[0].params.extra == SEARCH


@pytest.mark.parametrize("where", ["request", "policy", "account"])
async def test_extra_fields_that_may_cost_are_refused_where_money_is_limited(where: str) -> None:
    storage = MemoryStorage()
    policy = Policy(name="thrifty")
    options: dict[str, Any] = {}
    if where == "policy":
        policy, options = Policy(name="thrifty", budget=Budget(max_cost_usd=1.0)), {"policy_id": "thrifty"}
    if where == "request":
        options = {"budget": {"maxCostUsd": 1.0}}
    router, provider = router_of("Hi", "Hi", policies=[policy], storage=storage)
    if where == "account":
        console = Console(storage)
        await console.create_account("shop", monthly_limit_usd=5.0)
        options = {"caller": Caller("shop")}
    with pytest.raises(ValidationFailed, match=r"params\.extra\.good\.web_search_options: may add costs"):
        await router.route("Hi", params={"extra": SEARCH}, **options)
    assert (await router.route("Hi", params={"extra": BIAS}, **options)).output == "Hi"
    assert len(provider.calls) == 1


# Agents


async def test_an_agent_sends_reasoning_back_and_marks_its_prompt_as_repeating() -> None:
    def clock() -> str:
        """Tell the time."""
        return "noon"

    call = ToolDelta(0, "{}", "c1", "clock")
    router, provider = router_of(thinking(call, Usage(10, 30), Finish("tool_calls")), said(*ANSWER), models=(TOOLED,))
    run = await Agent(router, tools=[clock], params={"reasoning": "low"}).run("What time is it?")
    assert run.status == "completed"
    first, second = provider.calls
    assert (first.params.reasoning, first.repeats, second.repeats) == ("low", True, True)
    assert second.messages[-2].reasoning == Reasoning("good", [SIGNED], "2 and 2")


async def test_traces_have_no_reasoning() -> None:
    secret = {"type": "thinking", "thinking": "canary-7131", "signature": "c2ln"}
    router, _ = router_of(said(Thought("canary-7131"), Thought(item=secret), *ANSWER))
    answer = await router.route("2 + 2")
    stored = await router.trace(answer.trace_id)
    assert answer.reasoning is not None
    for trace in (answer.trace, stored):
        assert b"canary" not in json.encode(trace)
    assert "canary" not in repr(answer)


async def test_a_stream_names_ignored_options_at_its_start() -> None:
    plain = Model(id="good/one", unsupported=("verbosity",), pricing_per_1m=Pricing(1.0, 4.0))
    router, _ = router_of("Hi", models=(plain,))
    async with router.stream("Hi", params={"verbosity": "low"}) as stream:
        begun = await anext(stream)
    assert isinstance(begun, RouteStarted)
    assert begun.data.routing.ignored_params == ["verbosity"]


async def test_reasoning_after_the_last_text_is_sent_before_the_end() -> None:
    router, _ = router_of(said(Delta("4"), Thought(item=SIGNED), Usage(10, 30), Finish("stop")))
    async with router.stream("2 + 2") as stream:
        kinds = [event.event async for event in stream]
    assert kinds == ["route.started", "output.delta", "reasoning.delta", "route.completed"]


async def test_a_shared_budget_refuses_fields_that_may_cost() -> None:
    router, provider = router_of("Hi", "Hi")
    results = await router.route_many(["Hi"], params={"extra": SEARCH}, budget={"maxCostUsd": 1.0})
    assert isinstance(results[0], ValidationFailed)
    assert not provider.calls


async def test_input_guardrails_withhold_reasoning_and_read_file_names() -> None:
    policy = Policy(name="safe", guardrails=[PolicyGuardrail(deny=["Nightjar"], action="redact")])
    reads = Model(id="good/one", modalities=("text", "file"), context_window=100_000, pricing_per_1m=Pricing(1.0, 4.0))
    router, provider = router_of("fine", models=(reads,), policies=[policy])
    file = {"file_data": "data:application/pdf;base64,AAAA", "filename": "Nightjar.pdf"}
    thought = {"provider": "good", "items": [{"reasoning_content": "Nightjar"}]}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "file", "file": file}]},
        {"role": "assistant", "content": "4", "reasoning": thought},
        {"role": "user", "content": "+ 1"},
    ]
    await router.route(turns, policy_id="safe")
    assert "Nightjar" not in str(provider.calls[0].messages)
    assert provider.calls[0].messages[1].content == "4"
