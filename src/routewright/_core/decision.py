"""A decision as callers see it: which model, which ones follow, and why.

It holds a few values and on to nothing large; what explains the choice is worked out from snapshots when it is read.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import astuple, replace

from routewright.wire import Candidate, DecisionInput, Reason, Rejection
from routewright.wire.figures import usd_short

from .board import Board
from .constraints import PASSES, count_reasons, first_failures, named_reasons
from .plan import Plan, Reading, build_plan, walk
from .scale import IntArray
from .scoring import SCORE, Weights
from .tokens import length


def decide(given: DecisionInput, board: Board) -> Decision:
    """Choose. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds leave it open."""
    return Decision(build_plan(given, board))


def aim(given: DecisionInput) -> str:
    """What the score is after: goal and strategy, or a policy's own weights."""
    if given.weights is None:
        return f"goal={given.goal} strategy={given.strategy}"
    return "weights " + " ".join(f"{name}={share}" for name, share in zip(Weights._fields, given.weights, strict=True))


class Decision:
    """Which model serves a request, which ones follow if it fails, and why.

    Plain facts cost nothing; ``candidates``, ``rejected``, ``reason`` and ``digest`` are worked out when they are read.
    """

    __slots__ = (
        "_best",
        "_boards",
        "_counts",
        "_front",
        "_health",
        "_rows",
        "fallback_affordable",
        "input",
        "output_cap",
    )

    def __init__(self, plan: Plan) -> None:
        self.input = plan.given
        """All that it was made from, without text: a ``DecisionInput``."""
        self.output_cap = plan.output_cap
        """Output tokens the chosen model is asked for at most; None: its own limit."""
        self.fallback_affordable = plan.fallback_affordable
        """False: the budget pays for the chosen model's answer alone."""
        self._rows = plan.rows
        self._front = plan.front
        self._boards = plan.reading.board.boards
        self._health = plan.reading.board.outlook.health
        self._best: list[Candidate] | None = None
        self._counts: dict[Reason, int] | None = None

    def __repr__(self) -> str:
        return f"<Decision {self.model}, then {', '.join(self.chain) or 'nothing'}>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from .html import decision_html  # which nothing else needs

        return decision_html(self)

    @property
    def model(self) -> str:
        """Id of the chosen model."""
        return self._boards.pool.ids[self._rows[0]]

    @property
    def chain(self) -> list[str]:
        """Ids of the fallback models, in order."""
        ids = self._boards.pool.ids
        return [ids[row] for row in self._rows[1:]]

    @property
    def score(self) -> float:
        """Score of the chosen model, 0..1."""
        return self._shown()[0].score

    @property
    def front(self) -> list[Candidate]:
        """The best few that passed, the chosen one first, without the whole walk."""
        return self._shown().copy()

    @property
    def candidates(self) -> list[Candidate]:
        """Every model that passed, best first. Costs a walk over the whole pool."""
        reading = self._read()
        first = self._first_failures(reading).tolist()
        return self._candidates(reading, list(walk(reading, lambda row: first[row] == PASSES)) or self._front)

    @property
    def rejected(self) -> list[Rejection]:
        """Every model that a constraint removed, with the first one that did. Costs a walk over the whole pool."""
        reading = self._read()
        ids = self._boards.pool.ids
        return [
            Rejection(ids[row], reason, reading.ask.worst_usd(row))
            for row, reason in enumerate(named_reasons(self._first_failures(reading)))
            if reason is not None
        ]

    @property
    def rejected_counts(self) -> dict[Reason, int]:
        """How many models each constraint removed, in the order of the constraints."""
        return self._rejections().copy()

    @property
    def reason(self) -> str:
        """One sentence from the decision's own numbers (contract 2)."""
        given, (best, *others) = self.input, self._shown()
        cost = "price unknown" if best.cost_usd is None else f"cost {usd_short(best.cost_usd)}"
        sentence = (
            f"{aim(given)}: {best.model} scored {best.score:.2f} "
            f"(quality {best.quality:.2f}, {cost}, p50 {best.latency_s:.1f} s)"
        )
        if others:
            sentence += f"; runner-up {others[0].model} {others[0].score:.2f}"
        if counts := self._rejections():
            listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            sentence += f"; {sum(counts.values())} of {len(self._boards.pool)} rejected ({listed})"
        return sentence

    @property
    def digest(self) -> str:
        """Fingerprint of input and plan: equal digests are equal decisions."""
        plan = [self.model, *self.chain, self.output_cap, self.fallback_affordable, round(self.score * SCORE)]
        every_field = astuple(self.input)  # which ones an encoder leaves out is no matter of their values alone
        return blake2b(msgspec.json.encode([every_field, plan]), digest_size=16).hexdigest()

    @property
    def token_count(self) -> Literal["bounds", "estimated", "exact"]:
        """What is known of the input's tokens: bounds, if these settled the matter; else a count, which is exact only
        in the chosen model's own vocabulary and an estimate with a margin in any other."""
        tokens, pool = self.input.tokens, self._boards.pool
        if not tokens.counted:
            return "bounds"
        low, high, _ = length(tokens, pool.measures[pool.measure[self._rows[0]]])
        return "exact" if low == high and not tokens.images else "estimated"

    def settle(self, reading: Reading) -> None:
        """Work out what a trace keeps, while the reading of the plan is at hand."""
        self._shown(reading)
        self._rejections(reading)

    def _shown(self, reading: Reading | None = None) -> list[Candidate]:
        if self._best is None:
            self._best = self._candidates(reading or self._read(), self._front)
        return self._best

    def _rejections(self, reading: Reading | None = None) -> dict[Reason, int]:
        if self._counts is None:
            reading = reading or self._read()
            first, eligible = self._first_failures(reading), reading.order.eligible
            self._counts = eligible.counts if first is eligible.first else count_reasons(first)
        return self._counts

    def _candidates(self, reading: Reading, rows: list[int]) -> list[Candidate]:
        order, timeout_s = reading.order, self.input.timeout_ms / 1000
        found = [order.candidate(row) for row in rows]
        return [replace(each, late=True) if each.latency_s > timeout_s else each for each in found]

    def _first_failures(self, reading: Reading) -> IntArray:
        """As ``first_failures``, but that a probe passes, though its circuit is open."""
        first, chosen = first_failures(self.input, reading.ask, reading.order.eligible), self._rows[0]
        if first[chosen] != PASSES:
            first = np.where(np.arange(len(first)) == chosen, PASSES, first)
        return first

    def _read(self) -> Reading:
        return Reading(self.input, self._boards.of(self._health))
