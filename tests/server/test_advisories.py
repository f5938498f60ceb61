"""The classes of advisories published for gateways, each tried on ours. Proofs that stand elsewhere:

- URLs and vendors' fields that make a server fetch, by ``test_image_urls.py`` and ``engine/test_caller_fields.py``;
- headers that are nearly a key, by ``test_authentication.py``, and rows of other accounts, by
  ``backends/test_storage.py``;
- bytes that are no HTTP, by ``test_protocol.py`` and ``test_fuzz.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from routewright import Caller, MemoryStorage, Router, SqliteStorage
from routewright.console import SCOPES as ALL
from routewright.server import create_app
from routewright.server.routes import ENDPOINTS
from routewright.wire import Key, Keys, Scope
from tests.model_servers import LocalServer
from tests.tables import table

from .asgi_client import Client, ask, scope_of
from .test_image_urls import Machine
from .uvicorn_server import HELLO, SECRET, Site, bearer

pytestmark = pytest.mark.anyio

OPEN = None
"""No key is needed."""
SCOPES: dict[str, dict[str, Scope | None]] = {
    "/v1/route": {"POST": "route"},
    "/v1/agents/run": {"POST": "agents"},
    "/v1/decide": {"POST": "route"},
    "/v1/models": {"GET": "models:read"},
    "/v1/policies": {"GET": "policies:read"},
    "/v1/traces": {"GET": "traces:read"},
    "/v1/traces/{trace_id}": {"GET": "traces:read"},
    "/v1/analytics/usage": {"GET": "analytics:read"},
    "/v1/analytics/cache": {"GET": "analytics:read"},
    "/v1/analytics/fallback": {"GET": "analytics:read"},
    "/v1/analytics/latency": {"GET": "analytics:read"},
    "/v1/openapi.json": {"GET": OPEN},
    "/v1/chat/completions": {"POST": "route"},
    "/v1/responses": {"POST": "route"},
    "/v1/messages": {"POST": "route"},
    "/v1/messages/count_tokens": {"POST": "route"},
    "/openai/v1/chat/completions": {"POST": "route"},
    "/openai/v1/responses": {"POST": "route"},
    "/openai/v1/models": {"GET": "models:read"},
    "/openai/v1/models/{model...}": {"GET": "models:read"},
    "/anthropic/v1/messages": {"POST": "route"},
    "/anthropic/v1/messages/count_tokens": {"POST": "route"},
    "/anthropic/v1/models": {"GET": "models:read"},
    "/anthropic/v1/models/{model...}": {"GET": "models:read"},
}
"""Who may use an address: everything that is served is listed here."""
ROUTES = [(path, method, scope) for path, methods in SCOPES.items() for method, scope in methods.items()]
PROTECTED = [(path, method, scope) for path, method, scope in ROUTES if scope is not OPEN]


@pytest.fixture
async def site() -> Site:
    """An application with probes, for callers with keys."""
    site = Site()
    site.app = create_app(site.router, site.console, health=True)
    return site


async def answer_of(
    site: Site, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = b"", query: str = ""
) -> Client:
    return await ask(site.app, scope_of(method, path, query=query, headers=headers), body)


async def key_of(site: Site, scopes: list[Scope] | None = None, account: str = "acme") -> str:
    if account not in [known.name for known in await site.console.accounts()]:
        await site.console.create_account(account)
    new = await site.console.create_key(account, name="test", environment="sandbox", scopes=scopes)
    return new.secret.reveal()


# Addresses without a check


def test_every_address_is_listed_with_its_scope() -> None:
    served = {path: {*methods} for path, methods in ENDPOINTS.items()}
    assert served == {path: {*methods} for path, methods in SCOPES.items()}, "say in SCOPES who may use a new address"


async def test_every_address_is_open_to_its_scope_and_to_no_other(site: Site) -> None:
    keys = {scope: await key_of(site, [scope]) for scope in ALL}
    everything = {scope: await key_of(site, [name for name in ALL if name != scope]) for scope in ALL}
    for path, method, scope in PROTECTED:
        for held, key in keys.items():
            client = await answer_of(site, path, method, bearer(key), b"{}")
            assert (client.status == 403) is (held != scope), (path, held, client.status)
            assert client.status != 401
        assert scope is not None
        assert (await answer_of(site, path, method, bearer(everything[scope]), b"{}")).status == 403


async def test_an_operators_key_opens_no_address_of_callers(site: Site) -> None:
    new = await site.console.create_key("_system", name="ada", scopes=["console:write"])
    key = new.secret.reveal()
    problem = "the API key is an operator's, for the page of the server; use one of an account"
    for path, method, _ in PROTECTED:
        for headers in [bearer(key), {"x-api-key": key}][: 2 if "messages" in path or "anthropic" in path else 1]:
            client = await answer_of(site, path, method, headers, b"{}")
            assert (client.status, problem in client.body.decode()) == (403, True), (path, headers)


async def test_without_a_valid_key_only_what_is_listed_as_open_is_served(site: Site) -> None:
    revoked = await key_of(site)
    for key in await site.console.keys("acme"):
        await site.console.revoke_key("acme", key.id)
    for path, method, scope in ROUTES:
        for headers in ({}, bearer(revoked), {"authorization": ""}, {"x-api-key": ""}, {"x-api-key": revoked}):
            client = await answer_of(site, path, method, headers, b"{}")
            assert client.status == (200 if scope is OPEN else 401), (path, headers)


async def test_operators_addresses_are_not_served_to_callers(site: Site) -> None:
    key, without = await key_of(site), Site().app
    for path in ("/metrics", "/admin", "/v1/admin", "/v1/keys", "/v1/accounts", "/docs", "/debug", "/config"):
        assert (await answer_of(site, path, headers=bearer(key))).status == 404
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await ask(without, scope_of("GET", path))).status == 404


# Host and path confusion before authentication

HOSTS = (
    "a/?x=", "a/healthz?x=", "x/v1/openapi.json?", "x/v1/openapi.json#", "a@healthz", "localhost/healthz/..", "",
    "127.0.0.1", "[::1]/healthz#", "a\\healthz", "healthz", "a/%2e%2e/healthz%3f",
)  # fmt: skip
FORWARDED = (
    "x-original-url", "x-rewrite-url", "x-forwarded-path", "x-forwarded-prefix", "x-forwarded-host", "x-forwarded-uri",
    "x-http-method-override", "x-forwarded-for", "x-real-ip", "forwarded", "x-script-name", "x-envoy-original-path",
)  # fmt: skip


async def test_neither_host_nor_forwarding_headers_change_which_address_is_meant(site: Site) -> None:
    open_paths = ("/v1/openapi.json", "/healthz", "127.0.0.1", "for=127.0.0.1;host=x/healthz", "GET")
    headers = [{"host": host} for host in HOSTS]
    headers += [{name: value} for name in FORWARDED for value in open_paths]
    for path, method, _ in PROTECTED:
        for sent in headers:
            assert (await answer_of(site, path, method, sent, HELLO)).status == 401, (path, sent)


async def test_no_spelling_of_a_path_passes_for_an_open_one(site: Site) -> None:
    for path, method, _ in PROTECTED:
        for spelling in (
            f"/healthz/..{path}", f"/v1/openapi.json/../..{path}", f"/{path}", f"{path}/", f"{path};/healthz",
            f"{path}/healthz", f"{path}%2fhealthz", f"{path}?/healthz", f"{path}#/healthz", f"http://a/healthz#{path}",
            path.upper(), path.replace("/v1", "/v1/."), f"/healthz{path}", f"{path}\x00/healthz", f"@{path}",
        ):  # fmt: skip
            client = await answer_of(site, spelling, method, body=HELLO)
            assert client.status in (401, 404, 405), spelling


async def test_a_host_application_that_mounts_it_changes_nothing_of_that(site: Site) -> None:
    mounted = Starlette(routes=[Mount("/llm", site.app)])
    for host in HOSTS:
        client = Client(b"{}")
        scope = scope_of("POST", "/llm/v1/route", headers={"host": host})
        await mounted(scope, client.receive, client.send)
        assert client.status == 401, host


# Keys: SQL, stored hashes, shared prefixes

SQL = (
    "' OR '1'='1", "'; DROP TABLE traces; --", "\" OR 1=1 --", "sk_live_' UNION SELECT secret FROM keys --", "%' --",
    "1); DELETE FROM ledger; --", "\\'; SELECT pg_sleep(10); --", "' || (SELECT digest FROM keys) || '", "_%", "*",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_sql_in_a_key_or_another_text_is_text(kind: str, tmp_path: Path) -> None:
    storage = MemoryStorage() if kind == "memory" else SqliteStorage(tmp_path / "traces.db")
    site = Site(storage=storage)
    key, other = await key_of(site), await key_of(site, account="other")
    for sql in SQL:
        for headers in (bearer(sql), bearer(f"{key}{sql}"), {"x-api-key": sql}, {"authorization": sql}):
            for path, method in (("/v1/traces", "GET"), ("/anthropic/v1/messages", "POST")):
                assert (await answer_of(site, path, method, headers, HELLO)).status == 401
        body = {**HELLO, "metadata": {sql: sql, "tenant": sql}}
        answer = await answer_of(site, "/v1/route", "POST", {**bearer(key), "idempotency-key": sql}, body)
        assert answer.status == 200
        for path, query in (
            (f"/v1/traces/{sql}", ""),
            ("/v1/traces", f"filter=metadata.tenant={sql}"),
            ("/v1/traces", f"cursor={sql}"),
            ("/v1/traces", f"from={sql}"),
            ("/v1/analytics/usage", f"group_by={sql}"),
            ("/v1/policies", f"{sql}=1"),
        ):
            client = await answer_of(site, path, headers=bearer(other), query=query.replace("%", "%25"))
            assert client.status in (200, 400, 404), (path, query)
            if client.status == 200:
                assert client.json["data"] == []
    page = await answer_of(site, "/v1/traces", headers=bearer(key))
    assert [trace["metadata"]["tenant"] for trace in page.json["data"]] == list(reversed(SQL))
    await site.router.aclose()


async def test_what_is_stored_of_a_key_is_no_key(site: Site) -> None:
    key = await key_of(site)
    stored: Key
    (stored,) = await site.storage.read("acme", Keys())
    digest = stored.digest
    shown = (digest, digest.partition(":")[2], stored.id, stored.prefix, f"sk_test_{digest.partition(':')[2][:33]}")
    for text in (*shown, SECRET, f"{stored.prefix}{digest}", f"{digest}:{key}"):
        assert text != key
        for headers in (bearer(text), {"x-api-key": text}):
            assert (await answer_of(site, "/anthropic/v1/models", headers=headers)).status == 401, text
    assert (await answer_of(site, "/anthropic/v1/models", headers=bearer(key))).status == 200


async def test_a_key_that_shares_all_but_one_letter_with_a_cached_one_is_refused(site: Site) -> None:
    key = await key_of(site)
    for place in range(len(key)):
        letter = "b" if key[place] == "a" else "a"
        for near in (f"{key[:place]}{letter}{key[place + 1 :]}", key[:place], key + key[:place]):
            assert (await answer_of(site, "/v1/models", headers=bearer(key))).status == 200, "it is in the cache"
            expected = 200 if near == key else 401
            assert (await answer_of(site, "/v1/models", headers=bearer(near))).status == expected, near


async def test_two_accounts_whose_names_share_a_prefix_share_nothing(site: Site) -> None:
    long = "a" * 60
    one, two = await key_of(site, account=f"{long}1"), await key_of(site, account=f"{long}2")
    headers = {"idempotency-key": "k" * 64}
    first = await answer_of(site, "/v1/route", "POST", {**bearer(one), **headers}, HELLO)
    second = await answer_of(site, "/v1/route", "POST", {**bearer(two), **headers}, HELLO)
    assert first.json["trace_id"] != second.json["trace_id"]
    path = f"/v1/traces/{first.json['trace_id']}"
    assert (await answer_of(site, path, headers=bearer(one))).status == 200
    assert (await answer_of(site, path, headers=bearer(two))).status == 404


# Endpoints that run commands, and templates

COMMANDS: list[dict[str, Any]] = [
    {"transport": "stdio", "command": "touch", "args": ["canary"]},
    {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:9/"},
    {"name": "x", "description": "x", "parameters": {"type": "object"}, "command": "touch canary"},
    {"name": "code_exec", "description": "x", "parameters": {"type": "object"}},
    {"mcpServers": {"x": {"command": "touch", "args": ["canary"]}}},
]


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process fails the test."""

    def refuse(*args: object, **kwargs: object) -> Any:
        pytest.fail(f"a process was started: {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(anyio, "open_process", refuse)
    monkeypatch.setattr("asyncio.create_subprocess_exec", refuse)
    monkeypatch.setattr("os.posix_spawn", refuse)


@pytest.mark.usefixtures("no_process")
async def test_no_request_starts_a_process(site: Site) -> None:
    headers = bearer(await key_of(site))
    for path in ("/mcp", "/v1/mcp", "/mcp-rest/test/connection", "/mcp-rest/test/tools/list", "/sse"):
        for command in COMMANDS:
            assert (await answer_of(site, path, "POST", headers, command)).status == 404
    for command in COMMANDS:
        run = {"task": "What is 1 + 1?", "tools": [command]}
        client = await answer_of(site, "/v1/agents/run", "POST", headers, run)
        assert client.status == 400, command
        assert (await answer_of(site, "/v1/agents/run", "POST", headers, {"task": "Hi", **command})).status == 400
        chat = {"model": "auto", "messages": HELLO["messages"], "tools": [command]}
        assert (await answer_of(site, "/v1/chat/completions", "POST", headers, chat)).status in (200, 400)
        answers = {"model": "auto", "input": "Hi", "tools": [command]}
        assert (await answer_of(site, "/v1/responses", "POST", headers, answers)).status in (200, 400)
    run = {"task": "Run print(1)", "tools": ["code_exec"]}
    assert (await answer_of(site, "/v1/agents/run", "POST", headers, run)).status == 200


TEMPLATES = (
    "{{1337*7331}}", "${1337*7331}", "{1337*7331}", "<%= 1337*7331 %>", "#{1337*7331}", "{% print(1337*7331) %}",
    "{0.__class__.__mro__}", "%(asctime)s", "%s%n%x", "{self.__init__.__globals__}", "$(expr 1337 \\* 7331)",
)  # fmt: skip
EVALUATED = ("9801547", "<class", "__main__", "asctime=")


async def test_templates_are_text_wherever_they_are_repeated(site: Site) -> None:
    headers = bearer(await key_of(site))
    for text in TEMPLATES:
        for body in (
            {**HELLO, "models": [text]}, {**HELLO, text: 1}, {**HELLO, "goal": text}, {**HELLO, "policy_id": text},
            {"messages": [{"role": text, "content": "Hi"}]}, {"messages": [{"role": "user", "content": text}]},
            {**HELLO, "metadata": {text: text}}, {**HELLO, "tool_choice": text}, {**HELLO, "prefer": text},
        ):  # fmt: skip
            client = await answer_of(site, "/v1/route", "POST", headers, body)
            assert client.status in (200, 400)
            assert not any(sign in client.body.decode() for sign in EVALUATED), body
        traces = await answer_of(site, "/v1/traces", headers=headers)
        assert not any(sign in traces.body.decode() for sign in EVALUATED)
        client = await answer_of(site, f"/v1/traces/{text}", headers=headers)
        assert client.status == 404
        assert not any(sign in client.body.decode() for sign in EVALUATED)


# Sessions that never end


async def test_there_are_no_sessions(site: Site) -> None:
    key = await key_of(site)
    for path, method, scope in ROUTES:
        for headers in ({}, bearer(key), {**bearer(key), "cookie": "session=1"}):
            client = await answer_of(site, path, method, headers, b"{}")
            assert "set-cookie" not in client.headers
        for cookie in (
            f"session={key}",
            f"Authorization=Bearer {key}",
            f"api_key={key}",
            f"token={key}; x-api-key={key}",
        ):
            client = await answer_of(site, path, method, {"cookie": cookie}, b"{}")
            assert client.status == (200 if scope is OPEN else 401), "a cookie is no key"
        if scope is not OPEN:
            query = f"api_key={key}&key={key}&access_token={key}&token={key}"
            assert (await answer_of(site, path, method, body=b"{}", query=query)).status == 401, "nor is a parameter"


# A caller who sets the provider's address

ADDRESS_FIELDS = (
    "base_url", "api_base", "api_base_url", "endpoint", "url", "host", "proxy", "azure_endpoint", "custom_host",
    "extra_headers", "litellm_params", "client", "transport", "websocket_base_url", "region", "api_key", "organization",
)  # fmt: skip
ADDRESS_HEADERS = (
    "x-base-url", "x-api-base", "base-url", "api-base", "x-portkey-custom-host", "x-portkey-config", "x-upstream",
    "helicone-target-url", "helicone-openai-api-base", "x-litellm-api-base", "x-target-url", "openai-base-url",
    "x-forwarded-host", "x-provider-url", "proxy", "location", "x-stainless-base-url", "host",
)  # fmt: skip


async def test_no_field_or_header_of_a_caller_sets_the_providers_address() -> None:
    with LocalServer({}) as own, LocalServer({}) as foreign:
        machine = Machine("vllm", own)
        hello = HELLO["messages"]
        doors: dict[str, dict[str, Any]] = {
            "/v1/route": {"models": [machine.model], "messages": hello},
            "/openai/v1/chat/completions": {"model": machine.model, "messages": hello},
            "/openai/v1/responses": {"model": machine.model, "input": "Hi"},
            "/anthropic/v1/messages": {"model": machine.model, "max_tokens": 9, "messages": hello},
        }
        value = foreign.url
        for door, body in doors.items():
            rows: list[dict[str, Any]] = [{name: value} for name in ADDRESS_FIELDS]
            for name in ("base_url", "api_base", "proxy"):
                field = {name: value}
                rows += [{name: {"url": value, "base_url": value}}, {"metadata": field}, {"params": field}]
                rows += [{"params": {"extra": {"vllm": field}}}, {"extra_body": field}, {"routewright": field}]
            for row in rows:
                client = await ask(machine.app, scope_of(path=door), {**body, **row})
                assert client.status in (200, 400), (door, row, client.body)
            for name in ADDRESS_HEADERS:
                assert (await ask(machine.app, scope_of(path=door, headers={name: value}), body)).status == 200
            query = "&".join(f"{name}={value}" for name in ADDRESS_FIELDS)
            assert (await ask(machine.app, scope_of(path=door, query=query), body)).status in (200, 400)
        assert foreign.requests == []
        assert own.requests
        assert {request.headers["host"] for request in own.requests} == {own.url.split("/")[2]}
        for request in own.requests:
            assert value not in str(request.headers), "nor does it reach the server as a header"


@table("text", ["http://127.0.0.1:9/v1", "vllm@http://127.0.0.1:9/v1", "openai/gpt-4.1@127.0.0.1", "//127.0.0.1:9/x"])
def test_no_model_name_is_an_address(text: str) -> None:
    app = create_app(Router.sandbox(), authenticate=lambda scope: Caller())
    for path in ("/v1/route", "/openai/v1/chat/completions"):
        body = {**HELLO, "models": [text]} if path == "/v1/route" else {**HELLO, "model": text}
        assert anyio.run(ask, app, scope_of(path=path), body).status in (400, 404)
