"""Chooses a model and its fallbacks: ``request -> constraints -> scores -> plan``, a plain function of values.

``decide`` walks down an order that is computed once per class of request, asks each model the request's own hard
questions, and stops when the plan is full. Everything that explains the choice is worked out when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from routewright.wire import Candidate, DecisionInput, Reason, Rejection

from .board import Board
from .budget import plan_output
from .constraints import PASSES, Ask, Kind, count_reasons, first_failures, named_reasons
from .money import usd_short
from .refusal import refusal
from .scale import IntArray
from .scoring import SCORE

RULES = 1
"""Version of the scoring rules, in every ``DecisionInput``: other rules cannot replay it."""
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
        self.outlook = reading.board.outlook
        self.output_plan = plan_output(self.ask, plan[0], plan[1:])
        self._reading = reading
        self._front = front
        self._first: IntArray | None = None

    def __repr__(self) -> str:
        return f"<Decision {self.model}, then {', '.join(self.chain) or 'nothing'}>"

    @property
    def model(self) -> str:
        """Id of the chosen model."""
        return self.outlook.pool.ids[self.plan[0]]

    @property
    def chain(self) -> list[str]:
        """Ids of the fallback models, in order."""
        ids = self.outlook.pool.ids
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
        first = self._first_failures().tolist()
        return self._candidates(_walk(self._reading, lambda row: first[row] == PASSES))

    @property
    def front(self) -> list[Candidate]:
        """The best few that passed, without the whole walk."""
        return self._candidates(self._front)

    @property
    def rejected(self) -> list[Rejection]:
        """Every model that a constraint removed, with the first one that did. Costs a walk over the whole pool."""
        pool = self.outlook.pool
        return [
            Rejection(pool.ids[row], reason, self.ask.worst_usd(row))
            for row, reason in enumerate(named_reasons(self._first_failures()))
            if reason is not None
        ]

    @property
    def rejected_counts(self) -> dict[Reason, int]:
        """How many models each constraint removed, in the order of the constraints."""
        first, eligible = self._first_failures(), self._reading.order.eligible
        return eligible.counts.copy() if first is eligible.first else count_reasons(first)

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
            sentence += f"; {sum(counts.values())} of {len(self.outlook.pool)} rejected ({listed})"
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
        low, high = self.ask.input[self.outlook.pool.vocabulary[self.plan[0]]]
        return "exact" if low == high else "estimated"

    def candidate(self, row: int) -> Candidate:
        """The numbers of one row, whether it passed or not."""
        return self._candidates((row,))[0]

    def _candidates(self, rows: Iterable[int]) -> list[Candidate]:
        order, timeout_s = self._reading.order, self.input.timeout_ms / 1000
        found = [order.candidate(row) for row in rows]
        return [replace(each, late=True) if each.latency_s > timeout_s else each for each in found]

    @property
    def expected_ms(self) -> list[int]:
        """Expected time to the whole answer, one per row of the pool."""
        return self._reading.order.scores.latency

    def _first_failures(self) -> IntArray:
        if self._first is None:
            self._first = first_failures(self.input, self.ask, self._reading.order.eligible)
        return self._first


def decide(given: DecisionInput, board: Board) -> Decision:
    """Choose. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds leave it open."""
    reading = Reading(given, board)
    front = _front(reading) or _probe(reading)
    if not front:
        raise refusal(given, board.outlook, reading.order.eligible)
    chain = _own_chain(reading, front) if given.fallback is None else _callers_chain(reading, front[0])
    return Decision(reading, front, [front[0], *chain])


def _front(reading: Reading) -> list[int]:
    """The best rows that fit, as many as a plan may need: four, and one of another provider than the first."""
    provider = reading.board.outlook.pool.provider
    satisfied = reading.order.one_provider
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
    elsewhere = next((row for row in others if provider[row] != provider[primary]), None)
    if elsewhere is None:
        return others[:CHAIN_LENGTH]
    return [elsewhere, *(row for row in others if row != elsewhere)][:CHAIN_LENGTH]


def _callers_chain(reading: Reading, primary: int) -> list[int]:
    """The caller's own fallbacks in the caller's order, those that can serve the request."""
    given, ask, outlook = reading.given, reading.ask, reading.board.outlook
    eligible = reading.board.eligible(Kind(given.needs, given.as_of, given.regions, named=True)).passed
    rows = (outlook.pool.row[model] for model in given.fallback or () if model in outlook.pool.row)
    return [r for r in rows if r != primary and eligible[r] and r not in outlook.open and ask.fits(r)]
