from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.merge_catalogue import announcements

from routewright import Catalogue, Model, Pricing, ValidationFailed
from routewright._core.catalogue.models import fields_of, overlay
from routewright._core.catalogue.prices import pricing_on
from routewright._setup import input_file
from routewright.catalogue import price_sources
from routewright.wire import Availability, PriceTier, ServicePrice
from tests.tables import table

KNOWN = Model(
    id="acme/large", provider="acme", provider_model_id="large", context_window=64_000, modalities=("text", "tool"),
    quality=0.8, ttft_s=2.0, tokens_per_s=50.0, pricing_per_1m=Pricing(3.0, 9.0), reasoning=True,
)  # fmt: skip


def test_the_bundled_catalogue_has_169_models_with_prices_and_priors() -> None:
    models = Catalogue().models
    assert len(models) == 169
    assert len({model.id for model in models}) == 169
    assert all(model.quality is not None and model.pricing_per_1m is not None for model in models)
    assert Catalogue().as_of == "2026-11-30"


# what vendors have announced since the price lists

NEWS = announcements()
BY_ID = {model.id: model for model in Catalogue().models}


def test_every_announcement_has_the_title_and_address_of_its_source() -> None:
    pages = [price.source for price in (*NEWS.prices, *NEWS.price_changes)]
    pages += [end.source for end in NEWS.ends] + [page for model in NEWS.models for page in model.sources]
    assert all(model.sources for model in NEWS.models)
    assert all(len(page.title) > 10 and page.url.startswith("https://") for page in pages)


def test_every_bundled_price_and_price_change_has_a_source() -> None:
    assert price_sources().keys() == BY_ID.keys()
    for model_id, (present, *changes) in price_sources().items():
        assert present["title"]
        assert "starts" not in present
        assert [change["starts"] for change in changes] == [at.starts for at in BY_ID[model_id].price_changes or ()]
        assert all(change["url"] for change in changes)


@table(
    ("model", "last_day", "promotional", "regular"),
    [
        ("google/gemini-4-argon", "2026-11-30", (2.0, 10.0, 0.1), (4.0, 20.0, 0.2)),
        ("google/gemini-3.6-flash", "2026-12-31", (0.75, 3.75, 0.075), (1.5, 7.5, 0.15)),
    ],
)
def test_an_introductory_price_ends_after_its_last_day(
    model: str, last_day: str, promotional: tuple[float, ...], regular: tuple[float, ...]
) -> None:
    next_day = (date.fromisoformat(last_day) + timedelta(days=1)).isoformat()
    for day, prices in ((last_day, promotional), (next_day, regular)):
        pricing = pricing_on(BY_ID[model], day)
        assert pricing is not None
        assert (pricing.input_usd, pricing.output_usd, pricing.cached_input_usd) == prices


def test_a_changed_price_keeps_its_batch_discount() -> None:
    for price in NEWS.price_changes:
        pricing = price.pricing_per_1m
        assert pricing.batch_input_usd == pricing.input_usd / 2
        assert pricing.batch_output_usd == pricing.output_usd / 2


def test_an_added_model_has_the_quality_and_speed_of_the_model_it_is_like() -> None:
    for added in NEWS.models:
        new, known = BY_ID[added.id], BY_ID[added.like]
        assert (new.quality, new.ttft_s, new.tokens_per_s) == (known.quality, known.ttft_s, known.tokens_per_s)
        assert new.provider == known.provider


def test_a_vendors_free_tier_is_marked() -> None:
    free = [model.id for model in Catalogue().models if model.free_tier]
    assert free == ["google/gemma-4-31b-it", "zai/glm-4.7-flash"]


def test_long_context_prices_and_bands_become_tiers() -> None:
    by_id = {model.id: model.pricing_per_1m for model in Catalogue().models}
    long = by_id["openai/gpt-5.4"]
    assert long is not None
    assert [(t.above_tokens, t.input_usd, t.output_usd) for t in long.tiers] == [(272_000, 5.0, 22.5)]
    bands = by_id["alibaba/qwen3-coder-plus"]
    assert bands is not None
    assert [t.above_tokens for t in bands.tiers] == [32_000, 128_000, 256_000]


def test_a_new_model_copies_the_like_model_except_its_price() -> None:
    new = overlay([KNOWN], [{"id": "mine/tuned", "like": "acme/large", "quality": 0.9}])[1]
    assert (new.quality, new.context_window, new.reasoning, new.provider) == (0.9, 64_000, True, "mine")
    assert new.pricing_per_1m is None
    assert new.provider_model_id == "tuned"


