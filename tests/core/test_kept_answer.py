"""A stored decision is reproduced bit for bit in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct

from routewright import Catalogue, NoCandidates
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.decision import decision_of
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright.wire import CatalogueSnapshot, DecisionInput, Goal, HealthSnapshot, ModelHealth, Strategy, TokenBounds


class Stored(Struct):
    """What a storage would hold."""

    catalogue: CatalogueSnapshot
    healths: list[HealthSnapshot]
    inputs: list[DecisionInput]
    outcomes: list[str]


def outcome(given: DecisionInput, board: Board) -> str:
    """Everything a decision says, or the refusal."""
    try:
        decision = decision_of(given, board)
    except NoCandidates as refused:
        return f"{refused.code}: {refused}"
    return f"{decision.digest} {decision.model} {decision.chain} {decision.output_cap} {decision.reason}"


def random_health(chance: Random, ids: list[str]) -> HealthSnapshot:
    seen = {
        model: ModelHealth(
            stability=chance.randint(300, 1000),
            ttft_ms=chance.choice([None, chance.randint(100, 60_000)]),
            us_per_token=chance.choice([None, chance.randint(100, 50_000)]),
            output_tokens=chance.choice([None, chance.randint(10, 9_000)]),
            open=chance.random() < 0.1,
        )
        for model in chance.sample(ids, 40)
    }
    return health_snapshot(seen)


def random_input(chance: Random, catalogue: str, health: str, ids: list[str]) -> DecisionInput:
    goals: list[Goal] = ["cost", "quality", "stability"]
    strategies: list[Strategy] = ["balanced", "cost-optimized", "quality-first", "latency-optimized"]
    low = chance.randint(1, 5_000)
    o200k, cl100k = chance.choice([(None, None), (low + 2, low + 1)])
    return DecisionInput(
        rules=RULES,
        catalogue=catalogue,
        health=health,
        as_of=chance.choice(["2026-11-21", "2026-12-24", "2027-05-01"]),
        tokens=TokenBounds(low, low * chance.randint(3, 5), low * 2, o200k, cl100k, counted=True),
        needs=chance.choice([0, 0, 1, 2, 4, 7]),
        goal=chance.choice(goals),
        strategy=chance.choice(strategies),
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


def replay(path: str) -> list[str]:
    """Decide every stored input anew."""
    stored = msgspec.msgpack.decode(Path(path).read_bytes(), type=Stored)
    pool = Pool(stored.catalogue, "2026-11-21")
    boards = {health.id: Boards(pool).of(health) for health in stored.healths}
    return [outcome(given, boards[given.health]) for given in stored.inputs]


def test_decisions_replay_in_another_process(tmp_path: Path, full: bool) -> None:
    chance = Random(20261121)
    catalogue = snapshot(Catalogue().models, Catalogue().as_of)
    ids = [model.id for model in catalogue.models]
    healths = [random_health(chance, ids) for _ in range(8)]
    boards = {health.id: Boards(Pool(catalogue, "2026-11-21")).of(health) for health in healths}
    inputs = [
        random_input(chance, catalogue.id, chance.choice(healths).id, ids) for _ in range(100_000 if full else 200)
    ]
    outcomes = [outcome(given, boards[given.health]) for given in inputs]
    assert len(set(outcomes)) > len(inputs) / 3
    path = tmp_path / "stored"
    path.write_bytes(msgspec.msgpack.encode(Stored(catalogue, healths, inputs, outcomes)))
    code = f"import sys; from tests.core.test_kept_answer import check; sys.exit(check({str(path)!r}))"
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check(path: str) -> int:
    """Run in the other process: 0 if every decision is the stored one."""
    stored = msgspec.msgpack.decode(Path(path).read_bytes(), type=Stored)
    for before, after in zip(stored.outcomes, replay(path), strict=True):
        if before != after:
            print(before, "became", after)
            return 1
    return 0
