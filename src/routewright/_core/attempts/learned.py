"""Adds up what processes learned of a model, so that all of them know the same at the same time. Time is cut in epochs,
the same for all who share a clock. What is added in one epoch is known from the next on, and does not change in
between: whoever asks in an epoch is told the same."""

from __future__ import annotations

from routewright.wire import Learned, LearnedModel

EPOCH_S = 2.0
HALF_LIFE_S = 300.0  # after this long an observation counts half
SUMS = ("good", "bad", "answers", "length", "length_squared", "unusual", "late", "tokens", "us")


def epoch_at(at: float) -> int:
    """The epoch of a time in Unix seconds."""
    return int(at // EPOCH_S)


def plus(one: Learned, other: Learned) -> Learned:
    """Both together, at the later of their times."""
    at = max(one.at, other.at)
    mine, its = (0.5 ** ((at - each.at) / HALF_LIFE_S) for each in (one, other))
    sums = {name: getattr(one, name) * mine + getattr(other, name) * its for name in SUMS}
    first = _together(one.first, mine, other.first, its)
    whole = _together(one.whole, mine, other.whole, its)
    return Learned(at, first=first, whole=whole, **sums)


def added(model: str, row: LearnedModel | None, more: Learned) -> LearnedModel:
    """What is kept of a model when more is added. What comes late counts in the epoch in which it comes."""
    epoch, nothing = epoch_at(more.at), Learned(more.at)
    if row is None:
        return LearnedModel(model, epoch, nothing, more)
    if epoch > row.epoch:
        return LearnedModel(model, epoch, known_in(row, epoch), more)
    return LearnedModel(model, row.epoch, row.settled, plus(row.pending, more))


def known_in(row: LearnedModel, epoch: int) -> Learned:
    """What is known of a model in an epoch."""
    return row.settled if row.epoch >= epoch else plus(row.settled, row.pending)


def _together(one: dict[int, float], mine: float, other: dict[int, float], its: float) -> dict[int, float]:
    """The weights of both; what is next to nothing is forgotten."""
    both = {bucket: weight * mine for bucket, weight in one.items()}
    for bucket, weight in other.items():
        both[bucket] = both.get(bucket, 0.0) + weight * its
    return {bucket: weight for bucket, weight in both.items() if weight > 1e-6}
