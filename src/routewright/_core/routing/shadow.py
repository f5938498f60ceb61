"""What the shadow of a policy decides for a call that has ended (``wire.Policy.shadow``). It calls no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from routewright.errors import InternalError, RouterError
from routewright.wire import DecisionInput, HealthSnapshot, PolicySnapshot, ShadowDecision

from .board import Boards
from .decision import replay
from .rebase import rebase
from .request_options import request_options_of


class Shadow(NamedTuple):
    """A shadow, and the snapshots that its call was decided with."""

    policy: PolicySnapshot
    boards: Boards
    """Those of plain requests."""
    health: HealthSnapshot

    def decide(
        self, decision_input: DecisionInput, policy: PolicySnapshot | None, metadata: Mapping[str, object]
    ) -> ShadowDecision:
        """Decide the same request, whose input is that under ``policy``. Never raises: a trace is not lost because of
        a shadow."""
        label = self.policy.version
        try:
            own_input = rebase(decision_input, policy, self.policy, metadata)
            board = self.boards.with_dials(request_options_of(own_input)).of(self.health)
            chosen = replay(own_input, board).front[0]
        except Exception as error:
            code = error.code if isinstance(error, RouterError) else InternalError.code
            return ShadowDecision(policy=label, reason=code)
        return ShadowDecision(policy=label, model=chosen.model, cost_usd=chosen.cost_usd)
