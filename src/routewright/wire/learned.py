"""What attempts taught of models, as processes share it through a storage."""

from __future__ import annotations

from msgspec import Struct

from .account import Durability


class Learned(Struct, frozen=True, omit_defaults=True):
    """Sums over the attempts at one model. Each attempt counts one at its time, and half after every half-life."""

    at: float
    """Unix seconds for which the sums hold."""
    good: float = 0.0
    bad: float = 0.0
    answers: float = 0.0
    """Those whose length says something."""
    length: float = 0.0
    length_squared: float = 0.0
    tokens: float = 0.0
    """That were written after the first one, in ``us`` microseconds."""
    us: float = 0.0
    first: dict[int, float] = {}
    """Times to the first token: weights by bucket (``_core/attempts/quantile.py``)."""
    whole: dict[int, float] = {}


class LearnedModel(Struct, frozen=True):
    """What all processes learned of one model."""

    model: str
    epoch: int
    """In which something was added last."""
    settled: Learned
    """What was added before that epoch."""
    pending: Learned
    """What was added in it."""


class AddLearned(Struct, frozen=True, tag=True):
    """Add to what is known of models, each under its id. Said under ``SYSTEM_ACCOUNT``."""

    fleet: str
    """Whose attempts they were: ``production``, ``sandbox`` or ``hosted``."""
    models: dict[str, Learned]
    expect: None = None
    durability: Durability = "buffered"


class LearnedSince(Struct, frozen=True, tag=True):
    """A list of the ``LearnedModel`` of a fleet that were added to in an epoch or later, by model. Asked under
    ``SYSTEM_ACCOUNT``. A ``LocalStorage`` answers at once, or raises."""

    fleet: str
    epoch: int
