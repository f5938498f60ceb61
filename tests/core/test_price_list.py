"""Price lists of others: what they say is read exactly, what they do not say is not guessed, nothing breaks."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import ROUND_UP, Inexact, getcontext, localcontext
from pathlib import Path
from typing import Any

import pytest
from benchmarks.merge_catalogue import announcements
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Catalogue, Model, Pricing, ValidationFailed
from routewright._core.catalogue.price_list import Listed, changes_of, read_price_list, updates_of
from routewright._core.catalogue.prices import pricing_on
from routewright._core.money import per_million
from routewright.wire import PriceChange, PriceTier
from tests.tables import table

DATA = Path(__file__).parent.parent / "data"
TODAY = "2026-11-20"
LISTS = {"litellm": "prices_litellm.json", "models.dev": "prices_models_dev.json"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def litellm(**row: Any) -> dict[str, Any]:
    return {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
        **row,
    }


def models_dev(**row: Any) -> dict[str, Any]:
    return {
        "modalities": {"input": ["text"], "output": ["text"]},
        "limit": {"context": 1000, "output": 100},
        "cost": {"input": 1.0, "output": 2.0},
        **row,
    }


def only(content: object) -> Model:
    listed, problems = read_price_list(content)
    assert not problems
    (row,) = listed
    return row.model


def updated(ours: Model, content: object) -> Model | None:
    """Our model as the list changes it; None if it does not."""
    updates, problems = updates_of([ours], read_price_list(content)[0], TODAY)
    assert not problems
    assert [before for before, _ in updates] in ([], [ours])
    return updates[0][1] if updates else None


def test_a_list_that_agrees_changes_nothing() -> None:
    assert updated(ours(), {"a": litellm()}) is None


def ours(**prices: Any) -> Model:
    return Model(
        id="openai/a", provider="openai", pricing_per_1m=Pricing(**{"input_usd": 1.0, "output_usd": 2.0, **prices})
    )


# reading


@given(st.integers(1, 10**10 - 1), st.integers(6, 12))
def test_a_price_per_token_keeps_its_digits_per_million(digits: int, places: int) -> None:
    assert per_million(float(f"{digits}e-{places}")) == float(f"{digits}e-{places - 6}")


def test_the_applications_decimal_context_changes_no_price() -> None:
    with localcontext(prec=1, rounding=ROUND_UP):
        getcontext().traps[Inexact] = True
        assert per_million(1.25e-06) == 1.25


def test_every_price_of_a_litellm_row_is_read() -> None:
    row = litellm(
        cache_read_input_token_cost=1e-07,
        cache_creation_input_token_cost=1.25e-06,
        input_cost_per_token_batches=5e-07,
        output_cost_per_token_batches=1e-06,
        output_cost_per_reasoning_token=3e-06,
        input_cost_per_token_above_272k_tokens=2e-06,
        output_cost_per_token_above_272k_tokens=4e-06,
        cache_read_input_token_cost_above_272k_tokens=2e-07,
        input_cost_per_token_above_272k_tokens_priority=9e-06,
        input_cost_per_token_flex=9e-06,
    )
    assert only({"sample_spec": {"mode": "one of"}, "a": row}).pricing_per_1m == Pricing(
        1.0, 2.0, 0.1, 1.25, 0.5, 1.0, tiers=(PriceTier(272_000, 2.0, 4.0, 0.2),), reasoning_usd=3.0
    )


def test_modalities_are_read_in_either_shape() -> None:
    says = {f"supports_{what}": True for what in ("vision", "audio_input", "pdf_input", "function_calling")}
    assert only({"a": litellm(**says)}).modalities == ("text", "image", "tool", "audio", "file")
    assert only({"a": litellm(supports_audio_input=True)}).modalities == ("text", "audio")
    row = models_dev(modalities={"input": ["text", "pdf", "image"], "output": ["text"]}, tool_call=True)
    assert only({"openai": {"models": {"a": row}}}).modalities == ("text", "image", "tool", "file")
    assert only({"xai": {"models": {"a": row}}}).modalities == ("text", "image", "tool")  # not in messages


def test_litellm_bands_become_a_base_price_and_tiers() -> None:
    bands = [
        {"range": [32000.0, 128000.0], "input_cost_per_token": 2e-06, "output_cost_per_token": 9e-06},
        {"range": [0, 32000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06},
    ]
    row = {"litellm_provider": "dashscope", "mode": "chat", "tiered_pricing": bands}
    model = only({"dashscope/qwen": row})
    assert model.id == "alibaba/qwen"
    assert model.pricing_per_1m == Pricing(1.0, 5.0, tiers=(PriceTier(32_000, 2.0, 9.0),))


def test_every_price_of_a_models_dev_row_is_read() -> None:
    tiers = [{"tier": {"type": "context", "size": 272000}, "input": 2, "output": 4, "cache_write": 3}]
    cost = {"input": 1, "output": 2, "cache_read": 0.1, "cache_write": 1.25, "reasoning": 3, "tiers": tiers}
    model = only({"moonshotai": {"models": {"kimi": models_dev(cost=cost)}}})
    assert model.id == "moonshotai/kimi"
    assert model.pricing_per_1m == Pricing(
        1.0, 2.0, 0.1, 1.25, tiers=(PriceTier(272_000, 2.0, 4.0, None, 3.0),), reasoning_usd=3.0
    )
    assert (model.context_window, model.max_output_tokens) == (1000, 100)


@table(
    ("key", "source", "model_id"),
    [
        ("gpt-4o", "openai", "openai/gpt-4o"),
        ("gemini-2.5-pro", "vertex_ai-language-models", "google/gemini-2.5-pro"),
        ("moonshot/kimi-k3", "moonshot", "moonshotai/kimi-k3"),
        ("groq/openai/gpt-oss-20b", "groq", "groq/openai/gpt-oss-20b"),
        (
            "bedrock/us-gov-west-1/amazon.nova-lite-v1:0",
            "bedrock",
            "amazon-bedrock/us-gov-west-1/amazon.nova-lite-v1:0",
        ),
    ],
)
def test_a_litellm_key_becomes_the_catalogues_id(key: str, source: str, model_id: str) -> None:
    assert only({key: litellm(litellm_provider=source)}).id == model_id


def test_a_free_cache_write_is_not_free_input() -> None:
    pricing = only({"a": litellm(cache_creation_input_token_cost=0.0)}).pricing_per_1m
    assert pricing is not None
    assert pricing.cache_write_usd is None


def test_rows_that_are_no_chat_models_are_skipped() -> None:
    rows = {
        "e": litellm(mode="embedding"),
        "i": litellm(mode="image_generation"),
        "n": {"litellm_provider": "x", "mode": "chat"},
        "m": {"litellm_provider": "x"},
    }
    assert read_price_list(rows) == ([], [])
    other = {
        "text-embedding-3": models_dev(),
        "draw": models_dev(modalities={"input": ["text"], "output": ["image"]}),
        "plan": models_dev(cost=None),
    }
    assert read_price_list({"x": {"models": other}}) == ([], [])


@table(
    ("content", "said"),
    [
        ({"a": litellm(input_cost_per_token="1")}, "a.input_cost_per_token: must be a number, got '1'"),
        ({"a": litellm(input_cost_per_token=-1e-6)}, "a.input_cost_per_token: must be a number from 0 to 10000 per"),
        (
            {"x": {"models": {"a": models_dev(cost={"input": 2.5e-06, "output": 1e-05})}}},
            "x.models.a: input_usd must be 0, or at least 0.001 per million tokens, got 2.5e-06",
        ),
        ({"a": litellm(max_input_tokens=1.5)}, "a.max_input_tokens: must be a whole number from 1"),
        ({"a": litellm(deprecation_date="soon")}, "a.deprecation_date: must be a date, got 'soon'"),
        (
            {"a": litellm(tiered_pricing=[{"range": [9]}, {"range": [9]}])},
            "a: must have its prices by size once for each",
        ),
        ({"x": {"models": {"a": 5}}}, "x.models.a: must be an object, got 5"),
        ({"x": {"models": {"a": models_dev(limit={"context": -1})}}}, "x.models.a.limit.context: must be a whole"),
        ({"x": {"models": {"a": models_dev(cost={"input": 1, "output": 1, "tiers": [5]})}}}, r"cost.tiers\[0\]: must"),
        ({"a": litellm(tiered_pricing=[{}])}, "a.tiered_pricing: must have a 'range'"),
        ({"a": litellm(tiered_pricing=5)}, "a.tiered_pricing: must be an array, got 5"),
        ({"a b": litellm()}, r"\['a b'\]: must be a name without spaces"),
        ({"a": litellm(litellm_provider=5)}, "a.litellm_provider: must be a name, got 5"),
    ],
)
def test_an_unreadable_row_is_reported_with_its_place(content: dict[str, Any], said: str) -> None:
    _, problems = read_price_list({**content, "z": litellm() if "x" not in content else {"models": {}}})
    with pytest.raises(ValidationFailed, match=said):
        raise ValidationFailed.of(*problems)


@table("content", [None, 5, [], {}, {"a": 5}, {"a": {}}, {"models": [1]}])
def test_an_unknown_shape_is_refused(content: object) -> None:
    with pytest.raises(ValidationFailed, match="is not a price list in a known format; pass a JSON file such as"):
        read_price_list(content)


@given(json_values)
def test_any_content_is_read_or_refused(content: object) -> None:
    with suppress(ValidationFailed):
        read_price_list(content)


@given(st.sampled_from(sorted(litellm(tiered_pricing=1, max_input_tokens=1, deprecation_date=""))), json_values)
def test_no_litellm_value_breaks_the_reader(key: str, value: object) -> None:
    listed, problems = read_price_list({"a": {**litellm(), key: value}, "z": litellm()})
    assert [row.model.id for row in listed][-1] == "openai/z"
    assert len(listed) + bool(problems) <= 2


# the updates of a catalogue


def test_fields_missing_in_the_list_stay() -> None:
    model = ours(cached_input_usd=0.1, batch_input_usd=0.5, tiers=(PriceTier(272_000, 2.0, 3.0, 0.2, 2.5),))
    row = litellm(output_cost_per_token=3e-06, input_cost_per_token_above_272k_tokens=4e-06)
    after = updated(model, {"a": row})
    assert after is not None
    assert after.pricing_per_1m == Pricing(1.0, 3.0, 0.1, None, 0.5, tiers=(PriceTier(272_000, 4.0, 3.0, 0.2, 2.5),))


CONTRADICTING = {
    "gemini/a": litellm(litellm_provider="gemini"),
    "a": litellm(litellm_provider="vertex_ai-language-models", output_cost_per_token=3e-06),
}


def test_contradicting_rows_are_reported_and_not_applied() -> None:
    model = Model(id="google/a", pricing_per_1m=Pricing(9.0, 9.0))
    listed, _ = read_price_list(CONTRADICTING)
    updates, (problem,) = updates_of([model], listed, TODAY)
    assert updates == []
    assert str(problem) == (
        "google/a: has rows with different prices, so none is taken; "
        "choose the provider gemini or vertex_ai-language-models"
    )
    ((_, after),), _ = updates_of([model], [row for row in listed if "gemini" in row.names], TODAY)
    assert after.pricing_per_1m == Pricing(1.0, 2.0)
    assert [row.names for row in listed] == [{"gemini", "google"}, {"vertex_ai-language-models", "google"}]


@pytest.mark.parametrize(("input_cost", "output_cost"), [(0, 0), (0, 2e-6), (2e-6, 0), (-0.0, 2e-6)])
def test_a_price_of_nothing_is_not_applied_to_a_paid_model(input_cost: float, output_cost: float) -> None:
    listed, _ = read_price_list({"a": litellm(input_cost_per_token=input_cost, output_cost_per_token=output_cost)})
    updates, (problem,) = updates_of([ours()], listed, TODAY)
    assert updates == []
    assert "lists a price of 0 for openai/a, so it is not taken" in str(problem)


def test_an_assumed_threshold_moves_no_tier() -> None:
    model = ours(tiers=(PriceTier(272_000, 2.0, 3.0),))
    longer = {"input": 2, "output": 3, "cache_read": 0.2}
    cost = {"input": 1, "output": 2, "context_over_200k": longer}
    after = updated(model, {"openai": {"models": {"a": models_dev(cost=cost)}}})
    assert after == ours(tiers=(PriceTier(272_000, 2.0, 3.0, 0.2),))


def test_new_models_are_added_only_if_requested() -> None:
    listed, _ = read_price_list({"b": litellm(), "c": litellm()})
    assert updates_of([ours()], listed, TODAY) == ([], [])
    updates, _ = updates_of([ours()], listed, TODAY, add=("openai/b*",))
    assert [(before, after.id) for before, after in updates] == [(None, "openai/b")]


def test_replacing_todays_price_keeps_later_changes() -> None:
    changes = (PriceChange("2026-01-01", Pricing(5.0, 5.0)), PriceChange("2027-01-01", Pricing(6.0, 6.0)))
    after = updated(Model(id="openai/a", pricing_per_1m=Pricing(4.0, 4.0), price_changes=changes), {"a": litellm()})
    assert after is not None
    assert (after.pricing_per_1m, after.price_changes) == (Pricing(1.0, 2.0), changes[1:])
    after = updated(replace(ours(), price_changes=(PriceChange(TODAY, Pricing(9.0, 9.0)),)), {"a": litellm()})
    assert after == ours()


def test_a_change_names_every_price_that_moves() -> None:
    tiers = PriceTier(200_000, 2.0, 4.0), PriceTier(200_000, 20.0, 4.0)
    before = replace(
        ours(cached_input_usd=0.1, tiers=tiers[:1]), price_changes=(PriceChange(TODAY, Pricing(3.0, 2.0)),)
    )
    after = replace(ours(input_usd=0.0, reasoning_usd=0.0055, tiers=tiers[1:]), deprecated_at="2027-03-01")
    (change,) = changes_of([(replace(before, price_changes=None), after)], TODAY)
    moved = "input $1 -> $0 x0, cached_input $0.1 -> none, input above 200000 $2 -> $20 x10, reasoning none -> $0.0055"
    assert str(change) == f"openai/a  changed  {moved}, ends 2027-03-01"
    (change,) = changes_of([(before, ours())], TODAY)
    assert str(change) == "openai/a  changed  input $3 -> $1"  # from what is paid today
    (change,) = changes_of([(ours(input_usd=0.0), ours())], TODAY)
    assert str(change) == "openai/a  changed  input $0 -> $1 from nothing"


# the two sources of the bundled catalogue


NAMES = {"cache_write_hour_usd": "cache write for an hour"}


def facts(model: Model) -> dict[str, Any]:
    """Limits, end and prices by what people call them: ``input``, ``cached input above 272k``."""
    limits = {"window": model.context_window, "output limit": model.max_output_tokens, "ends": model.deprecated_at}
    said: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    pricing = pricing_on(model, TODAY)
    for prices in () if pricing is None else (pricing, *pricing.tiers):
        size = f" above {prices.above_tokens // 1000}k" if isinstance(prices, PriceTier) else ""
        for field in prices.__struct_fields__:
            if field.endswith("_usd") and getattr(prices, field) is not None:
                said[NAMES.get(field, field[:-4].replace("_", " ")) + size] = getattr(prices, field)
    return said


def listed_in(name: str) -> list[Listed]:
    listed, problems = read_price_list(json.loads((DATA / LISTS[name]).read_text("utf-8")))
    assert not problems
    return listed


def _found(name: str) -> set[tuple[str, str, Any, Any]]:
    """Where a source says something else of a bundled model than the catalogue does."""
    models = {model.id: facts(model) for model in Catalogue().models}
    return {
        (row.model.id, what, models[row.model.id].get(what), value)
        for row in listed_in(name)
        for what, value in facts(row.model).items()
        if models[row.model.id].get(what) != value
    }


def _explained(name: str) -> dict[tuple[str, str, Any, Any], str]:
    groups = json.loads((DATA / "price_differences.json").read_text("utf-8"))
    return {
        (model, what, *figures): group["why"]
        for group in groups
        if group["list"] == name
        for model, found in group["differences"].items()
        for what, figures in found.items()
    }


@table("name", LISTS)
def test_every_difference_from_a_source_has_its_explanation(name: str) -> None:
    explained = _explained(name)
    assert _found(name) == explained.keys()
    assert all(explained.values())


@table(("name", "rows"), [("litellm", 178), ("models.dev", 121)])
def test_every_row_of_a_source_is_read(name: str, rows: int) -> None:
    assert len(listed_in(name)) == rows


def test_only_an_announcement_disagrees_on_list_prices_with_the_first_source() -> None:
    prices = facts(Model(id="a", pricing_per_1m=Pricing(0, 0, 0, 0, 0, 0, (), 0))).keys()
    changed = {model for model, what, *_ in _found("litellm") if what in prices}
    assert changed == {price.model for price in announcements().prices}
