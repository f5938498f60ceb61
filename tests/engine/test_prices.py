"""Prices that change at midnight, unreported costs, and outdated prices."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import (
    BudgetExceeded,
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    Settings,
    ValidationFailed,
)
from routewright._engine.request_input import RawRequest
from routewright._runtime.loop import at_once
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Script
from routewright.wire import (
    Chunk,
    Delta,
    Finish,
    ModelSpan,
    PolicyFallback,
    PriceChange,
    PriceTier,
    ToolDelta,
    Trace,
    Usage,
)
from tests.tables import table

from .scripted_router import GOOD, SPARE, House, said, traces_in

pytestmark = pytest.mark.anyio

MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
THEN = PriceChange("2026-12-01", Pricing(10.0, 40.0))
DEARER = replace(GOOD, price_changes=(THEN,))
TOLD = Usage(1_000, 100)


def spans_of(trace: Trace) -> list[ModelSpan]:
    return [span for span in trace.spans if isinstance(span, ModelSpan)]


def router_at(start: float, good: Script, spare: Script = (), *, model: Model = DEARER, **parts: Any) -> Router:
    clock = FakeClock(start)
    providers = [
        ScriptedProvider(good, models=[model], clock=clock),
        ScriptedProvider(spare, models=[replace(SPARE, price_changes=(THEN,))], clock=clock),
    ]
    return Router(providers=providers, settings=Settings(clock=clock, rng=Random(7)), **parts)


async def test_an_attempt_is_priced_by_the_day_on_which_it_began() -> None:
    slow = said(Pause(3.0), TOLD, ProviderFault("malformed"))
    router = router_at(MIDNIGHT - 2, [slow], [said(Delta("x"), TOLD, Finish("stop"))])
    answer = await router.route("hi", goal="quality", fallback={"maxRetries": 0})
    eve, day = spans_of(answer.trace)
    assert eve.cost_usd == (1_000 * 1.0 + 100 * 4.0) / 1e6
    assert day.cost_usd == (1_000 * 10.0 + 100 * 40.0) / 1e6
    assert answer.decision.input.as_of == "2026-11-30"


async def test_a_call_that_lasts_into_a_new_day_keeps_its_price() -> None:
    router = router_at(MIDNIGHT - 2, [said(Pause(3.0), Delta("x"), TOLD, Finish("stop"))])
    answer = await router.route("hi", goal="quality")
    assert answer.routing.cost_usd == 0.0014


async def test_no_budget_takes_a_model_that_has_its_first_price_tomorrow() -> None:
    router = router_at(MIDNIGHT - 2, [], model=replace(DEARER, pricing_per_1m=None))
    with pytest.raises(BudgetExceeded, match="give the model a price: none is known"):
        router.decide("hi", models=[GOOD.id], budget={"maxCostUsd": 100})


async def test_a_budget_is_spent_at_the_price_of_each_attempts_day() -> None:
    again = ProviderFault("rate_limited", retry_after=3.0)  # the second try begins after midnight
    filtered = said(Usage(0, 900), Finish("content_filter"))
    policy = Policy(name="p", fallback=PolicyFallback(on_refusal="fallback"))
    clock = FakeClock(MIDNIGHT - 2)
    good = ScriptedProvider([again, filtered], models=[DEARER], clock=clock)
    spare = ScriptedProvider(["x"], models=[SPARE], clock=clock)
    router = Router(providers=[good, spare], policies=[policy], settings=Settings(clock=clock, rng=Random(7)))
    await router.route("hi", goal="quality", policy_id="p", budget={"maxCostUsd": 0.05})
    left_usd = 0.05 - 900 * 40e-6
    assert spare.calls[0].max_output_tokens == pytest.approx(left_usd / 8e-6, abs=20)


async def test_decisions_use_the_prices_of_the_day() -> None:
    router = router_at(MIDNIGHT - 1, [])
    eve = router.decide("hi", goal="cost", models=["good/one"])
    await router._parts.settings.clock.sleep(2)
    day = router.decide("hi", goal="cost", models=["good/one"])
    assert eve.candidates[0].cost_usd is not None
    assert day.candidates[0].cost_usd == pytest.approx(10 * eve.candidates[0].cost_usd, rel=1e-3)
    # a budget has the next day's price before, since a call may last into it
    assert eve.input.as_of < day.input.as_of
    costs = [router.decide("hi", models=["good/one"], budget={"maxCostUsd": 1.0}).output_cap for _ in "12"]
    assert costs[0] == costs[1]


async def test_a_decision_replays_at_the_prices_of_its_day() -> None:
    storage = MemoryStorage()
    answers = [said(Delta("x"), TOLD, Finish("stop"))] * 2
    router = router_at(MIDNIGHT - 1, answers, storage=storage)
    eve = await router.route("hi", goal="quality")
    digest = eve.decision.digest
    await router._parts.settings.clock.sleep(2)
    day = await router.route("hi", goal="quality")
    assert day.decision.digest != digest
    assert router.replay(eve.trace).digest == digest
    assert router.replay(day.trace).digest == day.decision.digest
    await router.flush()
    elsewhere = Router(providers=[], storage=storage)
    assert elsewhere.replay(eve.trace).digest == digest
    assert elsewhere.replay(day.trace).digest == day.decision.digest


class Ticking(FakeClock):
    """A clock on which time passes while it is read."""

    reads = 0

    def time(self) -> float:
        self.reads += 1
        return super().time() + self.reads / 10


@table("ahead", range(1, 20))
async def test_a_decision_at_midnight_has_the_prices_of_the_day_that_it_names(ahead: int) -> None:
    clock = Ticking(MIDNIGHT - ahead / 10)
    router = Router(providers=[ScriptedProvider((), models=[DEARER])], settings=Settings(clock=clock))
    for _ in range(10):
        decision = router.decide("hi", goal="cost")
        assert decision.input.as_of == decision._boards.pool.as_of  # type: ignore[union-attr]
        assert router.replay(decision).digest == decision.digest


@pytest.mark.parametrize(("at", "day"), [(-1, "1969-12-31"), (0, "1970-01-01"), (253_402_214_399, "9999-12-30")])
async def test_any_day_has_a_date(at: float, day: str) -> None:
    router = Router.sandbox(catalogue=Catalogue([GOOD]), settings=Settings(clock=FakeClock(at)))
    assert router.decide("hi").input.as_of == day


async def test_models_are_shown_with_todays_price() -> None:
    router = router_at(MIDNIGHT - 1, [])
    eve = {model.id: model.pricing_per_1m for model in router.models()}
    await router._parts.settings.clock.sleep(2)
    day = {model.id: model.pricing_per_1m for model in router.models()}
    assert (eve["good/one"], day["good/one"]) == (GOOD.pricing_per_1m, THEN.pricing_per_1m)


async def test_a_request_keeps_the_prices_that_it_was_admitted_with() -> None:
    router = router_at(MIDNIGHT - 1, [])
    eve = router.decide("hi", goal="cost", models=["good/one"])
    engine = router._parts.engine
    call = engine.make_call(RawRequest("hi", {"goal": "cost"}).read(), Caller())
    await router._parts.settings.clock.sleep(2)
    assert router.decide("hi", goal="cost").input.as_of == "2026-12-01"
    decision = at_once(engine.decision(call))
    assert (decision.input.as_of, call.board.pool.as_of) == ("2026-11-30", "2026-11-30")
    assert decision._plan.legs[0].prices == eve._plan.legs[0].prices
    assert router.replay(eve).digest == eve.digest


async def test_without_price_changes_a_new_day_rebuilds_nothing() -> None:
    house = House([], catalogue=Catalogue([]))
    fleet = house.router._parts.fleet("production")
    board = fleet.board()
    await house.clock.advance(3 * 86_400)
    assert fleet.board() is board
    assert fleet.boards_on("2020-01-01") is board.boards


async def test_the_tokens_of_a_cache_are_charged_at_their_prices() -> None:
    model = replace(GOOD, pricing_per_1m=Pricing(1.0, 4.0, 0.1, 1.25, reasoning_usd=2.0))
    told = Usage(1_000, 100, cached=400, reasoning=60, written=200)
    router = router_at(MIDNIGHT, [said(Delta("x"), told, Finish("stop"))], model=model)
    answer = await router.route("hi", goal="quality")
    assert answer.routing.cost_usd == (400 * 1.0 + 400 * 0.1 + 200 * 1.25 + 40 * 4.0 + 60 * 2.0) / 1e6
    bill = Catalogue([model]).bill("good/one", told, on="2026-12-01")
    assert bill.total_usd == answer.routing.cost_usd


async def test_an_invalid_count_of_cache_writes_is_a_fault() -> None:
    house = House([said(Delta("x"), Usage(1, 1, written="9"), Finish("stop"))], ["spare"])  # type: ignore[arg-type]
    answer = await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    assert answer.output == "spare"


# what it can have cost


async def spans(*lines: Chunk | ProviderFault | Pause, model: Model = GOOD, **options: Any) -> list[ModelSpan]:
    router = router_at(MIDNIGHT, [said(*lines)], ["spare"], model=model)
    answer = await router.route("hi", goal="quality", fallback={"maxRetries": 0}, **options)
    return spans_of(answer.trace)


def range_of(priced: ModelSpan | Trace) -> tuple[float, float]:
    assert priced.cost_range_usd is not None
    return priced.cost_range_usd


async def test_a_reported_cost_has_no_range() -> None:
    answer = await House([said(Delta("x"), TOLD, Finish("stop"))]).router.route("hi", goal="quality")
    assert answer.trace.cost_range_usd is None
    assert spans_of(answer.trace)[0].cost_range_usd is None


async def test_a_whole_answer_without_usage_has_cost_what_its_text_can_be() -> None:
    (span,) = await spans(Delta("a" * 1_000), Finish("stop"))
    low, high = range_of(span)
    # 8 to 1,004 tokens of output, 1 to 9 of input
    assert low == pytest.approx((1 * 1.0 + 8 * 4.0) / 1e6)
    assert high == pytest.approx((9 * 1.0 + 1_004 * 4.0) / 1e6, abs=5e-6)
    assert low < span.cost_usd < high


async def test_hidden_reasoning_may_have_cost_the_whole_cap() -> None:
    model = replace(GOOD, reasoning=True, max_output_tokens=5_000, pricing_per_1m=Pricing(1.0, 4.0, reasoning_usd=6.0))
    (span,) = await spans(Delta("Blue."), Finish("stop"), model=model)
    assert range_of(span)[1] == pytest.approx(5_000 * 6.0 / 1e6, rel=1e-3)
    (capped,) = await spans(Delta("Blue."), Finish("stop"), model=model, params={"max_output_tokens": 100})
    assert range_of(capped)[1] == pytest.approx(100 * 6.0 / 1e6, rel=0.05)


async def test_a_broken_answer_may_have_cost_more_than_it_showed() -> None:
    broken, spare = await spans(Delta("Blue."), ProviderFault("reset"), params={"max_output_tokens": 1_000})
    assert range_of(broken)[1] == pytest.approx(1_000 * 4.0 / 1e6, rel=0.01)
    assert spare.cost_range_usd is None


async def test_a_begun_call_without_output_costs_between_nothing_and_all() -> None:
    begun, _ = await spans(ProviderFault("server", answered=True), params={"max_output_tokens": 1_000})
    assert (begun.cost_usd, begun.tokens) == (0.0, None)
    assert range_of(begun)[0] == 0.0
    assert range_of(begun)[1] == pytest.approx(1_000 * 4.0 / 1e6, rel=0.01)
    never, _ = await spans(ProviderFault("connect"))
    assert never.cost_range_usd is None


async def test_a_traces_range_is_the_sum_over_its_attempts() -> None:
    answers = said(Delta("x"), TOLD, Finish("stop"))
    router = router_at(MIDNIGHT, [said(Delta("Blue."), ProviderFault("reset"))], [answers])
    trace = (await router.route("hi", goal="quality", fallback={"maxRetries": 0})).trace
    broken, told = spans_of(trace)
    low, high = range_of(broken)
    assert list(range_of(trace)) == pytest.approx([low + told.cost_usd, high + told.cost_usd])


async def test_a_model_without_a_price_has_no_range() -> None:
    (span,) = await spans(Delta("Blue."), Finish("stop"), model=replace(GOOD, pricing_per_1m=None))
    assert (span.cost_usd, span.cost_range_usd) == (0.0, None)


async def test_a_caller_who_leaves_a_call_without_an_answer_may_pay_for_it() -> None:
    storage = MemoryStorage()
    router = router_at(MIDNIGHT, [said(Pause(5.0), Delta("x"))], storage=storage)
    clock = router._parts.settings.clock
    with clock.deadline(clock.monotonic() + 1.0):
        await router.route("hi", goal="quality")
    await router.flush()
    (snapshot,) = [trace for trace in await traces_in(storage) if trace.status == "cancelled"]
    assert range_of(snapshot)[0] == 0.0 < range_of(snapshot)[1]


chunks: st.SearchStrategy[Chunk] = st.one_of(
    st.builds(Delta, st.text(st.characters(exclude_categories=["Cs"]), max_size=300)),
    st.builds(ToolDelta, st.just(0), st.text("{}:ab1", max_size=50), st.just("c"), st.just("f")),
    st.builds(Usage, st.integers(0, 3_000), st.integers(0, 3_000)),
)
some_prices = st.sampled_from([0.0, 0.1, 1.0, 30.0])


@given(
    st.lists(chunks, max_size=5),
    st.sampled_from([Finish("stop"), Finish("length"), ProviderFault("reset"), ProviderFault("truncated")]),
    st.none() | st.integers(1, 500),
    st.tuples(*[some_prices] * 5),
    st.booleans(),
)
@example([Delta("x" * 100_000)], Finish("stop"), 1, (1.0, 1.0, 1.0, 1.0, 1.0), False)
def test_a_cost_lies_within_its_range(
    said_first: list[Chunk],
    end: Finish | ProviderFault,
    cap: int | None,
    usd: tuple[float, ...],
    reasoning: bool,
) -> None:
    tiers = (PriceTier(500, usd[3], usd[4], usd[0]),)
    pricing = Pricing(usd[0], usd[1], usd[2], usd[3], tiers=tiers, reasoning_usd=usd[4])
    model = replace(GOOD, pricing_per_1m=pricing, reasoning=reasoning)
    options: dict[str, Any] = {} if cap is None else {"params": {"max_output_tokens": cap}}
    router = router_at(MIDNIGHT, [said(*said_first, end)], ["spare"], model=model)
    answer = anyio.run(partial(router.route, "hi " * 100, goal="quality", fallback={"maxRetries": 0}, **options))
    both: list[Any] = [answer.trace, *spans_of(answer.trace)]
    for cost, ends in ((told.cost_usd, told.cost_range_usd) for told in both):
        low, high = ends or (cost, cost)
        assert low <= cost <= high


# prices that are old

NOW = datetime.fromisoformat(f"{Catalogue().as_of}T12:00:00+00:00")


def aged(days: int, **settings: Any) -> Settings:
    return Settings(clock=FakeClock((NOW + timedelta(days=days)).timestamp()), **settings)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "routewright._assembly"]


async def test_outdated_prices_are_logged_once_with_their_age(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(providers=[], settings=aged(91))
    assert not warnings(caplog), "making a Router does nothing"
    router.models()
    router.models()
    (said_once,) = warnings(caplog)
    assert said_once == (
        f"the prices are of {Catalogue().as_of}, 91 days ago; renew them with 'routewright catalogue import FILE', "
        "or raise settings.stale_after_days"
    )
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("router", "warned"),
    [
        (lambda: Router(providers=[], settings=aged(90)), 0),
        (lambda: Router(providers=[], settings=aged(5, stale_after_days=4)), 1),
        (lambda: Router(providers=[], settings=aged(9_000, stale_after_days=None)), 0),
        (lambda: Router(providers=[], settings=aged(9_000), catalogue=Catalogue([GOOD])), 0),
        (lambda: Router(providers=[], settings=aged(9_000), catalogue=Catalogue([GOOD], as_of="2026-01-01")), 1),
        (lambda: Router(providers=[], settings=aged(9_000), catalogue=Catalogue().overlaid([])), 1),
        (lambda: Router.sandbox(settings=aged(9_000)), 0),
    ],
)
async def test_only_dated_prices_grow_old_and_never_in_the_sandbox(
    router: Any, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    router().models()
    assert len(warnings(caplog)) == warned


@table("wrong", [-1, 1.5, True, "90"])
def test_days_are_a_whole_number(wrong: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"Settings.stale_after_days: is .*; take a number of days, or None"):
        Settings(stale_after_days=wrong)
