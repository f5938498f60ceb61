"""What attempts taught of models, as processes share it through a storage, and what an account's traffic taught."""

from __future__ import annotations

from .account import Durability
from .plain import Struct


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
    unusual: float = 0.0
    """Of the length, what would not be there had the work been as usual; negative: what is missing."""
    late: float = 0.0
    """Octaves by which the work, not the model, made answers slower."""
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


class HeadFigures(Struct, frozen=True):
    """How well a head predicts traces that it was not fitted to, beside the built-in predictor alone."""

    traces: int
    shipped_log_loss: float
    log_loss: float
    gain_error: float
    """The standard error of the gain, over traces."""

    @property
    def gain(self) -> float:
        """By how much the log-loss of the head is lower."""
        return self.shipped_log_loss - self.log_loss


class Head(Struct, frozen=True, kw_only=True):
    """How much better or worse models do in an account's traffic than the built-in predictor says."""

    id: str
    """Made of the content, as of a snapshot; ``Reading.predictor`` names it behind a ``+``."""
    made_at: float
    """Unix seconds."""
    predictor: str
    """Id of the weights that it corrects. It says nothing beside others."""
    models: dict[str, tuple[float, ...]]
    """By model an offset, then a weight for each number of a sketch, in logits."""
    figures: HeadFigures