@table(("field", "value"), [("modalities", ("text",)), ("reasoning", False), ("structured_output", False)])
def test_a_given_value_counts_even_if_it_is_the_default(field: str, value: object) -> None:
    able = msgspec.structs.replace(KNOWN, structured_output=True)
    mine = Model(id="mine/tuned", like="acme/large", **{field: value})  # type: ignore[arg-type]
    assert getattr(overlay([able], [fields_of(mine)])[1], field) == value
    changed = Model(id="acme/large", **{field: value})  # type: ignore[arg-type]
    assert getattr(overlay([able], [fields_of(changed)])[0], field) == value


def test_an_own_price_replaces_a_free_offer() -> None:
    free = msgspec.structs.replace(KNOWN, free_tier=True, disabled=True)
    priced = Model(id="acme/large", pricing_per_1m=Pricing(0.1, 0.1), disabled=False)
    (mine,) = overlay([free], [fields_of(priced)])
    assert (mine.free_tier, mine.disabled) == (False, False)
    assert overlay([free], [fields_of(free)])[0].free_tier
    assert overlay([free], [{"id": "acme/large", "quality": 0.1}])[0].free_tier


def test_an_unknown_like_suggests_the_nearest_model() -> None:
    with pytest.raises(ValidationFailed, match="did you mean 'acme/large'"):
        overlay([KNOWN], [{"id": "mine/tuned", "like": "acme/larg"}])


@table(
    ("fields", "said"),
    [
        ({"pricing_per_1m": Pricing(-1.0, 1.0)}, "pricing_per_1m.input_usd: must be a number from 0 to 10000, got -1"),
        ({"pricing_per_1m": Pricing(1.0, math.nan)}, "pricing_per_1m.output_usd: nan is not JSON"),
        (
            {"pricing_per_1m": Pricing(1.0, 1.0, tiers=(PriceTier(-10, 1.0, 1.0),))},
            "pricing_per_1m.tiers[0].above_tokens: must be a whole number from 1 to 100000000, got -10",
        ),
        ({"pricing_per_1m": {"input_usd": "1"}}, "pricing_per_1m.input_usd: must be a number, got '1'"),
        (
            {"pricing_per_1m": Pricing(2.5e-06, 4.0)},
            "pricing_per_1m.input_usd: must be in dollars per million tokens: 2.5e-06 is below 0.001; write 2.5 if "
            "that is the price of a token; set 'exact' if it is right",
        ),
        (
            {"pricing_per_1m": Pricing(1.0, 1.0, service_tiers=(ServicePrice("flex", 1e-05, 1.0),))},
            "pricing_per_1m.service_tiers[0].input_usd: must be in dollars per million tokens: 1e-05 is below",
        ),
        ({"context_window": True}, "context_window: must be a number, got True"),
        ({"ttft_s": 0.0}, "ttft_s: must be a number above 0, at most 3600, got 0"),
        ({"quality": 1.5}, "quality: must be a number from 0 to 1, got 1.5"),
        ({"quality": Decimal(1)}, "quality: Decimal is not JSON"),
        ({"deprecated_at": "soon"}, "deprecated_at: must be a date, got 'soon'"),
        (
            {"modalities": ("images",)},
            "modalities[0]: must be one of text, image, tool, audio, file, got 'images'; did you mean 'im",
        ),
        ({"tokenizer": "o200k"}, "tokenizer: must be one of o200k_base, cl100k_base, got 'o200k'"),
        ({"availability": Availability(regions="eu")}, "availability.regions: must be a list, got 'eu'"),  # type: ignore[arg-type]
        ({"provider_model_id": "x\n"}, "provider_model_id: must be 1 to 200 printable characters, got 'x\\n'"),
        ({"display_name": "x\ud800"}, "display_name: holds an unpaired surrogate"),
    ],
)
def test_an_invalid_model_is_refused_with_its_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        overlay([], [{"id": "a/x", **fields}])
    assert str(refused.value).startswith(f"models['a/x'].{said}")
    with pytest.raises(ValidationFailed) as declared:
        Catalogue([Model(id="a/x", **fields)])
    assert declared.value.problems == refused.value.problems


@pytest.mark.parametrize(
    "price",
    [
        Pricing(1e-06, 1e-06, exact=True),
        Pricing(0.001, 0.001),
        Pricing(0.0, 0.0),
        Pricing(1.0, 1.0, cached_input_usd=1e-06),
    ],
)
def test_a_tiny_price_that_is_exact_a_free_model_and_tiny_cached_prices_are_accepted(price: Pricing) -> None:
    again = Catalogue(Catalogue([Model(id="a/x", pricing_per_1m=price)]).models)
    assert again.models[0].pricing_per_1m == price


