"""``/v1`` as an OpenAPI 3.1 document, made of the table of routes, the structs, and their docstrings."""

from __future__ import annotations

from functools import cache, lru_cache
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

from routewright import __version__

from .answers import error_components, header_components
from .operations import paths

MOUNTS = 16
"""Mount points whose documents are kept."""

_ABOUT = """Routes chat requests across many language models: explainable decisions, hard budgets, traces.

Every request but the one for this document needs an API key. Every answer has an `X-Request-Id`. Every error is in the
same envelope, by whose `code` a program can tell them apart; where there is nothing at an address the code is
`not_found`, and `method_not_allowed` where the method is another's, which `Allow` then names. Fields and parameters
that are not described here are refused. `HEAD` is answered wherever `GET` is."""

_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key: `sk_live_...`, or `sk_test_...` for the sandbox, whose answers are canned and free.",
}


def openapi(root_path: str = "") -> dict[str, Any]:
    """The document of a server at a mount point, for whoever asks to keep and to change."""
    return {**msgspec.json.decode(_document()), "servers": [{"url": quote(root_path.rstrip("/")) or "/"}]}


@lru_cache(MOUNTS)
def document_at(root_path: str) -> tuple[bytes, str]:
    """The document as it is sent, and its ``ETag``."""
    body = msgspec.json.encode(openapi(root_path))
    return body, f'"{sha256(body).hexdigest()[:32]}"'


@cache
def _document() -> bytes:
    described = paths()
    told = {
        "openapi": "3.1.0",
        "info": {
            "title": "routewright",
            "version": __version__,
            "description": " ".join(_ABOUT.replace("\n\n", "\0").split()).replace("\0", "\n\n"),
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [],
        "security": [{"bearer": []}],
        "paths": described.paths,
        "components": {
            "schemas": described.schemas,
            "responses": error_components(),
            "headers": header_components(),
            "securitySchemes": {"bearer": _BEARER},
        },
    }
    return msgspec.json.encode(told)
