"""Compiled snapshots and their orders, which all decisions share. A board is immutable. When health changes, a new
board replaces it and updates the earlier orders by the rows that moved. Nothing here depends on a request's numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from routewright._core.catalogue.models import snapshot
from routewright.wire import DecisionInput, HealthSnapshot, Model, ModelHealth

from .constraints import Bar, Eligible, Kind
from .forecast import UNKNOWN, USUAL, Forecast, Workload
from .logarithms import size_class
from .order import Order, OwnOrder, WarmOrder
from .plan import Leg, Plan
from .pool import Pool
from .request_options import RequestOptions
from .scoring import WEIGHTS, Columns, Ranking, RequestClass

MOST_PLANS = 512  # compiled plans cached per lineage
_MOST_ORDERS = 512  # orders cached per lineage ...
_MOST_ROWS = 1 << 17  # ... and rows in all of them, about 300 bytes each
MOST_CHANGES = 64
MOST_BOARDS = 4
MOST_DIALS = 16  # sets of dials whose pools are cached

OrderKey = tuple[
    tuple[int, int, int, int], int, int | None, Workload, int, str, tuple[str, ...], bool, int | None, int | None
]
"""A ``RequestClass``, a ``Kind`` and a ``Bar`` in one flat tuple, which hashes faster."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(dict[K, V | None]):
    """An approximate LRU cache of at most ``maximum`` values; ``cache[key]`` is None on a miss. Thread-safe without a
    lock."""

    def __init__(self, maximum: int) -> None:
        super().__init__()
        self._half = max(1, maximum // 2)
        self._old: dict[K, V | None] = {}

    def __missing__(self, key: K) -> V | None:
        if (value := self._old.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value, dropping the least recently used ones."""
        if len(self) >= self._half:
            self._old = dict(self)
            self.clear()
        self[key] = value


class Moves(NamedTuple):
    """The difference between a board and an earlier one."""

    rows: frozenset[int]
    circuits: bool
    """A circuit opened or closed, or its probe time changed."""


class BoardEntry(NamedTuple, Generic[V]):
    """A value and the latest board version it is known to hold for."""

    version: int
    value: V


class Lineage:
    """Caches shared by successive boards."""

    def __init__(self, rows: int) -> None:
        self.latest = 0
        """The version of the latest board. A second successor of the same board starts a new lineage."""
        self.orders: LruCache[OrderKey, BoardEntry[Order]] = LruCache(min(_MOST_ORDERS, _MOST_ROWS // max(1, rows) + 1))
        self.plans: LruCache[Hashable, BoardEntry[Plan | None]] = LruCache(MOST_PLANS)


class Boards:
    """Makes and caches the boards of one catalogue. Safe to share."""

    def __init__(
        self, pool: Pool, aliases: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.pool = pool
        self.aliases = aliases or {}  # of models; policies may use them
        self.variables = variables or {}
        """The environment variable that enables each unavailable provider, by its name."""
        self._latest: tuple[Board, ...] = ()
        self._eligible: LruCache[Kind, Eligible] = LruCache(_MOST_ORDERS)
        self._by_dials: LruCache[RequestOptions, Boards] = LruCache(MOST_DIALS)
        self._pairing: tuple[Board, Board] | None = None
        """For boards with dials: the latest one, and the plain board of the same health."""

    def of(self, health: HealthSnapshot) -> Board:
        """The board of a health snapshot. Compiled in about a millisecond if it is not one of the last few."""
        for board in self._latest:
            if board.forecast.health.id == health.id:
                return board
        return self.keep(Board(self, Forecast(self.pool, health)))

    def keep(self, board: Board) -> Board:
        """Remember a board as the latest."""
        self._latest = (board, *self._latest[: MOST_BOARDS - 1])
        return board

    def with_dials(self, dials: RequestOptions) -> Boards:
        """The boards of the same catalogue for requests with these dials."""
        if dials.tools and not self.pool.tools_or_reasoning:
            dials = dials._replace(tools=False)
        if dials == self.pool.dials:
            return self
        boards = self._by_dials[dials]
        if boards is None:
            boards = Boards(self.pool.with_dials(dials), self.aliases, self.variables)
            boards._eligible = self._eligible
            self._by_dials.put(dials, boards)
        return boards

    def follow(self, plain: Board) -> Board:
        """The board for these dials at the health of a plain board, derived from the previous one if possible."""
        pairing = self._pairing
        if pairing is not None and pairing[1] is plain:
            return pairing[0]
        change = None
        if pairing is not None and pairing[1].lineage is plain.lineage:
            change = plain.find_change(pairing[1].version)
        if pairing is None or change is None:
            board = self.of(plain.forecast.health)
        else:
            health = plain.forecast.health
            updates = {row: health.models.get(self.pool.ids[row], UNKNOWN) for row in change.rows}
            board = pairing[0].with_health(health, updates)
        self._pairing = board, plain
        return board

    def eligible(self, kind: Kind) -> Eligible:
        """The catalogue's constraints, checked for one kind of request."""
        eligible = self._eligible[kind]
        if eligible is None:
            eligible = Eligible.of(self.pool, kind)
            self._eligible.put(kind, eligible)
        return eligible


class Board:
    """The orders of one catalogue and health, computed on demand. Safe to share."""

    def __init__(
        self,
        boards: Boards,
        forecast: Forecast,
        lineage: Lineage | None = None,
        version: int = 0,
        changes: tuple[Moves, ...] = (),
    ) -> None:
        self.boards = boards
        self.forecast = forecast
        self.pool = forecast.pool
        self.snapshots = forecast.pool.snapshot, forecast.health
        self.lineage = lineage or Lineage(len(forecast.pool))
        self.version = version  # counts the boards of a lineage
        self.changes = changes  # from each earlier board to the next, the latest last
        self.ids: tuple[str, str, str | None] = (forecast.pool.snapshot.id, forecast.health.id, None)
        """Ids of the catalogue, health and policy snapshots; a board has no policy."""
        self._columns: dict[RequestClass, tuple[Columns, dict[int, Leg]]] = {}

    @property
    def health(self) -> str:
        """Id of the health snapshot."""
        return self.forecast.health.id

    def with_dials(self, dials: RequestOptions) -> Board:
        """The board for requests with these dials. Call it on a plain board."""
        boards = self.boards.with_dials(dials)
        return self if boards is self.boards else boards.follow(self)

    def with_health(self, health: HealthSnapshot, updates: Mapping[int, ModelHealth]) -> Board:
        """The board of a health that differs from this board's only in the rows of ``updates``."""
        forecast = self.forecast.with_health(health, updates)
        if self.lineage.latest != self.version:
            return self.boards.keep(Board(self.boards, forecast))
        self.lineage.latest = version = self.version + 1
        changes = (*self.changes[1 - MOST_CHANGES :], Moves(frozenset(updates), forecast.open != self.forecast.open))
        return self.boards.keep(Board(self.boards, forecast, self.lineage, version, changes))

    def find_change(self, version: int) -> Moves | None:
        """The change since an earlier version; None if it is no longer known."""
        gap = self.version - version
        if not 0 <= gap <= len(self.changes):
            return None
        changes = self.changes[len(self.changes) - gap :]
        if gap == 1:
            return changes[0]
        return Moves(frozenset().union(*[step.rows for step in changes]), any(step.circuits for step in changes))

    def with_models(self, models: Iterable[Model]) -> Board:
        """A board of other models at the same health, for what-if questions."""
        pool = Pool(snapshot(tuple(models), self.forecast.pool.snapshot.as_of), self.forecast.pool.as_of)
        return Boards(pool.with_dials(self.forecast.pool.dials), self.boards.aliases).of(self.forecast.health)

    def order(self, inputs: DecisionInput) -> Order:
        """The order for an input. Inputs of one class share it, unless they have own qualities or a warm prompt."""
        if inputs.warm:
            return WarmOrder(self.order(replace(inputs, warm=())), self.forecast, inputs)
        key = (
            inputs.weights or WEIGHTS[inputs.strategy][inputs.goal],
            size_class(inputs.tokens.estimate),
            None if inputs.max_output_tokens is None else size_class(inputs.max_output_tokens),
            inputs.workload or USUAL,
            inputs.needs,
            inputs.as_of,
            inputs.regions,
            inputs.models is not None,
            inputs.min_quality,
            inputs.max_latency_ms,
        )
        qualities = inputs.quality
        entry = self.lineage.orders[key] if qualities is None else None
        if entry is not None and entry.version == self.version:
            return entry.value
        order = None
        if entry is not None and (change := self.find_change(entry.version)) is not None:
            order = entry.value.follow(self.forecast, change.rows)
        if order is None:
            cls = RequestClass.of(inputs)
            eligible = self.boards.eligible(Kind(*key[4:8]))
            bar = Bar(*key[8:10])
            if qualities is not None:
                if cls not in self._columns:
                    if len(self._columns) >= _MOST_ROWS // max(1, len(self.pool)) + 1:
                        self._columns.clear()
                    self._columns[cls] = Columns(self.forecast, cls), {}
                columns, legs = self._columns[cls]
                return OwnOrder(Ranking(cls), columns, self.forecast, eligible, bar, qualities, legs)
            order = Order.compiled(Ranking(cls), self.forecast, eligible, bar)
        if entry is None or entry.version < self.version:
            self.lineage.orders.put(key, BoardEntry(self.version, order))
        return order
