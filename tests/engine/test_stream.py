"""Streamed answers: the same call as ``route``, in chunks."""

from __future__ import annotations

import gc
from contextlib import aclosing
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from routewright import MemoryStorage, Model, NoCandidates, Pricing, ProviderFault, Router, Settings
from routewright._engine.fleet import Fleet
from routewright._engine.stream import Stream
from routewright.errors import RouterTimeoutError, UpstreamFailed
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line, ScriptedCall
from routewright.wire import (
    Chunk,
    Delta,
    ErrorEnvelope,
    FallbackDict,
    Finish,
    OutputDelta,
    RouteCompleted,
    RouteEvent,
    RouteFallback,
    RouteStarted,
    StreamError,
    Thought,
    ToolCallDelta,
    ToolDelta,
    Usage,
)

from .scripted_router import GOOD, SPARE, House, on_one_loop, said, traces_in

pytestmark = pytest.mark.anyio

ANSWER = said(Delta("Blue "), Delta("light."), Usage(10, 5), Finish("stop"))


async def events_of(house: House, **options: object) -> list[RouteEvent]:
    async with house.router.stream("hi", goal="quality", **options) as stream:  # type: ignore[arg-type]
        return [event async for event in stream]


async def test_a_stream_has_the_plan_the_pieces_and_the_response() -> None:
    house = House([ANSWER])
    events = await events_of(house)
    assert [event.event for event in events] == ["route.started", "output.delta", "output.delta", "route.completed"]
    assert [event.id for event in events] == [1, 2, 3, 4]
    started, first, _, completed = events
    assert isinstance(started, RouteStarted)
    assert isinstance(first, OutputDelta)
    assert isinstance(completed, RouteCompleted)
    assert started.data.routing.selected_model == completed.data.primary_model == "good/one"
    assert (first.data.text, first.data.attempt) == ("Blue ", 1)
    assert completed.data.output == "Blue light."
    assert completed.data.trace_id == started.data.trace_id


TEXT = [Delta("Blue")]
TOOL: list[Line] = [ToolDelta(0, "{}", "call_1", "look")]
THOUGHT: list[Line] = [Thought("hm", {"type": "thinking"}), Delta("Blue")]
NOTHING: list[Line] = []


@pytest.mark.parametrize(
    ("pieces", "finish", "names"),
    [
        (TEXT, "stop", ["output.delta", "route.completed"]),
        (TOOL, "tool_calls", ["tool_call.delta", "route.completed"]),
        (THOUGHT, "stop", ["reasoning.delta", "output.delta", "route.completed"]),
        (NOTHING, "length", ["route.completed"]),
    ],
)
async def test_nothing_comes_before_the_first_content(pieces: list[Line], finish: str, names: list[str]) -> None:
    slow = said(Pause(1.0), Delta(""), Pause(2.0), *pieces, Usage(10, 5), Finish(finish))
    house = House([said(Pause(1.0), ProviderFault("server"))], [slow])
    arrivals: list[float] = []
    async with house.router.stream("hi", goal="quality", fallback={"maxRetries": 0}) as stream:
        events = []
        async for event in stream:
            arrivals.append(house.clock.monotonic())
            events.append(event)
    assert [event.event for event in events] == ["route.started", "route.fallback", *names]
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert arrivals == [4.0] * len(events)


async def test_a_second_try_at_the_same_model_is_no_event() -> None:
    events = await events_of(House([said(ProviderFault("server")), ANSWER]))
    assert [event.event for event in events] == ["route.started", "output.delta", "output.delta", "route.completed"]


@pytest.mark.parametrize(
    "begin",
    [lambda stream: stream.start(), anext, lambda stream: anext(stream.text())],
    ids=["start", "events", "text"],
)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget": {"maxTokens": 1}}, NoCandidates),
        ({}, UpstreamFailed),
        ({"timeout_ms": 1_500}, RouterTimeoutError),
    ],
    ids=["refused", "failed", "late"],
)
async def test_a_failure_before_content_is_raised(begin: Any, options: Any, error: Any) -> None:
    house = House(*[[said(Pause(1.0), ProviderFault("request"))] for _ in "12"])
    async with house.router.stream("hi", goal="quality", **options) as stream:
        with pytest.raises(error) as raised:
            await begin(stream)
        assert raised.value.request_id.startswith("req_")
        with pytest.raises(error):
            await stream.start()
        with pytest.raises(error):
            _ = stream.result
        assert [event async for event in stream] == []


