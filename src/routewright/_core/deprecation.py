"""Which models end when, and what could stand in for each?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from math import log2

from msgspec import Struct

from routewright.wire import Model

from .quality import DEFAULT_QUALITY

PER_OCTAVE = 0.1
"""How much further a model is for twice the price, where 1 is all there is between the worst model and the best."""
_FREE = 0.001  # dollars per million tokens, so that a price of nothing has a logarithm


class Deprecation(Struct, frozen=True):
    """A model that its vendor ends."""

    model: str
    ends: str
    """The day from which it is not served, ``YYYY-MM-DD``."""
    days_left: int
    """0 or less: it has ended."""
    replacement: str | None
    """The nearest of its provider's models that stays longer and can do the same; None: there is none."""


def deprecations(models: Sequence[Model], today: date, within_days: int | None = None) -> tuple[Deprecation, ...]:
    """The models that end within some days of today, those that have ended included, the soonest first."""
    ending = [model for model in models if model.deprecated_at is not None and not model.disabled]
    found = [_deprecation(model, models, today) for model in ending]
    near = [each for each in found if within_days is None or each.days_left <= within_days]
    return tuple(sorted(near, key=lambda each: (each.ends, each.model)))


def _deprecation(model: Model, models: Sequence[Model], today: date) -> Deprecation:
    ends = (model.deprecated_at or "")[:10]
    left = date.fromisoformat(ends) - today
    return Deprecation(model.id, ends, left.days, _replacement(model, models, max(ends, today.isoformat())))


def _replacement(model: Model, models: Iterable[Model], day: str) -> str | None:
    able = [other for other in models if _can_replace(other, model, day)]
    return min(able, key=lambda other: (_distance(model, other), other.id)).id if able else None


def _can_replace(other: Model, model: Model, day: str) -> bool:
    stays = other.deprecated_at is None or other.deprecated_at[:10] > day
    if other.provider != model.provider or not stays or other.disabled or other.free_tier:
        return False
    takes = set(model.modalities or ()) <= set(other.modalities or ())
    return takes and (bool(other.structured_output) or not model.structured_output)


def _distance(model: Model, other: Model) -> float:
    return abs(_quality(model) - _quality(other)) + PER_OCTAVE * abs(_octave(model) - _octave(other))


def _quality(model: Model) -> float:
    return DEFAULT_QUALITY if model.quality is None else model.quality


def _octave(model: Model) -> float:
    """The price on a log scale, of three tokens in and one out."""
    price = model.pricing_per_1m
    return 0.0 if price is None else log2(max(_FREE, 0.75 * price.input_usd + 0.25 * price.output_usd))
