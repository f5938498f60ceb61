"""Random model pools and inputs for property tests of the decision."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool

TODAY = "2026-11-21"

T = TypeVar("T")
FEATURES: tuple[wire.Feature, ...] = get_args(wire.Feature)

prices = st.sampled_from([0.0, 0.5, 2.0, 5_000.0]) | st.floats(0.01, 200).map(lambda usd: round(usd, 4))


@st.composite
def pricings(draw: st.DrawFn) -> wire.Pricing:
    """With tiers, and with prices for what is cached, written and thought, each now and then."""
    own = [draw(seldom(prices)) for _ in range(5)]
    tiers: tuple[wire.PriceTier, ...] = ()
    if draw(st.integers(0, 4)) == 0:
        tiers = (wire.PriceTier(draw(st.integers(100, 5_000)), draw(prices), draw(prices), own[0], own[1]),)
    return wire.Pricing(draw(prices), draw(prices), own[2], own[3], tiers=tiers, reasoning_usd=own[4])


@st.composite
def changes(draw: st.DrawFn) -> tuple[wire.PriceChange, ...] | None:
    """Prices that change around today, for one model in eight."""
    if draw(st.integers(0, 7)):
        return None
    days = draw(st.lists(st.sampled_from(["2026-11-20", TODAY, "2026-11-22", "2026-11-23"]), unique=True))
    return tuple(wire.PriceChange(day, draw(pricings())) for day in sorted(days))


@st.composite
def models(draw: st.DrawFn, name: int = 0) -> wire.Model:
    provider = draw(st.sampled_from(["alpha", "beta", "gamma"]))
    extra: list[tuple[wire.Modality, ...]] = [(), ("image",), ("tool",), ("image", "tool")]
    return wire.Model(
        id=f"{provider}/m{name:03}",
        provider=provider,
        context_window=draw(st.sampled_from([7, 300, 4_096, 32_768, 128_000, 1_000_000])),
        modalities=("text", *draw(st.sampled_from(extra))),
        pricing_per_1m=draw(st.none() | pricings() | pricings() | pricings()),
        price_changes=draw(changes()),
        availability=wire.Availability(
            draw(st.sampled_from(["available"] * 7 + ["unavailable"])),
            draw(st.sampled_from([(), ("us",), ("us", "eu")])),
        ),
        deprecated_at=draw(st.sampled_from([None] * 7 + ["2026-11-20", "2026-11-21", "2026-11-22"])),
        max_output_tokens=draw(st.sampled_from([None, 100, 1_000, 8_192])),
        structured_output=draw(st.booleans()),
        reasoning=draw(st.booleans()),
        unsupported=draw(seldom(st.lists(st.sampled_from(FEATURES), unique=True).map(tuple))),
        tokenizer=draw(st.sampled_from([None, "o200k_base", "cl100k_base"])),
        quality=draw(st.sampled_from([0.5, 0.9]) | st.floats(0, 1)),
        ttft_s=draw(st.sampled_from([0.25, 0.5, 1.0, 4.0, 16.0, 64.0])),
        tokens_per_s=draw(st.sampled_from([25.0, 50.0, 100.0, 400.0, 1600.0])),
        free_tier=draw(st.integers(0, 9)) == 9,
        disabled=draw(st.integers(0, 9)) == 9,
    )


def consistent(needs: int) -> int:
    """No address of an image without images, no demand for a tool without tools, JSON of one kind at most."""
    needs &= ~(int(wire.Need.JSON_SCHEMA) if needs & wire.Need.JSON_OBJECT else 0)
    needs &= ~(0 if needs & wire.Need.JSON else int(wire.Need.JSON_OBJECT | wire.Need.JSON_SCHEMA))
    needs &= ~(0 if needs & wire.Need.IMAGE else int(wire.Need.IMAGE_URL))
    return needs & ~(0 if needs & wire.Need.TOOLS else int(wire.Need.TOOL_CHOICE))


@st.composite
def pools(draw: st.DrawFn, least: int = 1, most: int = 12) -> list[wire.Model]:
    """Some models are twins of earlier ones in all but a trifle: so there are ties, and those that are almost one."""
    pool: list[wire.Model] = []
    for name in range(draw(st.integers(least, most))):
        alike = bool(pool) and draw(st.booleans())
        pool.append(draw(twins(draw(st.sampled_from(pool)), name) if alike else models(name)))
    return pool


@st.composite
def twins(draw: st.DrawFn, model: wire.Model, name: int) -> wire.Model:
    quality, ttft_s = model.quality or 0.0, model.ttft_s or 0.0
    trifles: list[dict[str, Any]] = [
        {},
        {"quality": min(1.0, quality + 0.000_002)},
        {"ttft_s": ttft_s + 0.001},
        {"pricing_per_1m": None},
        {"pricing_per_1m": draw(pricings())},
    ]
    return replace(model, id=f"{model.provider}/m{name:03}", **draw(st.sampled_from(trifles)))


@st.composite
def healths(draw: st.DrawFn, pool: list[wire.Model]) -> dict[str, wire.ModelHealth]:
    seen = draw(st.lists(st.sampled_from(pool), unique_by=lambda m: m.id, max_size=4))
    return {
        model.id: wire.ModelHealth(
            stability=draw(st.sampled_from([100, 300, 900]) | st.integers(0, 1000)),
            ttft_ms=draw(st.none() | st.integers(50, 100_000)),
            us_per_token=draw(st.none() | st.integers(100, 50_000)),
            output_tokens=draw(st.none() | st.integers(1, 20_000)),
            open=draw(st.integers(0, 5)) == 5,
            probe_at_ms=draw(st.integers(0, 10_000)),
        )
        for model in seen
    }


def seldom(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """None four times out of five."""
    nothing: st.SearchStrategy[T | None] = st.none()
    return st.one_of(nothing, nothing, nothing, nothing, strategy)


IMAGES = st.builds(
    wire.Images,
    st.sampled_from([0, 1, 512, 4_000]),
    st.sampled_from([1, 300, 9_000]),
    st.sampled_from(["auto", "low", "high"]),
    st.integers(1, 3),
)


@st.composite
def counts(draw: st.DrawFn) -> wire.TokenBounds:
    """What a count may have found: with and without images, in texts of any language."""
    low = draw(st.sampled_from([1, 10, 100, 1_000, 20_000]))
    high = low + draw(st.sampled_from([0, 10, 1_000, 20_000]))
    o200k, cl100k = draw(st.just((None, None)) | st.tuples(st.integers(low, high), st.integers(low, high)))
    single = draw(st.integers(0, high))
    images = draw(seldom(st.lists(IMAGES, min_size=1, max_size=2).map(tuple))) or ()
    return wire.TokenBounds(low, high, (low + high) // 2, o200k, cl100k, counted=True, single=single, images=images)


@st.composite
def inputs(draw: st.DrawFn, pool: list[wire.Model]) -> wire.DecisionInput:
    ids = [model.id for model in pool]
    chosen: st.SearchStrategy[tuple[str, ...]] = st.lists(st.sampled_from(ids), min_size=1, unique=True).map(tuple)
    region_sets: list[tuple[str, ...]] = [("us",), ("eu",), ("us", "eu")]
    regions, prefer = draw(seldom(st.sampled_from(region_sets))), draw(seldom(chosen))
    needs, tokens = consistent(draw(seldom(st.integers(1, 2047))) or 0), draw(counts())
    return wire.DecisionInput(
        rules=RULES,
        catalogue="c",
        health="h",
        as_of=TODAY,
        tokens=tokens if needs & wire.Need.IMAGE else replace(tokens, images=()),
        needs=needs,
        goal=draw(st.sampled_from(["cost", "quality", "stability"])),
        strategy=draw(st.sampled_from(["balanced", "cost-optimized", "quality-first", "latency-optimized"])),
        models=draw(seldom(chosen)),
        fallback=draw(seldom(chosen)),
        max_output_tokens=draw(seldom(st.integers(1, 10_000))),
        budget_nanos=draw(seldom(st.integers(0, 2_000_000_000))),
        budget_tokens=draw(seldom(st.integers(1, 60_000))),
        timeout_ms=draw(st.sampled_from([1_000, 10_000, 600_000])),
        regions=regions or (),
        weights=draw(seldom(shares())),
        min_quality=draw(seldom(st.integers(0, 1_000_000))),
        max_latency_ms=draw(seldom(st.integers(1, 100_000))),
        prefer=prefer or (),
        workload=draw(seldom(st.tuples(st.integers(-12, 12), st.integers(-12, 12)))),
        quality=draw(seldom(st.lists(st.integers(0, 1_000_000), min_size=len(pool), max_size=len(pool)).map(tuple))),
    )


@st.composite
def shares(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Weights of a policy."""
    first, second, third = sorted(draw(st.tuples(*[st.integers(0, 100)] * 3)))
    return first, second - first, third - second, 100 - third


def board(pool: list[wire.Model], health: dict[str, wire.ModelHealth] | None = None) -> Board:
    return Boards(Pool(snapshot(pool, TODAY), TODAY)).of(health_snapshot(health or {}))
