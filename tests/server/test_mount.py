"""The application mounted inside another one, and behind a proxy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest
from fastapi import FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware

from routewright import Caller, OpenAIProvider, Router
from routewright.errors import AuthenticationFailed
from routewright.server import create_app
from tests.model_servers import LocalServer, ollama
from tests.tables import table

from .asgi_client import Client, scope_of
from .test_disconnect import House
from .uvicorn_server import HELLO, served

USERS = {"ann": Caller("acme", key_id="session-1"), "bob": Caller("other")}


def from_session(scope: Any) -> Caller:
    """Who the embedder's own middleware found out."""
    user = scope.get("state", {}).get("user")
    if user is None:
        raise AuthenticationFailed("log in first")
    return USERS[user]


def test_mounted_in_fastapi_with_the_embedders_own_authentication() -> None:
    router, host = Router.sandbox(), FastAPI()

    @host.middleware("http")
    async def session(request: Request, call_next: Any) -> Any:
        if user := request.headers.get("x-user"):
            request.state.user = user
        return await call_next(request)

    @host.get("/hello")
    def hello() -> str:
        return "hello"

    host.mount("/llm", create_app(router, authenticate=from_session))
    with served(host) as url, httpx2.Client(base_url=url) as client:
        assert client.get("/hello").json() == "hello"
        assert client.post("/llm/v1/route", json=HELLO).status_code == 401
        answer = client.post("/llm/v1/route", json=HELLO, headers={"x-user": "ann"})
        assert answer.status_code == 200
        path = f"/llm/v1/traces/{answer.json()['trace_id']}"
        assert client.get(path, headers={"x-user": "ann"}).json()["key_id"] == "session-1"
        assert client.get(path, headers={"x-user": "bob"}).status_code == 404
        stream = client.post("/llm/v1/route", json={**HELLO, "stream": True}, headers={"x-user": "ann"})
        assert stream.text.count("event: route.completed") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("pieces", [2, 1])
async def test_middleware_gets_an_answer_after_a_disconnect(pieces: int) -> None:
    seen: list[int] = []

    async def see(request: Request, call_next: Any) -> Any:
        answer = await call_next(request)
        seen.append(answer.status_code)
        return answer

    body = msgspec.json.encode(HELLO)
    client = Client(body) if pieces == 1 else Client(body[:9], ends=False)
    client.leave()
    await BaseHTTPMiddleware(House().app, see)(scope_of(), client.receive, client.send)
    assert seen == [499]


@table("path", ["/v1/route", "/openai/v1/chat/completions"])
def test_without_a_lifespan_the_first_request_waits_for_a_servers_models(path: str) -> None:
    asked, gate = threading.Event(), threading.Event()

    def tags(_: Any) -> Any:
        asked.set()
        gate.wait()
        return ollama("llama3.2:latest")["/api/tags"]

    with LocalServer(ollama() | {"/api/tags": tags}) as server:
        router = Router(providers=[OpenAIProvider(name="ollama", base_url=server.url, environ={})])
        app = create_app(router, authenticate=lambda scope: Caller())
        named = {"models": ["ollama/llama3.2"]} if path == "/v1/route" else {"model": "ollama/llama3.2"}
        with served(app, lifespan="off") as url, ThreadPoolExecutor() as threads:
            first = threads.submit(httpx2.post, url + path, json={**HELLO, **named})
            assert asked.wait(20)
            gate.set()
            assert first.result().status_code == 200
        router.blocking.close()