async def test_a_started_stream_has_its_headers_and_all_of_its_events() -> None:
    house = House([ANSWER])
    async with house.router.stream("hi", goal="quality") as stream:
        await stream.start()
        assert stream.trace_id is not None
        await stream.start()
        assert [event.id async for event in stream] == [1, 2, 3, 4]
        await stream.start()


async def test_server_sent_events_are_those_of_v1_and_end_in_one_typed_error() -> None:
    house = House([said(Delta("half"), ProviderFault("reset"))])
    async with house.router.stream("hi", goal="quality", fallback={"models": [], "maxRetries": 0}) as stream:
        await stream.start()
        pieces = [piece async for piece in stream.sse()]
    heads = [piece.split(b"data: ")[0] for piece in pieces]
    assert heads == [b"event: route.started\nid: 1\n", b"event: output.delta\nid: 2\n", b"event: error\nid: 3\n"]
    assert all(piece.endswith(b"}\n\n") and piece.count(b"\n") == 4 for piece in pieces)
    envelope = msgspec.json.decode(pieces[-1].split(b"data: ")[1], type=ErrorEnvelope)
    assert envelope.error.code == "router.upstream_failed"


async def test_closing_the_server_sent_events_ends_the_call() -> None:
    house = House([said(Delta("half"), Pause(50.0), *ANSWER)])
    stream = house.router.stream("hi", goal="quality")
    async with aclosing(stream.sse()) as pieces:
        await anext(pieces)
        assert house.left_open == 1
    assert house.left_open == 0


async def test_an_events_json_has_its_name_and_reads_back() -> None:
    house = House([said(Delta("half"), ProviderFault("reset"))])
    events = await events_of(house, fallback={"models": [], "maxRetries": 0})
    assert [event.to_dict()["event"] for event in events] == [event.event for event in events]
    assert events[1].to_json() == '{"event":"output.delta","id":2,"data":{"text":"half","attempt":1}}'
    assert [msgspec.json.decode(event.to_json(), type=RouteEvent) for event in events] == events


async def test_a_plain_call_and_a_stream_give_the_same_answer_at_the_same_price() -> None:
    plain = await House([ANSWER]).router.route("hi", goal="quality")
    house = House([ANSWER])
    async with house.router.stream("hi", goal="quality") as stream:
        text = [piece async for piece in stream.text()]
    assert "".join(text) == plain.output == stream.result.output
    assert stream.result.routing.cost_usd == plain.routing.cost_usd
    assert stream.result.response.routing.tokens == plain.routing.tokens
    assert house.good.calls[0].stream


async def test_tool_calls_stream_in_pieces() -> None:
    house = House([said(ToolDelta(0, "{", "call_1", "look"), ToolDelta(0, "}"), Finish("tool_calls"))])
    pieces = [event.data for event in await events_of(house) if isinstance(event, ToolCallDelta)]
    assert [(p.index, p.call_id, p.name, p.arguments, p.attempt) for p in pieces] == [
        (0, "call_1", "look", "{", 1),
        (0, "", "", "}", 1),
    ]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("options", [{}, {"fallback": {"on_partial": "restart"}}], ids=["by default", "on request"])
async def test_text_never_restarts_since_it_cannot_say_so_and_the_error_does(options: Any, late: bool) -> None:
    house = House([said(Delta("half an"), ProviderFault("reset")), ANSWER], [ANSWER])
    async with house.router.stream("hi", goal="quality", **options) as stream:
        if late:
            await anext(stream)
        text = stream.text()
        assert await anext(text) == "half an"
        with pytest.raises(
            UpstreamFailed, match="part of the answer had been read, and cannot be taken back; try again"
        ):
            await anext(text)
    assert (len(house.good.calls), house.spare.calls) == (1, [])


async def test_a_caller_may_ask_for_an_error_instead_of_a_restart() -> None:
    house = House([said(Delta("half"), ProviderFault("reset"))], [ANSWER])
    events = await events_of(house, fallback={"on_partial": "error"})
    assert [event.event for event in events] == ["route.started", "output.delta", "error"]
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.data.error.code == "router.upstream_failed"
    assert (last.data.error.request_id or "").startswith("req_")


