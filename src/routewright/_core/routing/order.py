"""The eligible rows of a class of requests, best first. Immutable: ``follow`` makes the order for a new health."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

import numpy as np

from routewright.wire import DecisionInput

from .constraints import NO_BAR, Bar, Eligible
from .forecast import Forecast
from .logarithms import IntArray
from .plan import Leg
from .pool import Pool
from .scoring import Columns, Key, Ranking


class Order:
    """The order shared by all requests of a class."""

    _quality: Sequence[int] | None = None
    """The request's own qualities, which a policy's floor then applies to. None: the catalogue's."""

    def __init__(
        self,
        ranking: Ranking,
        eligible: Eligible,
        bar: Bar,
        keys: list[Key],
        of: dict[int, Key],
        one_provider: bool,
        legs: dict[int, Leg],
    ) -> None:
        self.ranking = ranking
        self.eligible = eligible
        """Results of the constraints that do not depend on the request's numbers; all rows of the order passed."""
        self.bar = bar
        self.keys = keys  # sorted: the best row first
        self.of = of  # the key of each row
        self.one_provider = one_provider  # all rows belong to one provider
        self._legs = legs

    @classmethod
    def compiled(cls, ranking: Ranking, forecast: Forecast, eligible: Eligible, bar: Bar) -> Order:
        """Sort all rows."""
        pool = forecast.pool
        columns = Columns(forecast, ranking.cls)
        if bar != NO_BAR:
            eligible = eligible.above(bar, pool.quality, columns.latency_ms)
        rows, scores = columns.ranked(pool.quality)
        keys = [columns.key(row, scores[row], pool.qualities[row]) for row in rows[eligible.passed[rows]].tolist()]
        of = {key[-1]: key for key in keys}
        return cls(ranking, eligible, bar, keys, of, _is_one(pool, of), {})

    def follow(self, forecast: Forecast, rows: Iterable[int]) -> Order | None:
        """The order after a change of these rows' health; None if it must be compiled again."""
        # Health changes several times a second, and each change moves a few rows. In the plain way each new board would
        # sort the catalogue again for every class in use; instead the rows that moved are taken out of the sorted keys
        # and put back by bisection. This rests on two facts: keys are unique, since they end in the row, and no part
        # of a row's key depends on the health of another. A key that is not where it was sorted in would spoil the
        # order for good, so then, and under a latency ceiling, where rows come and go, the order is compiled again.
        # ``test_followed_orders_equal_freshly_compiled_ones`` compares both after random publications.
        if self.bar.max_latency_ms is not None:
            return None  # rows may pass or fail the ceiling now
        keys = self.keys.copy()
        of = self.of.copy()
        legs = self._legs.copy()
        for row in rows:
            legs.pop(row, None)
            old_key = of.get(row)
            if old_key is None or (new_key := self.ranking.key(forecast, row)) == old_key:
                continue
            position = bisect_left(keys, old_key)
            if position == len(keys) or keys[position] != old_key:
                return None
            del keys[position]
            keys.insert(bisect_left(keys, new_key), new_key)
            of[row] = new_key
        return Order(self.ranking, self.eligible, self.bar, keys, of, self.one_provider, legs)

    def room(self, forecast: Forecast, cap: int | None) -> int:
        """Input tokens that fit every window beside the answer, ignoring rows that cannot write ``cap`` tokens."""
        window = forecast.pool.window
        if cap is not None:
            return min([window[row] for row in self.of if forecast.pool.max_output[row] >= cap], default=cap) - cap
        return min([window[row] - forecast.output[row] for row in self.of])

    def among(self, pool: Pool, models: Iterable[str] | None) -> Iterable[Key]:
        """The keys of the whitelisted rows (None: all), best first."""
        if models is None:
            return self.keys
        return sorted(map(self.of.__getitem__, self.of.keys() & {*map(pool.row.get, models)}))

    def key(self, forecast: Forecast, row: int) -> Key:
        """The key of any row, eligible or not."""
        return self.of.get(row) or self.ranking.key(forecast, row)

    def clears(self, forecast: Forecast, row: int) -> bool:
        """True if a row passes the policy's floor and ceiling, eligible or not."""
        floor, ceiling = self.bar
        if floor is not None and (self._quality or forecast.pool.qualities)[row] < floor:
            return False
        return ceiling is None or self.key(forecast, row)[3] <= ceiling

    def legs(self, forecast: Forecast, rows: Iterable[int]) -> tuple[Leg, ...]:
        """The legs of some rows, in their order."""
        legs = self._legs
        plan_legs = []
        for row in rows:
            if (leg := legs.get(row)) is None:
                leg = legs[row] = Leg.of(forecast, row, self.ranking.cls.cap)
            plan_legs.append(leg)
        return tuple(plan_legs)


class OwnOrder(Order):
    """The order of one request with a quality of its own for each row. Keys are made on demand."""

    def __init__(
        self,
        ranking: Ranking,
        columns: Columns,
        forecast: Forecast,
        eligible: Eligible,
        bar: Bar,
        quality: Sequence[int],
        legs: dict[int, Leg],
    ) -> None:
        column: IntArray = np.array(quality, dtype=np.int64)
        if bar != NO_BAR:
            eligible = eligible.above(bar, column, columns.latency_ms)
        rows, self._scores = columns.ranked(column)
        self._rows: list[int] = rows[eligible.passed[rows]].tolist()
        self._columns = columns
        self._outlook = forecast
        super().__init__(ranking, eligible, bar, [], {}, _is_one(forecast.pool, self._rows), legs)
        self._quality: Sequence[int] = quality

    def among(self, pool: Pool, models: Iterable[str] | None) -> Iterator[Key]:
        """As in ``Order``."""
        allowed = range(len(pool)) if models is None else {*map(pool.row.get, models)}
        return (self.key(self._outlook, row) for row in self._rows if row in allowed)

    def key(self, forecast: Forecast, row: int) -> Key:
        """As in ``Order``."""
        return self._columns.key(row, self._scores[row], self._quality[row])


class WarmOrder(Order):
    """An order in which models with a part of the prompt in their vendor's cache cost less."""

    def __init__(self, order: Order, forecast: Forecast, inputs: DecisionInput) -> None:
        self.__dict__.update(order.__dict__)
        self._order = order
        row_of = forecast.pool.row
        warm = {row_of[prefix.model]: prefix.tokens for prefix in inputs.warm if prefix.model in row_of}
        keys = [order.ranking.warmed(order.key(forecast, row), forecast, warm[row], inputs.tokens.best) for row in warm]
        self._warm = {key[-1]: key for key in keys}

    def among(self, pool: Pool, models: Iterable[str] | None) -> Iterator[Key]:
        """As in ``Order``."""
        allowed = self._warm.keys() if models is None else self._warm.keys() & {*map(pool.row.get, models)}
        warm = sorted(self._warm[row] for row in allowed if self.eligible.passed[row])
        return merge(warm, (key for key in self._order.among(pool, models) if key[-1] not in self._warm))

    def key(self, forecast: Forecast, row: int) -> Key:
        """As in ``Order``."""
        return self._warm.get(row) or self._order.key(forecast, row)


def _is_one(pool: Pool, rows: Iterable[int]) -> bool:
    """True if all rows belong to one provider."""
    providers = (pool.provider[row] for row in rows)
    first = next(providers, None)
    return all(provider == first for provider in providers)
