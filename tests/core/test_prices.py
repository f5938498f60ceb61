"""Prices by date: which apply, how much a budget must reserve, and which prices are invalid."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Catalogue, Model, Pricing, Usage, ValidationFailed
from routewright._core.catalogue.models import snapshot
from routewright._core.catalogue.prices import (
    Price,
    batch_prices_of,
    call_nanos,
    cheapest_within,
    prices_of,
    pricing_on,
    range_nanos,
    usage_nanos,
)
from routewright._core.routing.pool import Pool
from routewright.wire import PriceChange, PriceTier
from tests.core.pools import pricings
from tests.tables import table

CHANGES = (PriceChange("2026-12-01", Pricing(2.0, 8.0)), PriceChange("2027-01-01", Pricing(0.5, 2.0)))
DATED = Model(id="v/m", pricing_per_1m=Pricing(1.0, 4.0), price_changes=CHANGES)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    given, made = draw(st.integers(0, 20_000)), draw(st.integers(0, 20_000))
    cached = draw(st.integers(0, given))
    return Usage(given, made, cached, draw(st.integers(0, made)), draw(st.integers(0, given - cached)))


def pool_on(day: str, *models: Model) -> Pool:
    return Pool(snapshot(models, "2026-11-20"), day)


@table(
    ("day", "input_usd"),
    [("2026-11-30", 1.0), ("2026-12-01", 2.0), ("2026-12-31", 2.0), ("2027-01-01", 0.5), ("2030-01-01", 0.5)],
)
def test_the_latest_change_in_effect_applies(day: str, input_usd: float) -> None:
    found = pricing_on(DATED, day)
    assert found is not None
    assert found.input_usd == input_usd
    assert pool_on(day, DATED).models[0].pricing_per_1m == found


def test_a_model_without_a_price_gets_one_with_its_first_change() -> None:
    model = replace(DATED, pricing_per_1m=None)
    assert not pool_on("2026-11-30", model).priced[0]
    assert pool_on("2026-12-01", model).priced[0]


def test_scores_use_prices_of_the_day_and_budgets_also_of_the_next() -> None:
    eve, day = pool_on("2026-11-30", DATED), pool_on("2026-12-01", DATED)
    assert (eve.base.input[0], day.base.input[0]) == (1_000_000, 2_000_000)
    assert eve.dearest(0, 100) == day.dearest(0, 100)
    assert (eve.worst.input[0], pool_on("2026-11-29", DATED).worst.input[0]) == (2_000_000, 1_000_000)


def test_a_budget_covers_a_tier_that_starts_tomorrow() -> None:
    tomorrow = PriceChange("2026-12-01", Pricing(1.0, 4.0, tiers=(PriceTier(1_000, 9.0, 9.0),)))
    pool = pool_on("2026-11-30", replace(DATED, price_changes=(tomorrow,)))
    assert pool.dearest(0, 1_001).input == 9_000_000
    assert pool.dearest(0, 1_000).input == 1_000_000
    assert (pool.tiered.tolist(), pool.first_tier.tolist()) == ([0], [1_000])


def test_an_attempt_has_the_price_of_its_day() -> None:
    pool = pool_on("2026-11-30", DATED, Model(id="v/other", pricing_per_1m=Pricing(7.0, 7.0)))
    assert [pool.prices_on(0, day)[0].input for day in (None, "2026-11-30", "2026-12-01", "2027-02-01")] == [
        1_000_000, 1_000_000, 2_000_000, 500_000,
    ]  # fmt: skip
    assert pool.prices_on(1, "2030-01-01") == pool.prices[1]


def test_a_pool_without_price_changes_is_valid_every_day() -> None:
    assert pool_on("2026-11-30", replace(DATED, price_changes=None)).holds("2040-01-01")
    assert not pool_on("2026-11-30", DATED).holds("2026-11-29")


@given(pricings(), pricings(), usages(), st.integers(0, 2))
def test_a_reservation_covers_every_call_of_the_day_and_the_next(
    now: Pricing, then: Pricing, usage: Usage, days: int
) -> None:
    """``days`` until the change."""
    starts = (date(2026, 11, 30) + timedelta(days=days)).isoformat()
    pool = pool_on("2026-11-30", Model(id="v/m", pricing_per_1m=now, price_changes=(PriceChange(starts, then),)))
    held = call_nanos(pool.dearest(0, usage.input), usage.input, usage.output)
    for day in ("2026-11-30", "2026-12-01"):
        assert usage_nanos(pool.prices_on(0, day), usage) <= held


@given(pricings(), usages(), st.tuples(*[st.integers(0, 20_000)] * 4))
def test_a_cost_range_covers_every_usage_within_bounds(listed: Pricing, usage: Usage, off: tuple[int, ...]) -> None:
    inputs = max(0, usage.input - off[0]), usage.input + off[1]
    outputs = max(0, usage.output - off[2]), usage.output + off[3]
    low, high = range_nanos(prices_of(listed), inputs, outputs)
    assert low <= usage_nanos(prices_of(listed), usage) <= high


def test_the_lowest_price_ignores_unreachable_tiers() -> None:
    prices = prices_of(Pricing(1.0, 4.0, tiers=(PriceTier(100, 2.0, 8.0), PriceTier(1_000, 0.1, 0.1))))
    assert [cheapest_within(prices, *ends).input for ends in ((0, 0), (50, 150), (101, 1_000), (101, 1_001))] == [
        1_000_000, 1_000_000, 2_000_000, 100_000,
    ]  # fmt: skip


def test_a_cost_range_covers_output_and_reasoning_prices() -> None:
    assert range_nanos(prices_of(Pricing(1.0, 4.0, reasoning_usd=1.0)), (0, 0), (10, 10)) == (10_000, 40_000)


def test_a_price_in_proportion_is_rounded_up() -> None:
    tiered, _ = prices_of(Pricing(3.0, 8.0, 1.0, tiers=(PriceTier(100, 1.0, 8.0),)))
    assert tiered.cached == 333_334


def test_batch_prices_scale_with_the_listed_prices() -> None:
    listed = Pricing(2.0, 8.0, 0.2, 2.5, 1.0, 2.0, (PriceTier(100, 3.0, 12.0),), 4.0)
    assert batch_prices_of(listed) == (
        Price(100, 1_500_000, 3_000_000, 150_000, 1_875_000, 1_500_000),
        Price(-1, 1_000_000, 2_000_000, 100_000, 1_250_000, 1_000_000),
    )
    assert batch_prices_of(replace(listed, batch_output_usd=None)) == ()
    assert batch_prices_of(None) == ()


@table(
    ("changes", "said"),
    [
        ([PriceChange("1.12.2026", Pricing(1.0, 1.0))], r"\[0\].starts: must be a date, got '1.12.2026'; write 'YYYY"),
        ([PriceChange("2026-12-01T00:00:00Z", Pricing(1.0, 1.0))], r"\[0\].starts: must be a date"),
        ([CHANGES[1], CHANGES[0]], r"\[1\].starts: must come after 2027-01-01, got '2026-12-01'; sort the changes"),
        (
            [PriceChange("2026-12-01", Pricing(1.0, 1.0, tiers=(PriceTier(5, 1.0, 1.0, 1.0, 1e9),)))],
            r"\[0\].pricing_per_1m.tiers\[0\].cache_write_usd: must be a number from 0 to 10000",
        ),
    ],
)
def test_invalid_price_changes_are_refused(changes: list[PriceChange], said: str) -> None:
    with pytest.raises(ValidationFailed, match=rf"models\['v/m'\].price_changes.*{said}"):
        Catalogue([replace(DATED, price_changes=tuple(changes))])


def test_an_own_price_replaces_announced_changes() -> None:
    base = Catalogue([DATED])
    (own,) = base.overlaid([{"id": "v/m", "pricing_per_1m": Pricing(3.0, 3.0)}]).models
    assert own.price_changes is None
    (both,) = base.overlaid([{"id": "v/m", "pricing_per_1m": Pricing(3.0, 3.0), "price_changes": CHANGES[1:]}]).models
    assert both.price_changes == CHANGES[1:]
    (kept,) = base.overlaid([{"id": "v/m", "quality": 0.5}]).models
    assert kept.price_changes == CHANGES


FILE = """
as_of = 2026-11-01