async def test_a_stalled_stream_leaves_a_quarter_of_a_short_time_to_the_next_model() -> None:
    house = House([said(Delta("half"), Pause(500.0), *ANSWER)], [said(Pause(1.0), *ANSWER)])
    async with house.router.stream("hi", goal="quality", timeout_ms=8_000) as stream:
        fallback = [event.data async for event in stream if isinstance(event, RouteFallback)]
    assert [(each.to_model, each.reason, each.restart) for each in fallback] == [("spare/two", "timeout", True)]
    assert house.clock.monotonic() == 7.0
    assert {c.model: c.stability for c in house.router.decide("hi").candidates}["good/one"] == 0.901, "it was hurried"


async def test_a_lively_stream_is_not_cut_for_the_sake_of_the_next_model() -> None:
    lively: list[Line] = [Delta("word "), Pause(0.9)] * 8
    house = House([said(*lively, *ANSWER)], [ANSWER])
    async with house.router.stream("hi", goal="quality", timeout_ms=8_000) as stream:
        assert "".join([piece async for piece in stream.text()]).startswith("word word ")
    assert house.clock.monotonic() == pytest.approx(7.2)


async def test_a_stream_without_candidates_raises_at_the_first_piece() -> None:
    house = House([ANSWER])
    with pytest.raises(NoCandidates):
        await events_of(house, budget={"maxTokens": 1})


async def test_a_result_before_the_end_is_refused() -> None:
    house = House([ANSWER])
    async with house.router.stream("hi") as stream:
        with pytest.raises(RuntimeError, match="read it to its end"):
            _ = stream.result


async def test_a_closed_stream_begins_no_call() -> None:
    house = House([ANSWER])
    stream = house.router.stream("hi")
    await stream.aclose()
    assert [event async for event in stream] == []
    assert [piece async for piece in stream.text()] == []
    with pytest.raises(RuntimeError, match="left before its end"):
        _ = stream.result
    with pytest.raises(RuntimeError, match="left before its first content"):
        await stream.start()
    assert house.good.calls == []
    async with house.router.stream("hi", goal="quality") as begun:
        await anext(begun)
    assert [event async for event in begun] == []


async def test_two_tasks_cannot_read_one_stream_and_the_first_goes_on() -> None:
    house = House([said(Pause(1.0), *ANSWER)])
    events: list[RouteEvent] = []

    async def read(stream: Stream) -> None:
        events.extend([event async for event in stream])

    async with house.router.stream("hi", goal="quality") as stream, anyio.create_task_group() as group:
        group.start_soon(read, stream)
        await house.clock.advance(0.5)
        with pytest.raises(RuntimeError, match="two tasks read this stream at once"):
            await anext(stream)
    assert isinstance(events[-1], RouteCompleted)
    assert len(house.good.calls) == 1


@pytest.mark.parametrize("moment", [0.5, 1.5])
async def test_closing_ends_the_wait_of_a_reader_and_calls_no_other_model(moment: float) -> None:
    storage = MemoryStorage()
    house = House([said(Pause(1.0), Delta("half"), Pause(20.0), *ANSWER)], [ANSWER], storage=storage)
    events: list[str] = []

    async def read(stream: Stream) -> None:
        events.extend([event.event async for event in stream])

    stream = house.router.stream("hi", goal="quality")
    async with anyio.create_task_group() as group:
        group.start_soon(read, stream)
        await house.clock.advance(moment)
        await stream.aclose()
        assert house.left_open == 0
    assert house.clock.monotonic() < 2.0
    assert events == (["route.started", "output.delta"] if moment > 1.0 else [])
    assert house.spare.calls == []
    (trace,) = await traces_in(storage)
    assert (trace.status, trace.spans[-1].status) == ("cancelled", "cancelled")


class Counting(MemoryStorage):
    """Counts the traces that it is given, of one call too."""

    kept = 0

    def keep(self, *given: Any) -> None:
        self.kept += 1
        super().keep(*given)


@pytest.mark.parametrize("reads", [True, False])
async def test_concurrent_closes_of_a_stream_wait_and_it_ends_once(reads: bool) -> None:
    class Slow(ScriptedCall):
        async def __aexit__(self, *error: Any) -> None:
            await house.clock.sleep(0.005)  # which it may
            await super().__aexit__(*error)

    storage = Counting()
    house = House([said(Delta("half"), Pause(20.0), *ANSWER)], storage=storage)
    house.good.open = lambda call: Slow(house.good, call)  # type: ignore[method-assign]
    stream = house.router.stream("hi", goal="quality")
    left_open = []

    async def read() -> None:
        async for _ in stream:
            pass

    async def close() -> None:
        await stream.aclose()
        left_open.append(house.left_open)

    async with anyio.create_task_group() as group:
        if reads:
            group.start_soon(read)
        else:
            for _ in range(2):
                await anext(stream)
        await house.clock.advance(1.0)
        for _ in range(3):
            group.start_soon(close)
    assert left_open == [0, 0, 0]
    assert house.clock.monotonic() < 2.0
    assert storage.kept == 1


