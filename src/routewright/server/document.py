"""Serves ``GET /v1/openapi.json``: what is served here, for programs."""

from __future__ import annotations

from .exchange import JSON, Exchange
from .operation import NoQuery
from .service import Service


async def openapi(service: Service, exchange: Exchange) -> None:
    """This interface as an OpenAPI 3.1 document, for everybody."""
    from .openapi import document_at  # which nothing else needs

    exchange.query(NoQuery)
    body, tag = document_at(exchange.scope.get("root_path", ""))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if _is_known(tag, exchange.header(b"if-none-match")):
        await exchange.start(304, JSON, headers)
        await exchange.piece(b"", more=False)
    else:
        await exchange.respond(body, 200, JSON, headers)


def _is_known(tag: str, told: str | None) -> bool:
    """Whether a client has what it asks for, by its ``If-None-Match``."""
    tags = [each.strip().removeprefix("W/") for each in (told or "").split(",")]
    return tag in tags or tags == ["*"]
