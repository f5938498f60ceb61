"""When results of attempts become visible to decisions."""

from __future__ import annotations

import time
from random import Random

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from routewright import Catalogue, Model, Pricing, Router, Settings
from routewright._core.attempts.health import LOOK_EVERY_S, health_snapshot
from routewright._core.attempts.journal import MOST_WAITING
from routewright._core.attempts.statistics import Entry
from routewright._core.attempts.timeouts import ExecutionLimits
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.choice import covers
from routewright._core.routing.decide import decide, find_plan
from routewright._core.routing.inputs import RULES
from routewright._core.routing.plan import Plan
from routewright._core.routing.pool import Pool
from routewright._engine.fleet import PUBLISH_EVERY_S, Fleet
from routewright.backends.clock import SystemClock
from routewright.protocols import Clock
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import DecisionInput, Feature, Goal, HealthSnapshot, Overrun, TokenBounds, Usage

from .scripted_router import GOOD, SPARE, in_threads

pytestmark = pytest.mark.anyio
USAGE = Usage(40, 100)
GOALS: list[Goal] = ["cost", "quality", "stability"]


def fleet_of_one() -> tuple[Fleet, FakeClock]:
    clock = FakeClock()
    provider = ScriptedProvider((), models=[GOOD], clock=clock)
    return Fleet([], {}, [provider], as_of="2026-11-20", clock=clock, limits=ExecutionLimits()), clock


def answer(fleet: Fleet, row: int = 0, *, whose: str | None = None, probe: bool = False, asked: bool = False) -> None:
    now = fleet._clock.monotonic()
    workload = None if whose is None else (whose,)
    fleet.record_answer(Entry(row, now, 1.0, 0.5, USAGE, False, workload, asked), probe=probe)


def fail(fleet: Fleet, times: int, row: int = 0) -> None:
    for _ in range(times):
        fleet.record_fault(row)


async def after(fleet: Fleet, clock: FakeClock, seconds: float) -> Board:
    await clock.advance(seconds)
    return fleet.board()


class Terse(ScriptedProvider):
    def unsupported(self, model: Model) -> list[Feature]:
        return ["seed"]


async def test_unsupported_features_go_to_another_model() -> None:
    clock = FakeClock()
    good, spare = Terse(["?"] * 2, models=[GOOD]), ScriptedProvider(["?"], models=[SPARE])
    router = Router(providers=[good, spare], catalogue=Catalogue(()), settings=Settings(clock=clock))
    assert (await router.route("Hello", goal="quality")).routing.selected_model == GOOD.id
    answer = await router.route("Hello", goal="quality", params={"seed": 1})
    assert answer.routing.selected_model == SPARE.id
    assert (GOOD.id, "params") in [(r.model, r.reason) for r in answer.decision.rejected]


async def test_an_attempt_reaches_decisions_within_a_quarter_second_and_not_at_once() -> None:
    fleet, clock = fleet_of_one()
    first = await after(fleet, clock, PUBLISH_EVERY_S)
    fleet.record_fault(0)
    assert fleet.board() is not first, "the first fault after a quiet time is news"
    second = fleet.board()
    fleet.record_fault(0)
    assert fleet.board() is second
    assert await after(fleet, clock, PUBLISH_EVERY_S) is not second


async def test_faults_fade_though_nobody_calls() -> None:
    fleet, clock = fleet_of_one()
    fleet.record_fault(0)
    low = (await after(fleet, clock, PUBLISH_EVERY_S)).forecast.stability[0]
    assert (await after(fleet, clock, LOOK_EVERY_S * 20)).forecast.stability[0] > low


async def test_a_circuit_that_opens_reaches_decisions_at_once_and_its_probe_in_time() -> None:
    fleet, clock = fleet_of_one()
    fail(fleet, 4)
    assert fleet.board().forecast.open == {}
    fleet.record_fault(0)
    assert fleet.board().forecast.open == {0: round((clock.time() + 10.0) * 1000)}
    assert (await after(fleet, clock, 9.9)).forecast.open != {}
    assert (await after(fleet, clock, 0.1)).forecast.open == {}


