"""The eligible rows of one class of request, best first. Never changed: where health moved, another order follows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .constraints import NO_BAR, Bar, Eligible
from .outlook import Outlook
from .plan import Leg
from .pool import Pool
from .scale import IntArray
from .scoring import Columns, Key, Ranking


class Order:
    """One for all requests of a class; ``OwnOrder`` for a request that brings its own qualities."""

    def __init__(
        self,
        ranking: Ranking,
        eligible: Eligible,
        bar: Bar,
        keys: list[Key],
        of: dict[int, Key],
        *,
        one_provider: bool,
        legs: dict[int, Leg],
        tightest: tuple[int, int] | None = None,
    ) -> None:
        self.ranking = ranking
        self.eligible = eligible
        """Answers to the questions that need no numbers of the request; all rows of the order passed."""
        self.bar = bar
        self.keys = keys
        """Sorted: the best row first."""
        self.of = of
        """The key of each row."""
        self.one_provider = one_provider
        """All rows belong to one provider."""
        self._legs = legs
        self._tightest = tightest
        """The least room of a window beside the expected answer, and whose it is."""

    @classmethod
    def compiled(cls, ranking: Ranking, outlook: Outlook, eligible: Eligible, bar: Bar) -> Order:
        """Put all rows in order at once."""
        pool, columns = outlook.pool, ranking.columns(outlook)
        if bar != NO_BAR:
            eligible = eligible.above(bar, pool.quality, columns.latency_ms)
        keys = columns.keys(pool.quality, np.flatnonzero(eligible.passed))
        of, one_provider = {key[-1]: key for key in keys}, _is_one(pool, (key[-1] for key in keys))
        return cls(ranking, eligible, bar, keys, of, one_provider=one_provider, legs={})

    def follow(self, outlook: Outlook, moved: Iterable[int]) -> Order | None:
        """The order of an outlook in which only some rows moved; None where it has to be compiled anew."""
        if self.bar.max_latency_ms is not None:
            return None  # rows may come and go
        keys, of, legs, tightest = self.keys.copy(), self.of.copy(), self._legs.copy(), self._tightest
        for row in moved:
            legs.pop(row, None)
            before = of.get(row)
            if before is None:
                continue
            if tightest is not None:
                tightest = None if row == tightest[1] else min(tightest, _room(outlook, row))
            if (after := self.ranking.key(outlook, row)) == before:
                continue
            place = bisect_left(keys, before)
            if place == len(keys) or keys[place] != before:
                return None
            del keys[place]
            keys.insert(bisect_left(keys, after), after)
            of[row] = after
        one_provider = self.one_provider
        return Order(
            self.ranking, self.eligible, self.bar, keys, of, one_provider=one_provider, legs=legs, tightest=tightest
        )  # fmt: skip

    def room(self, outlook: Outlook, cap: int | None) -> int:
        """Input tokens for which every row's window has room beside its answer, if it can write one so long at all."""
        if cap is not None:
            window, most = outlook.pool.window, outlook.pool.max_output
            return min([window[row] for row in self.of if most[row] >= cap], default=cap) - cap
        if self._tightest is None:
            self._tightest = min([_room(outlook, row) for row in self.of])
        return self._tightest[0]

    def among(self, pool: Pool, models: Iterable[str] | None) -> Iterable[Key]:
        """The keys of a whitelist's rows, or of all, best first."""
        if models is None:
            return self.keys
        wanted = self.of.keys() & {*map(pool.row.get, models)}
        return sorted(map(self.of.__getitem__, wanted))

    def key(self, outlook: Outlook, row: int) -> Key:
        """The key of any row, eligible or not."""
        return self.of.get(row) or self.ranking.key(outlook, row)

    def clears(self, outlook: Outlook, row: int) -> bool:
        """Whether a row is good and quick enough, be it eligible or not."""
        floor, ceiling = self.bar
        if floor is None and ceiling is None:
            return True
        key = self.key(outlook, row)
        return (floor is None or -key[1] >= floor) and (ceiling is None or key[3] <= ceiling)

    def legs(self, outlook: Outlook, rows: Iterable[int]) -> tuple[Leg, ...]:
        """What a plan needs of some rows, in their order."""
        made, legs = self._legs, []
        for row in rows:
            leg = made.get(row)
            if leg is None:
                leg = made[row] = Leg(outlook, row, self.ranking.cls.cap)
            legs.append(leg)
        return tuple(legs)


class OwnOrder(Order):
    """The order of one request that brings a quality for each row. Keys are made as they are asked for."""

    def __init__(
        self,
        ranking: Ranking,
        columns: Columns,
        outlook: Outlook,
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
        self._outlook = outlook
        self._quality = quality
        one_provider = _is_one(outlook.pool, self._rows)
        super().__init__(ranking, eligible, bar, [], {}, one_provider=one_provider, legs=legs)

    def among(self, pool: Pool, models: Iterable[str] | None) -> Iterator[Key]:
        """As in ``Order``."""
        if models is None:
            return (self.key(self._outlook, row) for row in self._rows)
        wanted = {pool.row.get(model, -1) for model in models}
        return (self.key(self._outlook, row) for row in self._rows if row in wanted)

    def key(self, outlook: Outlook, row: int) -> Key:
        """As in ``Order``."""
        return self._columns.key(row, self._scores[row], self._quality[row])


def _room(outlook: Outlook, row: int) -> tuple[int, int]:
    return outlook.pool.window[row] - outlook.output[row], row


def _is_one(pool: Pool, rows: Iterable[int]) -> bool:
    """Whether all rows belong to one provider."""
    providers = (pool.provider[row] for row in rows)
    first = next(providers, None)
    return all(each == first for each in providers)
