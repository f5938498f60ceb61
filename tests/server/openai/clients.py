"""OpenAI clients for a test: a server with the official SDK as its client, and sample requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
from openai import OpenAI

from routewright import Model, Router
from routewright.backends.storage.memory import MemoryStorage
from routewright.protocols import Provider
from tests.server.uvicorn_server import Site, bearer

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "auto", "messages": HI}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ONE = Model(id="test/one", quality=0.9, context_window=100_000, modalities=("text", "tool"))
TWO = Model(id="other/two", quality=0.5, context_window=100_000, modalities=("text", "tool"))
NO_RETRY = {"fallback": {"maxRetries": 0, "models": []}}


def site_of(*providers: Provider) -> Site:
    """A site whose calls are really made, by these providers."""
    storage = MemoryStorage()
    return Site(Router(providers=providers, storage=storage), storage=storage, keys="production")


def sandbox(answers: Any = None, faults: Any = None) -> Site:
    """A site with canned answers."""
    storage = MemoryStorage()
    return Site(Router.sandbox(answers, faults, storage=storage), storage=storage)


@contextmanager
def sdk(site: Site, key: str | None = None, **settings: Any) -> Iterator[OpenAI]:
    """The SDK at a site that is served. Without a key it has one of the site. It does not try again."""
    key = key or site.key(environment=site.keys)
    with (
        site.served() as url,
        OpenAI(api_key=key, base_url=f"{url}/openai/v1", **{"max_retries": 0, **settings}) as client,
    ):
        yield client


@contextmanager
def raw(site: Site, key: str | None = None) -> Iterator[httpx2.Client]:
    """A plain client at a site that is served."""
    key = key or site.key(environment=site.keys)
    with (
        site.served() as url,
        httpx2.Client(base_url=f"{url}/openai/v1", headers=bearer(key), timeout=30) as client,
    ):
        yield client


async def sent(site: Site, key: str, body: dict[str, Any]) -> tuple[int, dict[bytes, bytes], bytes]:
    """What the application answers, without a server."""
    told: list[Any] = []
    coming = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        if not coming:
            await anyio.sleep_forever()
        return coming.pop()

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/openai/v1/chat/completions", "headers": headers}
    await site.app(scope, receive, send)
    start, *pieces = told
    return start["status"], dict(start["headers"]), b"".join(each["body"] for each in pieces)