async def test_decisions_see_a_probe_at_once_and_its_abandonment() -> None:
    fleet, clock = fleet_of_one()
    fail(fleet, 5)
    await clock.advance(10.0)
    assert (fleet.board().forecast.open, fleet.admits(0, 10.0)) == ({}, None)
    assert fleet.board().forecast.open != {}
    fleet.release_probe(0)
    assert fleet.board().forecast.open == {}


async def test_a_model_that_is_kept_away_is_shown_as_degraded() -> None:
    fleet, clock = fleet_of_one()
    fail(fleet, 5)
    assert [model.availability.status for model in fleet.models()] == ["degraded"]
    await clock.advance(10.0)
    fleet.admits(0, 10.0)
    for _ in range(100):
        answer(fleet, probe=True)
    await clock.advance(1.0)
    assert [model.availability.status for model in fleet.models()] == ["available"]


async def test_overruns_follow_their_model_into_the_next_fleet() -> None:
    before, clock = fleet_of_one()
    before.health.overruns = {0: Overrun()}
    provider = ScriptedProvider((), models=[Model(id="good/new"), before.pool.models[0]], clock=clock)
    successor = Fleet([], {}, [provider], as_of="2026-11-20", clock=clock, limits=ExecutionLimits())
    successor.learn_from(before)
    assert successor.health.overruns == {successor.pool.row[before.pool.ids[0]]: Overrun()}


async def test_a_refused_credential_does_not_count_against_the_model() -> None:
    fleet, clock = fleet_of_one()
    believed = fleet.board().forecast.stability[0]
    fleet.record_fault(0, credential=True)
    assert fleet.board().forecast.open != {}
    assert fleet.board().forecast.stability[0] == believed
    assert (await after(fleet, clock, 10.0)).forecast.open == {}


# --- the journal


def fleet_of(count: int, clock: Clock | None = None, **given: object) -> Fleet:
    clock = clock or FakeClock()
    start = Model(id="x/x", context_window=100_000, pricing_per_1m=Pricing(1.0, 4.0))
    models = [
        replace(start, id=f"p{number % 7}/m{number:04}", quality=number / count, **given) for number in range(count)
    ]
    provider = ScriptedProvider((), models=models)
    return Fleet([], {}, [provider], as_of="2026-11-20", clock=clock, limits=ExecutionLimits())


def given_on(board: Board, today: str = "2026-11-21", **more: object) -> DecisionInput:
    start = DecisionInput(
        rules=RULES,
        catalogue=board.pool.snapshot.id,
        health=board.health,
        as_of=today,
        tokens=TokenBounds(10, 100, 40),
        goal="quality",
    )
    return replace(start, **more)


async def test_answers_beyond_the_bound_are_dropped_while_nobody_can_fold() -> None:
    fleet, _ = fleet_of_one()

    def answer_all() -> None:
        for _ in range(MOST_WAITING + 100):
            answer(fleet)

    with fleet._guard.lock:  # of this thread, so that the other one cannot fold
        await anyio.to_thread.run_sync(answer_all)
    assert len(fleet._journal.entries) == MOST_WAITING
    answer(fleet)
    assert len(fleet._journal.entries) == 0


async def test_answers_are_booked_before_the_fault_that_follows_them() -> None:
    fleet, _ = fleet_of_one()
    for _ in range(20):
        fleet.record_fault(0)
        for _ in range(9):
            answer(fleet)
    assert fleet.circuit_status() == []
    fail(fleet, 5)
    assert len(fleet.circuit_status()) == 1


