"""Decides stored requests again, under another policy or with other models, and adds up what changes. No model is
called. Requests of one class share a plan, as live ones do, so a decision takes microseconds.

``analytics/estimate.py`` turns the sums into estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct, json, msgpack
from msgspec.structs import replace
from numpy.typing import NDArray

from routewright import wire
from routewright._core.analytics.estimate import MOMENTS, Cell, FloatArray, lengths_of, moments_of
from routewright._core.catalogue.models import snapshot
from routewright._core.policy import class_of, reads_limits
from routewright.errors import NoCandidates, ValidationFailed

from .board import Board, Boards, LruCache
from .constraints import PASSES, REASONS, CountTokens, FitCheck, find_first_failures
from .decide import WALKED_FIRST, decide, find_fits
from .decision import decision_of, explain
from .forecast import UNKNOWN, USUAL
from .inputs import RULES
from .logarithms import SIZE_CLASSES, scale, size_class
from .pool import Pool
from .rebase import rebase
from .request_options import PLAIN, RequestOptions, request_options_of
from .scoring import UNKNOWN_COST

INVALID = "invalid"
"""The constraint of requests that the policy does not allow at all."""
_MOST_CLASSES = 4_096
_SIZE_STEPS = 8  # size classes per cell: two octaves
_ROOM_FOR_LENGTH = 4  # answers are compared with the expected length if the cap is this much higher
_EXAMPLES = 5
_of_class = attrgetter(
    "goal", "strategy", "models", "needs", "max_output_tokens", "workload", "as_of", "prefer", "fallback",
    "wishes", "effort", "thinking_tokens", "hour_cache", "regions", "weights", "min_quality", "max_latency_ms",
    "max_retries", "default_output_cap", "timeout_ms", "budget_nanos", "budget_tokens",
)  # fmt: skip

_NO_HEALTH = wire.HealthSnapshot("", {})

Transform = Callable[[Sequence[wire.Model]], Iterable[wire.Model]]


class Outcome(NamedTuple):
    """The decision of one request."""

    model: str | None
    """None: refused."""
    constraint: str = ""
    """Why it was refused."""
    is_best: bool = False
    """The model is the best of the order, so shorter prompts of the class go there, too."""


_NO_OUTCOME = Outcome(None)


_Figures = tuple[int, int, int, int, int, int]
"""The cell, expected cost before and after, times, and length; 0: not to be compared."""


class _Class(Struct):
    """Requests that differ in nothing but the length of the prompt."""

    template: wire.DecisionInput | None
    """None: the policy refuses them."""
    dials: RequestOptions
    is_same: bool
    """Nothing that decides has changed."""
    figures: dict[tuple[str | None, str | None, str | None], _Figures] = {}
    """By the models that served, were decided and would be."""
    best: Outcome = _NO_OUTCOME
    """Where prompts of at most ``high`` tokens go at the health of this id."""
    health: str = ""
    high: int = -1


class _Track:
    """The boards of one catalogue and day, before and after, at the latest health and at that of the yardstick."""

    def __init__(
        self,
        catalogue: wire.CatalogueSnapshot,
        as_of: str,
        transform: Transform | None,
        yardstick: wire.HealthSnapshot,
    ) -> None:
        self.before: Board | None = None
        self.after: Board | None = None
        self._boards = Boards(Pool(catalogue, as_of))
        self._changed: Boards | None = None
        if transform is not None:
            changed = snapshot(tuple(transform(catalogue.models)), catalogue.as_of)
            self._changed = Boards(Pool(changed, as_of))
        self.yards = self._boards.of(yardstick), (self._changed or self._boards).of(yardstick)

    def follow(self, health: wire.HealthSnapshot) -> None:
        """Move the boards to a health."""
        if self.before is not None and self.before.health == health.id:
            return
        self.before = _follow(self.before, self._boards, health)
        self.after = self.before if self._changed is None else _follow(self.after, self._changed, health)


def _follow(board: Board | None, boards: Boards, health: wire.HealthSnapshot) -> Board:
    if board is None:
        return boards.of(health)
    old = board.forecast.health.models
    new = health.models
    rows = board.pool.row
    names = [model for model in {**old, **new} if model in rows and old.get(model) != new.get(model)]
    return board.with_health(health, {rows[model]: new.get(model, UNKNOWN) for model in names})


class Simulation:
    """Sums over the stored requests of any number of accounts."""

    def __init__(
        self,
        snapshots: Mapping[str, wire.Snapshot],
        policy: wire.PolicySnapshot | None = None,
        transform: Transform | None = None,
        *,
        hits_call: bool = False,
        yardstick: wire.HealthSnapshot = _NO_HEALTH,
    ) -> None:
        """``snapshots``: must hold those that the records name. ``policy``: applies instead of the requests' own, if
        any. ``hits_call``: answers of the cache count as calls afterwards. ``yardstick``: expected figures are those
        at this health, whatever the health at the decision, so that those of all requests can be compared."""
        self._yardstick = yardstick
        self.unpriced: set[tuple[Cell, str]] = set()
        """Groups whose cost before and after cannot be compared, and the model whose price is unknown."""
        self.usual: dict[str, tuple[int, bool]] = {}
        """By model: expected output tokens when it first answered, and whether they were learned before."""
        self._snapshots = snapshots
        self._policy = policy
        self._reads_limits = policy is not None and reads_limits(policy.policy)
        self._transform = transform
        self._hits_call = hits_call
        self._tracks: LruCache[tuple[str, str], _Track] = LruCache(8)
        self._revised: LruCache[Hashable, _Class] = LruCache(_MOST_CLASSES)
        self._cells: dict[Cell, int] = {}
        self.costs: FloatArray = np.zeros((0, MOMENTS))
        self.latencies: FloatArray = np.zeros((0, MOMENTS))
        self.accounts: dict[tuple[str, str], dict[int, FloatArray]] = {}
        """By account and day: by cell, the requests, expected cost before and after, and charges."""
        self.lengths: dict[tuple[str, str], FloatArray] = {}
        """By model and day: sums of ``lengths_of``."""
        self.skipped = 0
        self.hits = 0
        self.unknown_spent = 0
        self.actual_nanos = 0
        self.refused: Counter[tuple[str, bool]] = Counter()
        """By constraint, and whether the refusal is new."""
        self.examples: list[wire.SimulationExample] = []

    @property
    def requests(self) -> int:
        """Requests that were decided again."""
        return int(self.costs[:, 0].sum())

    @property
    def cells(self) -> list[Cell]:
        """The cells, in the order of the sums."""
        return [*self._cells]

    def add(self, account: str, records: Iterable[wire.DecisionRecord]) -> None:
        """Decide records of one account, in order of time."""
        day = ""
        rows: list[tuple[float, ...]] = []
        for record in records:
            inputs = record.decision_input
            if inputs is None or inputs.rules != RULES or inputs.reading is not None:
                self.skipped += 1
                continue
            track = self._track(inputs)
            if track is None:
                self.skipped += 1
                continue
            if not day or not record.created_at.startswith(day):
                self._sum_up(account, day, rows)
                rows = []
                day = record.created_at[:10]
            own = self._class_after(record, inputs)
            served = before = None if record.chosen is None else record.chosen.model
            after = self._after(own, before, inputs, track)
            self.actual_nanos += record.cost_nanos
            if record.hit:
                self.hits += 1
                before = None
                after = after if self._hits_call else _NO_OUTCOME
            elif before != after.model:
                self._note(record, inputs, after, track)
            pair = served, before, after.model
            figures = own.figures.get(pair)
            if figures is None:
                figures = own.figures[pair] = self._expect(pair, inputs, own.template or inputs, track)
            outcome = record.cost_nanos, record.duration_ms, record.charged_nanos, record.output_tokens or 0
            rows.append(figures + outcome)
        self._sum_up(account, day, rows)

    def _track(self, decision_input: wire.DecisionInput) -> _Track | None:
        key = decision_input.catalogue, decision_input.as_of
        track = self._tracks[key]
        if track is None:
            catalogue = self._snapshots.get(decision_input.catalogue)
            if not isinstance(catalogue, wire.CatalogueSnapshot):
                return None
            track = _Track(catalogue, decision_input.as_of, self._transform, self._yardstick)
            self._tracks.put(key, track)
        if track.before is None or track.before.forecast.health.id != decision_input.health:
            health = self._snapshots.get(decision_input.health)
            if not isinstance(health, wire.HealthSnapshot):
                return None
            track.follow(health)
        return track

    def _class_after(self, record: wire.DecisionRecord, inputs: wire.DecisionInput) -> _Class:
        """The class of a request afterwards."""
        variant = self._policy
        metadata: Mapping[str, object] = {}
        if variant is not None:
            self.unknown_spent += self._reads_limits and inputs.spent is None
            if variant.classes:
                metadata = json.decode(record.metadata) if record.metadata else {}
                variant, _ = class_of(variant, metadata, inputs.spent)
        requested = inputs.requested
        hashable = requested if requested is None or requested.params is None else msgpack.encode(requested)
        estimate = inputs.tokens.estimate
        size = SIZE_CLASSES[estimate] if estimate < len(SIZE_CLASSES) else size_class(estimate)
        key = variant and variant.id, inputs.catalogue, inputs.policy, hashable, size, _of_class(inputs)
        revised = self._revised[key]
        if revised is None:
            revised = self._revise(inputs, metadata)
            self._revised.put(key, revised)
        return revised

    def _after(self, own: _Class, before: str | None, inputs: wire.DecisionInput, track: _Track) -> Outcome:
        """The decision of a request afterwards."""
        if own.is_same and before is not None:
            return Outcome(before)
        if own.template is None:
            return Outcome(None, INVALID)
        tokens = inputs.tokens
        is_plain = not (tokens.counted or tokens.images or inputs.warm or inputs.quality)
        if is_plain and own.health == inputs.health and tokens.high <= own.high:
            return own.best
        assert track.after is not None
        changed = replace(own.template, tokens=tokens, warm=inputs.warm, quality=inputs.quality)
        outcome = decide_alone(changed, track.after.with_dials(own.dials))
        if is_plain and outcome.is_best:
            own.best = outcome
            own.health = inputs.health
            own.high = tokens.high
        return outcome

    def _expect(
        self,
        pair: tuple[str | None, str | None, str | None],
        inputs: wire.DecisionInput,
        changed: wire.DecisionInput,
        track: _Track,
    ) -> _Figures:
        """Expected figures of a class for the models that served, were decided and would be."""
        cell = Cell(*pair, size_class(inputs.tokens.estimate) // _SIZE_STEPS)
        place = self._cells.setdefault(cell, len(self._cells))
        served = cell.served
        x_nanos, x_ms = _expected(track.yards[0], inputs, cell.before)
        c_nanos, c_ms = _expected(track.yards[1], changed, cell.after)
        if not cell.is_newly_refused and (cell.before != cell.after or x_nanos != c_nanos):
            sides = (x_nanos, cell.before), (c_nanos, cell.after)
            self.unpriced.update((cell, model) for nanos, model in sides if model and nanos == UNKNOWN_COST)
        expected = 0
        if served is not None:
            assert track.before is not None
            forecast = track.before.forecast
            row = track.before.pool.row.get(served)
            # Not that of the moment, which soon follows a change: health and workloads are learned all the time.
            if served not in self.usual:
                output = 0 if row is None else scale(forecast.output[row], (inputs.workload or USUAL)[0])
                is_known = forecast.health.models.get(served, UNKNOWN).output_p90 is not None
                self.usual[served] = output, is_known
            expected = self.usual[served][0]
            if inputs.max_output_tokens is not None and inputs.max_output_tokens < _ROOM_FOR_LENGTH * expected:
                expected = 0
        # an unknown cost is 0 here; it decides nothing, or the report has a problem
        return place, x_nanos % UNKNOWN_COST, c_nanos % UNKNOWN_COST, x_ms, c_ms, expected

    def _revise(self, inputs: wire.DecisionInput, metadata: Mapping[str, object]) -> _Class:
        """The class of a request afterwards."""
        changed = inputs
        if self._policy is not None:
            old = self._snapshots.get(inputs.policy or "")
            try:
                changed = rebase(inputs, old if isinstance(old, wire.PolicySnapshot) else None, self._policy, metadata)
            except ValidationFailed:
                return _Class(None, PLAIN, is_same=False)
        is_same = self._transform is None and _of_class(changed) == _of_class(inputs)
        return _Class(changed, request_options_of(changed), is_same)

    def _sum_up(self, account: str, day: str, rows: Sequence[Sequence[float]]) -> None:
        """Add the rows of one day."""
        if not rows:
            return
        columns = np.array(rows, dtype=np.float64).T
        places = columns[0].astype(np.int64)
        count = len(self._cells)
        moments = [
            np.bincount(places, moment, count)
            for moment in (*moments_of(*columns[[1, 2, 6]]), *moments_of(*columns[[3, 4, 7]]))
        ]
        self.costs = _joined(self.costs, moments[:MOMENTS])
        self.latencies = _joined(self.latencies, moments[MOMENTS:])
        by_cell = self.accounts.setdefault((account, day), {})
        amounts = np.array([*moments[:3], np.bincount(places, columns[8], count)]).T
        for place in np.flatnonzero(moments[0]).tolist():
            by_cell[place] = by_cell.get(place, 0.0) + amounts[place]
        is_compared = (columns[5] > 0) & (columns[9] > 0)
        lengths = lengths_of(*columns[[5, 9]])
        sums = np.array([np.bincount(places[is_compared], moment[is_compared], count) for moment in lengths]).T
        for place in np.flatnonzero(sums[:, 0]).tolist():
            key = str(self.cells[place].served), day
            self.lengths[key] = self.lengths.get(key, 0.0) + sums[place]

    def _note(self, record: wire.DecisionRecord, inputs: wire.DecisionInput, after: Outcome, track: _Track) -> None:
        """Count a change, and keep the first few different ones as examples."""
        assert track.before is not None
        assert track.after is not None
        before = None if record.chosen is None else record.chosen.model
        if after.model is None:
            self.refused[after.constraint, True] += 1
        elif before is None:  # traces do not say the constraint
            constraint = decide_alone(inputs, track.before.with_dials(request_options_of(inputs))).constraint
            self.refused[constraint, False] += 1
        pairs = [(example.from_model, example.to_model) for example in self.examples]
        if len(pairs) < _EXAMPLES and (before, after.model) not in pairs:
            metadata = json.decode(record.metadata) if record.metadata else {}
            changed = self._revise(inputs, metadata).template
            texts = [describe(inputs, track.before), INVALID if changed is None else describe(changed, track.after)]
            self.examples.append(wire.SimulationExample(record.id, before, after.model, *texts))


def _expected(yard: Board, inputs: wire.DecisionInput, model: str | None) -> tuple[int, int]:
    """Expected cost in nano-dollars, or ``UNKNOWN_COST``, and time in milliseconds of a class with a model."""
    board = yard.with_dials(request_options_of(inputs))
    if model is None or (row := board.pool.row.get(model)) is None:
        return 0, 0
    return board.order(replace(inputs, warm=(), quality=None)).key(board.forecast, row)[2:4]


def _joined(sums: FloatArray, moments: Sequence[NDArray[np.generic]]) -> FloatArray:
    """Add moments to sums, which may have fewer cells."""
    new = np.array(moments, dtype=np.float64).T
    new[: len(sums)] += sums
    return new


def decide_alone(inputs: wire.DecisionInput, board: Board) -> Outcome:
    """The first choice for one input, without the chain behind it. A refusal is not explained, which takes long."""
    order = board.order(inputs)
    check = FitCheck(inputs, board.forecast)
    try:
        if (first := next(find_fits(inputs, board, order, check), None)) is not None:
            # beyond the first rows, the walk leaves out some that a shorter prompt could pay for
            is_best = not check.failed and (not check.limited or first in order.keys[:WALKED_FIRST])
            return Outcome(board.pool.ids[first[-1]], is_best=is_best)
        if board.forecast.open:
            return Outcome(decide(inputs, board).legs[0].id)
    except CountTokens:
        if not inputs.tokens.counted:  # there is no text to count
            return decide_alone(replace(inputs, tokens=replace(inputs.tokens, counted=True)), board)
    except NoCandidates:
        pass
    columns = find_first_failures(inputs, check, order.eligible)
    last = int(columns[columns < PASSES].max(initial=0))
    return Outcome(None, str(REASONS[last]))


def describe(inputs: wire.DecisionInput, board: Board) -> str:
    """``explain`` of a decision, or the refusal."""
    try:
        return explain(decision_of(inputs, board.with_dials(request_options_of(inputs))))
    except CountTokens:
        return describe(replace(inputs, tokens=replace(inputs.tokens, counted=True)), board)
    except NoCandidates as refused:
        return refused.message