async def test_a_stream_closed_at_its_last_piece_is_not_completed() -> None:
    comes = anyio.Event()

    class Waiting(ScriptedCall):
        async def __anext__(self) -> Chunk:
            chunk = await super().__anext__()
            if isinstance(chunk, Finish):
                await comes.wait()
            return chunk

    storage = MemoryStorage()
    house = House([ANSWER], storage=storage)
    house.good.open = lambda call: Waiting(house.good, call)  # type: ignore[method-assign]
    stream = house.router.stream("hi", goal="quality")
    events: list[str] = []

    async def read() -> None:
        events.extend([event.event async for event in stream])

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await house.clock.advance(1.0)
        comes.set()
        await stream.aclose()
    assert events == ["route.started", "output.delta", "output.delta"]
    with pytest.raises(RuntimeError, match="left before its end"):
        _ = stream.result
    assert [trace.status for trace in await traces_in(storage)] == ["cancelled"]


async def test_a_stream_that_failed_before_a_decision_has_ended() -> None:
    class Broken:
        def count(self, text: str, encoding: str) -> int:
            raise KeyboardInterrupt

    storage = MemoryStorage()
    house = House([ANSWER], storage=storage, tokens=Broken())
    stream = house.router.stream("x" * 3_000, budget={"maxTokens": 3_000})
    with pytest.raises(KeyboardInterrupt):
        await anext(stream)
    assert [event async for event in stream] == []
    assert [trace.status for trace in await traces_in(storage)] == ["cancelled"]


async def test_a_dropped_stream_leaves_its_trace_and_its_cost() -> None:
    storage = MemoryStorage()
    house = House([said(Delta("half an answer"), Pause(30.0)), ANSWER], storage=storage)

    async def first_words() -> str:
        async for text in house.router.stream("hi", goal="quality").text():
            return text
        raise AssertionError("no text")

    assert await first_words() == "half an answer"
    gc.collect()
    await house.clock.advance(5.0)
    await house.router.route("hi", goal="quality")
    _, dropped = await traces_in(storage)
    assert (dropped.status, dropped.duration_ms) == ("cancelled", 0.0)
    assert dropped.cost_usd == dropped.charged_usd > 0


@on_one_loop
async def test_a_silent_model_is_blamed_however_long_its_reader_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is moved on, not added up anew, may lie a rounding too early, and the fault look hurried."""
    blamed, chance = list[int](), Random(2)
    monkeypatch.setattr(Fleet, "record_fault", lambda fleet, row, **how: blamed.append(row))
    third = Model(id="third/three", like="good/one", quality=0.1, pricing_per_1m=Pricing(1.0, 4.0))
    for _ in range(40):
        clock, scripts = FakeClock(), [said(ProviderFault("request")), said(Pause(500.0)), ANSWER]
        providers = [
            ScriptedProvider([script], models=[model], clock=clock)
            for script, model in zip(scripts, (GOOD, SPARE, third), strict=True)
        ]
        router = Router(providers=providers, settings=Settings(clock=clock))
        chain: FallbackDict = {"models": ["spare/two", "third/three"]}
        async with router.stream("hi", goal="quality", fallback=chain) as stream:
            async for _ in stream:
                await clock.sleep(chance.uniform(0.0, 0.5))
        await router.aclose()
    assert len(blamed) == 40


@pytest.mark.parametrize("rests", [False, True], ids=["collected at once", "the loop runs before"])
@on_one_loop  # trio warns of any generator that is collected
async def test_a_stream_collected_with_its_generator_ends_once(rests: bool) -> None:
    """As by a web application whose client left: a cycle of both, which the collector ends in any order."""
    storage = MemoryStorage()
    house = House([said(Delta("some "), Delta("words"), Finish("stop"))] * 9, storage=storage)

    async def leave() -> None:
        stream = house.router.stream("hi")
        frames = stream.sse()
        await anext(frames)
        cycle: list[Any] = [frames, stream]
        cycle.append(cycle)

    await leave()
    gc.collect()
    if rests:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
    assert (await house.router.route("hi")).output == "some words"
    await house.router.flush()
    assert sorted(trace.status for trace in await traces_in(storage)) == ["cancelled", "completed"]
