"""The response cache over HTTP: on the native and the vendor-compatible routes, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from routewright import MemoryStorage, Router
from routewright.cli.serve import FLAGS
from routewright.serve.config import Sources
from routewright.serve.parts import open_router
from routewright.serve.plan import Plan
from routewright.serve.prepare import plan_of, set_up_store
from routewright.server.metrics import Metrics

from .uvicorn_server import Site

SKY = "Why is the sky blue?"
BLUE = "Blue light scatters more.\nÜber allem: 蓝 — the sky is blue."
TURN: Any = [{"role": "user", "content": SKY}]


@pytest.fixture
def site() -> Site:
    storage = MemoryStorage()
    return Site(Router.sandbox({SKY: BLUE}, storage=storage), storage=storage)


@contextmanager
def http(site: Site) -> Iterator[httpx2.Client]:
    with site.client(site.key(environment="sandbox")) as client:
        yield client


def route(client: httpx2.Client, **fields: Any) -> httpx2.Response:
    return client.post("/v1/route", json={"messages": TURN, "cache": True, **fields})


def events(answer: httpx2.Response) -> list[tuple[str, Any]]:
    found = [event.split("\n") for event in answer.text.split("\n\n") if event.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, _, data in found]


# our own door


def test_the_cache_header_is_only_sent_if_the_cache_is_used(site: Site) -> None:
    with http(site) as client:
        answers = [route(client), route(client), route(client, cache=False)]
    first, again, without = (answer.headers.get("X-Routewright-Cache") for answer in answers)
    assert first == "miss"
    assert again is not None
    assert again.startswith("hit; mode=exact; age=")
    assert without is None
    assert [answer.json()["routing"]["cache_hit"] for answer in answers] == [False, True, False]
    assert len({answer.json()["output"] for answer in answers}) == 1
    assert answers[1].json()["routing"]["cost_usd"] == 0
    assert "X-RateLimit-Remaining" in answers[1].headers


def test_a_stream_has_the_cache_header_and_the_same_text(site: Site) -> None:
    with http(site) as client:
        first, again = route(client, stream=True), route(client, stream=True)
    assert first.headers["X-Routewright-Cache"] == "miss"
    assert again.headers["X-Routewright-Cache"].startswith("hit; mode=exact")
    assert "X-RateLimit-Remaining" in again.headers
    texts = ["".join(data["text"] for name, data in events(each) if name == "output.delta") for each in (first, again)]
    assert texts == [BLUE, BLUE]
    name, last = events(again)[-1]
    assert name == "route.completed"
    assert last["routing"]["cache_hit"] is True
    assert last["routing"]["tokens"] == {"input": 0, "output": 0, "cached": 0}


# the doors for other vendors' clients


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/v1/responses", "/anthropic/v1/messages"])
def test_other_vendors_clients_get_a_hit(site: Site, path: str, stream: bool) -> None:
    turns = {"input": TURN} if path.endswith("responses") else {"messages": TURN, "max_tokens": 100}
    body = {"model": "auto", "stream": stream, "routewright": {"cache": True}, **turns}
    with http(site) as client:
        first, again = (client.post(path, json=body) for _ in range(2))
    assert first.headers["X-Routewright-Cache"] == "miss"
    assert again.headers["X-Routewright-Cache"].startswith("hit; mode=exact")
    assert again.headers["X-Routewright-Model"] == first.headers["X-Routewright-Model"]


# metrics


def test_hits_and_misses_are_counted(site: Site) -> None:
    metrics = Metrics(site.router)
    with http(site) as client:
        for _ in range(3):
            route(client)
        route(client, cache=False)
    site.router.blocking.flush()
    told = metrics.render().decode()
    metrics.close()
    assert 'routewright_cache_lookups_total{environment="sandbox",outcome="miss"} 1.0' in told
    assert 'routewright_cache_lookups_total{environment="sandbox",outcome="hit"} 2.0' in told


# routewright serve


@pytest.fixture
def _here(noon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUTEWRIGHT_CACHE", raising=False)


def planned(**flags: Any) -> Plan:
    return plan_of(Sources({"store": "store.db", **flags}, FLAGS, {}, None))


@pytest.mark.usefixtures("_here")
def test_workers_share_the_cache_of_the_configuration() -> None:
    async def serve() -> list[bool]:
        plan = planned(cache="cache.db", workers=2)
        assert plan.cache == "sqlite:///cache.db"
        begun = await set_up_store(plan)
        hits = []
        for _ in range(2):  # one after the other, as two processes
            async with open_router(plan) as (router, console):
                caller = await console.authenticate(f"Bearer {begun.keys['sandbox']}") if begun.keys else None
                assert caller is not None
                answer = await router.as_caller(caller).route(SKY, cache=True)
                hits.append(answer.routing.cache_hit)
        return hits

    assert anyio.run(serve) == [False, True]
    assert Path("cache.db").is_file()
