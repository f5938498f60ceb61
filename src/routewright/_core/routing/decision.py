"""A decision as callers see it: the model, its fallbacks, and the reason as a sentence or a table. It is small;
explanations are computed from the snapshots when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import astuple, replace

from routewright._core.money import usd
from routewright.wire import Candidate, Decided, DecisionInput, Reason, Rejection
from routewright.wire.money import usd_short
from routewright.wire.plain import PlainData, preformatted

from .board import Board
from .budget import own_room, plan_output
from .constraints import PASSES, REASONS, CountTokens, FitCheck, count_reasons, find_first_failures, name_reasons
from .decide import decide, walk
from .logarithms import IntArray
from .plan import OutputPlan, Plan
from .quality import MICRO
from .scoring import SCORE, UNKNOWN_COST, Weights, candidate

SHOWN = 6  # candidates in the table
NAMED = 3
CHECKED_ONE_BY_ONE = 64  # rows to check one by one; beyond these, arithmetic over the whole pool is faster
_FIRST_FIELDS = DecisionInput.__struct_fields__.index("prefer")
"""Later fields enter a digest only if they are set, which keeps the digests of older decisions."""
_REQUESTED = DecisionInput.__struct_fields__.index("requested")
_WHITELIST = REASONS.index(Reason.WHITELIST)
_CIRCUIT_OPEN = REASONS.index(Reason.CIRCUIT_OPEN)


def decision_of(inputs: DecisionInput, board: Board) -> Decision:
    """Decide one input. Raises ``NoCandidates`` if no model fits, ``CountTokens`` if the token bounds leave it open."""
    return Decision(decide(inputs, board), inputs, board)


def replay(inputs: DecisionInput, board: Board) -> Decision:
    """Decide a stored input, whose text cannot be counted any more. Raises ``NoCandidates``."""
    try:
        return decision_of(inputs, board)
    except CountTokens:
        counted = replace(inputs, tokens=replace(inputs.tokens, counted=True))
    return decision_of(counted, board)


class Decision(PlainData):
    """The model that serves a request, its fallbacks, and the reasons.

    ``candidates``, ``rejected``, ``reason`` and ``digest`` are computed when they are read; ``to_dict`` and ``to_json``
    compute all of them.
    """

    __slots__ = ("_best", "_boards", "_counts", "_health", "_output", "_plan", "input")
    _shape = Decided

    def __init__(self, plan: Plan, inputs: DecisionInput, board: Board | None) -> None:
        """``inputs``: the input of this request; a plan may serve several. Without a board, only the facts that a trace
        keeps are available."""
        self.input = inputs  # everything the decision was made from, without text
        self._plan = plan
        self._boards = None if board is None else board.boards
        self._health = None if board is None else board.forecast.health
        self._output: OutputPlan | None = None
        self._best: list[Candidate] | None = None
        self._counts: Mapping[Reason, int] | None = None

    def __repr__(self) -> str:
        return f"<Decision {self.model}, then {', '.join(self.chain) or 'nothing'}>"

    def _repr_html_(self) -> str:
        """Shown by notebooks."""
        return preformatted(self.reason)

    @property
    def _plain(self) -> Decided:
        return Decided(**{name: getattr(self, name) for name in Decided.__struct_fields__})

    @property
    def model(self) -> str:
        """Id of the chosen model."""
        return self._plan.legs[0].id

    @property
    def chain(self) -> list[str]:
        """Ids of the fallback models, in order."""
        return self._plan.models[1:]

    @property
    def output_cap(self) -> int | None:
        """The output cap sent to the chosen model; None for the model's own limit."""
        return self.output.cap

    @property
    def fallback_affordable(self) -> bool:
        """False if the budget pays only for the chosen model's answer."""
        return self.output.fallback_affordable

    @property
    def score(self) -> float:
        """Score of the chosen model, 0..1."""
        return self._shown()[0].score

    @property
    def front(self) -> list[Candidate]:
        """The best few candidates, the chosen one first. Cheap."""
        return self._shown().copy()

    @property
    def candidates(self) -> list[Candidate]:
        """All models that passed: preferred ones, then the others, best first. Walks the whole pool."""
        inputs = self.input
        board = self._snapshots
        ids = board.pool.ids
        columns = self._first_failures(board).tolist()
        ranked = board.order(inputs).among(board.pool, inputs.models)
        keys = list(walk(ranked, board.forecast.open, inputs.timeout_ms, lambda row: columns[row] == PASSES))
        if inputs.prefer:
            keys = [*dict.fromkeys((*(key for key in self._plan.front if ids[key[-1]] in inputs.prefer), *keys))]
        return [candidate(key, ids[key[-1]], inputs.timeout_ms) for key in keys or self._plan.front]

    @property
    def rejected(self) -> list[Rejection]:
        """All rejected models, with the first constraint each failed. Walks the whole pool."""
        board = self._snapshots
        check = FitCheck(self.input, board.forecast)
        return [
            Rejection(board.pool.ids[row], reason, check.worst_usd(row))
            for row, reason in enumerate(name_reasons(self._first_failures(board)))
            if reason is not None
        ]

    @property
    def rejected_counts(self) -> dict[Reason, int]:
        """How many models each constraint rejected, in the order of the constraints."""
        return dict(self._rejections())

    @property
    def reason(self) -> str:
        """The decision in one sentence, with its numbers (contract 2)."""
        plan = self._plan
        inputs = self.input
        rejections = self._rejections()
        if plan.is_shared and plan.last_reason is not None and plan.last_reason[0] is rejections:
            return plan.last_reason[1]
        best = plan.front[0]  # a ``Key``
        aim = f"goal={inputs.goal} strategy={inputs.strategy}"
        model = plan.ids[best[-1]]
        if inputs.weights is not None:
            aim = "weights " + " ".join(map("{}={}".format, Weights._fields, inputs.weights))
        cost = "price unknown" if best[2] == UNKNOWN_COST else f"cost {usd_short(usd(best[2]))}"
        warm = next((prefix.tokens for prefix in inputs.warm if prefix.model == model), None)
        cost += "" if warm is None else f" with {warm} tokens in a cache"
        preferred = ", which is preferred," if model in inputs.prefer else ""
        sentence = (
            f"{aim}: {model}{preferred} scored {-best[0] / SCORE:.2f} "
            f"(quality {-best[1] / MICRO:.2f}, {cost}, p50 {best[3] / 1000:.1f} s)"
        )
        if len(plan.front) > 1:
            second = plan.front[1]
            sentence += f"; runner-up {plan.ids[second[-1]]} {-second[0] / SCORE:.2f}"
        counts = dict(rejections)
        considered = len(plan.ids) - counts.pop(Reason.WHITELIST, 0)
        if counts:
            reasons = ", ".join([f"{count} " + reason for reason, count in counts.items()])
            sentence += f"; {sum(counts.values())} of {considered} rejected ({reasons})"
        if plan.passed_over:
            passed_over = ", ".join(f"{model} ({why})" for model, why in plan.passed_over)
            sentence += f"; preferred, but rejected: {passed_over}"
        if plan.is_shared:
            plan.last_reason = rejections, sentence
        return sentence

    @property
    def digest(self) -> str:
        """Fingerprint of input and plan. Equal digests mean equal decisions."""
        return digest_of(self.input, self._plan.models, self.output, -self._plan.front[0][0])

    @property
    def token_count(self) -> Literal["bounds", "estimated", "exact"]:
        """The origin of the token counts. ``exact``: counted in the chosen model's own vocabulary."""
        if not self.input.tokens.counted:
            return "bounds"
        length = self._plan.legs[0].length(self.input.tokens)
        return "exact" if length[0] == length[1] and not self.input.tokens.images else "estimated"

    @property
    def output(self) -> OutputPlan:
        """The chosen model's output cap, and whether a fallback stays affordable."""
        if self._output is None:
            self._output = plan_output(self._plan, self.input.tokens, own_room(self.input))
        return self._output

    @property
    def policy_class(self) -> str | None:
        """Name of the policy's class that applied; None if none did."""
        return self.input.policy_class or None

    def _shown(self) -> list[Candidate]:
        if self._best is None:
            self._best = self._plan.candidates(self.input.timeout_ms)
        return self._best

    def _rejections(self) -> Mapping[Reason, int]:
        """The counts the plan knows, else counted: row by row for a short whitelist, else by columns."""
        inputs = self.input
        if self._counts is None:
            self._counts = self._plan.rejections(inputs.tokens.high, inputs.budget_nanos, inputs.budget_tokens)
        if self._counts is not None:
            return self._counts
        board = self._snapshots
        if inputs.models is None or len(inputs.models) > CHECKED_ONE_BY_ONE or inputs.prefer:
            self._counts = count_reasons(self._first_failures(board))
            return self._counts
        check = FitCheck(inputs, board.forecast)
        columns = board.order(inputs).eligible.firsts
        counts = [0] * (PASSES + 1)
        rows = {board.pool.row[model] for model in inputs.models if model in board.pool.row}
        counts[_WHITELIST] = len(board.pool) - len(rows)
        for row in rows.difference([key[-1] for key in self._plan.front]):
            column = columns[row]
            if column == PASSES:
                column = self._plan.failed[row] if row in self._plan.failed else check.failure(row)
                if column == PASSES and row in board.forecast.open:
                    column = _CIRCUIT_OPEN
            counts[column] += 1
        self._counts = {reason: count for reason, count in zip(REASONS, counts, strict=False) if count}
        return self._counts

    def _first_failures(self, board: Board) -> IntArray:
        """Like ``find_first_failures``, but a probed model passes although its circuit is open."""
        inputs = self.input
        columns = find_first_failures(inputs, FitCheck(inputs, board.forecast), board.order(inputs).eligible)
        return np.where(np.arange(len(columns)) == self._plan.legs[0].row, PASSES, columns)

    @property
    def _snapshots(self) -> Board:
        assert self._boards is not None, "explaining a decision needs its snapshots"
        assert self._health is not None
        return self._boards.of(self._health)


