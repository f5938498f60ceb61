"""How long does choosing a model take, by pool, by constraint, with qualities predicted per request?"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import cycle
from operator import attrgetter
from random import Random

import pytest
from msgspec.structs import replace

from routewright import Router
from routewright._core.attempts.health import health_after
from routewright._core.routing.board import Boards
from routewright._core.routing.budget import own_room, plan_output
from routewright._core.routing.choice import covers
from routewright._core.routing.decide import decide, find_plan
from routewright._core.routing.decision import Decision, decision_of
from routewright._core.routing.forecast import Forecast
from routewright._core.routing.logarithms import size_class
from routewright._core.routing.plan import OutputPlan, Plan
from routewright.wire import DecisionInput, HealthSnapshot, ModelHealth, TokenBounds

from . import data
from .conftest import Peer, Timed
from .data import CONSTRAINTS, TODAY, Constraint
from .floors import full_scan, presorted, rows, wanted
from .measure import Effort, sample
from .report import Question, Report

SIZES = (50, 1_000)
TARGETS = {50: "2 × the floor: 10 / 25", 1_000: "25 / 60"}
FIRST_TARGETS = {50: "30", 1_000: "60"}
SETS: dict[str, Collection[Constraint]] = {
    "every constraint": CONSTRAINTS,
    "no constraint": (),
}


class Case:
    """A pool, what is known of it, and what is asked of it."""

    def __init__(self, size: int, constraints: Collection[Constraint], *, own_quality: bool = False) -> None:
        pool = data.models(size, constraints)
        self.forecast = data.forecast(pool, constraints)
        self.inputs = data.inputs(pool, constraints, own_quality=own_quality)

    def ours(self, timed: Timed, question: Question) -> None:
        board = Boards(self.forecast.pool).of(self.forecast.health)
        timed(question, "routewright", lambda given: decision_of(given, board), cycle(self.inputs))

    def presorted(self, timed: Timed, question: Question) -> None:
        best_first = sorted(rows(self.forecast, TODAY), key=attrgetter("merit"), reverse=True)
        timed(question, "floor", lambda ask: presorted(best_first, ask), cycle(map(wanted, self.inputs)))

    def full_scan(self, timed: Timed, question: Question) -> None:
        table = rows(self.forecast, TODAY)
        timed(question, "full scan", lambda ask: full_scan(table, ask), cycle(map(wanted, self.inputs)))


def by_pool(size: int, named: str) -> Question:
    target = TARGETS[size] if named == "every constraint" else ""
    return Question(f"decide(), {size:,} models, {named}", target)


def predicted(named: str) -> Question:
    target = "60 / 120" if named == "every constraint" else ""
    return Question(f"decide(), 160 models, {named}, a quality column per prompt", target)


@pytest.mark.parametrize("named", SETS)
@pytest.mark.parametrize("size", SIZES)
class TestByPool:
    def test_floor(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).presorted(timed, by_pool(size, named))

    def test_full_scan(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).full_scan(timed, by_pool(size, named))

    def test_routewright(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).ours(timed, by_pool(size, named))


@pytest.mark.parametrize("size", SIZES)
def test_litellm(peer: Peer, report: Report, size: int) -> None:
    """It knows no such constraints; its cheapest strategy stands for it."""
    figure = peer("litellm", "litellm_router", "decide", str(size))
    report.add(by_pool(size, "every constraint"), "litellm", figure)


@pytest.mark.parametrize("named", SETS)
class TestQualityPredictedPerPrompt:
    def test_full_scan(self, timed: Timed, named: str) -> None:
        Case(160, SETS[named], own_quality=True).full_scan(timed, predicted(named))

    def test_routewright(self, timed: Timed, named: str) -> None:
        Case(160, SETS[named], own_quality=True).ours(timed, predicted(named))


@pytest.mark.parametrize("named", SETS)
@pytest.mark.parametrize("size", SIZES)
def test_reason(effort: Effort, report: Report, size: int, named: str) -> None:
    case = Case(size, SETS[named])
    board = Boards(case.forecast.pool).of(case.forecast.health)
    fresh = (decision_of(given, board) for given in cycle(case.inputs))  # a decision remembers what was read of it
    figure = sample(read_reason, fresh, effort, loop=False)
    target = "5" if size == 50 and named == "every constraint" else ""
    question = Question(f"decision.reason, read after decide(), {size:,} models, {named}", target)
    report.add(question, "routewright", figure)


@pytest.mark.parametrize("size", SIZES)
def test_first_of_all(effort: Effort, report: Report, size: int) -> None:
    """Nothing is compiled yet but the pool."""
    case = Case(size, ())
    figure = sample(decide_first, cycle((given, case.forecast) for given in case.inputs), effort, loop=False)
    report.add(Question(f"decide(), {size:,} models, no constraint, the first of all"), "routewright", figure)


@pytest.mark.parametrize("size", SIZES)
def test_first_after_health_was_published(effort: Effort, report: Report, size: int) -> None:
    """Three models moved. Under load this happens a few times a second."""
    case = Case(size, ())
    boards = [Boards(case.forecast.pool).of(case.forecast.health)]

    def decide_after(moved: Moved) -> Plan:
        boards[0] = boards[0].with_health(*moved)
        return decide(case.inputs[0], boards[0])

    figure = sample(decide_after, moves(case.forecast), effort, loop=False)
    question = Question(f"the first decide() after health was published, {size:,} models", FIRST_TARGETS[size])
    report.add(question, "routewright", figure)


@pytest.mark.parametrize("budget", [None, 10_000_000], ids=["no budget", "one cent"])
@pytest.mark.parametrize("size", SIZES)
def test_of_a_class_that_was_decided(timed: Timed, size: int, budget: int | None) -> None:
    """As routing does it: look the plan up, see that it holds for this request, cap its output."""
    case, tokens = Case(size, ()), TokenBounds(10, 160, 60)
    board = Boards(case.forecast.pool).of(case.forecast.health)
    given = replace(case.inputs[0], tokens=tokens, goal="cost", strategy="balanced", budget_nanos=budget)

    def look_up(given: DecisionInput) -> OutputPlan:
        cls = None, given.goal, given.strategy, given.needs, size_class(given.tokens.estimate), None, given.as_of
        plan = find_plan(board, cls, lambda: given)
        if plan is None or not covers(plan, given.tokens, given.timeout_ms, own_room(given)):
            plan = decide(given, board)
        return plan_output(plan, given.tokens, own_room(given))

    named = "no budget" if budget is None else "a budget of one cent"
    timed(Question(f"the plan of a class, {size:,} models, {named}"), "routewright", look_up, cycle([given]))


def test_public_door(timed: Timed) -> None:
    router = Router.sandbox()
    question = Question("Router.decide(messages), the 160 bundled models, no constraint")
    timed(question, "routewright", router.decide, cycle(data.conversations()))


Moved = tuple[HealthSnapshot, dict[int, ModelHealth]]


def moves(forecast: Forecast) -> Iterator[Moved]:
    """Publications without end, each of three models."""
    chance, ids, health = Random(data.SEED), forecast.pool.ids, forecast.health
    while True:
        moved = {row: _seen(chance) for row in chance.sample(range(len(ids)), 3)}
        health = health_after(health, {ids[row]: figures for row, figures in moved.items()})
        yield health, moved


def _seen(chance: Random) -> ModelHealth:
    return ModelHealth(
        stability=chance.randint(800, 990),
        output_tokens=chance.randint(100, 900),
        ttft_ms=chance.randint(200, 2_000),
        us_per_token=chance.randint(4_000, 25_000),
    )


def read_reason(decision: Decision) -> str:
    return decision.reason


def decide_first(asked: tuple[DecisionInput, Forecast]) -> Decision:
    given, forecast = asked
    return decision_of(given, Boards(forecast.pool).of(forecast.health))
