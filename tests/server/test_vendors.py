"""What the doors for other vendors' clients have in common."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from routewright import Budget, Caller, Message, Router, ValidationFailed
from routewright.server import create_app
from routewright.server.vendors import FIELD, PLACES, Ignored, Wishes, Words, wished, wishes_of
from routewright.wire import Goal, RouteRequest

from .wire import ask, scope_of

WORDS = Words(PLACES, "GET /models")
HI = RouteRequest([Message("user", "Hi")])
KNOWN = {"openai/gpt-4o", "anthropic/claude", "mine"}


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        ("auto", "models", None),
        ("auto:quality", "goal", "quality"),
        ("policy:careful", "policy_id", "careful"),
        ("openai/gpt-4o", "models", ["openai/gpt-4o"]),
        ("gpt-4o", "models", ["openai/gpt-4o"]),
        ("mine", "models", ["mine"]),
        ("anthropic/claude", "models", ["anthropic/claude"]),
        ("unheard-of", "models", ["unheard-of"]),  # which the router refuses, with the nearest
    ],
)
def test_the_forms_of_model(model: str, field: str, value: Any) -> None:
    assert getattr(wished(HI, model, "openai", Wishes(), KNOWN), field) == value


def test_what_is_wished_goes_into_the_request() -> None:
    wishes = wishes_of({"budget": {"maxCostUsd": 0.5}, "strategy": "balanced", "timeout_ms": 900}, WORDS)
    found = wished(HI, "auto:cost", "openai", wishes, KNOWN)
    assert (found.budget, found.goal, found.timeout_ms) == (Budget(max_cost_usd=0.5), "cost", 900)


@pytest.mark.parametrize(
    ("model", "wishes"),
    [
        ("auto:quality", Wishes(goal="cost")),
        ("policy:a", Wishes(policy_id="b")),
        ("gpt-4o", Wishes(models=["mine"])),
        ("auto:speed", Wishes()),
        ("auto:", Wishes()),
    ],
)
def test_a_model_that_says_something_else_is_refused(model: str, wishes: Wishes) -> None:
    with pytest.raises(ValidationFailed, match="model: "):
        wished(HI, model, "openai", wishes, KNOWN)


@pytest.mark.parametrize("given", [[], "fast", {"budgets": {}}, {"goal": "speed"}, {"budget": {"max_cost_usd": 1}}])
def test_what_is_no_wish_is_refused_by_its_place(given: Any) -> None:
    with pytest.raises(ValidationFailed, match=FIELD):
        wishes_of(given, WORDS)


DOORS = ["/openai/v1/chat/completions", "/anthropic/v1/messages"]
BODY = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.anyio
@pytest.mark.parametrize("path", DOORS)
async def test_another_body_under_the_same_key_is_409_though_what_differs_is_ignored(path: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    scope = scope_of(path=path, headers={"idempotency-key": "k"})
    first, again = await ask(app, scope, BODY), await ask(app, scope, dict(reversed(BODY.items())))
    other = await ask(app, scope, {**BODY, "top_k": 5})
    assert (first.status, again.body, other.status) == (200, first.body, 409)


@pytest.mark.anyio
@pytest.mark.parametrize("path", DOORS)
async def test_a_key_in_the_body_is_refused_and_not_ignored(path: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    client = await ask(app, scope_of(path=path), {**BODY, "idempotency_key": "k"})
    assert client.status == 400
    assert "send it as the header Idempotency-Key" in client.json["error"]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("path", DOORS)
async def test_what_is_suggested_can_be_followed(path: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    client = await ask(app, scope_of(path=path), {**BODY, FIELD: {"budget": {"maxCostUsd": 1e-9}}})
    assert client.status == 422
    assert f"raise {FIELD}.budget.maxCostUsd" in client.body.decode()


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/anthropic/v1/messages"])
@pytest.mark.parametrize(
    "field", ["budget", "models", "goal", "strategy", "policy_id", "prefer", "fallback", "cache", "timeout_ms"]
)
async def test_a_wish_beside_the_field_is_refused_and_not_ignored(path: str, field: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    body = {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    assert (await ask(app, scope_of(path=path), {**body, field: None})).status == 200
    client = await ask(app, scope_of(path=path), {**body, field: 1})
    assert client.status == 400
    assert f"send it as {FIELD}.{field}" in client.json["error"]["message"]


def test_a_header_names_what_was_ignored_and_holds_nothing_else() -> None:
    names = Ignored()
    for name in ("top_k", "x\r\nset-cookie", "é", "a b", "logprobs", "sk_live_0123456789abcdef", "y" * 99):
        names.add(name)
    assert names.headers == {"X-Routewright-Ignored": "logprobs, top_k"}
    assert Ignored().headers == {}


def test_goals_are_those_of_the_request() -> None:
    for goal in get_args(Goal):
        assert wished(HI, f"auto:{goal}", "openai", Wishes(), KNOWN).goal == goal