@table(
    ("row", "said"),
    [
        ({"quality": 1}, "models: id None is not a provider and model; write it as 'provider/name', without spaces"),
        ({"id": "a/b\n"}, "models: id 'a/b\\n' is not a"),
        ({"id": "a/b", "qualty": 1}, "models['a/b']: 'qualty' is not a field; did you mean 'quality'?"),
        ({"id": "a/b", "like": 5}, "models['a/b'].like: unknown model 5"),
        (5, "models: 5 is not a row of a catalogue"),
    ],
)
def test_an_invalid_row_is_refused_with_a_hint(row: Any, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Catalogue().overlaid([row])
    assert str(refused.value).startswith(said)


def test_invalid_models_and_aliases_are_refused() -> None:
    wrong: Any = Model(id="a/x")
    with pytest.raises(ValidationFailed, match="models: Model is not a list of Model; put it in a list"):
        Catalogue(wrong)
    wrong = ["a/x"]
    with pytest.raises(ValidationFailed, match=r"models: 'a/x' is not a Model; pass Model\(id=...\)"):
        Catalogue(wrong)
    wrong = {"fast": 5}
    with pytest.raises(ValidationFailed, match=r"aliases\[...\]: must be a string, got a number"):
        Catalogue(aliases=wrong)


@pytest.mark.parametrize("name", ["models.toml", "models.json"])
def test_a_file_that_nests_absurdly_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(("" if name.endswith("json") else "a = ") + "[" * 100_000)
    with pytest.raises(ValidationFailed, match=rf"{name}: nests (too deep|more than 64)"):
        Catalogue.load(tmp_path / name)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


FULL = """
disabled = ["openai/gpt-4o"]

[aliases]
fast = "cerebras/gemma-4-31b"

[[models]]
id = "acme/llama"
like = "openai/gpt-4.1"
context_window = 32_000
quality = 0.6
prices = { input_usd = 0.5, output_usd = 1.5 }
regions = ["eu"]
deprecated_at = 2027-01-01

[prices."openai/gpt-4.1"]
input_usd = 1.0
output_usd = 2.0
"""


def test_a_file_adds_models_prices_aliases_and_disables(tmp_path: Path) -> None:
    catalogue = Catalogue.load(write(tmp_path / "models.toml", FULL))
    by_id = {model.id: model for model in catalogue.models}
    mine = by_id["acme/llama"]
    assert (mine.context_window, mine.quality, mine.deprecated_at) == (32_000, 0.6, "2027-01-01")
    assert mine.availability.regions == ("eu",)
    assert mine.pricing_per_1m == Pricing(0.5, 1.5)
    assert mine.tokenizer == "o200k_base"
    assert by_id["openai/gpt-4.1"].pricing_per_1m == Pricing(1.0, 2.0)
    assert by_id["openai/gpt-4o"].disabled
    assert catalogue.aliases == {"fast": "cerebras/gemma-4-31b"}


def test_a_row_with_file_field_names_gets_the_python_names() -> None:
    for key, said in (("prices", "it is 'pricing_per_1m' here, a Pricing"), ("regions", "it is 'availability' here")):
        with pytest.raises(ValidationFailed, match=f"'{key}' is not a field; {said}"):
            Catalogue().overlaid([{"id": "a/b", key: {}}])


@table(
    ("text", "said"),
    [
        (
            "[[models]]\nid = 'acme/x'\nqualty = 0.5",
            r"models.toml: models\[0\].qualty: unknown key; did you mean 'quality'\?",
        ),
        ("[[models", r"models.toml(:\d+)?: is not TOML: .*put texts, and keys with a slash, in quotes; JSON goes into"),
        (
            "[prices.'openai/gpt-4o']\ninput_usd = 1\noutput_usd = 1\nprice_changes = []",
            "price_changes: unknown key; it belongs in another table",
        ),
        ("[aliases]\nfast = 'nope'", r"aliases.fast"),
        (
            "[prices.'openai/gpt-4l']\ninput_usd = 1\noutput_usd = 1",
            r"prices\['openai/gpt-4l'\]: unknown model .* mean 'openai/gpt-4",
        ),
        (
            "[[models]]\nid = 'a/x'\nlike = 'a/y'\n[[models]]\nid = 'a/y'",
            r"models.toml: models\['a/x'\].like: 'a/y' is defined below it; name a model that is defined above",
        ),
        ("[aliases]\n'' = 'a/x'", r"models.toml: aliases\[''\]: must be 1 to 200 printable characters, got ''"),
        (
            "[aliases]\n'openai/gpt-4o' = 'openai/gpt-4o'",
            r"aliases\['openai/gpt-4o'\]: is the id of a model; take another",
        ),
        (
            "[prices.'openai/gpt-4o']\ninput_usd = 2.5e-6\noutput_usd = 1",
            r"models.toml: prices\['openai/gpt-4o'\].input_usd: must be in dollars per million tokens: 2.5e-06 is",
        ),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Catalogue.load(write(tmp_path / "models.toml", text))


@pytest.mark.parametrize(
    "place", ["[prices.'openai/gpt-6-luna']", "[[models]]\nid = 'openai/gpt-6-luna'\n[models.prices]"]
)
def test_a_price_that_drops_the_bundled_tiers_is_logged(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    price = f"{place}\ninput_usd = 0.08\noutput_usd = 0.4\n"
    for tiers in ("tiers = []", "tiers = [{ above_tokens = 272_000, input_usd = 0.16, output_usd = 0.6 }]"):
        Catalogue.load(write(tmp_path / "models.toml", price + tiers))
    assert caplog.messages == []
    file = write(tmp_path / "models.toml", price)
    Catalogue.load(file)
    assert caplog.messages == [
        f"{file}: the price of openai/gpt-6-luna lacks the 'tiers' of the bundled one; "
        "add yours, or 'tiers = []' if there are none"
    ]


@table(
    ("field", "said"),
    [
        ("quality = 2", r"models\[0\].quality: .*must be a number from 0 to 1, got 2"),
        ("[[models]]\nid = 'a/x'", "'a/x' has two entries"),
        ("pricing_per_1m = 1", "unknown key; it is 'prices' in a file"),
        ("modalities = []", r"models.toml: models\['a/x'\].modalities: must include 'text', got none"),
        ("context_window = 0.5", r"context_window: must be a whole number, got 0.5"),
        ("deprecated_at = 5", r"deprecated_at: must be a date or timestamp, got 5"),
        (f"context_window = {'9' * 5_000}", r"models.toml: holds a number with too many digits; write fewer"),
    ],
)
def test_an_error_in_a_model_names_the_file_and_the_field(tmp_path: Path, field: str, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Catalogue.load(write(tmp_path / "models.toml", f"[[models]]\nid = 'a/x'\n{field}"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"models": [], "models": []}', "models.json: has the key 'models' twice; keep one of them"),
        (
            '{"aliases": {"fast": "\\ud800"}}',
            "models.json: aliases.fast: holds an unpaired surrogate, which is not a ch",
        ),
        ('{"models": [{"id": "a/x", "quality": NaN}]}', "models.json: models[0].quality: NaN is not JSON; write null"),
        ("", "models.json: is empty; write one JSON object"),
        (f'{{"disabled": [{"9" * 5_000}]}}', "models.json: holds a number with too many digits; write fewer digits"),
    ],
)
def test_json_is_read_strictly(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "models.json", text)
    with pytest.raises(ValidationFailed) as refused:
        Catalogue.load(path)
    assert str(refused.value).startswith(str(path).removesuffix("models.json") + said)


@pytest.mark.parametrize("name", ["models.toml", "models.json", "MODELS.JSON"])
def test_a_byte_order_mark_and_capitals_in_a_name_change_nothing(tmp_path: Path, name: str) -> None:
    text = '{"disabled": ["openai/o3"]}' if name.lower().endswith("json") else "disabled = ['openai/o3']"
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [model.id for model in Catalogue.load(tmp_path / name).models if model.disabled] == ["openai/o3"]


def test_anything_but_a_file_of_limited_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationFailed, match=f"^{tmp_path}: cannot be read: Is a directory; check the path$"):
        Catalogue.load(tmp_path)
    with pytest.raises(ValidationFailed, match=r"cannot be read: embedded null byte; check the path$"):
        Catalogue.load("models\0.toml")
    monkeypatch.setattr(input_file, "MAX_FILE_BYTES", 1 << 20)
    write(tmp_path / "large.toml", "#" + "a" * (1 << 20))
    with pytest.raises(ValidationFailed, match=r"large.toml: is larger than 1 MiB; split it$"):
        Catalogue.load(tmp_path / "large.toml")


def test_invalid_utf8_is_refused_with_the_file_name(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValidationFailed, match=r"models.toml:\d+: is not UTF-8 text \(byte 0\); convert it$"):
        Catalogue.load(tmp_path / "models.toml")
