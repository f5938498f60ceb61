"""Bounds of the caches."""

from __future__ import annotations

from routewright._core.request.problems import shown
from routewright.errors import ValidationFailed

MAX_BYTES = 256_000_000
MAX_ENTRIES = 100_000


def check_bounds(name: str, **bounds: object) -> None:
    """Raises ``ValidationFailed`` for a bound that is not a whole number above 0."""
    for field, bound in bounds.items():
        if type(bound) is not int or bound < 1:
            raise ValidationFailed.at(f"{name}.{field}", f"is {shown(bound)}", "take a whole number above 0")
