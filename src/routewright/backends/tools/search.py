"""Web search for agents: SearXNG, Brave and Tavily (``protocols.SearchBackend``).

The operator sets the services' addresses. Found pages are never opened here.
"""

from __future__ import annotations

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn, Self
from urllib.parse import urlencode

from msgspec import DecodeError, json

from routewright.backends.clock import SystemClock
from routewright.backends.providers.endpoint import Endpoint, address_of
from routewright.backends.providers.faults import dicts_of
from routewright.backends.transport import AutoTransport
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Clock, SearchResult, ToolFailed, Transport
from routewright.wire.account import Secret

TIMEOUT_S = 10.0
ANSWER_BYTES = 1 << 20
MOST_RESULTS = 20
"""Results on one page of the services."""
QUERY_CHARS = 400
"""Longest query of all services; the rest is cut off."""
TITLE_CHARS = 300
URL_CHARS = 2_000
SNIPPET_CHARS = 1_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_SPACE = re.compile(r"\s+")
_REASONS = {
    **dict.fromkeys((401, 403), "it refused the key"),
    **dict.fromkeys((402, 432, 433), "its quota is used up"),  # Tavily has the last two
    429: "it limits the rate of searches",
}


class HttpRequest(NamedTuple):
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class HttpSearch(ABC):
    """A search service over HTTP. One subclass for each service."""

    name: str
    """Name in errors."""
    rows_at: tuple[str, ...] = ("results",)
    """Path of the list of results in an answer."""
    snippet_field = "content"
    reasons: Mapping[int, str] = _REASONS
    """Meanings of statuses."""

    def __init__(
        self, url: str, *, transport: Transport | None = None, timeout_s: float = TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        self._url = address_of(Endpoint(name=self.name, base_url=url), None, {})
        self._timeout_s = timeout_s
        self._clock = SystemClock() if clock is None else clock
        self._is_own = transport is None
        self._transport = AutoTransport() if transport is None else transport

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled, since it has a key")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless the transport was passed. Idempotent."""
        if self._is_own:
            await self._transport.aclose()

    async def search(self, query: str, limit: int) -> Sequence[SearchResult]:
        """As ``protocols.SearchBackend`` says. Rows without a web address are left out."""
        query = _SPACE.sub(" ", query).strip()[:QUERY_CHARS]
        limit = max(1, min(limit, MOST_RESULTS))
        if not query:
            raise ToolFailed("the query is empty")
        request = self._ask(query, limit)
        url = self._url + request.path
        headers = {"accept": "application/json", **request.headers}
        with self._clock.deadline(self._clock.monotonic() + self._timeout_s) as time_limit:
            try:
                async with self._transport.request(request.method, url, headers=headers, body=request.body) as response:
                    if response.status != 200:
                        reason = self.reasons.get(response.status, "")
                        raise ProviderFault("request", f"status {response.status}" + (f", {reason}" if reason else ""))
                    body = await response.read(ANSWER_BYTES)
                return self._results(body)[:limit]
            except ProviderFault as fault:
                reason = fault.public or fault.message  # the public text has no addresses
        if time_limit.expired:
            reason = f"no answer within {self._timeout_s:g} s"
        raise ToolFailed(f"the search with {self.name} failed: {reason}")

    @abstractmethod
    def _ask(self, query: str, limit: int) -> HttpRequest:
        """The request for a search."""

    def _results(self, body: bytes) -> list[SearchResult]:
        try:
            document: object = json.decode(body)
        except (DecodeError, UnicodeError, RecursionError):  # not chained: it may contain the text
            raise ProviderFault("malformed", "the answer is not JSON") from None
        for name in self.rows_at:
            # Brave leaves out empty lists
            document = document.get(name, {}) if isinstance(document, dict) else None
        if document == {}:
            return []
        if not isinstance(document, list):
            raise ProviderFault("malformed", "the answer is not a list of results")
        results: list[SearchResult] = []
        for row in dicts_of(document):
            url = row.get("url")
            title = _plain(row.get("title"), TITLE_CHARS)
            if isinstance(url, str) and len(url) <= URL_CHARS and url.startswith(("https://", "http://")):
                results.append(SearchResult(title or url, url, _plain(row.get(self.snippet_field), SNIPPET_CHARS)))
        return results


class SearxngSearch(HttpSearch):
    """Searches with your own SearXNG server, which may be in a private network.

        Agent(router, tools=["web_search"], search=SearxngSearch("http://localhost:8888"))

    Its ``settings.yml`` must have ``json`` among ``search.formats``.
    """

    name = "SearXNG"
    reasons: Mapping[int, str] = {403: "add 'json' to search.formats in its settings.yml", 429: _REASONS[429]}

    def _ask(self, query: str, limit: int) -> HttpRequest:
        return HttpRequest("GET", "/search?" + urlencode({"q": query, "format": "json"}))


class _KeyedSearch(HttpSearch):
    host: str

    def __init__(
        self,
        key: str,
        *,
        url: str | None = None,
        transport: Transport | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url or self.host, transport=transport, timeout_s=timeout_s, clock=clock)
        self._key = _key_of(key)


class BraveSearch(_KeyedSearch):
    """Searches with Brave's Search API: ``Agent(router, tools=["web_search"], search=BraveSearch(key))``."""

    name = "Brave"
    host = "https://api.search.brave.com"
    rows_at = ("web", "results")
    snippet_field = "description"

    def _ask(self, query: str, limit: int) -> HttpRequest:
        parameters = urlencode({"q": query, "count": limit, "text_decorations": "false"})
        return HttpRequest("GET", f"/res/v1/web/search?{parameters}", {"x-subscription-token": self._key.reveal()})


class TavilySearch(_KeyedSearch):
    """Searches with Tavily: ``Agent(router, tools=["web_search"], search=TavilySearch(key))``."""

    name = "Tavily"
    host = "https://api.tavily.com"

    def _ask(self, query: str, limit: int) -> HttpRequest:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key.reveal()}"}
        return HttpRequest("POST", "/search", headers, json.encode({"query": query, "max_results": limit}))


def _key_of(key: object) -> Secret:
    text = Secret(key).reveal().strip() if isinstance(key, str) else ""
    if not text or " " in text or not (text.isascii() and text.isprintable()):
        raise ValidationFailed.at("key", "is not a key", "a key is printable ASCII without spaces")
    return Secret(text)


def _plain(value: object, maximum: int) -> str:
    """Plain text in one line, cut off."""
    if not isinstance(value, str):
        return ""
    return _SPACE.sub(" ", html.unescape(_TAG.sub("", value[: maximum * 4]))).strip()[:maximum]
