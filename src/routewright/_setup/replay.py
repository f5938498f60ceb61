"""Replays decisions from stored snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from msgspec.structs import replace

from routewright._core.routing.board import MOST_BOARDS, Boards
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decision import Decision, decision_of
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.request_options import request_options_of
from routewright._engine.fleet import Fleet
from routewright.errors import NotFound
from routewright.wire import CatalogueSnapshot, DecisionInput, HealthSnapshot, Snapshot

T = TypeVar("T")


class Replays:
    """Replays decisions with the snapshots of one Router and its storage."""

    def __init__(self, fleets: Callable[[], Sequence[Fleet]], snapshot: Callable[[str], Snapshot | None]) -> None:
        self._fleets = fleets
        self._stored = snapshot
        self._boards: Callable[[str, str], Boards] = lru_cache(MOST_BOARDS)(self._compiled)

    def decide(self, given: DecisionInput) -> Decision:
        """Replay a decision. Raises ``NotFound`` if a snapshot of its input is no longer stored."""
        if given.rules != RULES:
            raise NotFound(
                f"the decision was made by scoring rules {given.rules}, which this version (rules {RULES}) lacks"
            )
        if given.reading is not None and given.quality is not None:
            raise NotFound("the decision used a quality predictor that this version lacks, so it cannot be replayed")
        dials, board = request_options_of(given), None
        for fleet in self._fleets():
            if fleet.pool.snapshot.id == given.catalogue:
                health = fleet.board().forecast.health
                if health.id != given.health:
                    health = self._snapshot(given.health, HealthSnapshot)
                board = fleet.boards_on(given.as_of).with_dials(dials).of(health)
                break
        if board is None:
            board = (
                self._boards(given.catalogue, given.as_of)
                .with_dials(dials)
                .of(self._snapshot(given.health, HealthSnapshot))
            )
        with suppress(CountTokens):
            return decision_of(given, board)
        # older versions refused without exact counts; there is no text to count now
        return decision_of(replace(given, tokens=replace(given.tokens, counted=True)), board)

    def _compiled(self, catalogue: str, as_of: str) -> Boards:
        return Boards(Pool(self._snapshot(catalogue, CatalogueSnapshot), as_of))

    def _snapshot(self, snapshot_id: str, kind: type[T]) -> T:
        found = self._stored(snapshot_id)
        if not isinstance(found, kind):
            raise NotFound(f"snapshot {snapshot_id!r} is no longer stored, so the decision cannot be replayed")
        return found
