"""Builds a plan: ``request -> constraints -> scores -> plan``, a plain function of values.

``build_plan`` walks down an order that is computed once per class of request, asks each model the request's own hard
questions, and stops when the plan is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from routewright.wire import DecisionInput

from .board import Board
from .budget import plan_output
from .constraints import Ask, Kind
from .money import nanos
from .policy import Laid
from .refusal import refusal
from .tokens import VOCABULARIES, Vocabulary

CHAIN_LENGTH = 3
"""Fallbacks besides the primary model."""
WALKED_FIRST = 24
"""Rows that are asked one by one before arithmetic over the whole pool pays."""


class Reading:
    """One input read against a board: what of the compiled snapshots concerns it."""

    def __init__(self, given: DecisionInput, board: Board) -> None:
        self.given = given
        self.board = board
        self.ask = Ask(given, board.outlook)
        self.order = board.order(given)

    def rows(self) -> Iterable[int]:
        """Eligible rows of the whitelist, best first."""
        order, models = self.order, self.given.models
        if models is not None:
            places = order.places
            return [order.rows[place] for place in sorted({places[model] for model in models if model in places})]
        return self._affordable() if self.ask.limited else order.rows

    def _affordable(self) -> Iterator[int]:
        """All rows; where the first few brought no plan, without those that the budget rules out at first sight."""
        yield from self.order.rows[:WALKED_FIRST]
        rest = self.order.array[WALKED_FIRST:]
        if len(rest):
            yield from rest[self.ask.affordable_at_best()[rest]].tolist()


class Plan:
    """Which models to call, in order, and what each may be asked for. Holds all that carrying it out needs."""

    __slots__ = ("ask", "expected_ms", "fallback_affordable", "front", "given", "output_cap", "pool", "reading", "rows")

    def __init__(self, reading: Reading, front: list[int], rows: list[int]) -> None:
        self.reading = reading
        self.given = reading.given
        self.ask = reading.ask
        self.pool = reading.board.outlook.pool
        self.front = front
        """Rows of the best few that fit."""
        self.rows = rows
        """Rows of the pool: the chosen model, then the chain."""
        self.expected_ms = reading.order.scores.latency
        """Expected time to the whole answer, one per row of the pool."""
        self.output_cap, self.fallback_affordable = plan_output(reading.ask, rows[0], rows[1:])

    def us_per_token(self, row: int) -> int:
        """How fast a model writes, in microseconds a token."""
        return self.ask.outlook.us_per_token[row]

    @property
    def models(self) -> list[str]:
        """Ids of the models, in order."""
        return [self.pool.ids[row] for row in self.rows]


def build_plan(given: DecisionInput, board: Board, laid: Laid | None = None) -> Plan:
    """Choose. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds leave it open.

    ``laid``, the policy that is already in the input, is only read to say what a refusal is due to.
    """
    reading = Reading(given, board)
    front = _front(reading) or _probe(reading)
    if not front:
        raise refusal(given, board, reading.order.eligible, laid)
    chain = _own_chain(reading, front) if given.fallback is None else _callers_chain(reading, front[0])
    return Plan(reading, front, [front[0], *chain])


def pays_for_any(given: DecisionInput, board: Board) -> bool:
    """Whether a budget pays, at first sight, for any model that may be asked. If not, none fits, and nobody has to look
    closer to know that."""
    reading = Reading(given, board)
    return bool((reading.ask.affordable_at_best() & board.outlook.pool.priced)[_askable(reading)].any())


def least_nanos(given: DecisionInput, board: Board) -> int | None:
    """What the cheapest model that may be asked needs of a budget, at first sight; None: none has a price."""
    reading, pool = Reading(given, board), board.outlook.pool
    rows = np.asarray(_askable(reading), dtype=np.int64)
    costs = reading.ask.picos_at_best()[rows[pool.priced[rows]]]
    return nanos(int(costs.min())) if len(costs) else None


def countable(given: DecisionInput, board: Board) -> Sequence[Vocabulary]:
    """The vocabularies in which a count can matter: the first alone where every model left is of it."""
    pool = board.outlook.pool
    first = VOCABULARIES[0]
    others = any(pool.measures[pool.measure[row]].tokenizer != first for row in Reading(given, board).rows())
    return VOCABULARIES if others else VOCABULARIES[:1]


def _askable(reading: Reading) -> Sequence[int]:
    """The rows that no snapshot rules out, of the whitelist if there is one."""
    models, order, row = reading.given.models, reading.order, reading.board.outlook.pool.row
    return order.rows if models is None else [row[model] for model in models if model in order.places]


def _front(reading: Reading) -> list[int]:
    """The best rows that fit, as many as a plan may need: four, and one of another provider than the first."""
    provider = reading.board.outlook.pool.provider
    satisfied = reading.order.one_provider
    front: list[int] = []
    for row in walk(reading, reading.ask.fits):
        if len(front) <= CHAIN_LENGTH:
            front.append(row)
            satisfied = satisfied or provider[row] != provider[front[0]]
        elif provider[row] != provider[front[0]]:
            return [*front, row]
        if satisfied and len(front) > CHAIN_LENGTH:
            break
    return front


def walk(reading: Reading, fits: Callable[[int], bool]) -> Iterator[int]:
    """Rows that fit, best first; those expected to be late come after all others, the fastest of them first."""
    latency, timeout_ms = reading.order.scores.latency, reading.given.timeout_ms
    closed = reading.board.outlook.open
    late = []
    for row in reading.rows():
        if row in closed:
            continue
        if latency[row] > timeout_ms:
            late.append(row)
        elif fits(row):
            yield row
    late.sort(key=latency.__getitem__)
    yield from filter(fits, late)


def _probe(reading: Reading) -> list[int]:
    """Where breakers alone stand in the way: the row whose breaker lets a probe through soonest."""
    probe_at = reading.board.outlook.open
    closed = [row for row in reading.rows() if row in probe_at and reading.ask.fits(row)]
    return [min(closed, key=probe_at.__getitem__)] if closed else []


def _own_chain(reading: Reading, front: list[int]) -> list[int]:
    """The next best that fit, the first of them from another provider where one exists."""
    provider = reading.board.outlook.pool.provider
    primary, *others = front
    for elsewhere in others:
        if provider[elsewhere] != provider[primary]:
            return [elsewhere, *[row for row in others if row != elsewhere]][:CHAIN_LENGTH]
    return others[:CHAIN_LENGTH]


def _callers_chain(reading: Reading, primary: int) -> list[int]:
    """The caller's own fallbacks in the caller's order, those that can serve the request."""
    given, ask, order, outlook = reading.given, reading.ask, reading.order, reading.board.outlook
    eligible = reading.board.eligible(Kind(given.needs, given.as_of, given.regions, named=True)).passed
    rows = (outlook.pool.row[model] for model in given.fallback or () if model in outlook.pool.row)
    able = [row for row in rows if row != primary and eligible[row] and order.clears(row)]
    return [row for row in able if row not in outlook.open and ask.fits(row)]
