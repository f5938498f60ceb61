"""Cross-origin requests: which web pages of other origins a browser lets read the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from routewright._core.request.problems import shown

from .exchange import JSON, Exchange
from .fields import wrong

EXPOSED = (
    "X-Request-Id, Retry-After, Warning, ETag, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, "
    "X-RateLimit-Resource, X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    "X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens, X-Routewright-Trace-Id, "
    "X-Routewright-Model, X-Routewright-Cost-Usd, X-Routewright-Latency-Ms, X-Routewright-Policy-Version, "
    "X-Routewright-Cache, X-Routewright-Ignored, X-Routewright-Input-Tokens"
)
"""Headers of answers that a page may read: all of ours."""
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]+)?")


def checked_origins(given: Sequence[str], name: str) -> frozenset[str]:
    """Check a list of origins. Raises ``ValidationFailed`` naming the entry."""
    listed: object = given
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise wrong(name, f"is {shown(given)}", "give a list of origins, or ['*']")
    for place, origin in enumerate(listed):
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            hint = "write scheme and host, with the port if it is not the usual one, as https://app.example.com"
            raise wrong(f"{name}[{place}]", f"{shown(origin)} is no origin", hint)
    return frozenset(listed)


class Cors:
    """Tells browsers which pages may read answers. Those of other origins can send requests, and read nothing."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Raises ``ValidationFailed``."""
        self._origins = checked_origins(origins, "cors_origins")

    async def answers(self, exchange: Exchange) -> bool:
        """Put the headers on the answer of this exchange. True if it is answered already, being a browser's question
        whether it may ask."""
        origin, headers, for_all = exchange.header(b"origin"), exchange.headers, "*" in self._origins
        if not for_all:
            headers["Vary"] = "Origin"
        if origin is None or not (for_all or origin in self._origins):
            return False
        headers["Access-Control-Allow-Origin"] = "*" if for_all else origin
        if not for_all:
            headers["Access-Control-Allow-Credentials"] = "true"
        if exchange.method != "OPTIONS" or exchange.header(b"access-control-request-method") is None:
            headers["Access-Control-Expose-Headers"] = EXPOSED
            return False
        headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST"
        headers["Access-Control-Allow-Headers"] = exchange.header(b"access-control-request-headers") or ""
        headers["Access-Control-Max-Age"] = "600"
        await exchange.respond(b"", 200, JSON)
        return True
