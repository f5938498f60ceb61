"""Fits a head to an account's traces and reports what it would have changed (``TraceStore.learn``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import numpy as np
from msgspec.structs import replace

from ._core.catalogue.models import content_id
from ._core.routing.inputs import predicted_column
from ._core.routing.predict import Predictor
from ._core.routing.quality import MICRO
from ._core.routing.quality_head import (
    FEWEST,
    MOST_SAMPLES,
    Sample,
    evaluate,
    fit,
    moved,
    refusal_of,
    samples_of,
    steps_of,
)
from .errors import NoCandidates, NotFound
from .protocols import Storage
from .replay import Replays
from .settings import Learning
from .wire import SYSTEM_ACCOUNT, DecisionInput, Environment, FeedbackByTrace, Head, Snapshot, SnapshotById, Trace
from .wire.plain import Struct

__all__ = ["LearnReport", "Learning"]

REPLAYED = 1_000
"""The most decisions to replay, newest first."""


class LearnReport(Struct, frozen=True, kw_only=True):
    """A head fitted to an account's traces, and what it would have changed."""

    account: str
    environment: Environment
    samples: dict[str, int]
    """Number of samples by source: ``feedback``, ``judge``, ``structured``, ``answer``."""
    refusal: str
    """Why the head is refused; empty if it is not."""
    head: Head | None = None
    """None: too few samples."""
    replayed: int = 0
    """Decisions replayed with the built-in predictor alone and with the head."""
    changed: int = 0
    cost_usd: float = 0.0
    """Expected cost of all replayed decisions with the built-in predictor alone."""
    head_cost_usd: float = 0.0
    quality: float = 0.0
    """Mean quality, as the head predicts it, of the models that the built-in predictor alone chooses."""
    head_quality: float = 0.0


class Lesson:
    """Collects samples from the traces of one account and environment, newest first, and fits a head to them."""

    def __init__(self, storage: Storage, account: str, environment: Environment, predictor: Predictor) -> None:
        self._storage = storage
        self._account = account
        self._environment: Environment = environment
        self._predictor = predictor
        self._snapshots: dict[str, Snapshot | None] = {}
        self._replays = Replays(lambda: (), self._snapshots.get)
        self._samples: list[Sample] = []
        self._decided: list[tuple[DecisionInput, tuple[int, ...]]] = []
        """Decisions with the qualities of the built-in predictor alone."""

    async def read(self, traces: AsyncIterator[Trace]) -> None:
        """Take samples from traces whose prompts were sketched for this predictor."""
        async for trace in traces:
            given, reading = trace.decision_input, trace.decision_input and trace.decision_input.reading
            if given is None or not reading or reading.predictor.partition("+")[0] != self._predictor.id:
                continue
            for name in (given.catalogue, given.health, given.policy):
                if name is not None and name not in self._snapshots:
                    self._snapshots[name] = await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(name))
            try:
                pool = self._replays.boards(given).pool
            except NotFound:  # its catalogue is gone
                continue
            column = predicted_column(self._predictor, reading.cell, pool)
            feedback = await self._storage.read(self._account, FeedbackByTrace(trace.id, self._environment))
            self._samples += samples_of(trace, feedback, dict(zip(pool.ids, (column / MICRO).tolist(), strict=True)))
            if reading.sketch and len(self._decided) < REPLAYED:
                self._decided.append((given, tuple(column.tolist())))
            if len(self._samples) > MOST_SAMPLES:
                return

    def report(self, at: float) -> LearnReport:
        """Fit a head made ``at`` this time, and report on it."""
        figures, samples = evaluate(self._samples), dict(Counter(each.source for each in self._samples))
        refusal = refusal_of(figures)
        report = LearnReport(account=self._account, environment=self._environment, samples=samples, refusal=refusal)
        if figures.traces < FEWEST:
            return report
        models = fit(self._samples)
        name = f"hed_{content_id([self._account, self._environment, at, models])}"
        head = Head(id=name, made_at=at, predictor=self._predictor.id, models=models, figures=figures)
        sums = np.zeros(6)  # over the decisions, replayed with the built-in predictor alone and with the head
        for given, column in self._decided:
            assert given.reading is not None, "it was sketched"
            row = self._replays.boards(given).pool.row
            after = moved(column, row, head, steps_of(head, given.reading.sketch))
            try:
                (old, usd), (new, new_usd) = self._choice(given, column), self._choice(given, after)
            except (NotFound, NoCandidates):  # its snapshots are gone, or it was refused
                continue
            sums += 1, old != new, usd, new_usd, after[row[old]] / MICRO, after[row[new]] / MICRO
        count, changed, usd, new_usd, quality, new_quality = sums.tolist()
        return replace(
            report,
            head=head,
            replayed=int(count),
            changed=int(changed),
            cost_usd=usd,
            head_cost_usd=new_usd,
            quality=quality / max(count, 1),
            head_quality=new_quality / max(count, 1),
        )

    def _choice(self, given: DecisionInput, quality: tuple[int, ...]) -> tuple[str, float]:
        """The model chosen with some qualities, without exploring, and its expected cost."""
        prefer = () if given.explored else given.prefer
        best = self._replays.decide(replace(given, quality=quality, prefer=prefer)).front[0]
        return best.model, best.cost_usd or 0.0
