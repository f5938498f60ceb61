"""Writes ``tests/data/decisions``: seeded decision inputs and what this version decides on each.

    python -m tests.recording.write_decisions

Version 0.1.0 wrote the files on 2026-11-22. The script documents how; it need not run on later versions, and its output
must not replace the files: they are the record that later versions are held to.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, get_args

import anyio
import msgspec
from msgspec.structs import replace

from routewright import Catalogue, Model, Policy, Pricing, Router, RouterError
from routewright.wire import (
    Availability,
    CatalogueSnapshot,
    DecisionInput,
    Goal,
    HealthSnapshot,
    Images,
    Modality,
    ModelHealth,
    Need,
    PolicySnapshot,
    PolicyWeights,
    PriceChange,
    PriceTier,
    Reason,
    Snapshot,
    Strategy,
    TokenBounds,
)
from tests.test_decision_compatibility import CASES, SNAPSHOTS, opened, outcome

SEED = 20261122
TODAY = "2026-11-22"
DAYS = (TODAY, TODAY, "2026-11-30", "2026-12-01", "2027-01-15", "2027-06-30")
SHARES = {"bundled": 130, "fifty": 190, "six": 180}
"""Cases by catalogue."""
EASY = (Need.NONE, Need.NONE, Need.NONE, Need.TOOLS, Need.JSON, Need.IMAGE, Need.TOOLS | Need.JSON)
HARD = (Need.SEED, Need.TEMPERATURE | Need.STOP, Need.TOOLS | Need.TOOL_CHOICE, Need.IMAGE | Need.IMAGE_URL,
        Need.JSON | Need.JSON_SCHEMA, Need.JSON | Need.JSON_OBJECT | Need.TOP_P)  # fmt: skip
TEXT: tuple[Modality, ...] = ("text",)
ALL: tuple[Modality, ...] = ("text", "image", "tool")
SIX = (
    Model(id="north/large", provider="north", context_window=200_000, modalities=ALL, structured_output=True,
          pricing_per_1m=Pricing(3.0, 15.0, 0.3, 3.75, tiers=(PriceTier(100_000, 6.0, 22.5),)), quality=0.91,
          ttft_s=1.4, tokens_per_s=70.0, max_output_tokens=32_000, availability=Availability(regions=("eu", "us"))),
    Model(id="north/small", provider="north", context_window=64_000, modalities=ALL, structured_output=True,
          pricing_per_1m=Pricing(0.25, 1.25), tokenizer="o200k_base", quality=0.55, ttft_s=0.4, tokens_per_s=190.0,
          max_output_tokens=8_000, unsupported=("seed", "json_object"), availability=Availability(regions=("eu",)),
          price_changes=(PriceChange("2026-12-01", Pricing(2.5, 12.5)), PriceChange("2027-01-01", Pricing(0.1, 0.4)))),
    Model(id="south/thinker", provider="south", context_window=128_000, modalities=ALL, structured_output=True,
          pricing_per_1m=Pricing(1.1, 4.4, reasoning_usd=8.8), reasoning=True, quality=0.88, ttft_s=9.0,
          tokens_per_s=120.0, max_output_tokens=16_000, tokenizer="cl100k_base", unsupported=("temperature", "top_p"),
          availability=Availability("degraded", ("us",)), deprecated_at="2027-01-01"),
    Model(id="south/unpriced", provider="south", context_window=32_000, modalities=ALL, quality=0.6, ttft_s=0.8,
          tokens_per_s=110.0, unsupported=("stop", "tool_choice", "json_schema", "image_url")),
    Model(id="west/free", provider="west", context_window=16_000, modalities=TEXT, pricing_per_1m=Pricing(0.0, 0.0),
          free_tier=True, quality=0.5, tokens_per_s=60.0),
    Model(id="west/retired", provider="west", context_window=8_000, modalities=TEXT, pricing_per_1m=Pricing(0.5, 1.5),
          disabled=True, quality=0.4),
)  # fmt: skip
POLICIES = (
    Policy(name="cheap", id="pol_cheap", created_at="2026-11-22T00:00:00.000Z", goal="cost", models=["provider:north"]),
    Policy(name="own scale", id="pol_scale", created_at="2026-11-22T00:00:00.000Z",
           weights=PolicyWeights(quality=40, cost=30, latency=20, stability=10), min_quality=0.4),
)  # fmt: skip


def catalogues(chance: Random) -> dict[str, CatalogueSnapshot]:
    """Three sizes: all bundled models, fifty of them with regions and lacks, and six made by hand."""
    bundled = Catalogue().models
    fifty = []
    for model in chance.sample(bundled, 50):
        regions = chance.choice([(), ("eu",), ("us",), ("eu", "us"), ("eu", "us", "ap")])
        status: Any = chance.choices(["available", "degraded", "unavailable"], [8, 1, 1])[0]
        changed = replace(model, availability=Availability(status, regions), disabled=chance.random() < 0.05)
        fifty.append(replace(changed, unsupported=chance.choice([None, None, ("seed",), ("stop", "top_p")])))
    lost = {"xai", "mistral"}
    some = (replace(m, availability=Availability("unavailable")) if m.provider in lost else m for m in bundled)
    return {
        "bundled": CatalogueSnapshot("cat_bundled", Catalogue().as_of, tuple(some)),
        "fifty": CatalogueSnapshot("cat_fifty", "2026-11-20", tuple(fifty)),
        "six": CatalogueSnapshot("cat_six", TODAY, SIX),
    }


def healths(chance: Random, name: str, ids: list[str]) -> list[HealthSnapshot]:
    """Nothing known, some of it bad, some circuits open with probes due, and all of them open."""

    def seen(model: str, share_open: float) -> ModelHealth:
        is_open = chance.random() < share_open
        return ModelHealth(
            stability=chance.randint(300, 1000),
            ttft_ms=chance.choice([None, chance.randint(100, 60_000)]),
            us_per_token=chance.choice([None, chance.randint(100, 50_000)]),
            ttft_p95_ms=chance.choice([None, chance.randint(500, 90_000)]),
            output_tokens=chance.choice([None, chance.randint(10, 9_000)]),
            output_p90=chance.choice([None, chance.randint(10, 12_000)]),
            open=is_open,
            probe_at_ms=1_795_348_800_000 + chance.randint(0, 15_000) if is_open else None,
        )

    some = chance.sample(ids, max(2, len(ids) // 3))
    return [
        HealthSnapshot(f"health_{name}_empty", {}),
        HealthSnapshot(f"health_{name}_bad", {model: seen(model, 0.0) for model in some}),
        HealthSnapshot(f"health_{name}_open", {model: seen(model, 0.5) for model in ids[::2]}),
        HealthSnapshot(f"health_{name}_all_open", {model: seen(model, 1.0) for model in ids}),
    ]


def tokens(chance: Random) -> TokenBounds:
    """Bounds alone, counts of one or two vocabularies, or images besides."""
    low = round(10 ** chance.uniform(0.3, 5.0))
    bounds = TokenBounds(low, low * chance.randint(2, 5), low * 2)
    match chance.choices(["bounds", "one", "two", "images"], [5, 2, 3, 1])[0]:
        case "one":
            return replace(bounds, o200k=low + low // 5, counted=True)
        case "two":
            counts = {"o200k": low + low // 5, "cl100k": low + low // 4}
            return replace(bounds, **counts, counted=True, single=chance.choice([0, low // 3]))
        case "images":
            size = Images(chance.choice([0, 640, 2048]), chance.choice([0, 480, 1536]), count=chance.randint(1, 3))
            return replace(bounds, images=(size,), o200k=low, cl100k=low, counted=True)
    return bounds


def drawn(chance: Random, catalogue: CatalogueSnapshot, health: str, rules: int) -> DecisionInput:
    """One input: each field at its default more often than not, so that most fields meet alone and in pairs."""
    ids = [model.id for model in catalogue.models]
    goals, strategies = get_args(Goal), get_args(Strategy)
    return DecisionInput(
        rules=rules,
        catalogue=catalogue.id,
        health=health,
        policy=chance.choice([None, None, "policy_cheap", "policy_scale"]),
        as_of=chance.choice(DAYS),
        tokens=tokens(chance),
        needs=int(chance.choice(HARD if chance.random() < 0.2 else EASY)),
        goal=chance.choice(goals),
        strategy=chance.choice(strategies),
        models=chance.choice([None] * 5 + [tuple(chance.sample(ids, chance.randint(1, 6)))]),
        fallback=chance.choice([None, None, None, (), tuple(chance.sample(ids, 3))]),
        max_retries=chance.choice([1, 1, 0, 5]),
        max_output_tokens=chance.choice([None, None, round(10 ** chance.uniform(0, 4.7))]),
        default_output_cap=chance.choice([4_096, 4_096, 1_000]),
        budget_nanos=chance.choice([None, None, round(10 ** chance.uniform(4.5, 9.5))]),
        budget_tokens=chance.choice([None] * 6 + [round(10 ** chance.uniform(3, 5.5))]),
        timeout_ms=chance.choice([60_000, 60_000, 2_000, 8_000, 20_000]),
        regions=() if len(ids) > 100 else chance.choice([(), (), (), ("eu",), ("us", "eu"), ("mars",)]),
        weights=chance.choice([None, None, None, (25, 25, 25, 25), (0, 1, 2, 97), (40, 30, 20, 10)]),
        min_quality=chance.choice([None] * 6 + [chance.randint(0, 900_000)]),
        max_latency_ms=chance.choice([None] * 6 + [chance.randint(2_000, 60_000)]),
        quality=chance.choices([None, tuple(chance.randint(0, 1_000) * 1_000 for _ in ids)], [9, 1])[0],
        assignment=chance.choice(["", "", "user-7"]),
    )


def at_the_edge(router: Router, chance: Random, given: DecisionInput) -> DecisionInput:
    """The input with a budget that one of the models just about fits, or just not."""
    refusal = settled(router, replace(given, budget_nanos=0)).get("refusal")
    if refusal is None:
        return given
    costs = [each["estimated_cost_usd"] for each in refusal["detail"]["rejected_candidates"]]
    nanos = [round(cost * 1e9) for cost in costs if cost]
    return replace(given, budget_nanos=chance.choice(nanos) + chance.choice([-1, 0, 0, 1])) if nanos else given


def settled(router: Router, given: DecisionInput) -> dict[str, Any]:
    """The case of an input; where its bounds leave the matter open, of the input with counts, as a Router would."""
    try:
        said = outcome(router, given)
    except Exception as error:
        if isinstance(error, RouterError) or given.tokens.counted:
            raise
        bounds = given.tokens
        counts = {"o200k": bounds.low + bounds.low // 6, "cl100k": bounds.low + bounds.low // 5}
        given = replace(given, tokens=replace(bounds, **counts, counted=True))
        said = outcome(router, given)
    return {"input": msgspec.to_builtins(given), **said}


def compressed(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, 9, mtime=0))
    print(f"{path}: {path.stat().st_size} bytes, {len(content)} unpacked")


async def main() -> None:
    """Draw, decide, check that nothing is missing, and write."""
    chance = Random(SEED)
    rules = Router.sandbox().decide("Hello").input.rules
    known = catalogues(chance)
    seen = {name: healths(chance, name, [m.id for m in known[name].models]) for name in known}
    policies = [
        PolicySnapshot("policy_cheap", "cheap@2026-11-22", POLICIES[0], models=("north/large", "north/small")),
        PolicySnapshot("policy_scale", "own scale@2026-11-22.2", POLICIES[1]),
    ]
    snapshots: list[Snapshot] = [*known.values(), *(each for some in seen.values() for each in some), *policies]
    cases = []
    async with await opened(snapshots) as router:
        for name, share in SHARES.items():
            for _ in range(share):
                health = chance.choices(seen[name], [4, 4, 3, 1])[0]
                given = drawn(chance, known[name], health.id, rules)
                given = at_the_edge(router, chance, given) if chance.random() < 0.25 else given
                cases.append(settled(router, given))
    chance.shuffle(cases)
    check_complete(cases)
    compressed(SNAPSHOTS, msgspec.json.encode(snapshots))
    compressed(CASES, b"".join(json.dumps(case, separators=(",", ":")).encode() + b"\n" for case in cases))


def check_complete(cases: list[dict[str, Any]]) -> None:
    """Every reason, code and kind of plan is there."""
    plans = [case["plan"] for case in cases if "plan" in case]
    reasons = Counter(reason for plan in plans for reason in plan["rejected_counts"])
    reasons.update(each["reason"] for case in cases if "refusal" in case
                   for each in case["refusal"]["detail"]["rejected_candidates"])  # fmt: skip
    assert set(reasons) == set(Reason), set(Reason) - set(reasons)
    assert {plan["fallback_affordable"] for plan in plans} == {True, False}
    assert {plan["token_count"] for plan in plans} == {"bounds", "estimated", "exact"}


if __name__ == "__main__":
    anyio.run(main)
