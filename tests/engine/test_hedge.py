"""Hedges through the Router: a second model is called beside a silent first, and the race leaks nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from routewright import Answer, Catalogue, Event, Model, Policy, ProviderFault, Router, Settings, Trace
from routewright.errors import ContentRefused, UpstreamFailed
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import (
    Delta,
    FallbackSpan,
    Finish,
    ModelSpan,
    OutputDelta,
    PolicyFallback,
    RouteCompleted,
    RouteFallback,
    UpstreamCall,
    Usage,
)
from tests.tables import table

from .scripted_router import GOOD, SPARE, said

pytestmark = pytest.mark.anyio

QUICK = Policy(name="quick", goal="quality", fallback=PolicyFallback(hedge=True, max_retries=0))
USUAL = said(Pause(1.0), Delta("Usual."), Usage(10, 5), Finish("stop"))
SILENT = said(Pause(100.0))
HEDGED_AT = 1.1
"""About when the silence of a model that takes a second is longer than usual."""


def after(seconds: float, text: str = "Blue.") -> list[Line]:
    return said(Pause(seconds), Delta(text), Usage(10, 5), Finish("stop"))


def fault_after(seconds: float, kind: str = "server") -> list[Line]:
    return said(Pause(seconds), ProviderFault(kind))


class Racer(ScriptedProvider):
    """Begins to answer as its script says; where a ``gate`` is set, a pause lasts until it is opened."""

    gate: anyio.Event | None = None
    woken: list[str]
    """Of whom gates were opened, in order; one list for all."""
    raises: type[BaseException] | None = None

    async def pause(self, seconds: float) -> None:
        if self.gate is not None:
            await self.gate.wait()
            self.woken.append(self._models[0].id)
        else:
            await super().pause(seconds)
        if self.raises is not None:
            raise self.raises


class Track:
    """A Router whose good model was seen to take a second; it and its spare then do as a test says."""

    def __init__(self, good: list[Line], spare: list[Line], third: list[Line] | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.script = USUAL
        self.good = self._racer(lambda call: self.script, GOOD)
        self.spare = self._racer(lambda call: spare, SPARE)
        self.third = self._racer(lambda call: third or SILENT, Model(**{**_fields(SPARE), "id": "third/three"}))
        self.racers = [self.good, self.spare, *([self.third] if third else [])]
        self._then = good
        self.events: list[Event] = []
        self.router = Router(
            providers=self.racers,
            catalogue=Catalogue(()),
            policies=[QUICK],
            settings=Settings(clock=self.clock, rng=Random(7), **settings),
        )
        self.router.on_event(self.events.append)
        self.traces: list[Trace] = []
        self.router.on_trace(self.traces.append)

    def _racer(self, script: Callable[[UpstreamCall], list[Line]], model: Model) -> Racer:
        return Racer(script, models=[model], clock=self.clock)

    async def ready(self, *, seen: int = 6) -> Self:
        """Let the good model be observed; from then on it does what the test wants."""
        for _ in range(seen):
            async with self.router.stream("hi", policy_id="quick") as stream:
                async for _ in stream:
                    pass
        await self.clock.advance(1.0)
        await self.router.flush()
        self.script = self._then
        self.began = self.clock.monotonic()
        for racer in self.racers:
            racer.calls.clear()
        self.events.clear()
        self.traces.clear()
        return self

    @property
    def took(self) -> float:
        return self.clock.monotonic() - self.began

    @property
    def left_open(self) -> int:
        return sum(racer.open_calls for racer in self.racers)

    @property
    def called(self) -> list[int]:
        return [len(racer.calls) for racer in self.racers]


def _fields(model: Model) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__struct_fields__}


async def plain(track: Track, **options: Any) -> Answer[None]:
    answer: Answer[None] = await track.router.route("hi", policy_id="quick", **options)
    return answer


async def streamed(track: Track, **options: Any) -> Answer[None]:
    async with track.router.stream("hi", policy_id="quick", **options) as stream:
        async for _ in stream:
            pass
    stream.raise_failure()
    return stream.result


Ask = Callable[..., Coroutine[Any, Any, Answer[None]]]
both_ways = pytest.mark.parametrize("ask", [plain, streamed])


def models(trace: Trace) -> list[ModelSpan]:
    return [span for span in trace.spans if isinstance(span, ModelSpan)]


def moves(trace: Trace) -> list[tuple[str, str, str]]:
    return [(s.from_model, s.to_model, s.reason) for s in trace.spans if isinstance(s, FallbackSpan)]


# --- who wins


@both_ways
async def test_a_hedge_that_answers_first_serves_and_the_first_is_abandoned(ask: Ask) -> None:
    track = await Track(SILENT, after(0.5)).ready()
    answer = await ask(track)
    assert (answer.output, answer.routing.selected_model) == ("Blue.", SPARE.id)
    assert track.took == pytest.approx(1.5, abs=0.15)
    assert (track.left_open, track.called) == (0, [1, 1])
    assert answer.response.fallback_model == SPARE.id
    assert moves(answer.trace) == [(GOOD.id, SPARE.id, "timeout")]
    first, hedge = models(answer.trace)
    assert (first.status, first.hedge, first.error, first.attempt) == ("cancelled", False, None, 1)
    assert (hedge.status, hedge.hedge, hedge.attempt) == ("ok", True, 2)
    await track.router.flush()
    assert [(event.type, event.data.reason) for event in track.events] == [  # type: ignore[union-attr]
        ("router.fallback_triggered", "timeout")
    ]


@both_ways
async def test_a_first_model_that_answers_first_serves_and_the_hedge_is_abandoned(ask: Ask) -> None:
    track = await Track(after(2.0), SILENT).ready()
    answer = await ask(track)
    assert (answer.output, answer.routing.selected_model) == ("Blue.", GOOD.id)
    assert track.took == 2.0
    assert (track.left_open, track.called) == (0, [1, 1])
    assert (answer.response.fallback_model, moves(answer.trace)) == (None, [])
    assert [(span.status, span.hedge) for span in models(answer.trace)] == [("ok", False), ("cancelled", True)]
    await track.router.flush()
    assert track.events == []


@both_ways
async def test_the_trace_has_both_costs_and_the_losers_as_a_range(ask: Ask) -> None:
    track = await Track(SILENT, after(0.5)).ready()
    answer = await ask(track, params={"max_output_tokens": 1_000})
    first, hedge = models(answer.trace)
    assert hedge.cost_usd == pytest.approx((10 * 2 + 5 * 8) / 1e6)
    assert hedge.cost_range_usd is None
    assert first.cost_range_usd is not None
    assert first.cost_range_usd[0] == 0.0
    assert first.cost_range_usd[1] >= 1_000 * 4 / 1e6
    assert answer.trace.cost_range_usd == pytest.approx((hedge.cost_usd, hedge.cost_usd + first.cost_range_usd[1]))
    assert answer.routing.cost_usd == pytest.approx(hedge.cost_usd)


async def test_a_stream_reports_the_hedge_and_then_has_only_its_text() -> None:
    track = await Track(SILENT, after(0.5)).ready()
    async with track.router.stream("hi", policy_id="quick") as stream:
        events = [event async for event in stream]
    (fallback,) = [event.data for event in events if isinstance(event, RouteFallback)]
    assert (fallback.from_model, fallback.to_model, fallback.reason, fallback.restart) == (
        GOOD.id, SPARE.id, "timeout", False,
    )  # fmt: skip
    assert [(e.data.text, e.data.attempt) for e in events if isinstance(e, OutputDelta)] == [("Blue.", 2)]
    assert isinstance(events[-1], RouteCompleted)


async def test_a_model_that_has_begun_is_never_hedged() -> None:
    slow = said(Pause(0.5), Delta(""), Pause(9.0), Delta("Blue."), Pause(9.0), Delta(""), Finish("stop"))
    track = await Track(slow, after(0.5)).ready()
    assert (await streamed(track)).routing.selected_model == GOOD.id
    assert track.called == [1, 0]


# --- who fails


@both_ways
async def test_if_the_first_fails_while_the_hedge_runs_the_hedge_answers(ask: Ask) -> None:
    track = await Track(fault_after(2.0), after(3.0)).ready()
    answer = await ask(track)
    assert (answer.output, answer.response.fallback_model, track.called) == ("Blue.", SPARE.id, [1, 1])
    assert [span.error for span in models(answer.trace)] == ["server", None]
    assert moves(answer.trace) == [(GOOD.id, SPARE.id, "upstream_5xx")]
    assert track.took == pytest.approx(4.0, abs=0.15)
    assert track.left_open == 0


@both_ways
async def test_if_the_hedge_fails_the_first_answers(ask: Ask) -> None:
    track = await Track(after(3.0), fault_after(0.5)).ready()
    answer = await ask(track)
    assert (answer.routing.selected_model, answer.response.fallback_model) == (GOOD.id, None)
    assert [span.error for span in models(answer.trace)] == [None, "server"]
    assert moves(answer.trace) == []
    assert track.took == 3.0
    assert track.left_open == 0


@both_ways
@pytest.mark.parametrize("who", ["first", "hedge"])
async def test_a_refusal_of_either_ends_both(ask: Ask, who: str) -> None:
    refused = fault_after(2.0, "refused")
    track = await Track(*((refused, SILENT) if who == "first" else (SILENT, refused))).ready()
    with pytest.raises(ContentRefused):
        await ask(track)
    assert (track.left_open, track.called) == (0, [1, 1])
    assert track.took == pytest.approx(2.0 if who == "first" else 3.0, abs=0.15)


# --- in the same moment


@both_ways
@pytest.mark.parametrize("second", ["answers", "server", "refused", "auth", "speaks"])
@pytest.mark.parametrize("first", ["answers", "server", "refused"])
async def test_if_both_end_at_once_one_serves_and_both_are_closed(ask: Ask, first: str, second: str) -> None:
    ends = {"answers": after(0.5), "speaks": said(Pause(0.5), Delta("half"), Pause(50.0))}
    track = await Track(*(ends.get(how, fault_after(0.5, how)) for how in (first, second))).ready()
    gate = track.good.gate = track.spare.gate = anyio.Event()
    woken = track.good.woken = track.spare.woken = list[str]()
    ended: list[object] = []

    async def call() -> None:
        try:
            ended.append((await ask(track)).routing.selected_model)
        except (ContentRefused, UpstreamFailed) as error:
            ended.append(type(error))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await track.clock.advance(2.0)
        assert track.left_open == 2
        track.good.gate = track.spare.gate = None
        gate.set()
    assert len(ended) == 1
    assert track.left_open == 0
    if first == second == "answers":
        assert ended[0] == woken[0]
    elif first == "answers" and second != "refused":
        assert ended[0] == GOOD.id or (second == "speaks" and ended[0] in (SPARE.id, UpstreamFailed))
    elif first == "server" and second == "answers":
        assert ended[0] == SPARE.id


# --- who leaves

STEPS = range(14)
"""Turns of the loop after the moments at which something happens."""
MOMENTS = (0.0, HEDGED_AT - 0.1, HEDGED_AT, HEDGED_AT + 0.5, 2.0, 2.01)


def lingering() -> Track:
    """The hedge begins to answer at about 1.6 s, the first at 2 s."""
    begun = said(Pause(0.5), Delta("Blue."), Delta(" Sky."), Pause(1.0), Usage(10, 5), Finish("stop"))
    return Track(after(2.0), begun)


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@both_ways
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_call_cancelled_at_any_moment_leaves_nothing_open(ask: Ask, moment: float, full: bool) -> None:
    for steps in STEPS if full else STEPS[::4]:
        track = await lingering().ready()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, track)
            await track.clock.sleep(moment)
            await turns(steps)
            group.cancel_scope.cancel()
        assert track.left_open == 0, steps
        await whole_trace(track)


async def whole_trace(track: Track) -> None:
    """Every attempt has its end in the trace, and its cost, whatever became of the call."""
    await track.router.flush()
    for trace in track.traces:
        assert trace.status in ("cancelled", "completed")
        assert all(span.duration_ms >= 0 and (span.tokens or span.cost_range_usd) for span in models(trace))
    assert len(track.traces) == 1 or track.called == [0, 0]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_stream_closed_by_another_task_leaves_nothing_open(moment: float, full: bool) -> None:
    for steps in STEPS if full else STEPS[1::2]:
        track = await lingering().ready()
        stream = track.router.stream("hi", policy_id="quick")

        async def read(stream: Any = stream) -> None:
            async for _ in stream:
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await track.clock.sleep(moment)
            await turns(steps)
            await stream.aclose()
            assert track.left_open == 0, steps
        await whole_trace(track)


ERRORS = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}


def broken_off(backend: str, error: str, who: str) -> int:
    """Let a racer raise what ends the program, and that pass; calls that are open then."""
    track = Track(after(1.4 if who == "first" else 2.0), after(0.5))

    async def call() -> None:
        await track.ready()
        (track.good if who == "first" else track.spare).raises = ERRORS[error]
        await plain(track)

    with pytest.raises(ERRORS[error]):
        anyio.run(call, backend=backend)
    return track.left_open


@table("who", ["first", "hedge"])
@table("error", ERRORS)
def test_an_exit_passes_through_a_race(error: str, who: str) -> None:
    assert broken_off("trio", error, who) == 0
