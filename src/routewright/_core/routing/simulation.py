"""Decides stored requests again, under another policy or with other models, and adds up what changes. No model is
called. Requests of one class share a plan, as live ones do, so a decision takes microseconds.

``analytics/estimate.py`` turns the sums into estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct, json
from msgspec.structs import replace
from numpy.typing import NDArray

from routewright import wire
from routewright._core.analytics.estimate import MOMENTS, Cell, FloatArray, lengths_of, moments_of
from routewright._core.catalogue.models import snapshot
from routewright._core.policy import class_of, reads_limits
from routewright.errors import NoCandidates, ValidationFailed

from .board import Board, Boards, LruCache
from .constraints import PASSES, REASONS, CountTokens, Eligible, FitCheck, find_first_failures
from .decide import decide, find_fits
from .decision import decision_of, explain
from .forecast import UNKNOWN, USUAL, Forecast
from .inputs import RULES
from .logarithms import SIZE_CLASSES, IntArray, scale, size_class
from .pool import Pool
from .rebase import rebase
from .request_options import PLAIN, RequestOptions, request_options_of
from .scoring import UNKNOWN_COST, Columns, Ranking, RequestClass

INVALID = "invalid"
"""The constraint of requests that the policy does not allow at all."""
_MOST_CLASSES = 4_096
_SIZE_STEPS = 8  # size classes per cell: two octaves
_ROOM_FOR_LENGTH = 4  # answers are compared with the expected length if the cap is this much higher
_EXAMPLES = 5
_NO_TOKENS = wire.TokenBounds(0, 0, 0)
_NO_HEALTH = wire.HealthSnapshot("", {})

Transform = Callable[[Sequence[wire.Model]], Iterable[wire.Model]]


class Outcome(NamedTuple):
    """The decision of one request."""

    model: str | None
    """None: refused."""
    constraint: str = ""
    """Why it was refused."""


_Figures = tuple[int, int, int, int, int, int]
"""The cell, expected cost before and after, times, and length; 0: not to be compared."""


class _Class(Struct):
    """Requests that differ in nothing but the length of the prompt."""

    template: wire.DecisionInput | None
    """None: the policy refuses them."""
    dials: RequestOptions
    is_same: bool
    """Nothing that decides has changed."""
    figures: dict[tuple[str | None, str | None, bool], _Figures] = {}
    """By the first fields of the cell."""
    scored: RequestClass | None = None
    """Requests of one are scored together. None: they are decided one by one, since more than their numbers matter."""
    eligible: Eligible | None = None
    rows: Sequence[int] = ()
    """Eligible rows on the whitelist."""


class _Moment(NamedTuple):
    """The boards of one catalogue, day and health, before and after, and those of the yardstick."""

    before: Board
    after: Board
    yards: tuple[Board, Board]


class _Request(Struct, gc=False):
    """A request to decide again."""

    record: wire.DecisionRecord
    inputs: wire.DecisionInput
    own: _Class
    moment: _Moment
    after: Board
    """With the dials of its class."""
    outcome: Outcome | None = None

    @property
    def changed(self) -> wire.DecisionInput:
        """Its input afterwards."""
        inputs = self.inputs
        template = self.own.template or inputs
        return replace(template, tokens=inputs.tokens, warm=inputs.warm, quality=inputs.quality)


def _moved(board: Board, health: wire.HealthSnapshot) -> Board:
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
        self._transform = transform
        self._hits_call = hits_call
        self._latest: LruCache[tuple[str, str], _Moment] = LruCache(8)
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
        self.reroutes: Counter[tuple[str | None, str | None]] = Counter()
        """By the models before and after. None: refused."""
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
        for request in self._decide(records):
            record = request.record
            own = request.own
            after = request.outcome
            assert after is not None
            if not record.created_at.startswith(day):
                self._sum_up(account, day, rows)
                rows = []
            day = record.created_at[:10]
            before = record.chosen
            self.actual_nanos += record.cost_nanos
            if record.hit:
                self.hits += 1
                before = None
                after = after if self._hits_call else Outcome(None)
            elif before != after.model:
                self._note(account, request, after)
            kind = before, after.model, record.hit
            figures = own.figures.get(kind)
            if figures is None:
                figures = own.figures[kind] = self._expect(kind, request)
            outcome = record.cost_nanos, record.duration_ms, record.charged_nanos, record.output_tokens or 0
            rows.append(figures + outcome)
        self._sum_up(account, day, rows)

    def _decide(self, records: Iterable[wire.DecisionRecord]) -> list[_Request]:
        """The records that can be decided again, with their outcomes."""
        # Health changes every few requests, and mostly of the models that serve them. To follow it with an order for
        # every class, as a Router does, takes longer than the decisions. So the rows of all healths of a page are
        # scored together, once for a class, and a request takes the first row that fits it.
        # ``test_choices_of_a_class_are_those_of_its_requests_alone`` compares this with the walk of ``decide``.
        requests = []
        moments: dict[tuple[str, str, str], _Moment | None] = {}
        groups: dict[int, list[_Request]] = {}
        for record in records:
            inputs = record.decision_input
            if inputs is None or inputs.rules != RULES or inputs.reading is not None:
                self.skipped += 1
                continue
            key = inputs.catalogue, inputs.as_of, inputs.health
            moment = moments.get(key)
            if moment is None:
                moment = moments[key] = self._follow(inputs)
            if moment is None:
                self.skipped += 1
                continue
            own = self._class_after(record, inputs)
            request = _Request(record, inputs, own, moment, moment.after.with_dials(own.dials))
            requests.append(request)
            if own.is_same and record.chosen is not None:
                request.outcome = Outcome(record.chosen)
            elif own.template is None:
                request.outcome = Outcome(None, INVALID)
            elif inputs.warm or inputs.quality or _scored(own, own.template, request.after) is None:
                request.outcome = decide_alone(request.changed, request.after)
            else:
                groups.setdefault(id(own), []).append(request)
        pools: dict[Boards, list[list[_Request]]] = {}
        for group in groups.values():
            pools.setdefault(group[0].after.boards, []).append(group)
        for own_groups in pools.values():
            _decide_together(own_groups)
        return requests

    def _follow(self, inputs: wire.DecisionInput) -> _Moment | None:
        """The boards of an input. None: a snapshot is gone."""
        catalogue = self._snapshots.get(inputs.catalogue)
        health = self._snapshots.get(inputs.health)
        if not isinstance(catalogue, wire.CatalogueSnapshot) or not isinstance(health, wire.HealthSnapshot):
            return None
        key = inputs.catalogue, inputs.as_of
        latest = self._latest[key]
        if latest is None:
            boards = changed = Boards(Pool(catalogue, inputs.as_of))
            if self._transform is not None:
                models = tuple(self._transform(catalogue.models))
                changed = Boards(Pool(snapshot(models, catalogue.as_of), inputs.as_of))
            yards = boards.of(self._yardstick), changed.of(self._yardstick)
            latest = _Moment(*yards, yards)
            self._latest.put(key, latest)
        before = _moved(latest.before, health)
        after = before if latest.after is latest.before else _moved(latest.after, health)
        moment = self._latest[key] = _Moment(before, after, latest.yards)
        return moment

    def _class_after(self, record: wire.DecisionRecord, inputs: wire.DecisionInput) -> _Class:
        """The class of a request afterwards."""
        variant = self._policy
        metadata: Mapping[str, object] = {}
        if variant is not None and variant.classes:
            metadata = json.decode(record.metadata) if record.metadata else {}
            self.unknown_spent += inputs.spent is None and reads_limits(variant.policy, metadata)
            variant, _ = class_of(variant, metadata, inputs.spent)
        estimate = inputs.tokens.estimate
        size = SIZE_CLASSES[estimate] if estimate < len(SIZE_CLASSES) else size_class(estimate)
        same = replace(inputs, tokens=_NO_TOKENS, health="", warm=(), quality=None, spent=None, assignment="")
        key = variant and variant.id, size, json.encode(same)
        revised = self._revised[key]
        if revised is None:
            revised = self._revise(inputs, metadata)
            self._revised.put(key, revised)
        return revised

    def _expect(self, kind: tuple[str | None, str | None, bool], request: _Request) -> _Figures:
        """Expected figures of a class in the cell of its size."""
        inputs = request.inputs
        cell = Cell(*kind, size_class(inputs.tokens.estimate) // _SIZE_STEPS)
        place = self._cells.setdefault(cell, len(self._cells))
        served = cell.before
        board = request.moment.before
        yards = request.moment.yards
        x_nanos, x_ms = _expected(yards[0], inputs, cell.before)
        c_nanos, c_ms = _expected(yards[1], request.changed, cell.after)
        if not cell.is_newly_refused and (cell.before != cell.after or x_nanos != c_nanos):
            sides = (x_nanos, cell.before), (c_nanos, cell.after)
            self.unpriced.update((cell, model) for nanos, model in sides if model and nanos == UNKNOWN_COST)
        expected = 0
        if served is not None:
            forecast = board.forecast
            row = board.pool.row.get(served)
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
        named = replace(changed, policy=inputs.policy, policy_class=inputs.policy_class, requested=inputs.requested)
        return _Class(changed, request_options_of(changed), self._transform is None and named == inputs)

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
            key = str(self.cells[place].before), day
            self.lengths[key] = self.lengths.get(key, 0.0) + sums[place]

    def _note(self, account: str, request: _Request, after: Outcome) -> None:
        """Count a change, and keep a few as examples, different ones if there are."""
        record = request.record
        inputs = request.inputs
        before = record.chosen
        if after.model is None:
            self.refused[after.constraint, True] += 1
        elif before is None:  # traces do not say the constraint
            board = request.moment.before.with_dials(request_options_of(inputs))
            self.refused[decide_alone(inputs, board).constraint, False] += 1
        self.reroutes[before, after.model] += 1
        is_new = self.reroutes[before, after.model] == 1 and len(self.reroutes) <= _EXAMPLES
        if is_new or len(self.examples) < _EXAMPLES:
            old_text = describe(inputs, request.moment.before)
            text = INVALID if request.own.template is None else describe(request.changed, request.after)
            example = wire.SimulationExample(record.id, before, after.model, old_text, text, account)
            self.examples.insert(len(self.reroutes) - 1 if is_new else _EXAMPLES, example)
            del self.examples[_EXAMPLES:]


def _scored(own: _Class, template: wire.DecisionInput, board: Board) -> RequestClass | None:
    """The class of the score, if only the numbers of a request decide within ``own``."""
    if own.scored is None and not template.prefer and template.max_latency_ms is None:
        own.scored = RequestClass.of(template)
        own.eligible = board.order(template).eligible
        ids = board.pool.ids
        models = {*ids} if template.models is None else {*template.models}
        own.rows = [row for row in np.flatnonzero(own.eligible.passed).tolist() if ids[row] in models]
    return own.scored


class _States(Forecast):
    """The figures of some rows at several healths, once where they did not move. Columns have these as rows."""

    def __init__(self, boards: Sequence[Board], usable: Set[int]) -> None:
        self.pool = boards[0].pool
        self._columns = {}
        self._forecasts: list[Forecast] = []
        rows: list[int] = []
        lines: list[list[int]] = [[0] * len(self.pool)]
        last: Board | None = None
        for board in boards:
            change = board.find_change(last.version) if last is not None and last.lineage is board.lineage else None
            line = lines[-1].copy()
            for row in usable if change is None else change.rows & usable:
                line[row] = len(rows)
                rows.append(row)
                self._forecasts.append(board.forecast)
            lines.append(line)
            last = board
        self.rows: IntArray = np.array(rows, dtype=np.int64)
        self.lines = np.array(lines[1:])  # (boards, n): the entries of the rows
        self.place = {board: place for place, board in enumerate(boards)}

    def column(self, name: str) -> IntArray:
        """As in ``Forecast``."""
        if name not in self._columns:
            pairs = zip(self._forecasts, self.rows.tolist(), strict=True)
            self._columns[name] = np.array([getattr(forecast, name)[row] for forecast, row in pairs], np.int64)
        return self._columns[name]


def _decide_together(groups: Sequence[Sequence[_Request]]) -> None:
    """Decide groups of requests, a class in a group, over one pool."""
    boards = {request.after for group in groups for request in group}
    rows = {row for group in groups for row in group[0].own.rows}
    states = _States(sorted(boards, key=attrgetter("version")), rows)
    scored: dict[RequestClass | None, tuple[IntArray, IntArray]] = {}
    for group in groups:
        own = group[0].own
        if own.scored not in scored:
            assert own.scored is not None
            columns = Columns(states, own.scored)
            best_first, _ = columns.ranked(states.pool.quality[states.rows])
            scored[own.scored] = columns.latency_ms, np.argsort(best_first)
        late_ms, rank = scored[own.scored]
        lines = states.lines[np.ix_([states.place[request.after] for request in group], own.rows)]
        orders = np.argsort(rank[lines], axis=1).tolist()
        for request, line, order in zip(group, lines, orders, strict=True):
            request.outcome = _choose(request, late_ms[line], order)


def _choose(request: _Request, late_ms: IntArray, order: Sequence[int]) -> Outcome:
    """The decision of one request. ``late_ms``: by the rows of its class; ``order``: their places, best first."""
    tokens = request.inputs.tokens
    own = request.own
    template = own.template or request.inputs
    forecast = request.after.forecast
    is_free = template.budget_nanos is None and template.budget_tokens is None and not tokens.images
    all_fit = is_free and tokens.high <= forecast.least_room(template.max_output_tokens)
    check = None if all_fit else FitCheck(request.changed, forecast)
    is_refused = True
    try:
        for place in order:
            row = own.rows[place]
            if late_ms[place] > template.timeout_ms or row in forecast.open:
                is_refused = False
            elif check is None or check.fits(row):
                return Outcome(forecast.pool.ids[row])
        if is_refused and own.eligible is not None:
            return _refuse(request.changed, forecast, own.eligible)
    except CountTokens:
        pass
    return decide_alone(request.changed, request.after)


def _expected(yard: Board, inputs: wire.DecisionInput, model: str | None) -> tuple[int, int]:
    """Expected cost in nano-dollars, or ``UNKNOWN_COST``, and time in milliseconds of a class with a model."""
    board = yard.with_dials(request_options_of(inputs))
    if model is None or (row := board.pool.row.get(model)) is None:
        return 0, 0
    # Without the workload as learned by then, which moves all the time: the outcomes calibrate the figure.
    usual = replace(inputs, workload=None)
    return Ranking(RequestClass.of(usual)).key(board.forecast, row)[2:4]


def _joined(sums: FloatArray, moments: Sequence[NDArray[np.generic]]) -> FloatArray:
    """Add moments to sums, which may have fewer cells."""
    new = np.array(moments, dtype=np.float64).T
    new[: len(sums)] += sums
    return new


def decide_alone(inputs: wire.DecisionInput, board: Board) -> Outcome:
    """The first choice for one input, without the chain behind it. A refusal is not explained, which takes long."""
    order = board.order(inputs)
    try:
        fits = find_fits(inputs, board, order, FitCheck(inputs, board.forecast))
        if (first := next(fits, None)) is not None:
            return Outcome(board.pool.ids[first[-1]])
        if board.forecast.open:
            return Outcome(decide(inputs, board).legs[0].id)
    except CountTokens:
        if not inputs.tokens.counted:  # there is no text to count
            return decide_alone(replace(inputs, tokens=replace(inputs.tokens, counted=True)), board)
    except NoCandidates:
        pass
    return _refuse(inputs, board.forecast, order.eligible)


def _refuse(inputs: wire.DecisionInput, forecast: Forecast, eligible: Eligible) -> Outcome:
    """The refusal by the constraint that most models come to."""
    columns = find_first_failures(inputs, FitCheck(inputs, forecast), eligible)
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
