"""Price lists of others: what they say is read exactly, what they do not say is not guessed, nothing breaks."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import ROUND_UP, Inexact, getcontext, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Catalogue, Model, Pricing, ValidationFailed
from routewright._core.money import per_million
from routewright.contrib.price_lists import PriceList, read_list, read_price_list, shape_of
from routewright.contrib.proposals import Change, Proposal, Wish, differences, facts, named_prices, propose
from routewright.wire import PriceChange, PriceTier

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


def only(listed: PriceList) -> Model:
    assert not listed.unread
    (row,) = listed.rows
    return row.model


def proposed(ours: Model, content: dict[str, Any], **wish: Any) -> Proposal:
    return propose([ours], read_list(content), Wish(TODAY, **wish))


def ours(**prices: Any) -> Model:
    return Model(
        id="openai/a", provider="openai", pricing_per_1m=Pricing(**{"input_usd": 1.0, "output_usd": 2.0, **prices})
    )


# reading


@given(st.integers(1, 10**10 - 1), st.integers(6, 12))
def test_a_price_per_token_keeps_its_digits_per_million(digits: int, places: int) -> None:
    assert per_million(float(f"{digits}e-{places}")) == float(f"{digits}e-{places - 6}")


def test_float_rounding_errors_are_removed() -> None:
    assert per_million(2.0000000000000002e-07) == 0.2
    assert per_million(1.25e-06) == 1.25


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
    assert only(read_list({"sample_spec": {"mode": "one of"}, "a": row})).pricing_per_1m == Pricing(
        1.0, 2.0, 0.1, 1.25, 0.5, 1.0, tiers=(PriceTier(272_000, 2.0, 4.0, 0.2),), reasoning_usd=3.0
    )


def test_modalities_are_read_in_either_shape() -> None:
    says = {f"supports_{what}": True for what in ("vision", "audio_input", "pdf_input", "function_calling")}
    assert only(read_list({"a": litellm(**says)})).modalities == ("text", "image", "tool", "audio", "file")
    assert only(read_list({"a": litellm(supports_audio_input=True)})).modalities == ("text", "audio")
    row = models_dev(modalities={"input": ["text", "pdf", "image"], "output": ["text"]}, tool_call=True)
    assert only(read_list({"openai": {"models": {"a": row}}})).modalities == ("text", "image", "tool", "file")
    assert only(read_list({"xai": {"models": {"a": row}}})).modalities == ("text", "image", "tool")  # not in messages


def test_litellm_bands_become_a_base_price_and_tiers() -> None:
    bands = [
        {"range": [32000.0, 128000.0], "input_cost_per_token": 2e-06, "output_cost_per_token": 9e-06},
        {"range": [0, 32000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06},
    ]
    row = {"litellm_provider": "dashscope", "mode": "chat", "tiered_pricing": bands}
    model = only(read_list({"dashscope/qwen": row}))
    assert model.id == "alibaba/qwen"
    assert model.pricing_per_1m == Pricing(1.0, 5.0, tiers=(PriceTier(32_000, 2.0, 9.0),))


def test_every_price_of_a_models_dev_row_is_read() -> None:
    tiers = [{"tier": {"type": "context", "size": 272000}, "input": 2, "output": 4, "cache_write": 3}]
    cost = {"input": 1, "output": 2, "cache_read": 0.1, "cache_write": 1.25, "reasoning": 3, "tiers": tiers}
    model = only(read_list({"moonshotai": {"models": {"kimi": models_dev(cost=cost)}}}))
    assert model.id == "moonshotai/kimi"
    assert model.pricing_per_1m == Pricing(
        1.0, 2.0, 0.1, 1.25, tiers=(PriceTier(272_000, 2.0, 4.0, None, 3.0),), reasoning_usd=3.0
    )
    assert (model.context_window, model.max_output_tokens) == (1000, 100)


@pytest.mark.parametrize(
    ("key", "source", "model_id"),
    [
        ("gpt-4o", "openai", "openai/gpt-4o"),
        ("gemini/gemini-2.5-pro", "gemini", "google/gemini-2.5-pro"),
        ("gemini-2.5-pro", "vertex_ai-language-models", "google/gemini-2.5-pro"),
        ("moonshot/kimi-k3", "moonshot", "moonshotai/kimi-k3"),
        ("groq/openai/gpt-oss-20b", "groq", "groq/openai/gpt-oss-20b"),
        ("perplexity/perplexity/sonar", "perplexity", "perplexity/perplexity/sonar"),
        (
            "bedrock/us-gov-west-1/amazon.nova-lite-v1:0",
            "bedrock",
            "amazon-bedrock/us-gov-west-1/amazon.nova-lite-v1:0",
        ),
        ("azure/us/gpt-4o", "azure", "azure/us/gpt-4o"),
    ],
)
def test_a_litellm_key_becomes_the_catalogues_id(key: str, source: str, model_id: str) -> None:
    assert only(read_list({key: litellm(litellm_provider=source)})).id == model_id


def test_a_free_cache_write_is_not_free_input() -> None:
    pricing = only(read_list({"a": litellm(cache_creation_input_token_cost=0.0)})).pricing_per_1m
    assert pricing is not None
    assert pricing.cache_write_usd is None


def test_rows_that_are_no_chat_models_are_counted() -> None:
    rows = {
        "e": litellm(mode="embedding"),
        "i": litellm(mode="image_generation"),
        "j": litellm(mode="image_generation"),
        "n": {"litellm_provider": "x", "mode": "chat"},
        "m": {"litellm_provider": "x"},
    }
    listed = read_list(rows)
    assert (listed.rows, listed.unread) == ((), ())
    assert listed.left_out == {"embedding": 1, "image_generation": 2, "no price per token": 1, "no mode": 1}
    other = {
        "text-embedding-3": models_dev(),
        "draw": models_dev(modalities={"input": ["text"], "output": ["image"]}),
        "plan": models_dev(cost=None),
    }
    assert read_list({"x": {"models": other}}).left_out == {"embedding": 1, "image": 1, "no price per token": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": litellm(input_cost_per_token="1")}, "a.input_cost_per_token: must be a number, got '1'"),
        ({"a": litellm(input_cost_per_token=-1e-6)}, "a.input_cost_per_token: must be a number from 0 to 10000 per"),
        ({"a": litellm(output_cost_per_token=1.0)}, "a.output_cost_per_token: must be a number from 0 to 10000 per"),
        ({"a": litellm(max_input_tokens=1.5)}, "a.max_input_tokens: must be a whole number from 1"),
        ({"a": litellm(deprecation_date="soon")}, "a.deprecation_date: must be a date, got 'soon'"),
        ({"a": litellm(litellm_provider=5)}, "a.litellm_provider: must be a name, got 5"),
        ({"a b": litellm()}, r"\['a b'\]: must be a name without spaces"),
        ({"a": litellm(tiered_pricing=5)}, "a.tiered_pricing: must be an array, got 5"),
        ({"a": litellm(tiered_pricing=[{}])}, "a.tiered_pricing: must have a 'range'"),
        (
            {"a": litellm(tiered_pricing=[{"range": [9]}, {"range": [9]}])},
            "a: must have its prices by size once for each",
        ),
        ({"x": {"models": {"a": 5}}}, "x.models.a: must be an object, got 5"),
        ({"x": {"models": {"a": models_dev(cost=5)}}}, "x.models.a.cost: must be an object, got 5"),
        ({"x": {"models": {"a": models_dev(limit={"context": -1})}}}, "x.models.a.limit.context: must be a whole"),
        ({"x": {"models": {"a": models_dev(cost={"input": 1, "output": 1, "tiers": [5]})}}}, r"cost.tiers\[0\]: must"),
        ({"x": {"models": {}}, "y": {"models": 5}}, "y.models: must be an object, got 5"),
    ],
)
def test_an_unreadable_row_is_reported_with_its_place(content: dict[str, Any], said: str) -> None:
    listed = read_list({**content, "z": litellm() if "x" not in content else {"models": {}}})
    with pytest.raises(ValidationFailed, match=said):
        raise ValidationFailed.of(*listed.unread)


@pytest.mark.parametrize("content", [None, 5, [], {}, {"a": 5}, {"a": {}}, {"models": [1]}])
def test_an_unknown_shape_is_refused(content: object) -> None:
    with pytest.raises(ValidationFailed, match="is no price list of a known shape; give a JSON file like"):
        read_list(content)


@given(json_values)
def test_any_content_is_read_or_refused(content: object) -> None:
    with suppress(ValidationFailed):
        read_list(content)


@given(st.sampled_from(sorted(litellm(tiered_pricing=1, max_input_tokens=1, deprecation_date=""))), json_values)
def test_no_litellm_value_breaks_the_reader(key: str, value: object) -> None:
    listed = read_list({"a": {**litellm(), key: value}, "z": litellm()})
    assert len(listed.rows) + len(listed.unread) + sum(listed.left_out.values()) >= 2


@given(st.sampled_from(["modalities", "limit", "cost", "tool_call", "family", "release_date"]), json_values)
def test_no_models_dev_value_breaks_the_reader(key: str, value: object) -> None:
    listed = read_list({"x": {"models": {"a": models_dev(**{key: value})}}})
    assert len(listed.rows) + len(listed.unread) + sum(listed.left_out.values()) >= 1


@given(st.binary(max_size=60), st.sampled_from(["json", "toml"]))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"prices.{kind}"
    path.write_bytes(content)
    with pytest.raises(ValidationFailed, match="prices"):
        read_price_list(path)


def test_a_folder_of_models_dev_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "providers" / "togetherai" / "models" / "zai-org"
    folder.mkdir(parents=True)
    text = "[cost]\ninput = 1.4\noutput = 4.4\n[limit]\ncontext = 1_000\noutput = 100\n"
    (folder / "GLM-5.3.toml").write_text(text)
    (tmp_path / "providers" / "togetherai" / "provider.toml").write_text("name = 'Together'")
    model = only(read_price_list(tmp_path))
    assert (model.id, model.pricing_per_1m) == ("togetherai/zai-org/GLM-5.3", Pricing(1.4, 4.4))
    (folder / "broken.toml").write_text("= 1")
    with pytest.raises(ValidationFailed, match=r"broken\.toml:1: is not TOML"):
        read_price_list(tmp_path)


def test_a_folder_without_price_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match="is a folder without price lists; name a folder with providers"):
        read_price_list(tmp_path)


# comparing


def test_a_changed_price_is_reported_with_both_figures() -> None:
    proposal = proposed(ours(), {"a": litellm(input_cost_per_token=1.1e-06)})
    assert proposal.changes == (Change("openai/a", "input", 1.0, 1.1),)
    assert (proposal.same, proposal.unknown) == (0, 0)


def test_fields_missing_in_the_list_stay() -> None:
    model = ours(cached_input_usd=0.1, batch_input_usd=0.5, tiers=(PriceTier(272_000, 2.0, 3.0, 0.2, 2.5),))
    row = litellm(output_cost_per_token=3e-06, input_cost_per_token_above_272k_tokens=4e-06)
    (update,) = proposed(model, {"a": row}).updates
    assert update.after.pricing_per_1m == Pricing(
        1.0, 3.0, 0.1, None, 0.5, tiers=(PriceTier(272_000, 4.0, 3.0, 0.2, 2.5),)
    )


def test_prices_kept_beside_a_new_one_are_reported() -> None:
    model = ours(cached_input_usd=0.1, batch_input_usd=0.5, tiers=(PriceTier(272_000, 2.0, 3.0),))
    row = litellm(input_cost_per_token=3e-06, cache_read_input_token_cost=1e-07)
    kept = ("batch input", "input above 272k", "output above 272k")
    assert proposed(model, {"a": row}).kept == {"openai/a": kept}
    assert proposed(model, {"a": litellm(cache_read_input_token_cost=2e-07)}).kept == {}


def test_a_list_that_agrees_changes_nothing() -> None:
    proposal = proposed(ours(), {"a": litellm()})
    assert (proposal.changes, proposal.updates, proposal.same) == ((), (), 1)


def test_contradicting_rows_are_reported_and_not_applied() -> None:
    model = Model(id="google/a", pricing_per_1m=Pricing(9.0, 9.0))
    rows = {
        "gemini/a": litellm(litellm_provider="gemini"),
        "a": litellm(litellm_provider="vertex_ai-language-models", output_cost_per_token=3e-06),
    }
    proposal = proposed(model, rows)
    assert proposal.updates == ()
    (told,) = proposal.contradictions
    assert (told.model, told.sources) == ("google/a", ("gemini", "vertex_ai-language-models"))
    assert told.what == ("output",)
    (update,) = proposed(model, rows, providers=frozenset({"gemini"})).updates
    assert update.after.pricing_per_1m == Pricing(1.0, 2.0)


def test_only_common_values_of_equally_priced_rows_are_applied() -> None:
    rows = {"a": litellm(deprecation_date="2027-01-01"), "openai/a": litellm()}
    assert proposed(ours(), rows).changes == ()


def test_a_zero_price_is_not_applied_to_a_paid_model() -> None:
    rows = {"a": litellm(input_cost_per_token=0, output_cost_per_token=0)}
    proposal = proposed(ours(), rows)
    assert proposal.updates == ()
    assert "has a price of nothing for openai/a, so it is not taken" in str(proposal.refused[0])
    assert proposed(ours(input_usd=0.0, output_usd=0.0), rows).same == 1


def test_an_assumed_threshold_moves_no_tier() -> None:
    model = ours(tiers=(PriceTier(272_000, 2.0, 3.0),))
    longer = {"input": 2, "output": 3, "cache_read": 0.2}
    cost = {"input": 1, "output": 2, "context_over_200k": longer}
    (update,) = proposed(model, {"openai": {"models": {"a": models_dev(cost=cost)}}}).updates
    assert update.after.pricing_per_1m == Pricing(1.0, 2.0, tiers=(PriceTier(272_000, 2.0, 3.0, 0.2),))


def test_new_models_are_added_only_if_requested() -> None:
    rows = {"b": litellm(), "c": litellm()}
    assert (proposed(ours(), rows).added, proposed(ours(), rows).unknown) == ((), 2)
    proposal = proposed(ours(), rows, add=("openai/b*",))
    assert (proposal.added, proposal.unknown) == (("openai/b",), 1)


def test_dated_prices_keep_todays() -> None:
    model = ours()
    (update,) = proposed(model, {"a": litellm(input_cost_per_token=3e-06)}, starts="2027-01-01").updates
    assert update.after.pricing_per_1m == model.pricing_per_1m
    assert update.after.price_changes == (PriceChange("2027-01-01", Pricing(3.0, 2.0)),)


def test_replacing_todays_price_keeps_later_changes() -> None:
    changes = (PriceChange("2026-01-01", Pricing(5.0, 5.0)), PriceChange("2027-01-01", Pricing(6.0, 6.0)))
    model = Model(id="openai/a", pricing_per_1m=Pricing(4.0, 4.0), price_changes=changes)
    proposal = proposed(model, {"a": litellm()})
    assert [change.before for change in proposal.changes] == [5.0, 5.0]
    assert proposal.updates[0].after.pricing_per_1m == Pricing(1.0, 2.0)
    assert proposal.updates[0].after.price_changes == changes[1:]


def test_a_change_of_the_same_day_is_replaced() -> None:
    there = PriceChange("2027-01-01", Pricing(9.0, 9.0))
    model = replace(ours(), price_changes=(there,))
    (update,) = proposed(model, {"a": litellm(input_cost_per_token=3e-06)}, starts="2027-01-01").updates
    assert [change.starts for change in update.after.price_changes or ()] == ["2027-01-01"]
    model = replace(ours(), price_changes=(replace(there, starts=TODAY),))
    (update,) = proposed(model, {"a": litellm(input_cost_per_token=3e-06)}).updates
    assert update.after.price_changes is None
    assert update.after.pricing_per_1m is not None
    assert update.after.pricing_per_1m.input_usd == 3.0


def test_a_deprecation_date_in_the_list_is_a_change() -> None:
    (change,) = proposed(ours(), {"a": litellm(deprecation_date="2027-03-01")}).changes
    assert change == Change("openai/a", "ends", None, "2027-03-01")


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_differences_are_empty_only_for_equal_models(first: float, second: float) -> None:
    before, after = ours(input_usd=first), ours(input_usd=second)
    assert (differences(before, after, TODAY) == []) == (first == second)


def test_only_price_changes_have_a_factor() -> None:
    assert Change("a", "input", 0.5, 5.0).factor == Change("a", "input", 5.0, 0.5).factor == 10
    assert Change("a", "input", 0.0, 5.0).factor == Change("a", "ends", None, "2027-01-01").factor == 1


# the two sources of the bundled catalogue


def _said(model: Model) -> dict[str, Any]:
    limits = {"window": model.context_window, "output limit": model.max_output_tokens}
    return {**facts(model, TODAY), **{name: limit for name, limit in limits.items() if limit is not None}}


def _found(name: str) -> set[tuple[str, str, Any, Any]]:
    """Where a source says something else of a bundled model than the catalogue does."""
    models = {model.id: _said(model) for model in Catalogue().models}
    rows = read_price_list(DATA / LISTS[name]).rows
    return {
        (row.model.id, what, models[row.model.id].get(what), value)
        for row in rows
        for what, value in _said(row.model).items()
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


@pytest.mark.parametrize("name", LISTS)
def test_every_difference_from_a_source_has_its_explanation(name: str) -> None:
    explained = _explained(name)
    assert _found(name) == explained.keys()
    assert all(explained.values())


@pytest.mark.parametrize(("name", "rows"), [("litellm", 178), ("models.dev", 121)])
def test_every_row_of_a_source_is_read(name: str, rows: int) -> None:
    listed = read_price_list(DATA / LISTS[name])
    assert (listed.shape, len(listed.rows), listed.unread, listed.left_out) == (name, rows, (), {})


def test_every_bundled_model_is_in_a_source() -> None:
    listed = {row.model.id for name in LISTS for row in read_price_list(DATA / LISTS[name]).rows}
    assert {model.id for model in Catalogue().models} == listed


def test_only_models_dev_disagrees_on_list_prices_with_the_first_source() -> None:
    prices = {what for _, what, *_ in _found("litellm")} & named_prices(Pricing(0, 0, 0, 0, 0, 0, (), 0)).keys()
    assert prices == set()


def test_the_shapes_are_told_apart_by_content() -> None:
    assert [shape_of(json.loads((DATA / path).read_text("utf-8"))) for path in LISTS.values()] == [*LISTS]
