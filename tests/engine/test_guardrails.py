"""Guardrails on requests and answers: redacted or blocked text never passes, however a call is made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    DenyList,
    MemoryStorage,
    PatternGuardrail,
    Policy,
    Router,
    Settings,
    ValidationFailed,
)
from routewright._engine.steps import StepCall, StepDone
from routewright.errors import BlockedByPolicy, InternalError, RouterTimeoutError
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import (
    Allow,
    Block,
    Delta,
    Finish,
    GuardrailSpan,
    OutputDelta,
    PolicyGuardrail,
    Redact,
    Redaction,
    RouteFallback,
    Stage,
    StreamError,
    ToolCallDelta,
    ToolDelta,
    Usage,
    Verdict,
)
from tests.tables import table

from .scripted_router import GOOD, House, only_trace, said

pytestmark = pytest.mark.anyio

MAIL = "Write to anna@example.com now."
CLEAN = "Write to [email] now."
PIECES = said(*[Delta(letter) for letter in MAIL], Usage(10, 8), Finish("stop"))

Ask = Callable[[Router], Awaitable[str]]


async def plain(router: Router, **options: Any) -> str:
    answer: Any = await router.route("hi", goal="quality", **options)
    return str(answer.output)


async def streamed(router: Router, **options: Any) -> str:
    async with router.stream("hi", goal="quality", **options) as stream:
        shown = ""
        async for event in stream:
            if isinstance(event, RouteFallback) and event.data.restart:
                shown = ""
            if isinstance(event, OutputDelta):
                shown += event.data.text
    assert shown == stream.result.output
    return shown


both_ways = pytest.mark.parametrize("ask", [plain, streamed])


class Moderation:
    """A guardrail of one's own that takes its time."""

    name = "moderation"

    def __init__(self, verdict: Callable[[str], Verdict], *, holds: int | None = None, waits: float = 0.0) -> None:
        self.stages: tuple[Stage, ...] = ("input", "output")
        self.holds = holds
        self.seen: list[tuple[str, Stage]] = []
        self._verdict = verdict
        self._waits = waits
        self.clock: FakeClock | None = None

    async def check(self, text: str, stage: Stage) -> Verdict:
        self.seen.append((text, stage))
        if self.clock is not None:
            await self.clock.sleep(self._waits)
        await anyio.lowlevel.checkpoint()
        return self._verdict(text)


def spans(trace: Any) -> list[tuple[str, str, str, str, int]]:
    found = [span for span in trace.spans if isinstance(span, GuardrailSpan)]
    return [(span.name, span.rule, span.stage, span.action, span.count) for span in found]


async def test_text_redacted_from_a_request_reaches_no_model_and_no_decision() -> None:
    house = House(["fine"], guardrails=[PatternGuardrail("email")])
    answer = await house.router.route([{"role": "system", "content": MAIL}, {"role": "user", "content": MAIL}])
    (call,) = house.good.calls + house.spare.calls
    assert [message.content for message in call.messages] == [CLEAN, CLEAN]
    assert spans(answer.trace) == [("patterns", "email", "input", "redact", 2)]
    bare = House(["fine"])
    same = await bare.router.route([{"role": "system", "content": CLEAN}, {"role": "user", "content": CLEAN}])
    assert answer.decision.input.tokens == same.decision.input.tokens


@both_ways
async def test_a_blocked_request_asks_no_model_and_leaves_a_trace(ask: Ask) -> None:
    storage = MemoryStorage()
    house = House(["fine"], guardrails=[DenyList(["hi"])], storage=storage)
    with pytest.raises(BlockedByPolicy, match="'deny_list' blocks the request by its rule 'deny_list'") as caught:
        await ask(house.router)
    assert (caught.value.status, caught.value.code) == (403, "blocked_by_policy")
    assert caught.value.detail == {"guardrail": "deny_list", "rule": "deny_list", "stage": "input"}
    assert house.good.calls == []
    trace = await only_trace(storage)
    assert (trace.id, trace.status, trace.error) == (caught.value.trace_id, "failed", "blocked_by_policy")
    assert spans(trace) == [("deny_list", "deny_list", "input", "block", 1)]


