"""A decision by a compiled plan is that of the full walk, and of a replay in another process from what is stored."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

from msgspec import Struct, msgpack
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.budget import own_room
from routewright._core.routing.choice import covers
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import decide, find_plan
from routewright._core.routing.decision import Decision
from routewright._core.routing.logarithms import size_class
from routewright._core.routing.pool import Pool
from routewright.errors import NoCandidates

from .boards import after_publication, random_input, random_pool

ROOT = Path(__file__).parents[2]
AGAIN = "import sys; from tests.core.test_replay import replay; replay(sys.stdin.buffer.read())"
Shown = tuple[str, list[str], str, list[tuple[str, int]]]


class Stored(Struct):
    """A decision as a trace keeps it: its snapshots, its input, and what it said."""

    catalogue: wire.CatalogueSnapshot
    health: wire.HealthSnapshot
    decision_input: wire.DecisionInput
    shown: Shown


def shown(decision: Decision, models: list[str]) -> Shown:
    counts = sorted((str(reason), count) for reason, count in decision.rejected_counts.items())
    return decision.digest, models, decision.reason, counts


def decided(decision_input: wire.DecisionInput, board: Board) -> Shown:
    plan = decide(decision_input, board)
    return shown(Decision(plan, decision_input, board), plan.models)


def random_call(chance: Random, board: Board, likely: wire.DecisionInput) -> wire.DecisionInput:
    """A call of a class, with numbers of its own."""
    estimate = likely.tokens.estimate
    tokens = wire.TokenBounds(max(1, estimate // 8), chance.randint(estimate, 4 * estimate), estimate)
    nanos = random_input(chance, board).budget_nanos
    return replace(likely, health=board.health, tokens=tokens, budget_nanos=nanos)


def replay(stored: bytes) -> None:
    """What the other process does: decides again, and writes what it finds."""
    found = []
    for each in msgpack.decode(stored, type=list[Stored]):
        board = Boards(Pool(each.catalogue, each.decision_input.as_of)).of(each.health)
        found.append(decided(each.decision_input, board))
    sys.stdout.buffer.write(msgpack.encode(found))


def test_random_requests_are_decided_alike_by_plan_walk_and_another_process(full: bool) -> None:
    stored, by_plan, seed = list[Stored](), 0, 0
    while len(stored) < (10_000 if full else 150):
        seed += 1
        chance = Random(seed)
        board = Boards(random_pool(chance, 50)).of(health_snapshot({}))
        classes = [random_input(chance, board) for _ in range(6)]
        for _ in range(50):
            given = random_call(chance, board, chance.choice(classes))
            try:
                walk = decided(given, board)
            except (NoCandidates, CountTokens):
                continue
            size = size_class(given.tokens.estimate)
            key = given.goal, given.strategy, given.needs, size, given.max_output_tokens, given.as_of, given.workload
            plan = find_plan(board, key, partial(replace, given))
            if plan is not None and covers(plan, given.tokens, given.timeout_ms, own_room(given)):
                by_plan += 1
                assert shown(Decision(plan, given, board), plan.models) == walk
            stored.append(Stored(board.forecast.pool.snapshot, board.forecast.health, given, walk))
            if chance.random() < 0.5:
                board = after_publication(chance, board)
    done = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=ROOT, input=msgpack.encode(stored), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert msgpack.decode(done.stdout, type=list[Shown]) == [each.shown for each in stored]
    assert by_plan > len(stored) / 4, "else too little was shown"
