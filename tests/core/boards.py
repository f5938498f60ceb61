"""Seeded large catalogues, changing health and requests, for tests over many of each."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any, get_args

from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool

TODAY = "2026-11-21"
PROVIDERS = "alder beech cedar elm fir hazel".split()
NEEDS = (0, 0, 0, wire.Need.IMAGE, wire.Need.TOOLS, wire.Need.JSON, wire.Need.TOOLS | wire.Need.JSON)
GOALS: tuple[wire.Goal, ...] = get_args(wire.Goal)
STRATEGIES: tuple[wire.Strategy, ...] = get_args(wire.Strategy)


def model(chance: Random, number: int, providers: list[str]) -> wire.Model:
    provider, usd = chance.choice(providers), round(10 ** chance.uniform(-1.3, 1.2), 3)
    modalities: list[tuple[wire.Modality, ...]] = [(), ("image",), ("tool",), ("image", "tool"), ("image", "tool")]
    tiers = (wire.PriceTier(chance.choice([2_000, 200_000]), usd * 2, usd * 6),) if chance.random() < 0.1 else ()
    return wire.Model(
        id=f"{provider}/m{number:04}",
        provider=provider,
        context_window=chance.choice([4_096, 8_192, 32_768, 131_072, 1_000_000]),
        max_output_tokens=chance.choice([None, 1_000, 4_096, 32_768]),
        modalities=("text", *chance.choice(modalities)),
        structured_output=chance.random() < 0.8,
        pricing_per_1m=None if chance.random() < 0.03 else wire.Pricing(usd, usd * 4, tiers=tiers),
        reasoning=chance.random() < 0.3,
        tokenizer=chance.choice(["o200k_base", None]),
        quality=round(chance.betavariate(3, 2), 3),
        ttft_s=round(chance.uniform(0.2, 6), 2),
        tokens_per_s=round(chance.uniform(40, 250)),
        disabled=chance.random() < 0.05,
        deprecated_at="2026-01-01" if chance.random() < 0.05 else None,
        availability=wire.Availability("unavailable" if chance.random() < 0.1 else "available", ("eu",)),
    )


def random_pool(chance: Random, size: int, providers: list[str] | None = None) -> Pool:
    """Models of some six providers, now and then nearly all of them of one."""
    chosen = providers or chance.choice([PROVIDERS, PROVIDERS, ["big"] * 30 + PROVIDERS[:1], ["big"]])
    models = [model(chance, number, chosen) for number in range(size)]
    return Pool(snapshot(models, TODAY), TODAY)


def random_health(chance: Random) -> wire.ModelHealth:
    """What may be published of a model, all but its circuit."""
    return wire.ModelHealth(
        stability=chance.randint(300, 1_000),
        ttft_ms=chance.choice([None, chance.randint(100, 40_000)]),
        us_per_token=chance.choice([None, chance.randint(1_000, 60_000)]),
        ttft_p95_ms=chance.choice([None, chance.randint(100, 60_000)]),
        latency_p95_ms=chance.choice([None, chance.randint(100, 90_000)]),
        output_tokens=chance.choice([None, chance.randint(20, 3_000)]),
        output_p90=chance.choice([None, chance.randint(20, 6_000)]),
    )


def after_publication(
    chance: Random, board: Board, *, rows: Collection[int] | None = None, circuits: bool = True
) -> Board:
    """The board after a publication: a few rows did otherwise, and now and then a circuit opened or closed."""
    ids, before = board.pool.ids, board.forecast.health.models
    chosen = rows if rows is not None else chance.sample(range(len(ids)), chance.choice([1, 1, 2, 5]))
    updates = {row: random_health(chance) for row in chosen}
    if circuits and chance.random() < 0.1:
        row = chance.choice([chance.randrange(len(ids)), *board.forecast.open])
        closed = row not in board.forecast.open
        updates[row] = replace(before.get(ids[row], wire.ModelHealth()), open=closed, probe_at_ms=9 if closed else None)
    health = health_snapshot({**before, **{ids[row]: figures for row, figures in updates.items()}})
    return board.with_health(health, updates)


def recompiled(board: Board) -> Board:
    """The same snapshots, compiled by themselves."""
    return Boards(Pool(board.pool.snapshot, board.pool.as_of)).of(board.forecast.health)


def random_input(chance: Random, board: Board, **given: Any) -> wire.DecisionInput:
    """A plain request, perhaps with a budget and a cap."""
    estimate = round(10 ** chance.uniform(0.8, 3.6))
    start = wire.DecisionInput(
        rules=RULES,
        catalogue=board.pool.snapshot.id,
        health=board.health,
        as_of=board.pool.as_of,
        tokens=wire.TokenBounds(max(1, estimate // 4), estimate * 3, estimate),
        needs=int(chance.choice(NEEDS)),
        goal=chance.choice(GOALS),
        strategy=chance.choice(STRATEGIES),
        max_output_tokens=chance.choice([None, None, None, 300, 2_000]),
        budget_nanos=chance.choice([None, None, round(10 ** chance.uniform(4, 9))]),
        budget_tokens=chance.choice([None, None, None, round(10 ** chance.uniform(3, 5))]),
        timeout_ms=chance.choice([60_000, 60_000, 20_000, 4_000]),
        workload=chance.choice([None, None, (chance.randint(-12, 12), chance.randint(-12, 12))]),
    )
    return replace(start, **given)
