"""Chooses a model and its fallbacks: ``request -> constraints -> scores -> plan``, a plain function of values.

``decide`` walks down an order that is computed once per class of request, asks each model the request's own hard
questions, and stops when the plan is full. Everything that explains the choice is worked out when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from routewright.wire import Candidate, DecisionInput, Reason, Rejection

from .budget import Room, plan_output
from .constraints import Ask, BoolArray, Eligible, Kind, count_reasons, failures, first_reasons, kind_of, whitelist_rows
from .money import usd, usd_short
from .outlook import Outlook
from .quality import MICRO
from .refusal import refusal
from .scale import IntArray
from .scoring import SCORE, TERM, RequestClass, Scores, class_of

RULES = 1
"""Version of the scoring rules, in every ``DecisionInput``: other rules cannot replay it."""
CHAIN_LENGTH = 3
"""Fallbacks besides the primary model."""
_ORDERS_KEPT = 512

K = TypeVar("K")
V = TypeVar("V")


class Order(NamedTuple):
    """The eligible rows of a request class, best first."""

    rows: list[int]
    array: IntArray
    """The same rows."""
    place: dict[int, int]
    """Where each row stands."""
    providers: int
    """How many providers they belong to."""


class Board:
    """Compiled snapshots with the orders that follow from them. One per catalogue and health; safe to share."""

    def __init__(self, outlook: Outlook) -> None:
        self.outlook = outlook
        self._eligible: dict[Kind, Eligible] = {}
        self._scores: dict[RequestClass, Scores] = {}
        self._figures: dict[RequestClass, Figures] = {}
        self._orders: dict[tuple[RequestClass, Kind], Order] = {}

    def eligible(self, kind: Kind) -> Eligible:
        """Answers to the catalogue's own questions for one kind of request."""
        found = self._eligible.get(kind)
        return found if found is not None else _keep(self._eligible, kind, Eligible(self.outlook.pool, kind))

    def scores(self, cls: RequestClass) -> Scores:
        """Scores of one class of request."""
        found = self._scores.get(cls)
        return found if found is not None else _keep(self._scores, cls, Scores(self.outlook, cls))

    def figures(self, cls: RequestClass) -> Figures:
        """Figures of one class of request at the catalogue's own qualities."""
        found = self._figures.get(cls)
        if found is not None:
            return found
        return _keep(self._figures, cls, Figures(self.outlook, self.scores(cls), self.outlook.pool.quality))

    def order(self, given: DecisionInput, cls: RequestClass, kind: Kind) -> Order:
        """Eligible rows, best first; computed anew only where the request brings its own qualities."""
        if given.quality is not None:
            return self._ordered(cls, kind, quality_of(given, self.outlook))
        found = self._orders.get((cls, kind))
        if found is not None:
            return found
        return _keep(self._orders, (cls, kind), self._ordered(cls, kind, self.outlook.pool.quality))

    def _ordered(self, cls: RequestClass, kind: Kind, quality: IntArray) -> Order:
        order = self.scores(cls).order(quality)
        order = order[self.eligible(kind).passed[order]]
        rows: list[int] = order.tolist()
        providers = len({self.outlook.pool.provider[row] for row in rows})
        return Order(rows, order, {row: place for place, row in enumerate(rows)}, providers)


class Figures:
    """The numbers behind an order, worked out for a row when somebody reads them."""

    def __init__(self, outlook: Outlook, scores: Scores, quality: IntArray) -> None:
        self.scores = scores
        self._outlook = outlook
        self._quality = quality
        self._level = scores.quality_term(quality)
        self._score = scores.score(quality)
        self._candidates: dict[int, Candidate] = {}

    def candidate(self, row: int) -> Candidate:
        """The numbers of one row."""
        found = self._candidates.get(row)
        if found is None:
            found = self._candidates[row] = self._candidate(row)
        return found

    def _candidate(self, row: int) -> Candidate:
        scores, pool = self.scores, self._outlook.pool
        terms = self._level[row], scores.cost_term[row], scores.latency_term[row], scores.stability_term[row]
        quality, cost, latency, stability = (int(term) / TERM for term in terms)
        return Candidate(
            model=pool.ids[row],
            score=int(self._score[row]) / SCORE,
            quality=int(self._quality[row]) / MICRO,
            cost_usd=usd(int(scores.cost_nanos[row])) if pool.prices[row] else None,
            latency_s=scores.latency[row] / 1000,
            stability=int(self._outlook.stability[row]) / 1000,
            terms=(quality, cost, latency, stability),
        )


