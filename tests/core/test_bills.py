"""Exact costs: hand-computed figures from price pages, and the bundled prices against independent arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import pytest
from benchmarks.merge_catalogue import MERGED, PRICE_SOURCES, SOURCES, merged, price_sources
from hypothesis import example, given
from hypothesis import strategies as st

from routewright import Catalogue, Model, Pricing, Usage, ValidationFailed
from routewright._core.catalogue.prices import prices_of, usage_nanos
from routewright.wire import Bill, PriceChange, PriceTier
from tests.tables import table

ON = "2026-11-21"


class Case(NamedTuple):
    """A call, and what the price page makes of it. Prices are stated here, so that the table stays true."""

    what: str
    prices: Pricing
    usage: Usage
    dollars: str
    batch: bool = False


# openai.com/api/pricing, and the guide to prompt caching: a write costs 1.25 times the input from GPT-5.6 on
GPT_5_4 = Pricing(2.5, 15.0, 0.25, None, 1.25, 7.5, (PriceTier(272_000, 5.0, 22.5),))
GPT_5_4_MINI = Pricing(0.75, 4.5, 0.075)
GPT_5_5 = Pricing(5.0, 30.0, 0.5)
GPT_5_6 = Pricing(4.0, 20.0, 0.4, 5.0)
O3 = Pricing(2.0, 8.0, 0.5)
# platform.claude.com/docs/en/about-claude/pricing: writes 1.25 times the input (2 times for an hour), reads a tenth
SONNET = Pricing(3.0, 15.0, 0.3, 3.75, 1.5, 7.5, (PriceTier(200_000, 6.0, 22.5),))
SONNET_FLAT = Pricing(3.0, 15.0, 0.3, 3.75)
SONNET_HOUR = Pricing(3.0, 15.0, 0.3, 6.0)
HAIKU_3 = Pricing(0.25, 1.25, 0.03, 0.3)
HAIKU_5_5 = Pricing(0.1, 0.5, 0.01, 0.125, tiers=(PriceTier(100_000, 0.5, 2.5),))
OPUS_4_6 = Pricing(5.0, 25.0, 0.5, 6.25)
# ai.google.dev/gemini-api/docs/pricing
GEMINI_PRO = Pricing(1.25, 10.0, 0.125, None, 0.625, 5.0, (PriceTier(200_000, 2.5, 15.0, 0.25),))
GEMINI_FLASH = Pricing(0.3, 2.5, 0.03)
# api-docs.deepseek.com/quick_start/pricing: a hit and a miss of its cache
V3_1 = Pricing(0.56, 1.68, 0.07)
R1 = Pricing(0.55, 2.19, 0.14)
V4_FLASH = Pricing(0.14, 0.28, 0.0028)
# docs.x.ai/docs/models
GROK_3 = Pricing(3.0, 15.0, 0.75)
GROK_3_MINI = Pricing(0.3, 0.5, 0.075)
GROK_4_1_FAST = Pricing(0.2, 0.5, 0.05)
GROK_4_3 = Pricing(1.25, 2.5, 0.2, tiers=(PriceTier(200_000, 2.5, 5.0),))
# alibabacloud.com/help/en/model-studio: by size of the input; an explicit cache is written at 125 %, read at 10 %
QWEN_CODER = Pricing(
    1.0, 5.0, 0.1, 1.25,
    tiers=(PriceTier(32_000, 1.8, 9.0), PriceTier(128_000, 3.0, 15.0), PriceTier(256_000, 6.0, 60.0)),
)  # fmt: skip
# mistral.ai/pricing
MISTRAL_LARGE = Pricing(0.5, 1.5)
MISTRAL_MEDIUM = Pricing(0.4, 2.0, batch_input_usd=0.2, batch_output_usd=1.0)
MAGISTRAL = Pricing(2.0, 5.0)
# docs.perplexity.ai/getting-started/pricing: thought has a price of its own
DEEP_RESEARCH = Pricing(2.0, 8.0, reasoning_usd=3.0)

TABLE = (
    Case("OpenAI: some of the input cached", GPT_5_4, Usage(10_000, 2_000, 4_000), "0.046"),
    Case("OpenAI: up to the long tier", GPT_5_4, Usage(272_000, 1_000), "0.695"),
    Case("OpenAI: above it, all of the input and output is dearer", GPT_5_4, Usage(300_000, 10_000), "1.725"),
    Case("OpenAI: above it, cached input too", GPT_5_4, Usage(300_000, 10_000, 100_000), "1.275"),
    Case("OpenAI: batch is half", GPT_5_4, Usage(10_000, 2_000), "0.0275", batch=True),
    Case("OpenAI: batch above the long tier", GPT_5_4, Usage(300_000, 10_000), "0.8625", batch=True),
    Case("OpenAI: a million each way", GPT_5_4_MINI, Usage(1_000_000, 1_000_000), "5.25"),
    Case("OpenAI: mostly cached", GPT_5_5, Usage(20_000, 3_000, 15_000), "0.1225"),
    Case("OpenAI: 2,000 read, 400 written, 200 neither", GPT_5_6, Usage(2_600, 500, 2_000, 0, 400), "0.0136"),
    Case("OpenAI: thought is output", O3, Usage(1_200, 5_000, reasoning=4_500), "0.0424"),
    # four sums that were published with their tokens (wandb.ai, compare-claude-caching): $2.77, $0.84, $0.23, $0.07
    Case("Anthropic: six books, uncached", SONNET_FLAT, Usage(908_434, 3_190), "2.773152"),
    Case("Anthropic: written once, read five times", SONNET_FLAT,
         Usage(3_699 + 753_060 + 150_612, 2_725, 753_060, 0, 150_612), "0.842685"),
    Case("Anthropic: the smaller one, uncached", HAIKU_3, Usage(907_452, 2_158), "0.2295605"),
    Case("Anthropic: the smaller one, cached", HAIKU_3,
         Usage(2_693 + 753_060 + 150_612, 1_787, 753_060, 0, 150_612), "0.0706824"),
    Case("Anthropic: its page's session", OPUS_4_6, Usage(50_000, 15_000), "0.625"),
    Case("Anthropic: the same, 40,000 of it cached", OPUS_4_6, Usage(50_000, 15_000, 40_000), "0.445"),
    Case("Anthropic: kept for an hour", SONNET_HOUR, Usage(2_000, 0, written=2_000), "0.012"),
    Case("Anthropic: at 200k", SONNET, Usage(200_000, 1_000), "0.615"),
    Case("Anthropic: above 200k, reads and writes too", SONNET, Usage(250_000, 5_000, 100_000, 0, 50_000), "1.1475"),
    Case("Anthropic: batch", SONNET, Usage(100_000, 10_000), "0.225", batch=True),
    Case("Anthropic: batch and cache", SONNET, Usage(100_000, 10_000, 60_000, 0, 20_000), "0.1515", batch=True),
    Case("Anthropic: above 100k, a tenth for reads", HAIKU_5_5, Usage(150_000, 1_000, 100_000), "0.0325"),
    Case("Google: a document and its summary", GEMINI_PRO, Usage(50_000, 2_000), "0.0825"),
    Case("Google: the same, fast", GEMINI_FLASH, Usage(50_000, 2_000), "0.02"),
    Case("Google: 10,000 cached, 10,000 thought", GEMINI_PRO, Usage(11_500, 11_000, 10_000, 10_000), "0.113125"),
    Case("Google: above 200k", GEMINI_PRO, Usage(250_000, 10_000), "0.775"),
    Case("Google: above 200k, cached", GEMINI_PRO, Usage(250_000, 10_000, 200_000), "0.325"),
    Case("Google: batch", GEMINI_PRO, Usage(100_000, 10_000), "0.1125", batch=True),
    Case("DeepSeek: hits and misses", V3_1, Usage(1_000_000, 200_000, 600_000), "0.602"),
    Case("DeepSeek: thought", R1, Usage(10_000, 8_000, 2_000, 7_000), "0.0222"),
    Case("DeepSeek: nearly all hits", V4_FLASH, Usage(100_000_000, 0, 95_000_000), "0.966"),
    Case("xAI: cached", GROK_3, Usage(100_000, 5_000, 80_000), "0.195"),
    Case("xAI: thought", GROK_3_MINI, Usage(10_000, 3_000, reasoning=2_600), "0.0045"),
    Case("xAI: its page's usage", GROK_4_1_FAST, Usage(125, 48, 98), "0.0000343"),
    Case("xAI: above 200k", GROK_4_3, Usage(300_000, 2_000), "0.76"),
    Case("xAI: above 200k, cached", GROK_4_3, Usage(300_000, 2_000, 100_000), "0.55"),
    Case("Alibaba: first band", QWEN_CODER, Usage(20_000, 1_000), "0.025"),
    Case("Alibaba: second band", QWEN_CODER, Usage(100_000, 1_000), "0.189"),
    Case("Alibaba: third band", QWEN_CODER, Usage(200_000, 1_000), "0.615"),
    Case("Alibaba: fourth band", QWEN_CODER, Usage(300_000, 1_000), "1.86"),
    Case("Alibaba: an explicit cache", QWEN_CODER, Usage(10_000, 500, 6_000, 0, 2_000), "0.0076"),
    Case("Mistral: large", MISTRAL_LARGE, Usage(100_000, 20_000), "0.08"),
    Case("Mistral: batch", MISTRAL_MEDIUM, Usage(1_000_000, 100_000), "0.3", batch=True),
    Case("Mistral: thought", MAGISTRAL, Usage(2_000, 10_000, reasoning=9_000), "0.054"),
    Case("Perplexity: thought is cheaper than the answer", DEEP_RESEARCH,
         Usage(20_000, 80_000, reasoning=70_000), "0.33"),
)  # fmt: skip


def bill(prices: Pricing, usage: Usage, *, batch: bool = False) -> Bill:
    return Catalogue([Model(id="v/m", pricing_per_1m=prices)]).bill("v/m", usage, on=ON, batch=batch)


@table("case", TABLE, ids=lambda case: case.what)
def test_a_bill_matches_the_price_page(case: Case) -> None:
    made = bill(case.prices, case.usage, batch=case.batch)
    assert Fraction(made.total_nanos, 10**9) == Fraction(case.dollars)
    assert made.total_usd == float(case.dollars)
    assert sum(line.tokens for line in made.lines) == case.usage.input + case.usage.output
    assert sum(line.usd for line in made.lines) == pytest.approx(float(case.dollars))


def test_a_bill_lists_tokens_and_prices() -> None:
    made = bill(SONNET, Usage(250_000, 5_000, 100_000, 4_000, 50_000))
    assert (made.model, made.day, made.batch, made.above_tokens) == ("v/m", ON, False, 200_000)
    assert [(line.what, line.tokens, line.usd_per_1m, line.usd) for line in made.lines] == [
        ("input", 100_000, 6.0, 0.6),
        ("cached", 100_000, 0.6, 0.06),
        ("written", 50_000, 7.5, 0.375),
        ("output", 1_000, 22.5, 0.0225),
        ("reasoning", 4_000, 22.5, 0.09),
    ]


def test_a_bill_is_rounded_up_once() -> None:
    made = bill(Pricing(0.0005, 0.0003, 0.0001, exact=True), Usage(3, 1, 1))  # 1.0 + 0.1 + 0.3 nano-dollars
    assert made.total_nanos == 2


def test_a_bill_uses_the_prices_of_its_day() -> None:
    changes = (PriceChange("2026-12-01", Pricing(2.0, 4.0)), PriceChange("2027-01-01", Pricing(1.0, 2.0)))
    catalogue = Catalogue([Model(id="v/m", pricing_per_1m=Pricing(4.0, 8.0), price_changes=changes)])
    days: list[str | date] = ["2026-11-30", "2026-12-01", "2026-12-31", date(2027, 1, 1)]
    usage = Usage(1_000_000, 0)
    assert [catalogue.bill("v/m", usage, on=day).total_usd for day in days] == [4.0, 2.0, 2.0, 1.0]
    assert catalogue.bill("v/m", usage).day == catalogue.bill("v/m", usage, on=None).day != ""


def test_a_bill_accepts_an_alias() -> None:
    made = Catalogue(aliases={"fast": "openai/gpt-4.1"}).bill("fast", Usage(1_000, 100), on=ON)
    assert made.model == "openai/gpt-4.1"


@table(
    ("model", "usage", "how", "said"),
    [
        ("openai/gpt-4.1x", Usage(1, 1), {}, "model: unknown model 'openai/gpt-4.1x'; did you mean 'openai/gpt-4.1'"),
        ("v/none", Usage(1, 1), {}, "model: no price of 'v/none' is known on 2026-11-21; give it one in a catalogue"),
        ("v/m", Usage(1, 1), {"batch": True}, "batch: no batch price of 'v/m' is known on 2026-11-21; give it batch_i"),
        ("v/m", Usage(1, 1), {"on": "21.11.2026"}, "on: must be a date, got '21.11.2026'; write 'YYYY-MM-DD'"),
        ("v/m", Usage(1, 1, cached=2), {}, "usage: does not add up; 'input' includes 'cached' and 'written'"),
        ("v/m", Usage(1, 1, reasoning=2), {}, "usage: does not add up"),
        ("v/m", Usage(1, 1, written=-1), {}, "usage: does not add up"),
        ("v/m", 5, {}, "usage: must be "),
    ],
)
def test_an_impossible_bill_says_why(model: Any, usage: Any, how: dict[str, Any], said: str) -> None:
    catalogue = Catalogue().overlaid([{"id": "v/none"}, {"id": "v/m", "pricing_per_1m": Pricing(1.0, 2.0)}])
    with pytest.raises(ValidationFailed, match=f"^{said}"):
        catalogue.bill(model, usage, **({"on": ON} | how))


# The bundled prices again, from their sources, in fractions.

FILE = (SOURCES / "models_catalogue.json").read_text("utf-8")
RAW: list[dict[str, Any]] = json.loads(FILE, parse_float=Fraction)["models"]
CORRECTIONS = (SOURCES / "price_corrections.json").read_text("utf-8")
MENDED: dict[str, dict[str, Any]] = json.loads(CORRECTIONS, parse_float=Fraction)["pricing_per_1m"]
NEWS = json.loads((SOURCES / "announcements.json").read_text("utf-8"), parse_float=Fraction)
MENDED |= {price["model"]: price["pricing_per_1m"] for price in NEWS["prices"]}
MENDED |= {model["id"]: model["pricing_per_1m"] for model in NEWS["models"]}
RAW += NEWS["models"]
BUNDLED = Catalogue()


def test_the_bundled_catalogue_is_what_its_sources_say() -> None:
    assert MERGED.read_bytes() == merged(), "run python -m benchmarks.merge_catalogue"
    assert PRICE_SOURCES.read_bytes() == price_sources(), "run python -m benchmarks.merge_catalogue"


class Rates(NamedTuple):
    above: int
    input: Fraction
    output: Fraction
    cached: Fraction | None
    written: Fraction | None
    reasoning: Fraction | None = None


def rates_of(row: dict[str, Any]) -> Iterator[Rates]:
    if row["id"] not in MENDED:
        yield from listed_rates(row)
        return
    prices = MENDED[row["id"]]
    kinds = ("input_usd", "output_usd", "cached_input_usd", "cache_write_usd", "reasoning_usd")
    for tier in ({"above_tokens": -1, **prices}, *prices.get("tiers", ())):
        yield Rates(tier["above_tokens"], *(tier.get(kind) for kind in kinds))


def listed_rates(row: dict[str, Any]) -> Iterator[Rates]:
    bands = row["tiered_prices"] or []
    cached = row["cached_input_usd_per_1m"]
    if cached is None:
        cached = next((band.get("cache_read_input_token_cost") for band in bands if not band["range"][0]), None)
    yield Rates(-1, row["input_usd_per_1m"], row["output_usd_per_1m"], cached, row["cache_write_usd_per_1m"])
    long = row["long_context_prices"] or {}
    for above in {key.rpartition("_")[2] for key in long}:
        given, made = (long.get(f"{kind}_usd_above_{above}", row[f"{kind}_usd_per_1m"]) for kind in ("input", "output"))
        yield Rates(int(above[:-1]) * 1_000, given, made, None, None)
    for band in bands:
        if band["range"][0]:
            given, made = band["input_cost_per_token"], band["output_cost_per_token"]
            yield Rates(int(band["range"][0]), given, made, band.get("cache_read_input_token_cost"), None)


def batch_rates(row: dict[str, Any]) -> tuple[Any, Any]:
    if row["id"] in MENDED:
        return MENDED[row["id"]].get("batch_input_usd"), MENDED[row["id"]].get("batch_output_usd")
    return row["batch_input_usd_per_1m"], row["batch_output_usd_per_1m"]


def exact_usd(row: dict[str, Any], usage: Usage, *, batch: bool) -> Fraction:
    base, *_ = all_rates = list(rates_of(row))
    rates = max((each for each in all_rates if usage.input > each.above), key=lambda each: each.above)
    grown = Fraction(rates.input) / base.input if base.input else Fraction(1)
    cached = rates.cached if rates.cached is not None else (base.input if base.cached is None else base.cached) * grown
    written = rates.written
    if written is None:
        written = (base.input if base.written is None else base.written) * grown
    thought = (base.output if base.reasoning is None else base.reasoning) * Fraction(rates.output) / (base.output or 1)
    cut, cut_output = Fraction(1), Fraction(1)
    if batch:
        batch_input, batch_output = batch_rates(row)
        cut = Fraction(batch_input) / base.input if base.input else cut
        cut_output = Fraction(batch_output) / base.output if base.output else cut_output
    fresh = usage.input - usage.cached - usage.written
    given = fresh * rates.input + usage.cached * cached + usage.written * written
    made = (usage.output - usage.reasoning) * rates.output + usage.reasoning * thought
    return (given * cut + made * cut_output) / 10**6


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    given, made = draw(st.integers(0, 1_100_000)), draw(st.integers(0, 200_000))
    cached = draw(st.integers(0, given))
    return Usage(given, made, cached, draw(st.integers(0, made)), draw(st.integers(0, given - cached)))


@given(usages(), st.booleans())
@example(Usage(1_000_000, 100_000, 900_000, 90_000, 50_000), True)
def test_every_bundled_model_is_billed_at_its_listed_price(usage: Usage, batch: bool) -> None:
    assert len(RAW) == len(BUNDLED.models) == 169
    for row, model in zip(RAW, BUNDLED.models, strict=True):
        if batch and None in batch_rates(row):
            with pytest.raises(ValidationFailed, match=r"^batch: no batch price"):
                BUNDLED.bill(model.id, usage, on=ON, batch=True)
            continue
        made = BUNDLED.bill(model.id, usage, on=ON, batch=batch)
        exact = exact_usd(row, usage, batch=batch) * 10**9
        # a price that is no whole number of pico-dollars is rounded up: a pico-dollar a token at most
        tokens = usage.input + usage.output
        assert ceil(exact) <= made.total_nanos <= ceil(exact + Fraction(tokens, 1_000)), model.id
        if not batch:
            assert usage_nanos(prices_of(model.pricing_per_1m), usage) == made.total_nanos, "engine and bill are one"
