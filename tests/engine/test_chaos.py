"""Every fault, plain and streamed, first and second in the chain, through a whole Router on virtual time.

The expected outcomes are in ``chaos_matrix.py``, which is based on the fault table and the contract, not on the code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from routewright import Answer, Event, RouterError, Trace
from routewright._core.attempts.faults import FAULTS
from routewright.errors import UpstreamFailed
from routewright.testing import SCENARIOS
from routewright.wire import FallbackSpan, FallbackTriggered, ModelSpan, OutputDelta, RouteEvent, RouteFallback
from tests.tables import table

from .chaos_matrix import ANSWER, GOOD, HEAVY, MODELS, NAMES, SPARE, TIMEOUT_S, Case, Pair, Position, Way, said_by

pytestmark = pytest.mark.anyio
PRICES = {model.id: model.pricing_per_1m for model in MODELS}


class Met(NamedTuple):
    """What became of one call."""

    answer: Answer | None
    error: RouterError | None
    events: list[RouteEvent]
    pieces: list[str]
    took_s: float
    trace: Trace
    told: list[Event]


async def meet(pair: Pair, way: Way, **options: Any) -> Met:
    """Make one call and look at all that it left."""
    told: list[Event] = []
    traces: list[Trace] = []
    pair.router.on_event(told.append)
    pair.router.on_trace(traces.append)
    began, answer, error = pair.clock.monotonic(), None, None
    events: list[RouteEvent] = []
    pieces: list[str] = []
    try:
        if way == "plain":
            answer = await pair.router.route("hi", goal="quality", **options)
        else:
            async with pair.router.stream("hi", goal="quality", **options) as stream:
                if way == "events":
                    events += [event async for event in stream]
                else:
                    async for piece in stream.text():
                        pieces.append(piece)
            answer = stream.result
    except RouterError as failed:
        error = failed
    took_s = pair.clock.monotonic() - began
    await pair.router.flush()
    (trace,) = traces
    return Met(answer, error, events, pieces, took_s, trace, told)


LIGHT = sorted(set(NAMES) - HEAVY)
RETRIED = [name for name in LIGHT if len([each for each in Case(name, "events", "first").tries if each.kind]) > 1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_name" in metafunc.fixturenames:
        metafunc.parametrize("any_name", NAMES if metafunc.config.getoption("--full") else LIGHT)


WAYS: tuple[Way, ...] = ("plain", "events", "text")


@pytest.mark.parametrize(
    ("position", "anyio_backend"),
    [("first", "asyncio"), pytest.param("first", "trio", marks=pytest.mark.full), ("second", "asyncio")],
)
async def test_every_fault_ends_as_its_row_of_the_table_says(any_name: str, position: Position) -> None:
    for way in WAYS:
        await check(any_name, way, position)


async def check(any_name: str, way: Way, position: Position) -> None:
    case = Case(any_name, way, position)
    pair = Pair.of(case)
    patience_s = max(10.0, 4 * latency_s(pair, case.place)) if way == "plain" else 10.0
    before = {model: pair.stability(model) for model in (GOOD, SPARE)}
    met = await meet(pair, way)
    check_end(case, met)
    check_time(case, met, patience_s)
    check_attempts(case, pair, met)
    check_cost(case, met)
    check_events(case, met)
    check_spans(case, met)
    await pair.clock.advance(1.0)
    check_health(case, pair, before)


def latency_s(pair: Pair, model: str) -> float:
    candidates = pair.router.decide("hi", goal="quality").candidates
    return next(each.latency_s for each in candidates if each.model == model)


def check_end(case: Case, met: Met) -> None:
    assert (None if met.error is None else type(met.error)) is case.error
    if met.error is not None:
        assert (
            met.error.status
            == {"UpstreamFailed": 502, "RouterTimeoutError": 504, "ContentRefused": 403}[type(met.error).__name__]
        )
        assert met.trace.status == "failed"
        assert met.error.trace_id == met.trace.id
        return
    assert met.answer is not None
    served = case.tries[-1].model
    text = ANSWER if served != case.place or case.kind is not None else said_by(case.cell)
    assert met.answer.routing.selected_model == met.trace.selected_model == served
    assert met.answer.response.fallback_model == (None if served == GOOD else SPARE)
    assert met.answer.output == text or (text is None and len(met.answer.output) == 10 << 20)


def check_time(case: Case, met: Met, patience_s: float) -> None:
    least, most = case.took_s(patience_s)
    assert least - 1e-6 <= met.took_s <= most + 1e-6
    assert met.took_s <= TIMEOUT_S


def check_attempts(case: Case, pair: Pair, met: Met) -> None:
    spans = [span for span in met.trace.spans if isinstance(span, ModelSpan)]
    assert [(span.model, span.error) for span in spans] == [(each.model, each.kind) for each in case.tries]
    assert [span.attempt for span in spans] == list(range(1, len(spans) + 1))
    assert [span.status for span in spans] == ["ok" if each.kind is None else "error" for each in case.tries]
    asked = {model: sum(each.model == model for each in case.tries) for model in (GOOD, SPARE)}
    assert {GOOD: len(pair.good.calls), SPARE: len(pair.spare.calls)} == asked
    assert pair.left_open == 0


def check_cost(case: Case, met: Met) -> None:
    for span, tried in zip([each for each in met.trace.spans if isinstance(each, ModelSpan)], case.tries, strict=True):
        prices = PRICES[span.model]
        assert prices is not None
        if span.tokens is not None:  # each at its own model's price
            tokens = span.tokens.input * prices.input_usd + span.tokens.output * prices.output_usd
            assert span.cost_usd == pytest.approx(tokens / 1e6)
        here = tried.model == case.place and tried.kind is not None
        if tried.kind is None:
            assert span.cost_usd > 0
            continue
        assert (span.cost_usd > 0) == (here and (tried.spoke or case.tells_usage))
        may_cost = here and (case.began or FAULTS[tried.kind].billed) and span.finish_reason is None
        assert (span.cost_range_usd is not None) == may_cost
        if span.cost_range_usd is not None:
            assert span.cost_range_usd[0] <= span.cost_usd <= span.cost_range_usd[1] > 0
    costs = [span.cost_usd for span in met.trace.spans if isinstance(span, ModelSpan)]
    assert met.trace.cost_usd == pytest.approx(sum(costs))
    assert met.trace.charged_usd == (met.trace.cost_usd if met.error is None else 0.0)
    ranged = any(span.cost_range_usd for span in met.trace.spans if isinstance(span, ModelSpan))
    assert (met.trace.cost_range_usd is not None) == ranged


def check_events(case: Case, met: Met) -> None:
    triggered = [event.data for event in met.told if isinstance(event.data, FallbackTriggered)]
    fell_back = case.error is None and case.tries[-1].model == SPARE
    reasons = [FAULTS[each.kind].reason for each in case.tries if each.model == GOOD and each.kind is not None]
    assert [(each.primary_model, each.fallback_model, each.reason) for each in triggered] == (
        [(GOOD, SPARE, reasons[-1])] if fell_back else []
    )
    if case.way == "text":
        check_text(case, met)
    if case.way == "events":
        check_stream(case, met)


def check_text(case: Case, met: Met) -> None:
    """Nothing is ever taken back from a reader of text: it gets the whole answer, or an error behind a part of one."""
    if met.answer is not None:
        assert "".join(met.pieces) == met.answer.output
    elif not case.speaks:
        assert met.pieces == []


def check_stream(case: Case, met: Met) -> None:
    if met.error is not None and not case.speaks:  # it was raised before the first content
        assert met.events == []
        return
    told = [event.data for event in met.events if isinstance(event, RouteFallback)]
    assert [(each.from_model, each.to_model, each.reason, each.restart) for each in told] == case.moves
    assert [event.id for event in met.events] == list(range(1, len(met.events) + 1))
    names = [event.event for event in met.events]
    assert names[0] == "route.started"
    assert names[-1] == ("route.completed" if met.error is None else "error")
    assert not {"route.completed", "error"} & set(names[:-1])
    valid: list[tuple[int, str]] = []
    for event in met.events:
        if isinstance(event, OutputDelta):
            valid.append((event.data.attempt, event.data.text))
        if isinstance(event, RouteFallback):
            assert event.data.restart or not valid
            valid = []
    assert len({attempt for attempt, _ in valid}) <= 1
    if met.answer is not None:
        assert "".join(text for _, text in valid) == met.answer.output


def check_spans(case: Case, met: Met) -> None:
    moved = [span for span in met.trace.spans if isinstance(span, FallbackSpan)]
    expected = [move for move in case.moves if move.from_model != move.to_model]
    assert [(span.from_model, span.to_model, span.reason, span.used) for span in moved] == [
        (move.from_model, move.to_model, move.reason, case.error is None) for move in expected
    ]


def check_health(case: Case, pair: Pair, before: dict[str, float | None]) -> None:
    after = {model: pair.stability(model) for model in (GOOD, SPARE)}
    for model in (GOOD, SPARE):
        was, now = before[model], after[model]
        assert was is not None
        kinds = [each.kind for each in case.tries if each.model == model]
        if any(kind is not None and FAULTS[kind].opens_credential for kind in kinds):
            assert now is None, "its provider is left alone"
        elif model == case.place and case.is_left_alone:
            assert now is None, "until its Retry-After"
        elif any(kind is not None and FAULTS[kind].blames for kind in kinds):
            assert now is not None
            assert now < was
        elif None in kinds:
            assert now is not None
            assert now > was
        else:
            assert now == was


@table("name", RETRIED)
async def test_a_transient_fault_is_invisible_except_for_a_restart(name: str) -> None:
    case, pair = Case(name, "events", "first"), Pair([name])
    met = await meet(pair, "events")
    assert met.answer is not None
    assert met.answer.output == ANSWER
    assert met.answer.response.fallback_model is None
    assert (len(pair.good.calls), len(pair.spare.calls), pair.left_open) == (2, 0, 0)
    moves = [event.data for event in met.events if isinstance(event, RouteFallback)]
    assert [(each.from_model, each.to_model, each.restart) for each in moves] == [(GOOD, GOOD, True)] * case.speaks
    assert met.told == []


@table("name", LIGHT)
async def test_without_retries_and_fallbacks_there_is_one_attempt(name: str) -> None:
    for way in WAYS[:2]:
        case, pair = Case(name, way, "first"), Pair(name)
        met = await meet(pair, way, fallback={"models": [], "maxRetries": 0}, timeout_ms=30_000)
        assert (len(pair.good.calls), len(pair.spare.calls), pair.left_open) == (1, 0, 0)
        assert (met.answer is None) == (case.kind is not None)
        assert met.took_s <= 30.0


def test_the_matrix_holds_every_cell() -> None:
    assert set(NAMES) == set(SCENARIOS)


@table("way", ["plain", "events"])
@table("window", [200_000, 100_000, 9_000, None])
async def test_a_prompt_too_long_for_one_model_goes_to_another_that_can_hold_it(way: Way, window: int | None) -> None:
    pair = Pair("context_overflow", models=[MODELS[0], replace(MODELS[1], context_window=window)])
    met = await meet(pair, way)
    assert met.answer is not None
    assert (met.answer.output, met.answer.routing.selected_model, met.took_s) == (ANSWER, SPARE, 0.0)


@pytest.mark.parametrize("way", ["plain", "events"])
async def test_a_prompt_too_long_for_every_model_fails_with_a_hint(way: Way) -> None:
    pair = Pair("context_overflow", "context_overflow")
    met = await meet(pair, way)
    assert "shorten the input" in str(met.error)
    assert (len(pair.good.calls), len(pair.spare.calls)) == (1, 1)


@pytest.mark.parametrize("way", ["plain", "events"])
async def test_if_everything_is_down_the_error_lists_every_attempt_at_once(way: Way) -> None:
    met = await meet(Pair("unavailable", "unavailable"), way)
    assert isinstance(met.error, UpstreamFailed)
    assert [entry["model"] for entry in met.error.detail["attempts"]] == [GOOD, GOOD, SPARE, SPARE]
    assert met.took_s <= 0.6
