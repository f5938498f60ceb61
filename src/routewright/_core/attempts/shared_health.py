"""What all processes of a store learned of models, as one of them knows it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from msgspec.structs import replace

from routewright._core.routing.outlook import UNKNOWN
from routewright._core.routing.pool import Pool
from routewright.wire import Learned, LearnedModel, ModelHealth

from .health import FADED, LOOK_EVERY_S, STEPS, Health, Sums, figures_of
from .learned import EPOCH_S, known_in


class SharedHealth(Health):
    """What attempts of all processes of a store showed. Those of this one are collected until they are taken, and count
    once they come back from the storage. What is published in an epoch follows from what is known in it alone, so that
    it is the same in every process."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.epoch = -1  # of which this is the knowledge
        self._learned: dict[int, Learned] = {}
        self._looked_at: dict[int, float] = {}  # for when the figures of each row were computed

    def take(self, now: float, at: float) -> dict[str, Learned]:
        """What was collected, by model, ``now`` being ``at`` in Unix seconds."""
        taken = {self._pool.ids[row]: sums.learned(now, at) for row, sums in self._sums.items()}
        self.forget()
        return taken

    def forget(self) -> None:
        """Drop what was collected."""
        self._sums.clear()

    def know(self, rows: Sequence[LearnedModel], epoch: int) -> None:
        """Go by what is known in an epoch; ``rows`` were added to since the epoch before."""
        self.epoch = epoch
        for each in rows:
            row = self._pool.row.get(each.model)
            if row is not None:
                self._learned[row] = known_in(each, epoch)
                self._looked_at.pop(row, None)

    def figures(self, row: int, now: float) -> ModelHealth:
        """What is known of a model in this epoch, in steps."""
        if row not in self._learned:
            return UNKNOWN
        sums = Sums.of(self._learned[row])
        weight = sums.weight(self._look_at(row))
        if sums.good + sums.bad < FADED * weight:
            return UNKNOWN
        return in_steps(figures_of(sums, weight, self._pool, row))

    def _is_news(self, before: ModelHealth, now: ModelHealth) -> bool:
        return before != now

    def _known(self, row: int, now: float) -> Sums:
        return self._sums.setdefault(row, Sums(now))

    def _due(self, now: float) -> set[int]:
        """Rows that were added to, and those that faded for a while."""
        look_at = {row: self._look_at(row) for row in self._learned}
        due = {row for row, at in look_at.items() if self._looked_at.get(row) != at}
        self._looked_at = look_at
        return due

    def _look_at(self, row: int) -> float:
        """For when a row's figures are computed: a whole number of looks after it was added to."""
        at = self._learned[row].at
        return at + max(0.0, self.epoch * EPOCH_S - at) // LOOK_EVERY_S * LOOK_EVERY_S


def in_steps(figures: ModelHealth) -> ModelHealth:
    """The figures rounded to their steps, so that small differences make no news."""
    rounded: dict[str, int] = {}
    for name, step in STEPS.items():
        value = getattr(figures, name)
        if step is None or not value:
            continue
        rounded[name] = (
            round(value / step) * round(step) if name == "stability" else round(step ** round(log(value, step)))
        )
    return replace(figures, **rounded)