class Reading:
    """One input read against a board: what of the compiled snapshots concerns it."""

    def __init__(self, given: DecisionInput, board: Board) -> None:
        self.given = given
        self.board = board
        self.ask = Ask(given, board.outlook)
        self.kind = kind_of(given)
        self.cls = request_class(given)
        self.scores = board.scores(self.cls)
        self.order = board.order(given, self.cls, self.kind)

    def rows(self) -> list[int]:
        """Eligible rows of the whitelist, best first, without those that the budget rules out at first sight."""
        order = self.order
        allowed = whitelist_rows(self.given, self.board.outlook.pool)
        if allowed is not None:
            return sorted(allowed & order.place.keys(), key=order.place.__getitem__)
        if self.ask.limited:
            affordable: list[int] = order.array[self.ask.affordable_at_best()[order.array]].tolist()
            return affordable
        return order.rows

    def figures(self) -> Figures:
        """The numbers behind the order."""
        if self.given.quality is None:
            return self.board.figures(self.cls)
        return Figures(self.board.outlook, self.scores, quality_of(self.given, self.board.outlook))


class Summary(NamedTuple):
    """What is kept of a decision once the call is over: a few values that hold on to nothing large."""

    model: str
    chain: list[str]
    output_cap: int | None
    fallback_affordable: bool
    front: list[Candidate]
    """The best few that passed, the chosen one first."""
    rejected: dict[Reason, int]
    token_count: Literal["bounds", "estimated", "exact"]
    """What is known of the input's tokens, for the chosen model's vocabulary."""

    def digest(self, given: DecisionInput) -> str:
        """Fingerprint of input and plan: equal digests are equal decisions."""
        score = round(self.front[0].score * SCORE)
        plan = [self.model, *self.chain, self.output_cap, self.fallback_affordable, score]
        return blake2b(msgspec.json.encode([given, plan]), digest_size=16).hexdigest()


class Decision:
    """Which model serves a request, which ones follow if it fails, and why.

    Plain facts are attributes; ``candidates``, ``rejected``, ``reason`` and ``digest`` are worked out when read.
    """

    def __init__(self, reading: Reading, front: list[int], plan: list[int]) -> None:
        given = reading.given
        self.input = given
        self.plan = plan
        """Rows of the pool: the chosen model, then the chain."""
        self.ask = reading.ask
        self.board = reading.board
        self.output_plan = plan_output(self.ask, plan[0], plan[1:], Room(given.budget_nanos, given.budget_tokens))
        self._reading = reading
        self._front = front
        self._table: BoolArray | None = None

    def __repr__(self) -> str:
        return f"<Decision {self.model}, then {', '.join(self.chain) or 'nothing'}>"

    @property
    def model(self) -> str:
        """Id of the chosen model."""
        return self.board.outlook.pool.ids[self.plan[0]]

    @property
    def chain(self) -> list[str]:
        """Ids of the fallback models, in order."""
        ids = self.board.outlook.pool.ids
        return [ids[row] for row in self.plan[1:]]

    @property
    def output_cap(self) -> int | None:
        """Output tokens the chosen model is asked for at most; None: its own limit."""
        return self.output_plan.cap

    @property
    def fallback_affordable(self) -> bool:
        """False: the budget pays for the chosen model's answer alone."""
        return self.output_plan.fallback_affordable

    @property
    def score(self) -> float:
        """Score of the chosen model, 0..1."""
        return self.candidate(self.plan[0]).score

    @property
    def candidates(self) -> list[Candidate]:
        """Every model that passed, best first. Costs a walk over the whole pool."""
        failed = set(np.flatnonzero(self._failures().any(axis=1)).tolist())
        return self._candidates(_walk(self._reading, lambda row: row not in failed))

    @property
    def front(self) -> list[Candidate]:
        """The best few that passed, without the whole walk."""
        return self._candidates(self._front)

    @property
    def rejected(self) -> list[Rejection]:
        """Every model that a constraint removed, with the first one that did. Costs a walk over the whole pool."""
        pool = self.board.outlook.pool
        return [
            Rejection(pool.ids[row], reason, self.ask.worst_usd(row))
            for row, reason in enumerate(first_reasons(self._failures()))
            if reason is not None
        ]

    @property
    def rejected_counts(self) -> dict[Reason, int]:
        """How many models each constraint removed, in the order of the constraints."""
        if self.input.models is None and not self.board.outlook.open and self.ask.fits_all():
            return self.board.eligible(self._reading.kind).counts
        return count_reasons(self._failures())

    @property
    def reason(self) -> str:
        """One sentence from the decision's own numbers (contract 2)."""
        given, best = self.input, self.candidate(self.plan[0])
        cost = "price unknown" if best.cost_usd is None else f"cost {usd_short(best.cost_usd)}"
        sentence = (
            f"goal={given.goal} strategy={given.strategy}: {best.model} scored {best.score:.2f} "
            f"(quality {best.quality:.2f}, {cost}, p50 {best.latency_s:.1f} s)"
        )
        if len(self._front) > 1:
            runner_up = self.candidate(self._front[1])
            sentence += f"; runner-up {runner_up.model} {runner_up.score:.2f}"
        if counts := self.rejected_counts:
            listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            sentence += f"; {sum(counts.values())} of {len(self.board.outlook.pool)} rejected ({listed})"
        return sentence

    @property
    def digest(self) -> str:
        """Fingerprint of input and plan: equal digests are equal decisions."""
        return self.summary().digest(self.input)

    def summary(self) -> Summary:
        """What is kept of it."""
        return Summary(
            self.model,
            self.chain,
            self.output_cap,
            self.fallback_affordable,
            self.front,
            self.rejected_counts,
            self.token_count,
        )

    @property
    def token_count(self) -> Literal["bounds", "estimated", "exact"]:
        """What is known of the input's tokens: bounds, if these settled the matter; else a count, which is exact only
        in the chosen model's own vocabulary and an estimate with a margin in any other."""
        if not self.input.tokens.counted:
            return "bounds"
        low, high = self.ask.input[self.board.outlook.pool.vocabulary[self.plan[0]]]
        return "exact" if low == high else "estimated"

    def candidate(self, row: int) -> Candidate:
        """The numbers of one row, whether it passed or not."""
        return self._candidates((row,))[0]

    def _candidates(self, rows: Iterable[int]) -> list[Candidate]:
        figures, timeout_s = self._reading.figures(), self.input.timeout_ms / 1000
        found = [figures.candidate(row) for row in rows]
        return [replace(each, late=True) if each.latency_s > timeout_s else each for each in found]

    @property
    def expected_ms(self) -> list[int]:
        """Expected time to the whole answer, one per row of the pool."""
        return self._reading.scores.latency

    def _failures(self) -> BoolArray:
        if self._table is None:
            eligible = self.board.eligible(self._reading.kind)
            self._table = failures(self.input, self.board.outlook, eligible)
        return self._table


