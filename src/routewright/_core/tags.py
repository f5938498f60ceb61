"""Which words does a program hang on all its requests for a while? Checks them, and joins them to a request's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.wire import RouteRequest

from .request.read import rebuilt
from .request.rules import MAX_METADATA_BYTES

Tags = Mapping[str, Any]
"""JSON, by name."""

_HINT = "keep long values elsewhere and put a reference here"


def checked_tags(given: Tags) -> Tags:
    """Part tags from the caller's objects. Raises ``ValidationFailed`` for what is not JSON, or too long."""
    mine: dict[str, Any] = rebuilt(given, dict[str, Any], "tags")
    _check_size("tags", mine, "")
    return mine


def joined_tags(outer: Tags, inner: Tags) -> Tags:
    """Both; of two under one name the inner. Raises ``ValidationFailed`` where they are too long together."""
    if not outer:
        return inner
    both = {**outer, **inner}
    _check_size("tags", both, f" together with those around them, which take {_size(outer)}")
    return both


def tagged(request: RouteRequest, tags: Tags) -> RouteRequest:
    """The request with the tags under its own metadata. Raises ``ValidationFailed`` where both are too long."""
    own = request.metadata or {}
    both = {**tags, **own}
    if own:
        path = "metadata" if _size(own) >= _size(tags) else "tags"
        _check_size(path, both, f" together: {_size(own)} the request's own metadata, {_size(tags)} the tags around it")
    return replace(request, metadata=both)


def _check_size(path: str, held: Tags, what: str) -> None:
    size = _size(held)
    if size > MAX_METADATA_BYTES:
        problem = f"takes {size} bytes as JSON{what}; at most {MAX_METADATA_BYTES} are allowed"
        raise ValidationFailed.of(Problem(path, problem, _HINT))


def _size(held: Tags) -> int:
    return len(encode(held))
