"""The models: search and filters in the address, prices as the catalogue has them, what is said of one model."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from routewright import MemoryStorage, Model, Pricing, Router
from routewright.testing import ScriptedProvider
from routewright.wire import Availability, PriceChange, PriceTier

from .checks import axe, no_sideways_scroll

OpenUi = Callable[..., Page]
HOSTILE = "<img src=x onerror=alert(1)>"


def make_router() -> Router:
    """It serves two models of its own, beside those of the catalogue."""
    full = Model(
        id="acme/one", quality=0.7, context_window=200_000, max_output_tokens=8_000,
        modalities=("text", "image", "audio", "file", "tool"), structured_output=True, reasoning=True,
        pricing_per_1m=Pricing(0.375, 1.5, cached_input_usd=0.075, tiers=(PriceTier(100_000, 0.75, 3.0),)),
        price_changes=(PriceChange("2031-01-01", Pricing(0.5, 2.0)),), deprecated_at="2031-06-01T00:00:00Z",
        availability=Availability(regions=("eu-west",)), unsupported=("seed",), tags=(HOSTILE,),
        display_name="javascript:alert(1)",
    )  # fmt: skip
    plain = Model(id="acme/two", quality=0.5, pricing_per_1m=Pricing(1, 2), tags=("y" * 200,))
    provider = ScriptedProvider(lambda call: "An answer", models=[full, plain])
    return Router(providers=[provider], storage=MemoryStorage())


def test_models_are_searched_and_filtered_in_the_address(open_ui: OpenUi) -> None:
    router = make_router()
    page = open_ui(router, at="models")
    rows = page.get_by_role("region", name="Models").get_by_role("row")
    expect(rows).to_have_count(len(router.models()) + 1)
    page.get_by_label("Search").press_sequentially("ACME one")
    expect(rows).to_have_count(2)
    expect(page).to_have_url(re.compile(r"q=ACME\+one"))
    expect(rows.last).to_contain_text("Images, Audio, Files, Tools, JSON schema, Reasoning")
    for text in ("available", "200,000", "$0.375", "$1.50", "2031-01-01: $0.50 and $2.00", "2031-06-01: withdrawn"):
        expect(rows.last).to_contain_text(text)
    page.get_by_label("Search").fill("")
    page.get_by_label("State").select_option("available")
    expect(rows).to_have_count(3)
    page.get_by_label("Ability").select_option("reasoning")
    expect(rows).to_have_count(2)
    page.go_back()
    expect(page.get_by_label("Ability")).to_have_value("")
    expect(rows).to_have_count(3)
    page.get_by_label("Provider").select_option("openai")
    expect(page.get_by_text("No model fits")).to_be_visible()
    page.get_by_role("link", name="show all").click()
    expect(rows).to_have_count(len(router.models()) + 1)


def test_a_model_has_an_address_with_its_prices_and_dates(open_ui: OpenUi) -> None:
    page = open_ui(make_router(), at="models?q=acme")
    page.get_by_role("link", name="acme/one").press("Enter")
    expect(page).to_have_url(re.compile(r"#/models/acme/one\?q=acme"))
    dialog = page.get_by_role("dialog", name="javascript:alert(1)")
    for text in ("eu-west", "seed", HOSTILE, "200,000 tokens, 8,000 of output"):
        expect(dialog).to_contain_text(text)
    prices = dialog.get_by_role("region", name="Prices").get_by_role("row")
    expect(prices).to_contain_text(
        [
            "Prices per 1M",
            "Today$0.375$1.50$0.075",
            "Today, inputs above 100,000 tokens$0.75$3.00",
            "From 2031-01-01$0.50",
        ]
    )
    axe(page)
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"#/models\?q=acme"))
    expect(dialog).to_have_count(0)
    page.go_back()
    dialog.get_by_role("link", name="Its traces").click()
    expect(page).to_have_url(re.compile("#/traces"))
    assert "acme%2Fone" in page.url
    page.goto("#/models/acme/two")
    expect(page.get_by_role("dialog")).to_contain_text("yyyy")
    no_sideways_scroll(page)
    page.goto("#/models/acme/none")
    expect(page.get_by_role("dialog")).to_contain_text("The catalogue has no model acme/none")