async def test_the_shown_models_include_all_answers() -> None:
    fleet, clock = fleet_of_one()
    for _ in range(40):
        fleet.record_fault(0, credential=False)
    await clock.advance(10.0)
    fleet.admits(0, 10.0)
    answer(fleet, probe=True)
    assert [model.availability.status for model in fleet.models()] == ["degraded"], "of forty faults"
    for _ in range(60):
        answer(fleet)
    assert len(fleet._journal.entries) == 60
    assert [model.availability.status for model in fleet.models()] == ["available"]


async def test_requests_count_in_the_retry_budget_when_they_end() -> None:
    fleet, _ = fleet_of_one()
    for _ in range(10):
        fleet.count_request(fleet._clock.monotonic())
        fleet.record_fault(0)
    for _ in range(40):
        answer(fleet, asked=True)
    assert sum(fleet.spares(0.0) for _ in range(200)) == 110


async def test_a_burst_of_errors_is_judged_with_all_answers_before_it() -> None:
    fleet, _ = fleet_of_one()
    for _ in range(39):
        answer(fleet, whose="x")
    assert fleet.count_end(("x",), error=True) is None
    assert fleet.count_end(("x",), error=False) is None
    assert fleet.count_end(("y",), error=True) is None
    burst = [fleet.count_end(("x",), error=True) for _ in range(2)][-1]
    assert burst is not None
    assert (burst.requests, burst.errors) == (43, 3)


async def test_a_published_snapshot_is_immutable_and_named_by_its_content() -> None:
    clock, chance = FakeClock(), Random(1)
    fleet = fleet_of(20, clock)
    seen: list[tuple[HealthSnapshot, bytes]] = []
    for _ in range(60):
        for _ in range(5):
            row = chance.randrange(20)
            fleet.record_fault(row) if chance.random() < 0.4 else answer(fleet, row)
        health = (await after(fleet, clock, chance.choice([0.3, 20.0]))).forecast.health
        assert health.id == health_snapshot(health.models).id
        seen.append((health, msgspec.json.encode(health)))
    assert len({health.id for health, _ in seen}) > 30
    assert all(msgspec.json.encode(health) == written for health, written in seen)


def test_threads_see_whole_snapshots_while_health_is_published(full: bool) -> None:
    """Each plan, shared or not, is what the full walk says on the board that it names."""
    fleet = fleet_of(60, SystemClock())
    errors: list[BaseException] = []
    found: list[tuple[DecisionInput, Plan, Board]] = []
    stop = time.monotonic() + (20 if full else 1)

    def call(seed: int) -> None:
        chance = Random(seed)
        try:
            while time.monotonic() < stop:
                fleet._look_at = min(fleet._look_at, time.monotonic())
                board = fleet.board()
                goal = chance.choice(GOALS)
                given = given_on(board, goal=goal)
                plan = find_plan(board, (goal,), lambda given=given: given)  # type: ignore[misc]
                if plan is None or not covers(plan, given.tokens, given.timeout_ms):
                    plan = decide(given, board)
                if chance.random() < 0.02:
                    found.append((given, plan, board))
                leg = chance.choice(plan.legs)
                if fleet.admits(leg.row, time.monotonic()) is False:
                    continue
                if chance.random() < 0.3:
                    fleet.record_fault(leg.row)
                else:
                    now, took = time.monotonic(), chance.uniform(0.1, 9)
                    usage = Usage(40, chance.randint(5, 900))
                    fleet.record_answer(Entry(leg.row, now, took, None, usage, True, ("x",), True))
        except BaseException as error:
            errors.append(error)

    in_threads(call, 50)
    assert errors == []
    assert len({board.health for _, _, board in found}) > 5, "else nothing was published meanwhile"
    for given, plan, board in found:
        fresh = Boards(Pool(board.pool.snapshot, board.pool.as_of)).of(board.forecast.health)
        alone = decide(given, fresh)
        assert [leg.id for leg in plan.legs] == [leg.id for leg in alone.legs]
        assert plan.front == alone.front
        assert board.health == health_snapshot(board.forecast.health.models).id
