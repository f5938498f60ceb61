"""Would a policy's requests be served? Decides one request as routing would, and again without each provider."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from routewright.errors import NoCandidates
from routewright.wire import Availability, DecisionInput, Model

from .policy import Laid
from .routing.board import Board
from .routing.constraints import Ask
from .routing.decide import decide, fitting
from .routing.decision import Decision
from .routing.plan import Plan
from .routing.pool import Pool


class ProviderLoss(Struct, frozen=True):
    """What becomes of a policy's requests while one provider serves nothing."""

    provider: str
    model: str | None
    """Who is chosen then; None: nobody fits, the policy breaks."""


class ModelEnd(Struct, frozen=True):
    """A model of the plan that its vendor gives up."""

    model: str
    deprecated_at: str


class PolicyCheck(Struct, frozen=True, kw_only=True):
    """What routing one request under a policy comes to today."""

    policy: str
    id: str
    version: str
    allowed: int
    """Models that the policy's own lists leave."""
    fitting: int = 0
    """Models that serve the request."""
    model: str | None = None
    """Who is chosen; None: nobody fits."""
    chain: tuple[str, ...] = ()
    estimated_cost_usd: float | None = None
    """Expected of the chosen model. None: its price is unknown."""
    worst_cost_usd: float | None = None
    """What a budget must hold for the chosen model."""
    fallback_affordable: bool = True
    """False: the budget pays for the chosen model's answer alone."""
    problem: str | None = None
    """Why nobody fits, and what to change."""
    losses: tuple[ProviderLoss, ...] = ()
    """One for each provider of the models that fit."""
    ends: tuple[ModelEnd, ...] = ()
    """Models of the plan that have a date from which they are served no longer, the soonest first."""

    @property
    def servable(self) -> bool:
        """Whether the request is served today."""
        return self.model is not None

    @property
    def breaks_without(self) -> list[str]:
        """Providers whose loss leaves nobody."""
        return [loss.provider for loss in self.losses if loss.model is None]


def check(given: DecisionInput, board: Board, laid: Laid) -> PolicyCheck:
    """Check a policy by one request: its input with counted tokens, over which the policy was laid."""
    snapshot, pool = laid.published, board.outlook.pool
    policy = snapshot.policy
    allowed = len(pool) if snapshot.models is None else len(snapshot.models)
    said = PolicyCheck(policy=policy.name, id=policy.id, version=snapshot.version, allowed=allowed)
    try:
        plan = decide(given, board, laid)
    except NoCandidates as error:
        return replace(said, problem=error.message)
    ask, decision = Ask(given, board.outlook), Decision(plan, given, board)
    rows = [key[-1] for key in fitting(given, board, board.order(given), ask)] or [leg.row for leg in plan.legs]
    providers = sorted({pool.provider[row] for row in rows})
    return replace(
        said,
        fitting=len(rows),
        model=decision.model,
        chain=tuple(decision.chain),
        estimated_cost_usd=decision.front[0].cost_usd,
        worst_cost_usd=ask.worst_usd(plan.legs[0].row),
        fallback_affordable=decision.fallback_affordable,
        losses=tuple(ProviderLoss(lost, _chosen_without(lost, plan, board)) for lost in providers),
        ends=tuple(_ends(plan, pool)),
    )


def _chosen_without(provider: str, plan: Plan, board: Board) -> str | None:
    """The first choice stays who it is while others are lost: no model's place depends on another."""
    if provider != plan.legs[0].provider:
        return plan.legs[0].id
    without = board.with_models(_lost(model, provider) for model in board.pool.models)
    try:
        return decide(plan.given, without).legs[0].id
    except NoCandidates:
        return None


def _lost(model: Model, provider: str) -> Model:
    if model.provider != provider:
        return model
    return replace(model, availability=Availability("unavailable", model.availability.regions))


def _ends(plan: Plan, pool: Pool) -> list[ModelEnd]:
    models = [pool.models[leg.row] for leg in plan.legs]
    ends = [ModelEnd(model.id, model.deprecated_at) for model in models if model.deprecated_at is not None]
    return sorted(ends, key=lambda end: end.deprecated_at)
