"""SQLite stores full of seeded traces over thirty days: what queries and reports are timed on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from routewright import SqliteStorage
from routewright._core.routing.inputs import RULES
from routewright.wire import (
    Candidate,
    DecisionInput,
    DecisionSpan,
    ModelSpan,
    PutTrace,
    TokenBounds,
    Tokens,
    Trace,
)
from routewright.wire.timestamps import timestamp

from .data import SEED, models

FIRST_DAY, LAST_DAY = "2026-10-22", "2026-11-20"
BEGINS_AT = 1_792_627_200.0
"""Unix seconds of the first day."""
SPAN_S = 30 * 86_400
BATCH = 256
TEAMS = 20
"""One tag in twenty; one trace in a hundred failed."""
MODELS = models(40)


def traces(count: int) -> Iterator[Trace]:
    """So many, evenly over the days, in the order of time."""
    chance = Random(SEED + 4)
    for number in range(count):
        yield _trace(chance, number, BEGINS_AT + number * SPAN_S / count)


def batches(count: int) -> Iterator[list[PutTrace]]:
    """The same as a Router writes them."""
    source = traces(count)
    while batch := [PutTrace(trace) for trace in islice(source, BATCH)]:
        yield batch


def trace_id(number: int) -> str:
    """The id of a trace by its place."""
    return f"tr_{number:026}"


def fill(path: Path, count: int) -> SqliteStorage:
    """A store of so many traces."""
    storage = SqliteStorage(path)

    async def write() -> None:
        for batch in batches(count):
            await storage.apply("default", batch)

    asyncio.run(write())
    return storage


def _trace(chance: Random, number: int, at: float) -> Trace:
    model, failed = chance.choice(MODELS).id, chance.random() < 0.01
    took_ms = round(chance.lognormvariate(7, 0.6), 3)
    used = Tokens(chance.randrange(20, 2_000), chance.randrange(5, 900))
    cost = round(chance.uniform(1e-5, 5e-3), 9)
    return Trace(
        id=trace_id(number),
        status="failed" if failed else "completed",
        created_at=timestamp(at),
        duration_ms=took_ms,
        environment="production",
        account="default",
        policy_version="inline@2026-11-20",
        goal="cost",
        strategy="balanced",
        selected_model=None if failed else model,
        cost_usd=0.0 if failed else cost,
        charged_usd=0.0 if failed else cost,
        tokens=Tokens() if failed else used,
        metadata={"team": f"team-{chance.randrange(TEAMS)}"},
        error="router.upstream_failed" if failed else None,
        decision_input=DecisionInput(
            rules=RULES,
            catalogue="cat_benchmark",
            health=f"hea_{number // 1_000}",
            as_of=timestamp(at)[:10],
            tokens=TokenBounds(used.input // 2, used.input * 2, used.input),
        ),
        spans=[_decision(chance, model), _attempt(model, took_ms, used, cost, failed=failed)],
    )


def _decision(chance: Random, model: str) -> DecisionSpan:
    best = [model, *(each.id for each in chance.sample(MODELS, 4))]
    candidates = [
        Candidate(name, round(0.9 - place / 20, 6), 0.8, 0.0021, 1.25, 0.901, (0.8, 0.7, 0.9, 0.8))
        for place, name in enumerate(best)
    ]
    return DecisionSpan(
        id=1,
        name="decision",
        start_ms=0.0,
        duration_ms=0.03,
        candidates=candidates,
        rejected={"context": 3},
        digest="d",
    )


def _attempt(model: str, took_ms: float, used: Tokens, cost: float, *, failed: bool) -> ModelSpan:
    return ModelSpan(
        id=2,
        name=model,
        start_ms=0.03,
        duration_ms=took_ms,
        status="error" if failed else "ok",
        model=model,
        provider=model.partition("/")[0],
        attempt=1,
        latency_ms=took_ms,
        ttft_ms=took_ms / 4,
        tokens=None if failed else used,
        cost_usd=0.0 if failed else cost,
        finish_reason=None if failed else "stop",
        error="server" if failed else None,
    )
