"""No answer over HTTP names another account, whoever authenticated its caller."""

from __future__ import annotations

import pytest

from routewright import Caller, Console, MemoryStorage, Router
from routewright.server import create_app
from routewright.testing import ScriptedProvider
from tests.engine.scripted_router import GOOD

from .asgi_client import ask, scope_of

pytestmark = pytest.mark.anyio

ROUTE = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", ["/v1/route", "/v1/chat/completions", "/v1/agents/run"])
async def test_an_unknown_account_is_refused_without_naming_others(path: str) -> None:
    storage = MemoryStorage()
    await Console(storage).create_account("acme")
    router = Router(providers=[ScriptedProvider(lambda call: "hello", models=[GOOD])], storage=storage)
    app = create_app(router, authenticate=lambda scope: Caller("acmee"))
    body = {"task": "hi"} if "agents" in path else ROUTE | {"model": "auto"} if "chat" in path else ROUTE
    answer = await ask(app, scope_of("POST", path=path), body)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (403, "permission_denied")
    assert error["message"] == "the account 'acmee' is unknown; ask the operator to add it"


@pytest.mark.parametrize("caller", [Caller(), Caller("acme")])
async def test_usage_is_not_grouped_by_account(caller: Caller) -> None:
    storage = MemoryStorage()
    await Console(storage).create_account("acme")
    app = create_app(Router.sandbox(storage=storage), authenticate=lambda scope: caller)
    answer = await ask(app, scope_of("GET", path="/v1/analytics/usage", query="group_by=account"))
    (problem,) = answer.json["error"]["detail"]["problems"]
    assert (answer.status, problem["problem"]) == (400, "is 'account'")
    assert problem["hint"].startswith("one of model, tenant, workflow, policy_version, shadow;")