[[models]]
id = "v/m"
prices = { input_usd = 1, output_usd = 4, reasoning_usd = 2, batch_input_usd = 0.5, batch_output_usd = 2 }

[[models.price_changes]]
starts = 2026-12-01
input_usd = 2
output_usd = 8
cache_write_usd = 2.5

[[models.price_changes.tiers]]
above_tokens = 200_000
input_usd = 4
output_usd = 16
cached_input_usd = 0.4
cache_write_usd = 5

[[models.price_changes]]
starts = "2027-01-01"
input_usd = 0.5
output_usd = 2

[prices."openai/gpt-4.1"]
input_usd = 1
output_usd = 2
tiers = [{ above_tokens = 10, input_usd = 2, output_usd = 4 }]
"""


def test_a_file_can_set_every_price_field(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(FILE)
    catalogue = Catalogue.load(path)
    models = {model.id: model for model in catalogue.models}
    assert catalogue.as_of == "2026-11-01"
    assert models["v/m"].pricing_per_1m == Pricing(1.0, 4.0, None, None, 0.5, 2.0, (), 2.0)
    tier = PriceTier(200_000, 4.0, 16.0, 0.4, 5.0)
    assert models["v/m"].price_changes == (
        PriceChange("2026-12-01", Pricing(2.0, 8.0, cache_write_usd=2.5, tiers=(tier,))),
        PriceChange("2027-01-01", Pricing(0.5, 2.0)),
    )
    assert models["openai/gpt-4.1"].pricing_per_1m == Pricing(1.0, 2.0, tiers=(PriceTier(10, 2.0, 4.0),))


def test_the_date_of_prices_is_the_files_or_the_catalogues() -> None:
    bundled = Catalogue()
    assert bundled.overlaid([]).as_of == bundled.as_of
    assert bundled.overlaid([], as_of="2027-01-01").as_of == "2027-01-01"
    assert bundled.overlaid([], as_of="2027-01-01").overlaid([]).as_of == "2027-01-01"
    with pytest.raises(ValidationFailed, match=r"^as_of: must be a date"):
        bundled.overlaid([], as_of="soon")


def test_the_age_of_undated_prices_is_unknown() -> None:
    day = (date.fromisoformat(Catalogue().as_of) + timedelta(days=7)).isoformat()
    assert Catalogue().age_days(day) == Catalogue().overlaid([{"id": "a/x"}]).age_days(day) == 7
    assert Catalogue([DATED], as_of="2026-01-01").age_days("2026-02-01") == 31
    assert Catalogue([DATED]).age_days(day) is None
    assert Catalogue([DATED]).overlaid([{"id": "a/x"}]).age_days(day) is None
