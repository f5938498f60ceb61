"""What a key may use, over HTTP: every door refuses what lies outside, and lists only what lies inside."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import CallableProvider, Catalogue, Console, MemoryStorage, Model, Pricing, Router
from routewright.server import App, create_app
from routewright.wire import Policy, UpstreamCall

from .asgi_client import ask, scope_of

pytestmark = pytest.mark.anyio

MODELS = [
    Model(id="openai/big", quality=0.9, pricing_per_1m=Pricing(10, 40), context_window=100_000),
    Model(id="anthropic/tiny", quality=0.4, pricing_per_1m=Pricing(0.01, 0.04), context_window=100_000),
]
HI = {"messages": [{"role": "user", "content": "hi"}]}
CHAT, MESSAGES = HI | {"model": "openai/big"}, HI | {"model": "openai/big", "max_tokens": 9}


async def answer(call: UpstreamCall) -> str:
    return call.model.id


async def opened(**terms: Any) -> tuple[App, dict[str, str]]:
    storage = MemoryStorage()
    console = Console(storage, secret="a secret that is long enough for one", catalogue=Catalogue(MODELS))
    await console.create_account("acme", plan="unlimited")
    policies = [Policy(name="best", goal="quality"), Policy(name="cheap", strategy="cost-optimized")]
    router = Router(
        providers=[CallableProvider(answer, models=MODELS)], catalogue=Catalogue(()), storage=storage, policies=policies
    )
    router.policies()  # claims their names in the storage
    new = await console.create_key("acme", name="x", **terms)
    return create_app(router, console), {"authorization": f"Bearer {new.secret.reveal()}"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/route", HI | {"models": ["openai/big"]}),
        ("/v1/route", HI | {"prefer": "openai/big", "stream": True}),
        ("/v1/route", HI | {"policy_id": "best"}),
        ("/v1/decide", HI | {"fallback": {"models": ["openai/big"]}}),
        ("/openai/v1/chat/completions", CHAT),
        ("/openai/v1/chat/completions", CHAT | {"stream": True}),
        ("/openai/v1/chat/completions", CHAT | {"model": "policy:best"}),
        ("/openai/v1/chat/completions", CHAT | {"model": "auto", "routewright": {"models": ["openai/big"]}}),
        ("/openai/v1/responses", {"model": "openai/big", "input": "hi"}),
        ("/anthropic/v1/messages", MESSAGES),
        ("/anthropic/v1/messages/count_tokens", CHAT),
    ],
)
async def test_every_door_refuses_what_a_key_may_not_use(path: str, body: dict[str, Any]) -> None:
    app, headers = await opened(models=["anthropic/*"], policies=["cheap"])
    refused = await ask(app, scope_of("POST", path=path, headers=headers), body)
    error = refused.json["error"]
    assert refused.status == 403, error
    what = "the policy 'best'; it may use 'cheap'" if "best" in str(body) else "'openai/big'; it may use 'anthropic/*'"
    assert error["message"] == f"the API key may not use {what}"
    assert "permission_denied" in (error.get("code"), error.get("type")) or error["type"] == "permission_error"


async def test_what_a_request_leaves_open_stays_within_the_key() -> None:
    app, headers = await opened(models=["anthropic/*"], policies=["cheap"])
    for path, body in (
        ("/v1/route", HI | {"goal": "quality"}),
        ("/openai/v1/chat/completions", CHAT | {"model": "auto:quality"}),
        ("/v1/agents/run", {"task": "hi", "model_strategy": {"goal": "quality", "strategy": "quality-first"}}),
    ):
        answered = await ask(app, scope_of("POST", path=path, headers=headers), body)
        assert (answered.status, b"anthropic/tiny" in answered.body) == (200, True)
        assert b"openai/big" not in answered.body


async def test_lists_show_what_a_key_may_use() -> None:
    app, headers = await opened(models=["anthropic/*"], policies=["cheap"])
    own = await ask(app, scope_of("GET", path="/v1/models", headers=headers))
    assert [model["id"] for model in own.json["models"]] == ["anthropic/tiny"]
    for path in ("/openai/v1/models", "/anthropic/v1/models"):
        listed = await ask(app, scope_of("GET", path=path, headers=headers))
        ids = [model["id"] for model in listed.json["data"]]
        assert [id for id in ids if "/" in id] == ["anthropic/tiny"]
    assert (await ask(app, scope_of("GET", path="/openai/v1/models/openai/big", headers=headers))).status == 404
    policies = await ask(app, scope_of("GET", path="/v1/policies", headers=headers))
    assert [policy["name"] for policy in policies.json] == ["cheap"]


SCOPES = {
    "/v1/route": "route", "/v1/decide": "route", "/v1/agents/run": "agents", "/v1/models": "models:read",
    "/v1/policies": "policies:read", "/v1/traces": "traces:read", "/v1/traces/tr_1": "traces:read",
    "/v1/analytics/usage": "analytics:read", "/v1/analytics/cache": "analytics:read",
    "/v1/analytics/fallback": "analytics:read", "/v1/analytics/latency": "analytics:read",
    "/openai/v1/chat/completions": "route", "/openai/v1/responses": "route", "/openai/v1/models": "models:read",
    "/openai/v1/models/openai/big": "models:read", "/anthropic/v1/messages": "route",
    "/anthropic/v1/messages/count_tokens": "route", "/anthropic/v1/models": "models:read",
    "/anthropic/v1/models/openai/big": "models:read",
}  # fmt: skip


@pytest.mark.parametrize(("path", "scope"), SCOPES.items())
async def test_every_door_requires_its_own_scope_and_no_other(path: str, scope: str) -> None:
    method = "GET" if scope.endswith(":read") else "POST"
    for scopes, is_refused in (([scope], False), ([other for other in {*SCOPES.values()} if other != scope], True)):
        app, headers = await opened(scopes=scopes)
        answered = await ask(app, scope_of(method, path=path, headers=headers), None if method == "GET" else HI)
        assert (answered.status == 403) == is_refused, answered.body
