from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.catalogue.prices import (
    Price,
    affordable_output,
    batch_prices_of,
    call_nanos,
    dearest_at,
    prices_of,
    range_nanos,
    usage_nanos,
)
from routewright._core.money import MOST_TOKENS, MOST_USD_PER_1M, budget_nanos, price_picos
from routewright.wire import Model, PriceTier, Pricing, Usage
from routewright.wire.money import usd_short, usd_text
from tests.tables import table


def test_budgets_round_down_and_prices_up() -> None:
    assert budget_nanos(0.29) == 290_000_000
    assert budget_nanos(0.0000000019) == 1
    assert budget_nanos(np.float64(0.29)) == 290_000_000
    assert price_picos(0.0375) == 37_500
    assert price_picos(0.0000001) == 1


def test_amounts_are_written_with_every_digit() -> None:
    assert usd_text(2_100_000) == "0.0021"
    assert usd_text(1) == "0.000000001"
    assert usd_text(3_000_000_000) == "3"
    assert usd_short(0.002149) == "$0.0021"
    assert usd_short(0.000069) == "$0.000069"
    assert usd_short(0) == "$0"
    assert usd_short(1234.5) == "$1,234.50"


@table("traps", [[], list(decimal.Context().traps)])
def test_amounts_do_not_depend_on_the_applications_decimal_context(traps: list[type[decimal.DecimalException]]) -> None:
    hostile = decimal.Context(prec=1, rounding=decimal.ROUND_UP, Emin=0, Emax=0, clamp=1, traps=traps)
    with decimal.localcontext(hostile):
        assert budget_nanos(0.123456789) == 123_456_789
        assert budget_nanos(1e300) == 10**309
        assert budget_nanos(5e-324) == 0
        assert price_picos(0.123456789) == 123_457
        assert price_picos(5e-324) == 1
        assert usd_text(1_234_567_891) == "1.234567891"
        assert usd_short(0.0000123) == "$0.000012"
        assert usd_short(1234.5) == "$1,234.50"


@given(st.integers(0, 10**30))
def test_an_amount_is_written_to_the_last_digit(amount: int) -> None:
    assert Decimal(usd_text(amount)).as_integer_ratio() == Fraction(amount, 10**9).as_integer_ratio()


TIERED = Model(
    id="v/m", pricing_per_1m=Pricing(1.0, 4.0, 0.1, tiers=(PriceTier(200, 2.0, 6.0), PriceTier(1_000, 0.5, 1.0)))
)


def test_the_worst_price_up_to_a_length_considers_all_tiers() -> None:
    assert dearest_at(prices_of(TIERED.pricing_per_1m), 5_000) == Price(
        -1, 2_000_000, 6_000_000, 2_000_000, 2_000_000, 6_000_000
    )


def test_the_worst_price_covers_cache_writes_in_every_tier() -> None:
    listed = Pricing(1.0, 4.0, 0.1, cache_write_usd=1.25, tiers=(PriceTier(200, 2.0, 6.0, 0.2),))
    prices = prices_of(listed)
    assert dearest_at(prices, 200).input == 1_250_000
    assert dearest_at(prices, 201).input == 2_500_000
    free = prices_of(Pricing(0.0, 4.0, cache_write_usd=1.25))
    assert dearest_at(free, 1).input == 1_250_000


def test_an_unknown_price_costs_nothing() -> None:
    assert usage_nanos((), Usage(100, 10)) == 0


@given(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 10**6), st.integers(0, 10**12))
def test_affordable_output_is_the_most_that_fits(input_price: int, output_price: int, tokens: int, room: int) -> None:
    price = Price(-1, input_price, output_price, input_price, input_price, output_price)
    most = affordable_output(price, tokens, room)
    if most < 0:
        assert call_nanos(price, tokens, 0) > room
    elif output_price:
        assert call_nanos(price, tokens, most) <= room
        assert tokens * input_price + (most + 1) * output_price > room * 1_000


_PRICE = st.floats(0, MOST_USD_PER_1M) | st.sampled_from([0.0, 1e-6, 5e-324, float(MOST_USD_PER_1M)])
_MAYBE = st.none() | _PRICE
_COUNT = st.integers(0, MOST_TOKENS) | st.sampled_from([0, 1, MOST_TOKENS])
_TIER = st.builds(PriceTier, st.integers(1, MOST_TOKENS), _PRICE, _PRICE, _MAYBE, _MAYBE)
_PRICING = st.builds(
    Pricing, _PRICE, _PRICE, _MAYBE, _MAYBE, _PRICE, _PRICE,
    tiers=st.lists(_TIER, max_size=2).map(tuple), reasoning_usd=_MAYBE,
)  # fmt: skip


@given(_PRICING, _COUNT, _COUNT, st.data())
def test_any_cost_fits_64_bits_thousands_of_times(
    pricing: Pricing, given_tokens: int, made: int, data: st.DataObject
) -> None:
    cached = data.draw(st.integers(0, given_tokens))
    usage = Usage(given_tokens, made, cached, data.draw(st.integers(0, made)), given_tokens - cached)
    for prices in (prices_of(pricing), batch_prices_of(pricing)):
        assert 0 <= usage_nanos(prices, usage) * 4_000 < 2**63
        assert range_nanos(prices, (0, given_tokens), (0, made))[1] * 4_000 < 2**63
