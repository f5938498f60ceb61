"""Selectors in policies pick the models they describe; one that picks nothing is refused with a suggestion."""

from __future__ import annotations

from fnmatch import fnmatchcase
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Policy, ValidationFailed
from routewright._core.model_selector import CAPABLE, ModelIndex, match_words
from routewright.wire import Model, PolicyFallback
from tests.tables import table

from .policies import publish

MODELS = [
    Model(id="openai/big", provider="openai", modalities=("text", "image", "tool"), structured_output=True),
    Model(id="openai/small", provider="openai", modalities=("text", "tool"), tags=("eu", "cheap")),
    Model(id="groq/openai/oss", provider="groq", reasoning=True, tags=("eu",)),
    Model(id="zai/free", provider="zai", free_tier=True, tags=("cheap",)),
    Model(id="house/one", provider="house"),
]
KNOWN = ModelIndex(MODELS, {"short": "openai/small", "gift": "zai/free", "tag:house": "house/one"})


def picked(policy: Policy) -> tuple[str, ...] | None:
    (made,) = publish([policy], "2026-11-21", KNOWN)
    return made.models


@table(
    ("words", "ids"),
    [
        (["short", "openai/small"], ["openai/small"]),
        (["openai/*"], ["openai/big", "openai/small"]),
        (["*openai/*"], ["openai/big", "openai/small", "groq/openai/oss"]),
        (["*"], ["openai/big", "openai/small", "groq/openai/oss", "house/one"]),
        (["provider:openai"], ["openai/big", "openai/small"]),
        (["tag:eu"], ["openai/small", "groq/openai/oss"]),
        (["tag:house"], ["house/one"]),
        (["capability:tools", "capability:reasoning"], ["openai/big", "openai/small", "groq/openai/oss"]),
        (["zai/free"], ["zai/free"]),
        (["gift", "tag:cheap"], ["zai/free", "openai/small"]),
    ],
)
def test_words_pick_models_in_their_order_each_once(words: list[str], ids: list[str]) -> None:
    assert picked(Policy(name="p", models=words)) == tuple(ids)


def test_excluded_models_are_not_picked_by_any_word() -> None:
    assert picked(Policy(name="p", exclude=["provider:openai"])) == ("groq/openai/oss", "house/one")
    assert picked(Policy(name="p", models=["openai/*"], exclude=["short"])) == ("openai/big",)
    assert picked(Policy(name="p", models=["gift", "short"], exclude=["zai/*"])) == ("openai/small",)
    assert picked(Policy(name="p", exclude=[])) is None


def test_every_required_capability_must_hold() -> None:
    assert picked(Policy(name="p", capabilities=["tools"])) == ("openai/big", "openai/small")
    assert picked(Policy(name="p", capabilities=["tools", "json", "image"])) == ("openai/big",)
    assert picked(Policy(name="p", models=["tag:eu"], capabilities=["reasoning"])) == ("groq/openai/oss",)
    assert picked(Policy(name="p", capabilities=[])) is None
    assert list(CAPABLE) == ["image", "tools", "json", "reasoning"]


@table(
    ("policy", "said"),
    [
        (
            Policy(name="p", models=["short", "opnai/big"]),
            "policies['p'].models[1]: unknown model 'opnai/big'; did you mean 'openai/big'?",
        ),
        (
            Policy(name="p", models=["openai"]),
            "policies['p'].models[0]: unknown model 'openai'; did you mean 'provider:openai'?",
        ),
        (
            Policy(name="p", exclude=["opnai/*"]),
            "policies['p'].exclude[0]: 'opnai/*' matches no model; did you mean 'openai/*'?",
        ),
        (
            Policy(name="p", models=["tag:mars"]),
            "policies['p'].models[0]: 'tag:mars' matches no model; known tags: 'eu', 'cheap'",
        ),
        (
            Policy(name="p", models=["[xyz]"]),
            "policies['p'].models[0]: unknown model '[xyz]'; Router.models() lists the known ids",
        ),
        (
            Policy(name="p", models=["zai/*"]),
            "policies['p'].models[0]: 'zai/*' matches only free offers ('zai/free'); name each of them by its id",
        ),
        (
            Policy(name="p", models=["house/*"], capabilities=["image", "json"]),
            "policies['p']: allows no model: of 1 that match 'models', none has all of 'image', 'json'; "
            "widen 'models', or shorten 'exclude' and 'capabilities'",
        ),
        (
            Policy(name="p", exclude=["short"], fallback=PolicyFallback(models=["short"])),
            "policies['p'].fallback.models: 'openai/small' is outside the whitelist (fallback.models: 'openai/small'; "
            "models: 'openai/big', 'groq/openai/oss', 'house/one'); let 'models', 'exclude' and 'capabilities' allow "
            "it, or take it out of 'fallback.models'",
        ),
        (
            Policy(name="p", fallback=PolicyFallback(models=["openai/*"])),
            "policies['p'].fallback.models[0]: 'openai/*' can match several models, which have no order; "
            "name each of them by its id",
        ),
        (
            Policy(name="p", models=["capability:vision"]),
            "policies['p'].models[0]: 'capability:vision' matches no model; "
            "known capabilities: 'image', 'tools', 'json', 'reasoning'",
        ),
    ],
)
def test_words_without_a_match_are_refused_with_a_suggestion(policy: Policy, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        picked(policy)
    assert str(refused.value) == said


@given(st.text("ab*?/", min_size=1, max_size=8), st.text("ab/", min_size=3, max_size=10))
def test_globs_match_like_fnmatch(glob: str, name: str) -> None:
    model = Model(id=name)
    assert bool(match_words([glob], model, ModelIndex([model], {}))) == fnmatchcase(name, glob)


def test_any_glob_matches_quickly() -> None:
    model = Model(id=f"a/{'a' * 190}")
    began = perf_counter()
    assert not match_words(["*a" * 90 + "b"], model, ModelIndex([model], {}))
    assert perf_counter() - began < 1
