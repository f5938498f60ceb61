"""How long does choosing a model take, by pool, by constraint, with qualities predicted per prompt?"""

from __future__ import annotations

from collections.abc import Collection
from itertools import cycle
from operator import attrgetter

import pytest

from routewright import Router
from routewright._core.board import Boards
from routewright._core.decision import Decision, decision_of
from routewright._core.outlook import Outlook
from routewright.wire import DecisionInput

from . import data
from .conftest import Peer, Timed
from .data import CONSTRAINTS, TODAY, Constraint
from .floors import full_scan, presorted, rows, wanted
from .measure import Effort, sample
from .report import Question, Report

SIZES = (50, 160, 1_000)
TARGETS = {50: "10 / 25", 1_000: "25 / 60"}
ANY_MODEL = tuple(each for each in CONSTRAINTS if each != "whitelist")
SETS: dict[str, Collection[Constraint]] = {
    "every constraint": CONSTRAINTS,
    "all but a whitelist": ANY_MODEL,
    "no constraint": (),
}


class Case:
    """A pool, what is known of it, and what is asked of it."""

    def __init__(self, size: int, constraints: Collection[Constraint], *, own_quality: bool = False) -> None:
        pool = data.models(size, constraints)
        self.outlook = data.outlook(pool, constraints)
        self.inputs = data.inputs(pool, constraints, own_quality=own_quality)

    def ours(self, timed: Timed, question: Question) -> None:
        board = Boards(self.outlook.pool).of(self.outlook.health)
        timed(question, "routewright", lambda given: decision_of(given, board), cycle(self.inputs))

    def presorted(self, timed: Timed, question: Question) -> None:
        best_first = sorted(rows(self.outlook, TODAY), key=attrgetter("merit"), reverse=True)
        timed(question, "floor", lambda ask: presorted(best_first, ask), cycle(map(wanted, self.inputs)))

    def full_scan(self, timed: Timed, question: Question) -> None:
        table = rows(self.outlook, TODAY)
        timed(question, "full scan", lambda ask: full_scan(table, ask), cycle(map(wanted, self.inputs)))


def by_pool(size: int, named: str) -> Question:
    target = "" if named == "no constraint" else TARGETS.get(size, "")
    return Question(f"decide(), {size:,} models, {named}", target)


def by_constraint(constraint: Constraint) -> Question:
    return Question(f"decide(), 160 models, only {constraint}")


def predicted(named: str) -> Question:
    return Question(f"decide(), 160 models, {named}, a quality column per prompt", "60 / 120")


@pytest.mark.parametrize("named", SETS)
@pytest.mark.parametrize("size", SIZES)
class TestByPool:
    def test_floor(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).presorted(timed, by_pool(size, named))

    def test_full_scan(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).full_scan(timed, by_pool(size, named))

    def test_routewright(self, timed: Timed, size: int, named: str) -> None:
        Case(size, SETS[named]).ours(timed, by_pool(size, named))


@pytest.mark.parametrize("size", [50, 1_000])
def test_litellm(peer: Peer, report: Report, size: int) -> None:
    """It knows no such constraints; its cheapest strategy stands for it."""
    figure = peer("litellm", "litellm_router", "decide", str(size))
    report.add(by_pool(size, "every constraint"), "litellm", figure)


@pytest.mark.parametrize("named", ["every constraint", "no constraint"])
class TestQualityPredictedPerPrompt:
    def test_full_scan(self, timed: Timed, named: str) -> None:
        Case(160, SETS[named], own_quality=True).full_scan(timed, predicted(named))

    def test_routewright(self, timed: Timed, named: str) -> None:
        Case(160, SETS[named], own_quality=True).ours(timed, predicted(named))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_one_constraint(timed: Timed, constraint: Constraint) -> None:
    Case(160, [constraint]).ours(timed, by_constraint(constraint))


@pytest.mark.parametrize("named", ["every constraint", "no constraint"])
@pytest.mark.parametrize("size", [50, 1_000])
def test_reason(effort: Effort, report: Report, size: int, named: str) -> None:
    case = Case(size, SETS[named])
    board = Boards(case.outlook.pool).of(case.outlook.health)
    fresh = (decision_of(given, board) for given in cycle(case.inputs))  # a decision remembers what was read of it
    figure = sample(read_reason, fresh, effort, loop=False)
    report.add(Question(f"decision.reason, {size:,} models, {named}", "5"), "routewright", figure)


@pytest.mark.parametrize("size", SIZES)
def test_first_after_health_was_published(effort: Effort, report: Report, size: int) -> None:
    """Nothing is compiled yet but the pool. Under load this happens a few times a second."""
    case = Case(size, ())
    figure = sample(decide_first, cycle((given, case.outlook) for given in case.inputs), effort, loop=False)
    report.add(Question(f"decide(), {size:,} models, no constraint, new health"), "routewright", figure)


def test_public_door(timed: Timed) -> None:
    router = Router.sandbox()
    question = Question("Router.decide(messages), the 160 bundled models, no constraint")
    timed(question, "routewright", router.decide, cycle(data.conversations()))


def read_reason(decision: Decision) -> str:
    return decision.reason


def decide_first(asked: tuple[DecisionInput, Outlook]) -> Decision:
    given, outlook = asked
    return decision_of(given, Boards(outlook.pool).of(outlook.health))
