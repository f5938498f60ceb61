from __future__ import annotations

import json
from pathlib import Path

import pytest

from routewright import Catalogue, Model, Pricing, ValidationFailed, read_policies
from routewright._core.catalogue import overlay, snapshot, unavailable
from routewright.wire import PriceTier

KNOWN = Model(
    id="acme/large", provider="acme", provider_model_id="large", context_window=64_000, modalities=("text", "tool"),
    quality=0.8, ttft_s=2.0, tokens_per_s=50.0, pricing_per_1m=Pricing(3.0, 9.0), reasoning=True,
)  # fmt: skip


def test_the_bundled_catalogue_has_160_models_with_prices_and_priors() -> None:
    models = Catalogue().models
    assert len(models) == 160
    assert len({model.id for model in models}) == 160
    assert all(model.quality is not None and model.pricing_per_1m is not None for model in models)
    assert Catalogue().as_of == "2026-11-20"


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


def test_a_known_id_keeps_what_the_new_row_leaves_open() -> None:
    (changed,) = overlay([KNOWN], [{"id": "acme/large", "quality": 0.1}])
    assert (changed.quality, changed.context_window) == (0.1, 64_000)


def test_a_new_model_borrows_from_the_one_it_is_like_but_never_the_price() -> None:
    new = overlay([KNOWN], [{"id": "mine/tuned", "like": "acme/large", "quality": 0.9}])[1]
    assert (new.quality, new.context_window, new.reasoning, new.provider) == (0.9, 64_000, True, "mine")
    assert new.pricing_per_1m is None
    assert new.provider_model_id == "tuned"


def test_an_unknown_like_names_the_nearest() -> None:
    with pytest.raises(ValidationFailed, match="did you mean 'acme/large'"):
        overlay([KNOWN], [{"id": "mine/tuned", "like": "acme/larg"}])


def test_an_id_without_a_provider_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="'tuned' names no provider"):
        Catalogue([Model(id="tuned")])


def test_a_snapshots_id_is_made_from_its_content() -> None:
    first, again = snapshot([KNOWN], "2026-11-20"), snapshot([KNOWN], "2026-11-20")
    assert first == again
    assert first.id != snapshot(unavailable([KNOWN], frozenset()), "2026-11-20").id


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pricing_per_1m": Pricing(-1.0, 1.0)}, r"models\['a/x'\].pricing_per_1m.input_usd: is -1.0; give 0 or more"),
        ({"pricing_per_1m": Pricing(1.0, float("nan"))}, "output_usd: is nan"),
        (
            {"pricing_per_1m": Pricing(1.0, 1.0, tiers=(PriceTier(10, 1.0, float("inf")),))},
            r"tiers\[0\].output_usd: is inf",
        ),
        ({"context_window": 0}, "context_window: is 0; give 1 to"),
        ({"max_output_tokens": 2**62}, "max_output_tokens"),
        ({"ttft_s": 0.0}, "ttft_s: is 0.0; give above 0"),
        ({"tokens_per_s": -3.0}, "tokens_per_s"),
        ({"quality": 1.5}, "quality: is 1.5; give 0 to 1"),
        ({"deprecated_at": "soon"}, "deprecated_at: is 'soon'; give a date"),
    ],
)
def test_a_model_that_cannot_be_reckoned_with_is_refused_by_its_field(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        overlay([], [{"id": "a/x", **fields}])


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


def test_json_does_as_well(tmp_path: Path) -> None:
    content = {"models": [{"id": "acme/llama", "quality": 0.6}]}
    catalogue = Catalogue.load(write(tmp_path / "models.json", json.dumps(content)))
    assert catalogue.models[-1].id == "acme/llama"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[[models]]\nid = 'acme/x'\nqualty = 0.5",
            r"models.toml: models\[0\].qualty: unknown key; did you mean 'quality'\?",
        ),
        ("[[models]]\nid = 'x'", r"models.toml: models\[0\].id: .*got 'x'"),
        ("[[models]]\nid = 'a/x'\nquality = 2", r"models\[0\].quality: .*less than or equal to 1, got 2"),
        ("[[models]]\nid = 'a/x'\n[[models]]\nid = 'a/x'", "'a/x' stands twice"),
        ("[[models", "models.toml: .*write TOML"),
        ("[aliases]\nfast = 'nope'", r"aliases.fast"),
        (
            "[prices.'openai/gpt-4l']\ninput_usd = 1\noutput_usd = 1",
            "prices.openai/gpt-4l: unknown model .* mean 'openai/gpt-4",
        ),
        ("disabled = ['openai/gpt-40']", "models.toml: disabled: unknown model 'openai/gpt-40'; did you mean"),
        ("[[models]]\nid = 'a/x'\nlike = 'openai/gpt-40'", r"models.toml: models\['a/x'\].like: unknown model"),
        ("[prices.'a/x']\ninput_usd = -1\noutput_usd = 1", "greater than or equal to 0, got -1"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Catalogue.load(write(tmp_path / "models.toml", text))


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match=r"gone.toml: cannot be read: No such file"):
        Catalogue.load(tmp_path / "gone.toml")


def test_bytes_that_are_no_text_are_refused_with_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValidationFailed, match=r"models.toml"):
        Catalogue.load(tmp_path / "models.toml")


POLICIES = """
[[policies]]
name = "careful"
goal = "quality"
strategy = "quality-first"
models = ["openai/gpt-4.1", "anthropic/claude-opus-5"]
timeout_ms = 20_000
budget = { max_cost_usd = 0.05 }
fallback = { models = [], max_retries = 0, on_refusal = "fallback" }
cache = { mode = "exact", ttl_seconds = 60 }
"""


def test_policies_come_from_a_file(tmp_path: Path) -> None:
    (policy,) = read_policies(write(tmp_path / "policies.toml", POLICIES))
    assert (policy.name, policy.goal, policy.strategy, policy.timeout_ms) == (
        "careful", "quality", "quality-first", 20_000,
    )  # fmt: skip
    assert policy.budget is not None
    assert policy.budget.max_cost_usd == 0.05
    assert policy.fallback is not None
    assert (policy.fallback.models, policy.fallback.on_refusal) == ([], "fallback")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[policies]]\nname = 'a@b'", r"policies\[0\].name"),
        ("[[policies]]\nname = 'a'\ngaol = 'cost'", "did you mean 'goal'"),
        ("[[policies]]\nname = 'a'\nstrategy = 'fast'", "quality-first"),
        ("[[policies]]\nname = 'a'\ncache = { threshold = 0.9, max_error = 0.1 }", "not both"),
    ],
)
def test_a_bad_policy_file_names_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        read_policies(write(tmp_path / "policies.toml", text))
