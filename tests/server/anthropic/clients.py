"""A server with the Anthropic-compatible routes for a test, and the official SDK as its client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic

from routewright import Model, Pricing, Router
from routewright.backends.providers.sandbox import Answers, Faults
from routewright.backends.storage.memory import MemoryStorage
from routewright.protocols import Provider
from tests.server.uvicorn_server import Site

ASKED: dict[str, Any] = {"model": "auto", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def sandbox(answers: Answers | None = None, faults: Faults | None = None, **rest: Any) -> Site:
    storage = MemoryStorage()
    return Site(Router.sandbox(answers, faults, storage=storage, **rest), storage=storage)


def scripted(provider: Provider, **rest: Any) -> Site:
    """A site in production, with a provider of the test's own."""
    storage = MemoryStorage()
    return Site(Router(providers=[provider], storage=storage, **rest), storage=storage, keys="production")


def model(id: str = "test/one", **rest: Any) -> Model:
    """A model that can do all."""
    facts: dict[str, Any] = {
        "context_window": 100_000,
        "modalities": ("text", "image", "tool"),
        "quality": 0.5,
        "structured_output": True,
        "pricing_per_1m": Pricing(1.0, 2.0),
    }
    return Model(id=id, **{**facts, **rest})


@contextmanager
def sdk(site: Site, key: str | None = None, **options: Any) -> Iterator[anthropic.Anthropic]:
    """Serve it, and give the SDK's client of it."""
    with site.served() as url, client_of(url, key or site.key(environment=site.keys), **options) as client:
        yield client


def client_of(url: str, key: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key, **{"max_retries": 0, **options})
