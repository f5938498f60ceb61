"""What the vendor-compatible routes have in common."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Budget, Caller, Fallback, Message, Model, Router, ValidationFailed
from routewright.server import create_app
from routewright.server.fields import Ignored
from routewright.server.vendor_requests import (
    FIELD,
    PLACES,
    Directory,
    ModelNotFound,
    RoutingOptions,
    Words,
    add_options,
    places_of,
    read_options,
)
from routewright.wire import Reasoning, RouteRequest
from tests.tables import table

from .asgi_client import ask, scope_of

pytestmark = pytest.mark.anyio

WORDS = Words(PLACES, "GET /models")
HI = RouteRequest([Message("user", "Hi")])
KNOWN = {id: id for id in ("openai/gpt-4o", "openai/gpt-4o-mini", "anthropic/claude-x", "mine")}
MODELS = [Model(id=id, provider=id.partition("/")[0], provider_model_id=id.partition("/")[2]) for id in KNOWN]
ALL = Directory(KNOWN, lambda: MODELS)


@table(
    ("model", "field", "value"),
    [
        ("auto", "models", None),
        ("auto:quality", "goal", "quality"),
        ("policy:careful", "policy_id", "careful"),
        ("openai/gpt-4o", "models", ["openai/gpt-4o"]),
        ("gpt-4o", "models", ["openai/gpt-4o"]),
        ("mine", "models", ["mine"]),
        ("gpt-4o-2024-08-06", "models", ["openai/gpt-4o"]),
        ("anthropic/claude-x-20250929", "models", ["anthropic/claude-x"]),
    ],
)
def test_the_forms_of_model(model: str, field: str, value: Any) -> None:
    id = ALL.id_of(model, "openai", "GET /models")
    assert getattr(add_options(HI, id, "openai", RoutingOptions(), KNOWN), field) == value


def test_an_alias_wins_over_the_vendor_s_model_of_that_name() -> None:
    names = KNOWN | {"gpt-4o": "azure/my-gpt4o"}
    assert Directory(names, lambda: MODELS).id_of("gpt-4o", "openai", "GET /models") == "gpt-4o"
    fallback = RoutingOptions(fallback=Fallback(models=["gpt-4o", "gpt-4o-mini"]))
    assert add_options(HI, "mine", "openai", fallback, names).models == ["mine", "gpt-4o", "openai/gpt-4o-mini"]


@table("model", ["unheard-of", "claude-x", "openai/gpt-5o", "autos", "aut:cost"])
def test_an_unknown_model_is_not_found(model: str) -> None:
    with pytest.raises(ModelNotFound, match=f"there is no model '{model}', or you may not use it; "):
        ALL.id_of(model, "openai", "GET /models")


def test_a_named_model_is_followed_by_those_of_its_fallback() -> None:
    wishes = RoutingOptions(fallback=Fallback(models=["gpt-4o-mini", "mine"], max_retries=0))
    found = add_options(HI, "openai/gpt-4o", "openai", wishes, KNOWN)
    assert (found.models, found.prefer) == (["openai/gpt-4o", "openai/gpt-4o-mini", "mine"], "openai/gpt-4o")
    assert found.fallback == Fallback(models=["openai/gpt-4o-mini", "mine"], max_retries=0)
    assert places_of("openai/gpt-4o", wishes.fallback) == {
        "models[0]": "model",
        "models[1]": "routewright.fallback.models[0]",
        "models[2]": "routewright.fallback.models[1]",
    }
    assert add_options(HI, "openai/gpt-4o", "openai", RoutingOptions(fallback=Fallback(models=[])), KNOWN).models == [
        "openai/gpt-4o"
    ]


def test_the_field_routewright_sets_fields_of_the_request() -> None:
    wishes = read_options({"budget": {"maxCostUsd": 0.5}, "strategy": "balanced", "timeout_ms": 900}, WORDS)
    found = add_options(HI, "auto:cost", "openai", wishes, KNOWN)
    assert (found.budget, found.goal, found.timeout_ms) == (Budget(max_cost_usd=0.5), "cost", 900)


@table(
    ("model", "wishes"),
    [
        ("auto:quality", RoutingOptions(goal="cost")),
        ("policy:a", RoutingOptions(policy_id="b")),
        ("openai/gpt-4o", RoutingOptions(models=["mine"])),
        ("openai/gpt-4o", RoutingOptions(models=["mine"], fallback=Fallback(models=["mine"]))),
        ("auto:speed", RoutingOptions()),
        ("auto:", RoutingOptions()),
    ],
)
def test_a_model_that_contradicts_the_options_is_refused(model: str, wishes: RoutingOptions) -> None:
    with pytest.raises(ValidationFailed, match="model: "):
        add_options(HI, model, "openai", wishes, KNOWN)


@table("given", [[], "fast", {"budgets": {}}, {"goal": "speed"}, {"budget": {"max_cost_usd": 1}}])
def test_an_unknown_option_is_refused_at_its_path(given: Any) -> None:
    with pytest.raises(ValidationFailed, match=FIELD):
        read_options(given, WORDS)


DOORS = ["/openai/v1/chat/completions", "/anthropic/v1/messages", "/openai/v1/responses"]
BODY = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "input": "Hi"}


@pytest.mark.parametrize("path", DOORS)
async def test_a_reused_key_is_409_even_if_the_difference_is_ignored(path: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    scope = scope_of(path=path, headers={"idempotency-key": "k"})
    first, again = await ask(app, scope, BODY), await ask(app, scope, dict(reversed(BODY.items())))
    other = await ask(app, scope, {**BODY, "top_k": 5})
    assert (first.status, again.body, other.status) == (200, first.body, 409)


@table("path", DOORS)
@table("field", ["budget", "models", "goal", "strategy", "policy_id", "prefer", "fallback", "cache", "timeout_ms"])
async def test_an_option_outside_the_field_routewright_is_refused(path: str, field: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    assert (await ask(app, scope_of(path=path), {**BODY, field: None})).status == 200
    client = await ask(app, scope_of(path=path), {**BODY, field: 1})
    assert client.status == 400
    assert f"send it as {FIELD}.{field}" in client.json["error"]["message"]


def test_the_header_of_ignored_fields_has_only_names() -> None:
    names = Ignored()
    for name in ("top_k", "x\r\nset-cookie", "é", "a b", "logprobs", "sk_live_0123456789abcdef", "y" * 99):
        names.add(name)
    assert names.headers() == {"X-Routewright-Ignored": "logprobs, top_k"}
    assert Ignored().headers() == {}


def test_vendor_fields_are_ignored_if_another_vendor_serves() -> None:
    names = Ignored({"logprobs"})
    names.extra = {"openai": {"user": "ann"}}
    assert names.headers("openai/gpt-4o") == {"X-Routewright-Ignored": "logprobs"}
    assert names.headers("anthropic/claude", ["verbosity"]) == {"X-Routewright-Ignored": "logprobs, user, verbosity"}


@table("junk", [None, 5, "", "gAAAAB", "bm90IGpzb24=", "e30=", "W1tbW1tb", "*" * 40])
def test_only_reasoning_packed_here_is_unpacked(junk: Any) -> None:
    thought = Reasoning("google", [{"signature": "é", "n": 1}], "Hm.")
    assert Reasoning.unpack(thought.pack()) == Reasoning("google", [{"signature": "é", "n": 1}])
    assert Reasoning.unpack(junk) is None