def decide(given: DecisionInput, board: Board) -> Decision:
    """Choose. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds leave it open."""
    reading = Reading(given, board)
    front = _front(reading) or _probe(reading)
    if not front:
        raise refusal(given, board.outlook, board.eligible(reading.kind))
    chain = _own_chain(reading, front) if given.fallback is None else _callers_chain(reading, front[0])
    return Decision(reading, front, [front[0], *chain])


def _front(reading: Reading) -> list[int]:
    """The best rows that fit, as many as a plan may need: four, and one of another provider than the first."""
    provider = reading.board.outlook.pool.provider
    satisfied = reading.order.providers == 1
    front: list[int] = []
    for row in _walk(reading, reading.ask.fits):
        if len(front) <= CHAIN_LENGTH:
            front.append(row)
            satisfied = satisfied or provider[row] != provider[front[0]]
        elif provider[row] != provider[front[0]]:
            return [*front, row]
        if satisfied and len(front) > CHAIN_LENGTH:
            break
    return front


def _walk(reading: Reading, fits: Callable[[int], bool]) -> Iterator[int]:
    """Rows that fit, best first; those expected to be late come after all others, the fastest of them first."""
    latency, timeout_ms = reading.scores.latency, reading.given.timeout_ms
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
    elsewhere = next((row for row in others if provider[row] != provider[primary]), None)
    if elsewhere is None:
        return others[:CHAIN_LENGTH]
    return [elsewhere, *(row for row in others if row != elsewhere)][:CHAIN_LENGTH]


def _callers_chain(reading: Reading, primary: int) -> list[int]:
    """The caller's own fallbacks in the caller's order, those that can serve the request."""
    outlook, ask = reading.board.outlook, reading.ask
    eligible = reading.board.eligible(reading.kind._replace(named=True)).passed
    rows = (outlook.pool.row[model] for model in reading.given.fallback or () if model in outlook.pool.row)
    return [r for r in rows if r != primary and eligible[r] and r not in outlook.open and ask.fits(r)]


def request_class(given: DecisionInput) -> RequestClass:
    """The class whose order serves this request."""
    return class_of(given.goal, given.strategy, given.tokens.estimate, given.max_output_tokens)


def quality_of(given: DecisionInput, outlook: Outlook) -> IntArray:
    """The quality column of a decision, in millionths: its own, else the catalogue's."""
    return outlook.pool.quality if given.quality is None else np.array(given.quality, dtype=np.int64)


def _keep(kept: dict[K, V], key: K, value: V) -> V:
    """Remember a computed value; forget all when there are too many, which costs one computation each."""
    if len(kept) >= _ORDERS_KEPT:
        kept.clear()
    kept[key] = value
    return value
