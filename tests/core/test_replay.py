"""A decision is the same by a compiled plan, by the full walk, and in another process from what is stored."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache, partial
from pathlib import Path
from random import Random

import pytest
from msgspec import Struct, msgpack
from msgspec.structs import replace

from routewright import Catalogue, wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.budget import own_room
from routewright._core.routing.choice import covers
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import decide, find_plan
from routewright._core.routing.decision import Decision, decision_of
from routewright._core.routing.inputs import RULES
from routewright._core.routing.logarithms import size_class
from routewright._core.routing.pool import Pool
from routewright.errors import NoCandidates
from routewright.wire import ModelHealth

from .boards import GOALS, STRATEGIES, after_publication, random_input, random_pool

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.core.test_replay import replay; replay(sys.stdin.buffer.read())"
DAYS = ("2026-11-21", "2026-12-24", "2027-05-01")
Outcome = tuple[str, list[str], int | None, str, list[tuple[str, int]]]
"""Digest, models, output cap, reason and rejections of a decision; of a refusal its code and text."""


class Stored(Struct):
    """Decisions as traces keep them: their snapshots by id, and the input and outcome of each."""

    catalogues: dict[str, wire.CatalogueSnapshot] = {}
    healths: dict[str, wire.HealthSnapshot] = {}
    decisions: list[tuple[wire.DecisionInput, Outcome]] = []

    def add(self, board: Board, decision_input: wire.DecisionInput, outcome: Outcome) -> None:
        self.catalogues[decision_input.catalogue] = board.pool.snapshot
        self.healths[decision_input.health] = board.forecast.health
        self.decisions.append((decision_input, outcome))


def outcome_of(decision: Decision, models: list[str]) -> Outcome:
    counts = sorted((str(reason), count) for reason, count in decision.rejected_counts.items())
    return decision.digest, models, decision.output_cap, decision.reason, counts


def walk(decision_input: wire.DecisionInput, board: Board) -> Outcome:
    """Decide without a plan."""
    plan = decide(decision_input, board)
    return outcome_of(Decision(plan, decision_input, board), plan.models)


def decide_or_refuse(decision_input: wire.DecisionInput, board: Board) -> Outcome:
    try:
        decision = decision_of(decision_input, board)
    except NoCandidates as refused:
        return refused.code, [], None, str(refused), []
    return outcome_of(decision, [decision.model, *decision.chain])


def replay(content: bytes) -> None:
    """In the other process: decide each stored input anew, and write the outcomes."""
    stored = msgpack.decode(content, type=Stored)

    @lru_cache(64)
    def board_of(catalogue: str, health: str, as_of: str) -> Board:
        return Boards(Pool(stored.catalogues[catalogue], as_of)).of(stored.healths[health])

    outcomes = [
        decide_or_refuse(each, board_of(each.catalogue, each.health, each.as_of)) for each, _ in stored.decisions
    ]
    sys.stdout.buffer.write(msgpack.encode(outcomes))


def assert_replayed(stored: Stored) -> None:
    """Another process decides all of it alike."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, input=msgpack.encode(stored), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert msgpack.decode(done.stdout, type=list[Outcome]) == [outcome for _, outcome in stored.decisions]


# Any request, over the bundled catalogue


def health_of_some(chance: Random, ids: list[str]) -> wire.HealthSnapshot:
    figures = {
        model: ModelHealth(
            stability=chance.randint(300, 1000),
            ttft_ms=chance.choice([None, chance.randint(100, 60_000)]),
            us_per_token=chance.choice([None, chance.randint(100, 50_000)]),
            output_tokens=chance.choice([None, chance.randint(10, 9_000)]),
            open=chance.random() < 0.1,
        )
        for model in chance.sample(ids, 40)
    }
    return health_snapshot(figures)


