"""The seeded data of all benchmarks: models, inputs of decisions, conversations. Equal seeds, equal data, anywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any, Literal, get_args

from routewright import Model, Pricing
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.forecast import Forecast
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.quality import micro
from routewright.wire import (
    Availability,
    DecisionInput,
    Goal,
    Modality,
    ModelHealth,
    Need,
    PriceTier,
    Strategy,
    TokenBounds,
)

SEED = 20261121
TODAY = "2026-11-21"
PROVIDERS = "alder beech cedar elm fir hazel larch maple".split()

Constraint = Literal[
    "disabled", "deprecated", "unavailable", "circuit open",  # of the models
    "whitelist", "regions", "images", "tools", "JSON", "context", "token budget", "cost budget", "deadline",
]  # fmt: skip
"""What can stand in a model's way."""
CONSTRAINTS: tuple[Constraint, ...] = get_args(Constraint)
NEEDS: dict[Constraint, Need] = {"images": Need.IMAGE, "tools": Need.TOOLS, "JSON": Need.JSON}

INPUTS = 64
LISTED = 24
"""Models of a whitelist, of which a third can do everything."""
REGION = "eu"

WORDS = "the router picks a model for each request and keeps a chain of others ready should it fail".split()


def models(count: int, constraints: Collection[Constraint] = ()) -> tuple[Model, ...]:
    """So many models of eight providers; one in twelve is hit by each of the first three constraints, if on."""
    chance = Random(SEED)
    return tuple(_model(chance, number, constraints) for number in range(count))


def forecast(pool: Sequence[Model], constraints: Collection[Constraint] = ()) -> Forecast:
    """The models compiled, with some health known of every third; one in twelve has its breaker open, if on."""
    chance = Random(SEED + 1)
    seen = {}
    for model in pool[::3]:
        opened = "circuit open" in constraints and chance.random() < 0.25
        seen[model.id] = ModelHealth(
            stability=chance.randint(800, 990),
            output_tokens=chance.randint(100, 900),
            open=opened,
            probe_at_ms=1_000 if opened else None,
        )
    return Forecast(Pool(snapshot(pool, TODAY), TODAY), health_snapshot(seen))


def inputs(
    pool: Sequence[Model], constraints: Collection[Constraint] = (), *, own_quality: bool = False
) -> list[DecisionInput]:
    """Inputs over all goals, strategies and many sizes. Budgets come with counted tokens, as they do in a Router."""
    chance = Random(SEED + 2)
    return [_input(chance, pool, constraints, own_quality) for _ in range(INPUTS)]


def conversations() -> list[list[dict[str, Any]]]:
    """Chats of two messages in wire spelling, the last one 60 to 2,000 characters long."""
    chance = Random(SEED + 3)
    return [
        [{"role": "system", "content": "You are terse."}, {"role": "user", "content": _text(chance)}]
        for _ in range(INPUTS)
    ]


def _model(chance: Random, number: int, constraints: Collection[Constraint]) -> Model:
    def hit(constraint: Constraint) -> bool:
        drawn = chance.random()  # always, so that switching one constraint changes nothing else
        return constraint in constraints and drawn < 1 / 12

    provider = chance.choice(PROVIDERS)
    price = round(10 ** chance.uniform(-1.3, 1.2), 3)
    modalities: tuple[Modality, ...] = ("text",)
    if chance.random() < 0.7:
        modalities += ("image",)
    if chance.random() < 0.85:
        modalities += ("tool",)
    tiers = (PriceTier(200_000, price * 2, price * 6),) if chance.random() < 0.1 else ()
    reasoning = chance.random() < 0.3
    return Model(
        id=f"{provider}/m{number:04}",
        context_window=chance.choice([8_192, 32_768, 131_072, 1_000_000]),
        max_output_tokens=chance.choice([4_096, 8_192, 32_768]),
        modalities=modalities,
        structured_output=chance.random() < 0.8,
        pricing_per_1m=Pricing(price, price * 4, tiers=tiers),
        reasoning=reasoning,
        tokenizer=chance.choice(["o200k_base", None, None]),
        quality=round(chance.betavariate(3, 2), 3),
        ttft_s=round(chance.uniform(4, 12) if reasoning else chance.uniform(0.2, 1.5), 2),
        tokens_per_s=round(chance.uniform(40, 250)),
        disabled=hit("disabled"),
        deprecated_at="2026-01-01" if hit("deprecated") else None,
        availability=Availability(
            "unavailable" if hit("unavailable") else "available", chance.choice([(REGION, "us"), (REGION,), ("us",)])
        ),
    )


def _input(
    chance: Random, pool: Sequence[Model], constraints: Collection[Constraint], own_quality: bool
) -> DecisionInput:
    tokens = round(10 ** (chance.uniform(3.9, 4.4) if "context" in constraints else chance.uniform(1.3, 3.0)))
    counted = bool({"context", "token budget", "cost budget"} & set(constraints))
    return DecisionInput(
        rules=RULES,
        catalogue="cat_benchmark",
        health="hea_benchmark",
        as_of=TODAY,
        tokens=TokenBounds(
            tokens // 8, tokens * (2 if counted else 4), tokens, o200k=tokens if counted else None, counted=counted
        ),
        needs=sum(need for constraint, need in NEEDS.items() if constraint in constraints),
        goal=chance.choice(get_args(Goal)),
        strategy=chance.choice(get_args(Strategy)),
        models=_whitelist(chance, pool) if "whitelist" in constraints else None,
        regions=(REGION,) if "regions" in constraints else (),
        budget_tokens=tokens * 2 + 4_000 if "token budget" in constraints else None,
        budget_nanos=tokens * 4_000 + 20_000_000 if "cost budget" in constraints else None,
        timeout_ms=8_000 if "deadline" in constraints else 60_000,
        quality=tuple(micro(chance.betavariate(3, 2)) for _ in pool) if own_quality else None,
    )


def _whitelist(chance: Random, pool: Sequence[Model]) -> tuple[str, ...]:
    able = [model for model in pool if _can_do_all(model)]
    listed = chance.sample(able, min(len(able), LISTED // 3)) + chance.sample(pool, LISTED * 2 // 3)
    return tuple(dict.fromkeys(model.id for model in listed))


def _can_do_all(model: Model) -> bool:
    return (
        len(model.modalities or ()) == 3
        and bool(model.structured_output)
        and REGION in model.availability.regions
        and (model.context_window or 0) > 100_000
        and not model.disabled
        and model.deprecated_at is None
    )


def _text(chance: Random) -> str:
    words = chance.choices(WORDS, k=round(10 ** chance.uniform(1.1, 2.55)))
    return " ".join(words)