@both_ways
@pytest.mark.parametrize("answer", [MAIL, PIECES], ids=["whole", "by letters"])
async def test_text_redacted_from_an_answer_reaches_no_caller(ask: Ask, answer: Any) -> None:
    storage = MemoryStorage()
    house = House([answer], guardrails=[PatternGuardrail("email")], storage=storage)
    assert await ask(house.router) == CLEAN
    assert spans(await only_trace(storage)) == [("patterns", "email", "output", "redact", 1)]


async def test_a_finding_is_never_streamed_and_the_rest_is_not_delayed() -> None:
    house = House([PIECES], guardrails=[PatternGuardrail("email")])
    async with house.router.stream("hi", goal="quality") as stream:
        pieces = [piece async for piece in stream.text()]
    assert "".join(pieces) == CLEAN
    assert "@" not in "".join(pieces)
    assert pieces == ["Write ", "to ", "[email] ", "now."]


@both_ways
async def test_redacted_tool_calls_are_still_json(ask: Ask) -> None:
    arguments = json.dumps({"to": "anna@example.com", "n": 3}).replace("@", "\\u0040")
    calls = [ToolDelta(0, "", "c1", "send"), *(ToolDelta(0, letter) for letter in arguments)]
    provider = ScriptedProvider(
        [said(*calls, Usage(10, 8), Finish("tool_calls"))], models=[replace(GOOD, modalities=("text", "tool"))]
    )
    router = Router(providers=[provider], guardrails=[PatternGuardrail("email")], settings=Settings(clock=FakeClock()))
    tools: Any = [{"type": "function", "function": {"name": "send"}}]
    if ask is plain:
        answer = await router.route("hi", tools=tools)
        assert answer.tool_calls is not None
        given = answer.tool_calls[0].function.arguments
    else:
        async with router.stream("hi", tools=tools) as stream:
            (event,) = [event async for event in stream if isinstance(event, ToolCallDelta)]
        given = event.data.arguments
        assert (event.data.call_id, event.data.name) == ("c1", "send")
    assert json.loads(given) == {"to": "[email]", "n": 3}


@both_ways
async def test_a_blocked_answer_falls_back_for_safety_and_counts_against_no_model(ask: Ask) -> None:
    storage = MemoryStorage()
    house = House(["a secret plan"], ["nothing to see"], guardrails=[DenyList(["secret"])], storage=storage)
    assert await ask(house.router) == "nothing to see"
    trace = await only_trace(storage)
    assert [span.reason for span in trace.spans if span.type == "fallback"] == ["safety"]
    assert [span.error for span in trace.spans if span.type == "model"] == ["blocked", None]
    assert trace.cost_usd > 0.0
    assert house.router.decide("hi").candidates[0].stability == 0.901
    assert house.left_open == 0


async def test_a_stream_blocked_midway_restarts_or_ends_as_requested() -> None:
    pieces = said("A fine plan, ", "and a sec", "ret one.", Finish("stop"))
    house = House([pieces], ["All is well."], guardrails=[DenyList(["secret"])])
    events: list[Any] = []
    async with house.router.stream("hi", goal="quality") as stream:
        events = [event async for event in stream]
    (fallback,) = [event.data for event in events if isinstance(event, RouteFallback)]
    assert (fallback.reason, fallback.restart) == ("safety", True)
    voided = "".join(event.data.text for event in events if isinstance(event, OutputDelta) and event.data.attempt == 1)
    assert voided == "A fine plan, and a "
    assert stream.result.output == "All is well."
    house = House([pieces], ["All is well."], guardrails=[DenyList(["secret"])])
    async with house.router.stream("hi", goal="quality", fallback={"on_partial": "error"}) as stream:
        *_, last = [event async for event in stream]
    assert isinstance(last, StreamError)
    assert last.data.error.code == "blocked_by_policy"
    assert house.spare.calls == []