def any_input(chance: Random, board: Board) -> wire.DecisionInput:
    """A request with any options."""
    ids, low = board.pool.ids, chance.randint(1, 5_000)
    o200k, cl100k = chance.choice([(None, None), (low + 2, low + 1)])
    return wire.DecisionInput(
        rules=RULES,
        catalogue=board.pool.snapshot.id,
        health=board.health,
        as_of=board.pool.as_of,
        tokens=wire.TokenBounds(low, low * chance.randint(3, 5), low * 2, o200k, cl100k, counted=True),
        needs=chance.choice([0, 0, 1, 2, 4, 7]),
        goal=chance.choice(GOALS),
        strategy=chance.choice(STRATEGIES),
        models=chance.choice([None, None, tuple(chance.sample(ids, 10))]),
        fallback=chance.choice([None, None, tuple(chance.sample(ids, 3))]),
        max_output_tokens=chance.choice([None, chance.randint(1, 9_000)]),
        budget_nanos=chance.choice([None, chance.randint(1, 500_000_000)]),
        budget_tokens=chance.choice([None, None, chance.randint(1_000, 50_000)]),
        timeout_ms=chance.choice([2_000, 20_000, 60_000]),
        weights=chance.choice([None, None, (25, 25, 25, 25), (0, 1, 2, 97)]),
        min_quality=chance.choice([None, None, chance.randint(0, 1_000_000)]),
        max_latency_ms=chance.choice([None, None, chance.randint(1_000, 60_000)]),
        quality=chance.choice([None, None, tuple(chance.randint(0, 1_000_000) for _ in ids)]),
        prefer=chance.choice([(), (), tuple(chance.sample(ids, 3))]),
        workload=chance.choice([None, (chance.randint(-12, 12), chance.randint(-12, 12))]),
    )


@pytest.mark.full
def test_any_request_is_decided_alike_in_another_process(full: bool) -> None:
    chance, stored = Random(20261121), Stored()
    catalogue = snapshot(Catalogue().models, Catalogue().as_of)
    ids = [model.id for model in catalogue.models]
    boards = [Boards(Pool(catalogue, day)).of(health_of_some(chance, ids)) for day in DAYS for _ in range(3)]
    for _ in range(100_000 if full else 200):
        board = chance.choice(boards)
        decision_input = any_input(chance, board)
        stored.add(board, decision_input, decide_or_refuse(decision_input, board))
    assert len({str(outcome) for _, outcome in stored.decisions}) > len(stored.decisions) / 3
    assert_replayed(stored)


# Requests that share a plan, over any catalogue whose health changes


def random_call(chance: Random, board: Board, likely: wire.DecisionInput) -> wire.DecisionInput:
    """A call of a class, with numbers of its own."""
    estimate = likely.tokens.estimate
    tokens = wire.TokenBounds(max(1, estimate // 8), chance.randint(estimate, 4 * estimate), estimate)
    nanos = random_input(chance, board).budget_nanos
    return replace(likely, health=board.health, tokens=tokens, budget_nanos=nanos)


def test_random_requests_are_decided_alike_by_plan_walk_and_another_process(full: bool) -> None:
    stored, by_plan, seed = Stored(), 0, 0
    while len(stored.decisions) < (10_000 if full else 150):
        seed += 1
        chance = Random(seed)
        board = Boards(random_pool(chance, 50)).of(health_snapshot({}))
        classes = [random_input(chance, board) for _ in range(6)]
        for _ in range(50):
            call = random_call(chance, board, chance.choice(classes))
            try:
                outcome = walk(call, board)
            except (NoCandidates, CountTokens):
                continue
            size = size_class(call.tokens.estimate)
            key = call.goal, call.strategy, call.needs, size, call.max_output_tokens, call.as_of, call.workload
            plan = find_plan(board, key, partial(replace, call))
            if plan is not None and covers(plan, call.tokens, call.timeout_ms, own_room(call)):
                by_plan += 1
                assert outcome_of(Decision(plan, call, board), plan.models) == outcome
            stored.add(board, call, outcome)
            if chance.random() < 0.5:
                board = after_publication(chance, board)
    assert_replayed(stored)
    assert by_plan > len(stored.decisions) / 4, "else too little was shown"
