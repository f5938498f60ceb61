"""Compiled snapshots and the orders that follow from them: what one request's decision shares with all others.

An order is computed once per class of request and is then exact for each of them; nothing here knows a request's own
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from routewright.wire import Candidate, DecisionInput, HealthSnapshot, Model

from .catalogue import snapshot
from .constraints import NO_BAR, Bar, Eligible, Kind
from .money import usd
from .outlook import Outlook
from .pool import Pool
from .quality import MICRO
from .scale import IntArray, size_class
from .scoring import SCORE, TERM, WEIGHTS, RequestClass, Scores, Weights

_KEPT = 512
"""Computed values of a kind that a board remembers at most, fewer where ..."""
_KEPT_ROWS = 1 << 17
"""... they have many rows: some 200 bytes each."""
BOARDS_KEPT = 4

OrderKey = tuple[tuple[int, int, int, int], int, int | None, int, str, tuple[str, ...], bool, int | None, int | None]
"""A ``RequestClass``, a ``Kind`` and a ``Bar`` in one, which is quicker to look up."""

K = TypeVar("K")
V = TypeVar("V")


class Order:
    """The eligible rows of one class of request, best first, and the numbers behind that."""

    def __init__(self, outlook: Outlook, eligible: Eligible, scores: Scores, quality: IntArray, bar: Bar) -> None:
        order = scores.order(quality)
        if bar != NO_BAR:
            eligible = eligible.above(bar, quality, scores.latency_ms)
        self.eligible = eligible
        self.scores = scores
        self.array = order[eligible.passed[order]]
        self.rows: list[int] = self.array.tolist()
        self._outlook = outlook
        self._quality = quality
        self._bar = bar
        self._places: dict[str, int] | None = None
        self._one_provider: bool | None = None
        self._figures: tuple[IntArray, IntArray] | None = None
        self._candidates: dict[int, Candidate] = {}

    @property
    def places(self) -> dict[str, int]:
        """Where each model stands."""
        if self._places is None:
            ids = self._outlook.pool.ids
            self._places = {ids[row]: place for place, row in enumerate(self.rows)}
        return self._places

    @property
    def one_provider(self) -> bool:
        """All rows belong to one provider."""
        if self._one_provider is None:
            provider = self._outlook.pool.provider
            self._one_provider = all(provider[row] == provider[self.rows[0]] for row in self.rows)
        return self._one_provider

    def clears(self, row: int) -> bool:
        """Whether a row is good and quick enough, be it eligible or not."""
        floor, ceiling = self._bar
        good = floor is None or bool(self._quality[row] >= floor)
        return good and (ceiling is None or self.scores.latency[row] <= ceiling)

    def candidate(self, row: int) -> Candidate:
        """The numbers of one row, worked out when somebody reads them."""
        found = self._candidates.get(row)
        if found is None:
            found = self._candidates[row] = self._candidate(row)
        return found

    def _candidate(self, row: int) -> Candidate:
        scores, pool = self.scores, self._outlook.pool
        if self._figures is None:
            self._figures = scores.quality_term(self._quality), scores.score(self._quality)
        level, score = self._figures
        terms = level[row], scores.cost_term[row], scores.latency_term[row], scores.stability_term[row]
        quality, cost, latency, stability = (int(term) / TERM for term in terms)
        return Candidate(
            model=pool.ids[row],
            score=int(score[row]) / SCORE,
            quality=int(self._quality[row]) / MICRO,
            cost_usd=usd(int(scores.cost_nanos[row])) if pool.prices[row] else None,
            latency_s=scores.latency[row] / 1000,
            stability=int(self._outlook.stability[row]) / 1000,
            terms=(quality, cost, latency, stability),
        )


class Boards:
    """The boards of one catalogue: the last few that were asked for. Safe to share."""

    def __init__(
        self, pool: Pool, aliases: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.pool = pool
        self.aliases = aliases or {}
        """Short names of models, which policies may use."""
        self.variables = variables or {}
        """What the environment would have to hold for a provider to be there, by its name."""
        self._latest: tuple[Board, ...] = ()

    def of(self, health: HealthSnapshot) -> Board:
        """The board of one health; compiled anew, in a millisecond or so, if it is none of the last few."""
        for board in self._latest:
            if board.outlook.health.id == health.id:
                return board
        board = Board(self, Outlook(self.pool, health))
        self._latest = (board, *self._latest[: BOARDS_KEPT - 1])
        return board


class Board:
    """The orders of one catalogue and health, computed as they are needed. Safe to share."""

    def __init__(self, boards: Boards, outlook: Outlook) -> None:
        self.boards = boards
        """Where it, and those of other times, can be had again."""
        self.outlook = outlook
        self._kept = min(_KEPT, _KEPT_ROWS // max(1, len(outlook.pool)) + 1)
        self._orders: dict[OrderKey, Order] = {}
        self._eligible: dict[Kind, Eligible] = {}
        self._scores: dict[RequestClass, Scores] = {}

    def with_models(self, models: Iterable[Model]) -> Board:
        """The board of other models at the same health, for questions of what would be."""
        before = self.outlook.pool
        pool = Pool(snapshot(tuple(models), before.snapshot.as_of), before.as_of)
        return Boards(pool, self.boards.aliases).of(self.outlook.health)

    def order(self, given: DecisionInput) -> Order:
        """The order that serves an input; made anew only where the request brings its own qualities."""
        size, cap = size_class(given.tokens.estimate), given.max_output_tokens
        cap_size = None if cap is None else size_class(cap)
        named = given.models is not None
        key = (
            given.weights or WEIGHTS[given.strategy][given.goal], size, cap_size,
            given.needs, given.as_of, given.regions, named,
            given.min_quality, given.max_latency_ms,
        )  # fmt: skip
        if given.quality is not None:
            return self._order(key, np.array(given.quality, dtype=np.int64))
        found = self._orders.get(key)
        return (
            found if found is not None else self._keep(self._orders, key, self._order(key, self.outlook.pool.quality))
        )

    def eligible(self, kind: Kind) -> Eligible:
        """Answers to the catalogue's own questions for one kind of request."""
        found = self._eligible.get(kind)
        return found if found is not None else self._keep(self._eligible, kind, Eligible.of(self.outlook.pool, kind))

    def _order(self, key: OrderKey, quality: IntArray) -> Order:
        cls, kind, bar = RequestClass(Weights(*key[0]), *key[1:3]), Kind(*key[3:7]), Bar(*key[7:])
        scores = self._scores.get(cls)
        if scores is None:
            scores = self._keep(self._scores, cls, Scores(self.outlook, cls))
        return Order(self.outlook, self.eligible(kind), scores, quality, bar)

    def _keep(self, kept: dict[K, V], key: K, value: V) -> V:
        """Remember a computed value; forget all when there are too many, which costs one computation each."""
        if len(kept) >= self._kept:
            kept.clear()
        kept[key] = value
        return value
