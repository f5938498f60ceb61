"""Matching a provider's model name to a catalogue model: only if it is unambiguous."""

from __future__ import annotations

from routewright import Catalogue, Model
from routewright._core.catalogue.models import model_called
from tests.tables import table


def model(provider: str, id: str, name: str, display_name: str) -> Model:
    return Model(id=id, provider=provider, provider_model_id=name, display_name=display_name)


CATALOGUE = Catalogue().models
AZURE = model("azure", "azure/gpt-4.1", "my-deployment", "GPT-4.1 of ours")


def called(name: str, provider: str, *more: Model) -> str | None:
    return model_called(name, [*CATALOGUE, *more], provider)


def openai(name: str) -> Model:
    return model("openai", f"openai/{name}", name, name)


@table(
    ("name", "provider", "model"),
    [
        ("gpt-4.1", "openai", "openai/gpt-4.1"),
        ("openai/gpt-4.1", "openai", "openai/gpt-4.1"),
        ("gpt-4.1-2025-04-14", "openai", "openai/gpt-4.1"),
        ("claude-haiku-4-5-20251001", "anthropic", "anthropic/claude-haiku-4-5"),
        ("claude-haiku-4-5@20251001", "anthropic", "anthropic/claude-haiku-4-5"),
        ("claude-haiku-4-5-latest", "anthropic", "anthropic/claude-haiku-4-5"),
        ("Claude Haiku 4.5", "anthropic", "anthropic/claude-haiku-4-5"),
        ("GPT-5 mini", "openai", "openai/gpt-5-mini"),
        ("models/gemini-3.1-flash-lite", "google", "google/gemini-3.1-flash-lite"),
        ("Qwen/Qwen3.5-9B", "deepinfra", "deepinfra/Qwen/Qwen3.5-9B"),
    ],
)
def test_a_provider_name_finds_its_model(name: str, provider: str, model: str) -> None:
    assert called(name, provider) == model


@table(
    ("name", "provider"),
    [
        ("gpt-4", "openai"),
        ("gpt-4.1", "anthropic"),
        ("ft:gpt-4o-mini-2024-07-18:acme::abc", "openai"),
        ("2025-04-14", "openai"),
        ("", "openai"),
        ("---", "openai"),
    ],
)
def test_an_unknown_name_is_not_guessed(name: str, provider: str) -> None:
    assert called(name, provider) is None


def test_another_provider_may_have_a_model_of_that_name() -> None:
    other = model("azure", "azure/gpt-4.1", "gpt-4.1", "GPT-4.1")
    assert called("gpt-4.1", "azure", other) == "azure/gpt-4.1"
    assert called("gpt-4.1", "openai", other) == "openai/gpt-4.1"


def test_the_name_itself_is_preferred_to_the_undated_one() -> None:
    dated = openai("gpt-4.1-2025-04-14")
    assert called("gpt-4.1-2025-04-14", "openai", dated) == dated.id
    assert called("gpt-4.1", "openai", dated) == "openai/gpt-4.1"


def test_two_dated_versions_are_different_models() -> None:
    ours = openai("gpt-9-2026-01-01")
    assert called("gpt-9-2026-02-02", "openai", ours) is None
    assert called("gpt-9", "openai", ours, openai("gpt-9-2026-02-02")) is None, "either may be it"
    assert called("gpt-9", "openai", ours) == ours.id


def test_a_model_may_go_by_another_name_on_the_wire() -> None:
    assert called("my-deployment", "azure", AZURE) == AZURE.id
    assert called("gpt-4.1", "azure", AZURE) is None


def test_every_bundled_model_goes_by_its_own_names() -> None:
    for each in CATALOGUE:
        assert called(each.id, each.provider) == each.id
        assert called(each.provider_model_id, each.provider) == each.id
        assert called(each.display_name, each.provider) in (each.id, None)