@both_ways
async def test_a_policys_guardrails_run_after_the_routers(ask: Ask) -> None:
    rules = [PolicyGuardrail(patterns=["email"], action="redact", stages=["output"])]
    policy = Policy(name="careful", guardrails=rules)
    house = House([MAIL, MAIL], guardrails=[DenyList(["now"], "redact")], policies=[policy])
    assert await ask(house.router) == "Write to anna@example.com [redacted]."
    careful = await (plain if ask is plain else streamed)(house.router, policy_id="careful")
    assert careful == "Write to [email] [redacted]."


@both_ways
@pytest.mark.parametrize("holds", [None, 20])
async def test_async_guardrails_are_awaited(ask: Ask, holds: int | None) -> None:
    def verdict(text: str) -> Verdict:
        at = text.find("anna@example.com")
        return Redact((Redaction(at, at + 16, "mail", "[someone]"),)) if at >= 0 else Allow()

    own = Moderation(verdict, holds=holds)
    house = House([PIECES], guardrails=[own])
    assert await ask(house.router) == "Write to [someone] now."
    assert own.seen[0] == ("hi", "input")
    assert {stage for _, stage in own.seen[1:]} == {"output"}


@both_ways
async def test_a_failing_guardrail_blocks_the_text_and_does_not_show_it(ask: Ask) -> None:
    def fails(text: str) -> Verdict:
        if text != "hi":
            raise ValueError(text)
        return Allow()

    storage = MemoryStorage()
    house = House([MAIL], guardrails=[Moderation(fails)], storage=storage)
    with pytest.raises(InternalError, match="the guardrail 'moderation' failed with ValueError") as caught:
        await ask(house.router)
    assert "anna" not in str(caught.value)
    trace = await only_trace(storage)
    assert (trace.status, trace.error, trace.id) == ("failed", "internal_error", caught.value.trace_id)
    assert house.left_open == 0
    assert house.spare.calls == []


async def test_an_invalid_verdict_blocks_the_text() -> None:
    house = House([MAIL], guardrails=[Moderation(lambda text: True)])  # type: ignore[arg-type, return-value]
    with pytest.raises(
        InternalError, match=r"check\(\) of the guardrail 'moderation' returned True, which is no verdict"
    ):
        await plain(house.router)


class Odd(BaseException):
    """What no guardrail has any business to raise."""


class Rash:
    """A guardrail that raises, or says, what it is told to at one stage."""

    name = "rash"
    holds = None

    def __init__(self, stage: Stage, said: Any) -> None:
        self.stages: tuple[Stage, ...] = (stage,)
        self._said = said

    def check(self, text: str, stage: Stage) -> Any:
        if isinstance(self._said, BaseException):
            raise self._said
        return self._said


NOTHING: Any = None
RASH = [asyncio.CancelledError(), GeneratorExit(), Odd(), Block(NOTHING), Redact(NOTHING)]


@both_ways
@pytest.mark.parametrize("stage", ["input", "output"])
@pytest.mark.parametrize("said", RASH, ids=repr)
async def test_a_failing_guardrail_does_not_count_against_the_provider(ask: Ask, stage: Stage, said: Any) -> None:
    house = House([MAIL], [MAIL], guardrails=[Rash(stage, said)])
    with pytest.raises(InternalError, match="guardrail 'rash'"):
        await ask(house.router)
    assert len(house.good.calls) == (stage == "output")
    assert house.spare.calls == []
    assert house.left_open == 0


async def test_an_answer_in_a_code_fence_is_checked() -> None:
    fenced = '```json\n{"name": "Project\\nNightjar"}\n```'
    router = Router.sandbox({"hi": fenced}, guardrails=[DenyList(["Project Nightjar"], "redact")])
    answer = await router.route("hi", output_type=dict[str, str])
    assert answer.data == {"name": "[redacted]"}
    assert "Nightjar" not in answer.output


@both_ways
@pytest.mark.parametrize("stage", ["input", "output"])
async def test_a_slow_guardrail_ends_with_the_calls_time(ask: Ask, stage: Stage) -> None:
    own = Moderation(lambda text: Allow(), waits=100.0)
    own.stages = (stage,)
    house = House([MAIL], [MAIL], guardrails=[own])
    own.clock = house.clock
    with pytest.raises(RouterTimeoutError):
        await ask(house.router)
    assert house.clock.monotonic() == pytest.approx(60.0, abs=0.02)
    assert house.left_open == 0


