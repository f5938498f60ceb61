"""Search backends against a server on loopback, and through an agent."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from routewright import Agent, Catalogue, Model, Pricing, Router, ValidationFailed
from routewright.backends.tools.search import ANSWER_BYTES, BraveSearch, HttpSearch, SearxngSearch, TavilySearch
from routewright.protocols import SearchBackend, SearchResult, ToolFailed
from routewright.testing import ScriptedProvider
from routewright.wire import Finish, ToolDelta, Usage
from tests.upstream import Answer, Cut, Gate, Upstream

pytestmark = pytest.mark.anyio
KEY = "k3y-that-nobody-sees"
ONE = Model(
    id="test/one", modalities=("text", "tool"), quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000
)
Make = Callable[[str], HttpSearch]
MAKES: list[Make] = [
    lambda url: SearxngSearch(url, timeout_s=5),
    lambda url: BraveSearch(KEY, url=url, timeout_s=5),
    lambda url: TavilySearch(KEY, url=url, timeout_s=5),
]
every = pytest.mark.parametrize("make", MAKES, ids=["searxng", "brave", "tavily"])


def row(title: Any, url: Any = "https://a.example/", text: Any = "A <b>text</b> &amp; more.\n") -> dict[str, Any]:
    return {"title": title, "url": url, "content": text, "description": text}


def said(document: Any, status: int = 200, **headers: str) -> Answer:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Answer([body], status, headers)


def rows(*found: Any) -> Answer:
    """An answer with rows where any of the services has them."""
    return said({"results": found, "web": {"results": found}})


@pytest.fixture
def site() -> Iterator[Upstream]:
    with Upstream(lambda request: rows(row("One"), row("Two"), row("Three"))) as server:
        yield server


async def fault_of(backend: HttpSearch) -> str:
    try:
        with pytest.raises(ToolFailed) as caught:
            await backend.search("tea", 3)
    finally:
        await backend.aclose()
    told = f"{caught.value!r} {caught.value.__cause__!r}"
    assert KEY not in told
    assert "127.0.0.1" not in told
    assert "a secret" not in told
    return str(caught.value)


@every
async def test_results_are_plain_text_and_bounded(make: Make, site: Upstream) -> None:
    async with make(site.url) as backend:
        assert isinstance(backend, SearchBackend)
        assert await backend.search(" tea\n& milk ", 2) == [
            SearchResult("One", "https://a.example/", "A text & more."),
            SearchResult("Two", "https://a.example/", "A text & more."),
        ]
        site.answers = [rows(
            7, row("no address", None), row("script", "javascript:alert(1)"), row("long", "https://" + "a" * 3000),
            row(None, text=None), row("x" * 1_000, text="y" * 10_000),
        )]  # fmt: skip
        first, second = await backend.search("tea", 100)
        assert first == SearchResult("https://a.example/", "https://a.example/", "")
        assert (len(second.title), len(second.snippet)) == (300, 1_000)
        with pytest.raises(ToolFailed, match="empty"):
            await backend.search(" \n", 3)
        assert len(site.requests) == 2


async def test_each_service_gets_its_form_of_request(site: Upstream) -> None:
    for make in MAKES:
        async with make(site.url) as backend:
            await backend.search("tea & milk", 100)
    searxng, brave, tavily = site.requests
    assert (searxng.method, urlsplit(searxng.path).path[-7:]) == ("GET", "/search")
    assert parse_qs(urlsplit(searxng.path).query) == {"q": ["tea & milk"], "format": ["json"]}
    assert (brave.method, brave.headers["x-subscription-token"]) == ("GET", KEY)
    assert urlsplit(brave.path).path.endswith("/res/v1/web/search")
    assert parse_qs(urlsplit(brave.path).query)["count"] == ["20"]
    assert (tavily.method, tavily.headers["authorization"]) == ("POST", f"Bearer {KEY}")
    assert tavily.body == {"query": "tea & milk", "max_results": 20}


@every
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said(b"a secret"), "is not JSON"),
        (said([1]), "not a list of results"),
        (said({"results": 1, "web": 1}), "not a list of results"),
        (said(b"[" * 100_000), "is not JSON"),
        (said(b" " * (ANSWER_BYTES + 1)), "over 1048576 bytes"),
        (said({"error": "a secret"}, 403), "status 403, "),
        (said({"error": "a secret"}, 429), "status 429, it limits the rate of searches"),
        (said(b"a secret", 500), "status 500"),
        (said(b"", 302, location="http://169.254.169.254/"), "status 302"),
        (Answer([b"{", Cut()], 200, chunked=True), "the connection broke"),
    ],
)
async def test_faults_show_no_addresses_and_keys(make: Make, answer: Answer, expected: str, site: Upstream) -> None:
    site.answers = [answer]
    assert expected in await fault_of(make(site.url))


@every
async def test_an_unreachable_or_slow_service_is_reported(make: Make, site: Upstream) -> None:
    assert "no connection: it was refused" in await fault_of(make("http://127.0.0.1:1"))
    gate = Gate()
    site.answers = [Answer([b"{", gate], 200, chunked=True)]
    backend = make(site.url)
    backend._timeout_s = 0.3
    assert "no answer within 0.3 s" in await fault_of(backend)
    gate.open()


async def test_finding_nothing_is_not_a_fault(site: Upstream) -> None:
    site.answer = lambda request: said({"type": "search", "results": []})
    for make in MAKES:
        async with make(site.url) as backend:
            assert await backend.search("tea", 3) == []


async def test_an_agent_searches_with_it(site: Upstream) -> None:
    asks: list[Any] = [
        ToolDelta(0, '{"query": "tea", "limit": 1}', "call_1", "web_search"),
        Usage(9, 9),
        Finish("tool_calls"),
    ]
    provider = ScriptedProvider([asks, "done", asks, "done"], models=[ONE])
    async with Router(providers=[provider], catalogue=Catalogue(())) as router, SearxngSearch(site.url) as backend:
        agent = Agent(router, tools=["web_search"], search=backend)
        answer = await agent.run("go")
        found = {"title": "One", "url": "https://a.example/", "snippet": "A text & more."}
        assert answer.steps[1].output == {"result": {"results": [found]}}
        site.answers = [said({}, 403)]
        answer = await agent.run("go")
        assert "add 'json' to search.formats" in answer.steps[1].output["error"]


def test_keys_are_never_shown() -> None:
    for made in (BraveSearch(KEY), TavilySearch(KEY)):
        assert KEY not in f"{made!r} {made} {vars(made)}"
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(made)
    for wrong in ("", " ", "two words", "k\u00e9y", None, 7):
        with pytest.raises(ValidationFailed, match="key: is not a key") as caught:
            BraveSearch(wrong)  # type: ignore[arg-type]
        assert "words" not in caught.value.message
    with pytest.raises(ValidationFailed, match="is not an address"):
        SearxngSearch("search.example")
    with pytest.raises(ValidationFailed, match="user, query or fragment"):
        SearxngSearch("http://user:pass@search.example")
