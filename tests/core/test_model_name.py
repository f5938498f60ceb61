"""Matching a provider's model name to a catalogue model: only if it is unambiguous."""

from __future__ import annotations

import pytest

from routewright import Catalogue
from routewright._core.catalogue.models import Named, model_called, named, named_by_id

CATALOGUE = [named(model) for model in Catalogue().models]
AZURE = Named("azure/gpt-4.1", "azure", "my-deployment", "GPT-4.1 of ours")


def called(name: str, *used: Named, provider: str | None = None, **aliases: str) -> str | None:
    return model_called(name, [used, CATALOGUE], provider, aliases)


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("gpt-4.1", "openai", "openai/gpt-4.1"),
        ("openai/gpt-4.1", "openai", "openai/gpt-4.1"),
        ("openai/gpt-4.1", None, "openai/gpt-4.1"),
        ("gpt-4.1-2025-04-14", "openai", "openai/gpt-4.1"),
        ("gpt-4.1-2025-04-14", None, "openai/gpt-4.1"),
        ("gpt-4.1-mini-2025-04-14", "openai", "openai/gpt-4.1-mini"),
        ("claude-haiku-4-5-20251001", "anthropic", "anthropic/claude-haiku-4-5"),
        ("claude-haiku-4-5@20251001", "anthropic", "anthropic/claude-haiku-4-5"),
        ("claude-haiku-4-5-latest", "anthropic", "anthropic/claude-haiku-4-5"),
        ("Claude Haiku 4.5", "anthropic", "anthropic/claude-haiku-4-5"),
        ("Claude Haiku 5.5", "anthropic", "anthropic/claude-haiku-5-5"),
        ("Claude Opus 4.8", "anthropic", "anthropic/claude-opus-4-8"),
        ("GPT-5 mini", "openai", "openai/gpt-5-mini"),
        ("models/gemini-3.1-flash-lite", "google", "google/gemini-3.1-flash-lite"),
        ("Qwen/Qwen3.5-9B", "deepinfra", "deepinfra/Qwen/Qwen3.5-9B"),
    ],
)
def test_a_provider_name_finds_its_model(name: str, provider: str | None, model: str) -> None:
    assert called(name, provider=provider) == model


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("gpt-4", "openai"),
        ("gpt-4.1x", "openai"),
        ("gpt-4.1", "anthropic"),
        ("ft:gpt-4o-mini-2024-07-18:acme::abc", "openai"),
        ("assistants api | file search", "openai"),
        ("2025-04-14", "openai"),
        ("", "openai"),
        ("latest", "openai"),
        ("---", None),
    ],
)
def test_an_unknown_name_is_not_guessed(name: str, provider: str | None) -> None:
    assert called(name, provider=provider) is None


def test_a_name_of_two_providers_needs_the_provider() -> None:
    other = Named("azure/gpt-4.1", "azure", "gpt-4.1", "GPT-4.1")
    assert called("gpt-4.1", other, CATALOGUE[2]) is None
    assert called("gpt-4.1", other, CATALOGUE[2], provider="azure") == "azure/gpt-4.1"


def test_models_in_the_ledger_are_searched_before_the_catalogue() -> None:
    dated = named_by_id("openai/gpt-4.1-2025-04-14")
    assert called("gpt-4.1-2025-04-14", dated, provider="openai") == dated.id
    assert called("gpt-4.1", dated, provider="openai") == dated.id, "the only one that it can be"
    assert called("gpt-4.1-2025-04-14", named_by_id("openai/gpt-4.1"), provider="openai") == "openai/gpt-4.1"


def test_two_dated_versions_are_different_models() -> None:
    ours = named_by_id("openai/gpt-9-2026-01-01")
    assert called("gpt-9-2026-02-02", ours, provider="openai") is None
    assert called("gpt-9", ours, named_by_id("openai/gpt-9-2026-02-02"), provider="openai") is None, "either may be it"
    assert called("gpt-9", ours, provider="openai") == ours.id


def test_a_model_may_go_by_another_name_on_the_wire() -> None:
    assert called("my-deployment", AZURE, provider="azure") == AZURE.id
    assert called("gpt-4.1", AZURE, provider="azure") is None


def test_aliases_are_searched_last_within_the_provider() -> None:
    assert called("fast", provider="openai", fast="openai/gpt-4.1") == "openai/gpt-4.1"
    assert called("gpt-4.1", provider="openai", **{"gpt-4.1": "anthropic/claude-haiku-4-5"}) == "openai/gpt-4.1"
    assert called("fast", provider="anthropic", fast="openai/gpt-4.1") is None
    assert called("fast", provider="openai", fast="openai/none") is None
    assert called("fast", fast="openai/gpt-4.1") == "openai/gpt-4.1"


def test_every_bundled_model_goes_by_its_own_names() -> None:
    for each in CATALOGUE:
        assert called(each.id) == each.id
        assert called(each.wire_name, provider=each.provider) == each.id
        assert called(each.display_name, provider=each.provider) in (each.id, None)


def test_an_unknown_model_has_the_names_in_its_id() -> None:
    assert named_by_id("host/some/model") == Named("host/some/model", "host", "some/model", "some/model")
    assert named_by_id("plain") == Named("plain", "plain", "", "")
    assert called("plain", named_by_id("plain")) == "plain"