async def test_json_is_checked_by_its_decoded_text() -> None:
    said_so = json.dumps({"mail": "anna@example.com"}).replace("@", "\\u0040")
    router = Router.sandbox({"hi": said_so}, guardrails=[PatternGuardrail("email")])
    answer = await router.route("hi", output_type=dict[str, str])
    assert answer.data == {"mail": "[email]"}


def test_a_hosts_own_calls_are_guarded_too() -> None:
    router = Router(guardrails=[PatternGuardrail("email"), DenyList(["secret"])], settings=Settings(clock=FakeClock()))
    with router.steps(MAIL, models=["openai/gpt-4.1", "openai/gpt-4o"]) as steps:
        call = steps.next()
        assert isinstance(call, StepCall)
        assert [message.content for message in call.upstream.messages] == [CLEAN]
        steps.feed([Delta("a secret"), Finish("stop")])
        assert isinstance(steps.next(), StepCall)
        steps.feed([Delta(MAIL), Usage(10, 8), Finish("stop")])
        assert isinstance(steps.next(), StepDone)
    assert steps.result.output == CLEAN
    with pytest.raises(BlockedByPolicy):
        router.steps("my secret")
    waits = Router(guardrails=[Moderation(lambda text: Allow())], settings=Settings(clock=FakeClock()))
    with pytest.raises(InternalError, match="has to be awaited"):
        waits.steps("hi")


STEP_ANSWERS = {
    "calls": said(ToolDelta(0, json.dumps(["a" * 30_000]), "c1", "look"), Usage(1, 1), Finish("tool_calls")),
    "text": said(Delta("a " * 30_000), Usage(1, 1), Finish("stop")),
}


@table("answer", STEP_ANSWERS.values(), ids=list(STEP_ANSWERS))
def test_steps_check_long_answers_without_a_thread(answer: Any) -> None:
    router = Router(guardrails=[PatternGuardrail("email")])
    with router.steps("hi", models=["openai/gpt-4.1"]) as steps:
        steps.next()
        steps.feed(answer)
        assert isinstance(steps.next(), StepDone)
    assert steps.result.finish_reason in ("stop", "tool_calls")


@pytest.mark.parametrize("stage", ["input", "output"])
async def test_steps_refuse_a_guardrail_that_waits_also_in_an_event_loop(stage: Stage) -> None:
    own = Moderation(lambda text: Allow())
    own.stages = (stage,)
    router = Router(guardrails=[own], settings=Settings(clock=FakeClock()))

    def steps() -> None:
        with router.steps("hi", models=["openai/gpt-4.1"]) as steps:
            steps.next()
            steps.feed([Delta("fine"), Finish("stop")])
            raise AssertionError(f"nobody waited, and {steps.result} was given")

    with pytest.raises(InternalError, match="'moderation' has to be awaited"):
        steps()


def test_an_object_that_is_not_a_guardrail_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"guardrails\[0\]: 5 is not a guardrail"):
        Router(guardrails=[5])  # type: ignore[list-item]
    with pytest.raises(ValidationFailed, match=r"guardrails: .* is not a list"):
        Router.sandbox(guardrails=DenyList(["x"]))  # type: ignore[arg-type]


def test_a_decision_runs_no_guardrail() -> None:
    own = Moderation(lambda text: Block("never"))
    house = House([], guardrails=[own])
    house.router.decide("hi")
    assert own.seen == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_that_plain_code_starts_may_wait(backend: str) -> None:
    own = Moderation(lambda text: Allow())
    own.stages = ("input",)
    inner = House(["fine"], guardrails=[own]).router

    class Asking:
        name, holds = "asking", None
        stages: tuple[Stage, ...] = ("input",)

        def check(self, text: str, stage: Stage) -> Verdict:
            assert anyio.run(plain, inner, backend=backend) == "fine"
            return Allow()

    outer = Router(guardrails=[Asking()], settings=Settings(clock=FakeClock()))
    with outer.steps("hi", models=["openai/gpt-4.1"]) as steps:
        assert isinstance(steps.next(), StepCall)
    assert [text for text, _ in own.seen] == ["hi"]
