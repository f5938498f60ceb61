"""Replays decisions from stored snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from routewright._core.policy import AppliedPolicy
from routewright._core.routing.board import MOST_BOARDS, Board, Boards
from routewright._core.routing.decision import Decision, replay
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.request_options import request_options_of
from routewright._engine.fleet import Fleet
from routewright.errors import NotFound
from routewright.wire import CatalogueSnapshot, DecisionInput, HealthSnapshot, PolicySnapshot, Snapshot

T = TypeVar("T")


class Replays:
    """Replays decisions with the snapshots of one Router and its storage."""

    def __init__(
        self,
        fleets: Callable[[], Sequence[Fleet]],
        policies: Callable[[], Sequence[PolicySnapshot]],
        snapshot: Callable[[str], Snapshot | None],
    ) -> None:
        """``policies``: those that are published. ``snapshot`` reads a stored one by its id."""
        self._fleets = fleets
        self._policies = policies
        self._read_stored = snapshot
        self._boards: Callable[[str, str], Boards] = lru_cache(MOST_BOARDS)(self._compile_boards)

    def decide(self, decision_input: DecisionInput) -> Decision:
        """Replay a decision. Raises ``NotFound`` if a snapshot of its input is not known."""
        # A replay must not see the present: prices, health and policies have changed since. So it reads nothing but the
        # input and the snapshots that this names. A fleet of this Router lends only its compiled board, and only if its
        # catalogue is the one of the input; health comes from the snapshot unless it is still the same. Where the
        # result could differ, by other scoring rules or without the predictor that was used, it is refused: no replay
        # is better than a wrong one (P14: the same decision from the same input).
        # Tests: test_a_trace_replays_to_the_same_decision_after_health_changed, test_old_decisions_replay_bit_for_bit,
        # test_a_decision_whose_snapshots_are_gone_cannot_be_replayed.
        self.applied_policy(decision_input)
        return replay(decision_input, self.board(decision_input))

    def board(self, decision_input: DecisionInput) -> Board:
        """The board that an input was decided on. Raises ``NotFound``."""
        if decision_input.rules != RULES:
            raise NotFound(f"the decision needs scoring rules {decision_input.rules}; this version has rules {RULES}")
        if decision_input.reading is not None and decision_input.quality is not None:
            raise NotFound("the decision used a quality predictor that this version lacks, so it cannot be replayed")
        dials = request_options_of(decision_input)
        for fleet in self._fleets():
            if fleet.pool.snapshot.id == decision_input.catalogue:
                health = fleet.board().forecast.health
                if health.id != decision_input.health:
                    health = self._snapshot(decision_input.health, HealthSnapshot)
                return fleet.boards_on(decision_input.as_of).with_dials(dials).of(health)
        boards = self._boards(decision_input.catalogue, decision_input.as_of).with_dials(dials)
        return boards.of(self._snapshot(decision_input.health, HealthSnapshot))

    def applied_policy(self, decision_input: DecisionInput) -> AppliedPolicy | None:
        """The policy that an input names. Raises ``NotFound`` if it is not known: its rules are in the other fields, so
        an input under another policy's id would be a decision that nobody took."""
        if decision_input.policy is None:
            return None
        published = [snapshot for policy in self._policies() for snapshot in (policy, *policy.classes)]
        known = next((snapshot for snapshot in published if snapshot.id == decision_input.policy), None)
        snapshot = known or self._snapshot(decision_input.policy, PolicySnapshot)
        if decision_input.requested is not None:
            return AppliedPolicy(snapshot, decision_input.requested.models, decision_input.requested)
        return AppliedPolicy(snapshot, decision_input.models if decision_input.models != snapshot.models else None)

    def _compile_boards(self, catalogue: str, as_of: str) -> Boards:
        return Boards(Pool(self._snapshot(catalogue, CatalogueSnapshot), as_of))

    def _snapshot(self, snapshot_id: str, kind: type[T]) -> T:
        snapshot = self._read_stored(snapshot_id)
        if not isinstance(snapshot, kind):
            what = kind.__name__.removesuffix("Snapshot").lower()
            raise NotFound(f"{what} snapshot {snapshot_id!r} is not stored, so the decision cannot be replayed")
        return snapshot