def digest_of(inputs: DecisionInput, models: list[str], output: OutputPlan, score: int) -> str:
    """Fingerprint of a decision's input and plan: the models in order, the output cap, the first one's score."""
    every_field = astuple(inputs)
    every_field = (*every_field[:_REQUESTED], *every_field[_REQUESTED + 1 :])
    while len(every_field) > _FIRST_FIELDS and not every_field[-1]:
        every_field = every_field[:-1]
    return blake2b(msgspec.json.encode([every_field, [*models, *output, score]]), digest_size=16).hexdigest()


def explain(decision: Decision) -> str:
    """A decision as a table of about twenty lines of plain text."""
    candidates = decision.candidates[:SHOWN]
    roles = {model: f"fallback {number}" for number, model in enumerate(decision.chain, 1)}
    roles |= {candidate.model: "runner-up" for candidate in decision.front[1:2]} | {decision.model: "chosen"}
    rows = [("", "model", "score", "quality", "est. cost", "est. latency", "stability")]
    for entry in candidates:
        cost = "unknown" if entry.cost_usd is None else usd_short(entry.cost_usd)
        latency = f"{entry.latency_s:.1f} s{' late' if entry.late else ''}"
        figures = (f"{entry.score:.3f}", f"{entry.quality:.2f}", cost, latency, f"{entry.stability:.2f}")
        rows.append((roles.get(entry.model, ""), entry.model, *figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [decision.reason, ""]
    for role, model, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True)]
        lines.append("  ".join([role.ljust(widths[0]), model.ljust(widths[1]), *aligned]).rstrip())
    if further := len(decision.candidates) - len(candidates):
        lines.append(f"  and {further} more that fit")
    if decision.input.warm:
        warm = ", ".join(f"{entry.model} ({entry.tokens} tokens)" for entry in decision.input.warm)
        lines.append(f"  expected in a vendor's cache: {warm}")
    lines += ["", f"fallbacks: {', then '.join(decision.chain) or 'none'}"]
    phrases = ("are {:.0%} as long as usual", "take {:.0%} of the usual time")
    work = zip(phrases, decision.input.workload or (), strict=False)
    if effects := [how.format(2 ** (step / 4)) for how, step in work if step]:
        lines.append(f"this workload's answers {' and '.join(effects)}")
    if decision.policy_class:
        lines.append(f"the policy's class: {decision.policy_class}")
    if decision.output_cap is not None:
        after = "" if decision.fallback_affordable else "; the budget pays for no fallback after it"
        lines.append(f"output cap: {decision.output_cap} tokens{after}")
    by_reason: dict[Reason, list[str]] = {reason: [] for reason in decision.rejected_counts}
    for rejection in decision.rejected:
        by_reason[rejection.reason].append(rejection.model)
    lines.append(f"rejected: {len(decision.rejected) or 'none'}")
    for reason, models in by_reason.items():
        more = f" and {len(models) - NAMED} more" if len(models) > NAMED else ""
        lines.append(f"  {reason}: {', '.join(models[:NAMED])}{more}")
    return "\n".join(lines)
