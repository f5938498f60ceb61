"""One attempt: what a provider may return and raise, what counts against it, and that it is always closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from routewright import CallableProvider, Catalogue, Model, ProviderFault, Router, Settings
from routewright._core.attempts.record import MAX_ANSWER_CHARS
from routewright._engine.execute import YIELD_EVERY
from routewright._engine.provider_exchange import FAREWELL_S, LATE_S
from routewright.errors import ContentRefused, RouterTimeoutError, UpstreamFailed
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line, Script, ScriptedCall
from routewright.wire import (
    Chunk,
    Delta,
    FallbackDict,
    Finish,
    ModelSpan,
    OutputDelta,
    RouteFallback,
    ToolDelta,
    UpstreamCall,
    Usage,
)
from tests.tables import table

from .scripted_router import GOOD, SPARE, Ask, House, both_ways, on_one_loop, plain, said, streamed

pytestmark = pytest.mark.anyio

ANSWER = said(Delta("Blue."), Usage(10, 5), Finish("stop"))
ONCE: FallbackDict = {"maxRetries": 0}


class Odd(BaseException):
    """Something that no provider should raise."""


ODD_GROUP = BaseExceptionGroup("two", [Odd(), ValueError()])
STOP_GROUP = BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()])


def stability(house: House) -> float:
    """Of the good model, as decisions see it."""
    fleet = house.router._parts.fleet("production")
    fleet.fold()
    return fleet.health.figures(fleet.pool.row[GOOD.id], house.clock.monotonic()).stability


nan, inf = float("nan"), float("inf")


@both_ways
@table(
    "chunk",
    [
        *(Usage(count, 5) for count in (None, "7", True, 7.0, nan, inf, -inf, 100_000_001)),  # type: ignore[arg-type]
        *(Usage(5, count) for count in (None, "7", True, 7.0, nan, inf, -inf, 100_000_001)),  # type: ignore[arg-type]
        Usage(5, 5, None),  # type: ignore[arg-type]
        Usage(5, 5, 0, "x"),  # type: ignore[arg-type]
        *(Delta(text) for text in (None, 7, b"x", "\ud800", "ok \udfff")),  # type: ignore[arg-type]
        *(Finish(text) for text in (None, 7, "\ud800")),  # type: ignore[arg-type]
        ToolDelta("0"),  # type: ignore[arg-type]
        ToolDelta(0, None),  # type: ignore[arg-type]
        ToolDelta(0, "", 7),  # type: ignore[arg-type]
        ToolDelta(0, "", "", "\ud800"),
        None,
        {"text": "x"},
        Finish("x" * 201),
    ],
    ids=lambda chunk: repr(chunk)[:40],
)
async def test_an_invalid_chunk_is_a_fault_and_is_not_delivered(ask: Ask, chunk: Any) -> None:
    house = House([said(Delta("half"), chunk, Finish("stop"))], [ANSWER])
    assert await ask(house.router, fallback=ONCE) == "Blue."
    assert house.left_open == 0
    assert stability(house) < 901


async def test_the_fault_of_a_bad_chunk_says_what_it_was() -> None:
    bad: list[Any] = [[Usage(None, 5)], [Delta("\ud800")], [{}], [Finish("x" * 201)]]  # type: ignore[arg-type]
    said = r"whole numbers.*without valid text.*a dict, which is no chunk.*a Finish with a reason of more than 200"
    with pytest.raises(Exception, match=said):
        await House(bad, []).router.route("hi", goal="quality", fallback={"models": [], "maxRetries": 3})


@both_ways
async def test_a_bug_of_ours_still_closes_the_connection(ask: Ask) -> None:
    class Broken(Random):
        def random(self) -> float:
            raise ZeroDivisionError

    house = House([ProviderFault("server")])
    house.router._parts.engine._rng = Broken()
    with pytest.raises(ZeroDivisionError):
        await ask(house.router)
    assert house.left_open == 0


@both_ways
async def test_a_callers_short_time_is_not_held_against_the_provider(ask: Ask) -> None:
    house = House(lambda call: said(Pause(100.0)), lambda call: said(Pause(100.0)))
    for _ in range(10):
        with pytest.raises(RouterTimeoutError):
            await ask(house.router, timeout_ms=200)
    assert stability(house) == 901


class SlowToEnter(ScriptedProvider):
    def open(self, call: UpstreamCall) -> Any:
        context = super().open(call)

        class Entering:
            async def __aenter__(_) -> AsyncIterator[Chunk]:
                await self.pause(3.0)
                return await context.__aenter__()

            __aexit__ = staticmethod(context.__aexit__)

        return Entering()


@both_ways
@pytest.mark.parametrize("kind", [ScriptedProvider, SlowToEnter])
async def test_silence_beyond_a_models_own_limit_counts_against_it(ask: Ask, kind: type[ScriptedProvider]) -> None:
    house = House([said(Pause(100.0))], [ANSWER], kind=kind)
    await ask(house.router)
    assert stability(house) < 901


@both_ways
@pytest.mark.parametrize(("last_s", "blamed"), [(9.0, False), (11.0, True)])
async def test_a_stalled_answer_counts_against_the_model_after_a_long_silence(
    ask: Ask, last_s: float, blamed: bool
) -> None:
    lively: list[Line] = [Pause(7.0), Delta("")] * 7  # which takes 49 s
    house = House([said(Delta("half"), *lively, Pause(11.0 - last_s), Delta("more"), Pause(500.0))], [[Pause(500.0)]])
    with pytest.raises((RouterTimeoutError, UpstreamFailed)):
        await ask(house.router, fallback={"models": []})
    assert (stability(house) < 901) == blamed


async def test_the_time_of_a_slow_reader_does_not_count_against_the_model() -> None:
    house = House([said(Delta("half"), Pause(0.1), *ANSWER)])
    async with house.router.stream("hi", goal="quality") as stream:
        text = stream.text()
        await anext(text)
        await house.clock.advance(59.95)
        with pytest.raises(RouterTimeoutError):
            await anext(text)
    assert stability(house) == 901


async def test_the_first_token_is_awaited_from_the_moment_the_attempt_is_opened() -> None:
    clock = FakeClock()
    third = Model(id="third/three", like="good/one", quality=0.1, context_window=100_000, ttft_s=1.0)
    scripts: dict[Model, Script] = {GOOD: [ProviderFault("auth")], SPARE: [said(Pause(5.0), *ANSWER)], third: [ANSWER]}
    providers = [ScriptedProvider(script, models=[model], clock=clock) for model, script in scripts.items()]
    router = Router(providers=providers, catalogue=Catalogue(()), settings=Settings(clock=clock, rng=Random(1)))
    async with router.stream("hi", goal="quality") as stream:
        async for event in stream:
            if isinstance(event, RouteFallback):
                await clock.advance(12.0)
    assert stream.result.routing.selected_model == "spare/two"
    span = stream.result.trace.spans[-1]
    assert isinstance(span, ModelSpan)
    assert span.ttft_ms == 5_000


class Slow(ScriptedCall):
    """A call that takes its time to be left, and then may raise."""

    _provider: SlowToLeave

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._provider.pause(self._provider.leaving_s)
        finally:
            await super().__aexit__(*error)
        if self._provider.at_last is not None:
            raise self._provider.at_last


class SlowToLeave(ScriptedProvider):
    leaving_s = 30.0
    at_last: BaseException | None = None

    def open(self, call: UpstreamCall) -> Any:
        return Slow(self, call)


@both_ways
@pytest.mark.parametrize("answer", [[ProviderFault("auth")], [Pause(100.0)]])
async def test_a_slow_close_does_not_delay_the_fallback(ask: Ask, answer: Any) -> None:
    quick = House([answer], [ANSWER])
    await ask(quick.router)
    house = House([answer], [ANSWER], kind=SlowToLeave)
    assert await ask(house.router) == "Blue."
    assert house.clock.monotonic() == quick.clock.monotonic() + FAREWELL_S
    assert house.left_open == 0


@both_ways
@pytest.mark.parametrize("pause_s", [100.0, 59.9])
async def test_a_slow_close_makes_no_call_late(ask: Ask, pause_s: float) -> None:
    lively: list[Line] = [Pause(pause_s / 200), Delta("")] * 200
    house = House([said(Delta("half"), *lively, ProviderFault("server"))], kind=SlowToLeave)
    with pytest.raises(RouterTimeoutError):
        await ask(house.router)
    assert house.clock.monotonic() <= 60.0 + LATE_S
    assert house.left_open == 0


@both_ways
@table("error", [ZeroDivisionError(), asyncio.CancelledError(), GeneratorExit(), Odd(), ODD_GROUP])
async def test_an_error_on_closing_changes_nothing(ask: Ask, error: BaseException) -> None:
    house = House([ANSWER], kind=SlowToLeave)
    house.good.leaving_s, house.good.at_last = 0.0, error  # type: ignore[attr-defined]
    assert await ask(house.router) == "Blue."
    assert house.spare.calls == []


@both_ways
async def test_a_context_without_an_iterator_is_closed(ask: Ask) -> None:
    class NoIterator(ScriptedProvider):
        def open(self, call: UpstreamCall) -> Any:
            context = super().open(call)

            class Broken:
                async def __aenter__(self) -> int:
                    await context.__aenter__()
                    return 5

                __aexit__ = staticmethod(context.__aexit__)

            return Broken()

    house = House([ANSWER] * 2, [ANSWER], kind=NoIterator)
    assert await ask(house.router) == "Blue."
    assert house.left_open == 0


async def test_an_answer_complete_at_the_deadline_is_returned() -> None:
    class Blocking(ScriptedProvider):
        async def pause(self, seconds: float) -> None:
            assert isinstance(self._clock, FakeClock)
            self._clock._now += seconds  # work that does not wait: no timer could go off meanwhile

    house = House([said(Delta("a"), Pause(60.0), Delta("b"), Usage(10, 2), Finish("stop"))], kind=Blocking)
    assert await plain(house.router) == "ab"
    assert house.clock.monotonic() == 60.0


@both_ways
@pytest.mark.parametrize("piece", [Delta("word "), ToolDelta(0, "x"), Delta("")])
async def test_an_answer_that_never_waits_lets_others_run_and_ends_at_the_deadline(ask: Ask, piece: Chunk) -> None:
    since_others_ran = 0

    async def babble(call: UpstreamCall) -> AsyncIterator[Chunk]:
        nonlocal since_others_ran
        while since_others_ran < 10 * YIELD_EVERY:
            since_others_ran += 1
            yield piece

    async def others() -> None:
        nonlocal since_others_ran
        while True:
            await anyio.lowlevel.checkpoint()
            since_others_ran = 0

    router = Router(providers=[CallableProvider(babble, models=[Model(id="mine/babble")])])
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        with pytest.raises(RouterTimeoutError):
            await ask(router, timeout_ms=50)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("ask", "piece"),
    [
        (plain, ToolDelta(0, "x" * (1 << 20))),
        (streamed, Delta("x" * (1 << 20))),
        pytest.param(plain, Delta("x" * (1 << 20)), marks=pytest.mark.full),
        pytest.param(streamed, ToolDelta(0, "x" * (1 << 20)), marks=pytest.mark.full),
    ],
)
@on_one_loop
async def test_an_answer_without_end_is_cut_at_32_mib(ask: Ask, piece: Chunk) -> None:
    house = House([[piece] * 40], [ANSWER])
    assert await ask(house.router, fallback=ONCE) == "Blue."
    assert house.left_open == 0
    house = House([[Delta("x" * MAX_ANSWER_CHARS), Finish("stop")]], [ANSWER])
    assert len(await ask(house.router, fallback=ONCE)) == MAX_ANSWER_CHARS


async def test_deltas_carry_their_attempt_and_end_with_it() -> None:
    house = House([said(Delta("half"), Delta(7))], [ANSWER])  # type: ignore[arg-type]
    async with house.router.stream("hi", goal="quality", fallback=ONCE) as stream:
        texts = [event.data.text async for event in stream if isinstance(event, OutputDelta)]
    assert texts == ["half", "Blue."]


async def test_a_plain_call_falls_back_whatever_text_had_arrived() -> None:
    house = House([said(Delta("half"), ProviderFault("reset"))], [ANSWER])
    assert await plain(house.router, fallback={"on_partial": "error", "maxRetries": 0}) == "Blue."


class Raising(ScriptedProvider):
    """Raises in its first answer, after a piece of it."""

    error: BaseException

    async def pause(self, seconds: float) -> None:
        raise self.error


@both_ways
@pytest.mark.parametrize("error", [Odd(), ODD_GROUP, GeneratorExit()])
async def test_an_unexpected_exception_of_a_provider_is_a_fault(ask: Ask, error: BaseException) -> None:
    house = House([said(Delta("half"), Pause(1.0))], [ANSWER], kind=Raising)
    house.good.error = error  # type: ignore[attr-defined]
    assert await ask(house.router, fallback=ONCE) == "Blue."
    assert house.left_open == 0


@both_ways
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), STOP_GROUP])
async def test_exceptions_that_end_the_program_pass(ask: Ask, error: BaseException) -> None:
    house = House([said(Delta("half"), Pause(1.0))], [ANSWER], kind=Raising)
    house.good.error = error  # type: ignore[attr-defined]
    with pytest.raises(type(error)) as raised:
        await ask(house.router, fallback=ONCE)
    assert raised.value is error
    assert house.left_open == 0


async def test_a_call_whose_coroutine_is_closed_ends_there() -> None:
    house = House([said(Delta("half"), Pause(1.0))], [ANSWER], kind=Suspended)
    call = plain(house.router)
    call.send(None)
    assert house.left_open == 1
    call.close()
    assert house.left_open == 0
    assert stability(house) == 901, "that was none of the provider's doing"


class Suspended(ScriptedProvider):
    """Waits for what nobody will give it."""

    async def pause(self, seconds: float) -> None:
        await Never()


class Never:
    def __await__(self) -> Any:
        yield


class NoConstructor(ProviderFault):
    def __init__(self) -> None:
        Exception.__init__(self)


class Unreadable(ProviderFault):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Undecided(ProviderFault):
    @property
    def answered(self) -> bool:
        raise ZeroDivisionError

    @answered.setter
    def answered(self, value: bool) -> None: ...


@both_ways
@pytest.mark.parametrize("fault", [NoConstructor(), Unreadable("auth"), Undecided("auth")])
async def test_an_unreadable_provider_fault_is_still_a_fault(ask: Ask, fault: ProviderFault) -> None:
    house = House([fault], [ANSWER])
    assert await ask(house.router, fallback=ONCE) == "Blue."
    assert house.left_open == 0
    house = House([fault])
    with pytest.raises(Exception, match=f"server: {type(fault).__name__} in the provider"):
        await ask(house.router, fallback={"models": [], "maxRetries": 0})


@both_ways
async def test_a_tool_call_without_a_name_is_invalid(ask: Ask) -> None:
    nameless = said(ToolDelta(0, "{}", "call_1", "look"), ToolDelta(1, "{}", "call_2"))
    for reason in ("tool_calls", "stop", "length"):
        house = House([[*nameless, Finish(reason)]], [ANSWER])
        assert await ask(house.router, fallback=ONCE) == "Blue."
    house = House([[*nameless, ToolDelta(1, "", "", "late"), Finish("tool_calls")]])
    await ask(house.router)
    house = House([[*nameless, Finish("content_filter")]], [ANSWER])
    with pytest.raises(ContentRefused):
        await ask(house.router)
