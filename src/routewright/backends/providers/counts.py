"""Token counts as vendors report them."""

from __future__ import annotations

from typing import Any

from routewright._core.money import MOST_TOKENS


def count_of(value: Any) -> int | None:
    """A count, if it is one that a call can come to."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
