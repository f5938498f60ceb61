"""What-if questions: the single change that makes a model win, and the effect of losing a provider on a policy. Answers
are found by deciding again with one thing changed. Combinations of changes are not searched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import mark_unavailable
from routewright._core.policy import AppliedPolicy
from routewright.errors import NoCandidates
from routewright.wire import DecisionInput, Model, ModelHealth, PriceTier, Pricing, Reason
from routewright.wire.money import NANOS_PER_USD, usd_text
from routewright.wire.plain import Struct

from .board import Board, Boards
from .constraints import FitCheck, find_failures
from .decide import decide, find_fits
from .decision import Decision
from .quality import MICRO, micro
from .refusal import Search, find_admission, reasons_of
from .scoring import WEIGHTS

PARTS = 1_000  # prices and times are lowered in steps of a thousandth
HUNDREDTHS = 100

Lever = Literal["models", "prefer", "goal", "prices", "quality", "latency", "stability", "timeout_ms"]


class Change(Struct, frozen=True):
    """A single change that makes the model win."""

    what: Lever
    description: str
    value: float | None = None
    """The bound, by ``what``: a share of the present prices, a quality, seconds, a share of calls, or milliseconds."""


class WhyNot(Struct, frozen=True, kw_only=True):
    """Why a model is not chosen for a request; ``str`` explains it in a few lines."""

    model: str
    chosen: str | None
    """The chosen model; None if no model fits."""
    place: int | None
    """The model's rank among those that fit; None if it is rejected."""
    fitting: int
    is_preferred: bool = False
    """The request or its policy prefers the chosen model."""
    rejected_by: tuple[Reason, ...] = ()
    """All constraints the model fails, in order."""
    admission: str | None = None
    """The change that admits the model; None if it fits, or no change helps."""
    wins_then: bool = False
    """The model is chosen once it is admitted."""
    variable: str | None = None
    """The environment variable that the model's provider needs; None if the provider is configured, or unknown."""
    changes: tuple[Change, ...] = ()
    """Each makes the model win by itself; for a rejected model, after its admission."""

    def __str__(self) -> str:
        preferred = self.is_preferred
        if self.chosen == self.model:
            return f"{self.model} is chosen{', since it is preferred' if preferred else ''}."
        chosen = f"{self.chosen}, which is preferred," if preferred else self.chosen or "no model"
        if self.place is not None:
            lines = [f"{self.model} is number {self.place} of {self.fitting} models that fit; {chosen} is chosen."]
        else:
            lines = [f"{self.model} is rejected by {', '.join(self.rejected_by)}; {chosen} is chosen."]
            if self.admission is None:
                key = "" if self.variable is None else f" Set {self.variable} in the environment to use its provider."
                return "\n".join([*lines, f"No change of the request admits it.{key}"])
            then = " It is chosen then." if self.wins_then else ""
            lines.append(f"To be considered: {self.admission}.{then}")
        if not self.wins_then:
            lines.append("It would be chosen if, by itself," if self.changes else "No single change puts it first.")
        return "\n".join([*lines, *(f"  - {change.description}" for change in self.changes)])


class ProviderLoss(Struct, frozen=True):
    """The effect on a policy if one provider is unavailable."""

    provider: str
    model: str | None
    """The model chosen instead; None if no model fits."""


class ModelEnd(Struct, frozen=True):
    """A model of the plan that its vendor retires."""

    model: str
    deprecated_at: str


class PolicyCheck(Struct, frozen=True, kw_only=True):
    """The result of routing one request under a policy today."""

    policy: str
    id: str
    version: str
    policy_class: str = ""
    """The class that was checked, whatever the prompt; empty if the prompt decides."""
    allowed: int
    fitting: int = 0
    model: str | None = None
    """The chosen model; None if no model fits."""
    chain: tuple[str, ...] = ()
    estimated_cost_usd: float | None = None
    """The chosen model's expected cost; None if its price is unknown."""
    worst_cost_usd: float | None = None
    """The cost a budget must cover for the chosen model."""
    fallback_affordable: bool = True
    """False if the budget pays only for the chosen model's answer."""
    problem: str | None = None
    """Why no model fits, and what to change."""
    losses: tuple[ProviderLoss, ...] = ()
    ends: tuple[ModelEnd, ...] = ()
    """Models of the plan with a retirement date, soonest first."""

    @property
    def servable(self) -> bool:
        """True if the request can be served today."""
        return self.model is not None

    @property
    def breaks_without(self) -> list[str]:
        """Providers without which no model fits."""
        return [loss.provider for loss in self.losses if loss.model is None]


def why_not(inputs: DecisionInput, board: Board, model: str, applied_policy: AppliedPolicy | None = None) -> WhyNot:
    """Explain why ``model`` is not chosen for an input with counted tokens, to which ``applied_policy`` was applied.
    Takes about 0.1 s, since it decides some fifty times."""
    row = board.forecast.pool.row[model]
    order = board.order(inputs)
    check = FitCheck(inputs, board.forecast)
    fit = [key[-1] for key in find_fits(inputs, board, order, check)]
    failed = reasons_of(find_failures(inputs, check, order.eligible)[row])
    admitted, words = (failed and find_admission(inputs, board, row, set(failed), applied_policy)) or (inputs, None)
    winner = _chosen(inputs, board)
    hopeless = bool(failed) and words is None
    absent = Reason.PROVIDER_UNAVAILABLE in failed
    wins = not hopeless and _chosen(admitted, board) == model
    return WhyNot(
        model=model,
        chosen=winner,
        place=fit.index(row) + 1 if row in fit else None,
        fitting=len(fit),
        is_preferred=winner in inputs.prefer,
        rejected_by=tuple(failed),
        admission=words,
        wins_then=bool(failed) and wins,
        variable=board.boards.variables.get(model.partition("/")[0]) if absent else None,
        changes=() if hopeless or wins else tuple(_changes(admitted, board, row, applied_policy)),
    )


def _chosen(inputs: DecisionInput, board: Board) -> str | None:
    try:
        return decide(inputs, board).legs[0].id
    except NoCandidates:
        return None


def _changes(inputs: DecisionInput, board: Board, row: int, applied_policy: AppliedPolicy | None) -> Iterator[Change]:
    """Try each lever by itself, the caller's own first."""
    model = board.forecast.pool.models[row]
    others = tuple(preferred for preferred in inputs.prefer if preferred != model.id)
    if _chosen(replace(inputs, models=(model.id,), prefer=()), board) == model.id:
        text = f"models names it alone: [{model.id!r}]"
        yield Change("models", f"{text}, and prefer no other" if others else text)
    if _chosen(replace(inputs, prefer=(model.id, *others)), board) == model.id:
        yield Change("prefer", f"prefer names it first: {[model.id, *others]}")
    directions = [
        f"goal={goal} strategy={strategy}"
        for strategy, goals in WEIGHTS.items()
        for goal in goals
        if _chosen(replace(inputs, goal=goal, strategy=strategy, weights=None), board) == model.id
    ]
    if directions:
        policy = None if applied_policy is None else applied_policy.snapshot.policy
        by_policy = policy is not None and (policy.goal, policy.strategy, policy.weights) != (None, None, None)
        director = Search(inputs, board, applied_policy).by if by_policy else "the request"
        yield Change("goal", f"{director} asks for {', or '.join(directions)}")
    late_ms = _latency_ms(inputs, board, row)
    if late_ms > inputs.timeout_ms and _chosen(replace(inputs, timeout_ms=late_ms), board) == model.id:
        yield Change("timeout_ms", f"timeout_ms is at least {late_ms}, as long as it is expected to take", late_ms)
    yield from _changes_of_model(inputs, board, model)


def _changes_of_model(inputs: DecisionInput, board: Board, model: Model) -> Iterator[Change]:
    """The smallest improvement of each of the model's own figures that makes it win."""
    forecast = board.forecast
    row = board.pool.row[model.id]
    pricing = board.pool.models[row].pricing_per_1m

    def largest(most: int, world: Callable[[int], tuple[DecisionInput, Board]]) -> int | None:
        """The largest number with which the model wins; smaller ones only help. None if it loses even with 0."""
        if most < 0 or _chosen(*world(0)) != model.id:
            return None
        return bisect_left(range(1, most + 1), True, key=lambda number: _chosen(*world(number)) != model.id)

    def better(deficit: int) -> tuple[DecisionInput, Board]:
        quality = (HUNDREDTHS - deficit) / HUNDREDTHS
        if inputs.quality is None:
            return inputs, _board_with(board, replace(model, quality=quality))
        return replace(inputs, quality=(*inputs.quality[:row], micro(quality), *inputs.quality[row + 1 :])), board

    def faster(parts: int) -> tuple[DecisionInput, Board]:
        ttft_ms, us_per_token = (column[row] * parts // PARTS for column in (forecast.ttft_ms, forecast.us_per_token))
        return inputs, _board_in(board, model.id, ttft_ms=ttft_ms, us_per_token=us_per_token)

    def steadier(deficit: int) -> tuple[DecisionInput, Board]:
        return inputs, _board_in(board, model.id, stability=PARTS - deficit)

    if pricing is not None:

        def cheaper(parts: int) -> tuple[DecisionInput, Board]:
            changed = replace(model, pricing_per_1m=_scaled(pricing, parts), price_changes=None)
            return inputs, _board_with(board, changed)

        parts = largest(PARTS - 1, cheaper)
        if parts is not None:
            price = _scaled(pricing, parts)
            # all digits: rounded up, the model would lose
            usd_in, usd_out = (usd_text(round(usd * NANOS_PER_USD)) for usd in (price.input_usd, price.output_usd))
            text = f"its prices are at most {parts / 10:g} % of what they are: "
            text += f"${usd_in} in and ${usd_out} out per million tokens"
            yield Change("prices", text if parts else "it costs nothing", parts / PARTS)
    present = int(board.pool.quality[row]) if inputs.quality is None else inputs.quality[row]
    deficit = largest(HUNDREDTHS - 1 - present * HUNDREDTHS // MICRO, better)
    if deficit is not None:
        quality = (HUNDREDTHS - deficit) / HUNDREDTHS
        yield Change("quality", f"its quality is at least {quality:.2f}, not {present / MICRO:.3g}", quality)
    parts = largest(PARTS - 1, faster)
    if parts is not None:
        fast_s, slow_s = (_latency_ms(inputs, world_board, row) / 1000 for world_board in (faster(parts)[1], board))
        yield Change("latency", f"its answers take at most {fast_s:g} s, not {slow_s:g} s", fast_s)
    present = forecast.stability[row]
    deficit = largest(PARTS - 1 - present, steadier)
    if deficit is not None:
        share = (PARTS - deficit) / PARTS
        yield Change("stability", f"at least {share:.1%} of its calls succeed, not {present / PARTS:.1%}", share)


def _latency_ms(inputs: DecisionInput, board: Board, row: int) -> int:
    """The expected time to the whole answer."""
    return board.order(inputs).key(board.forecast, row)[3]


def check_policy(inputs: DecisionInput, board: Board, applied_policy: AppliedPolicy) -> PolicyCheck:
    """Check a policy with one request: an input with counted tokens and the policy applied."""
    snapshot = applied_policy.snapshot
    pool = board.forecast.pool
    allowed = len(pool) if snapshot.models is None else len(snapshot.models)
    result = PolicyCheck(policy=snapshot.policy.name, id=snapshot.policy.id, version=snapshot.version, allowed=allowed)
    try:
        plan = decide(inputs, board, applied_policy)
    except NoCandidates as error:
        return replace(result, problem=error.message)
    check = FitCheck(inputs, board.forecast)
    decision = Decision(plan, inputs, board)
    primary = plan.legs[0]
    rows = [key[-1] for key in find_fits(inputs, board, board.order(inputs), check)] or [leg.row for leg in plan.legs]
    models = [pool.models[leg.row] for leg in plan.legs]
    served = frozenset(model.id for model in pool.models if model.provider != primary.provider)
    rest = board.with_models(mark_unavailable(pool.models, served))
    ends = [ModelEnd(model.id, model.deprecated_at) for model in models if model.deprecated_at is not None]
    return replace(
        result,
        fitting=len(rows),
        model=decision.model,
        chain=tuple(decision.chain),
        estimated_cost_usd=decision.front[0].cost_usd,
        worst_cost_usd=check.worst_usd(primary.row),
        fallback_affordable=decision.fallback_affordable,
        losses=tuple(
            # losing another provider does not change the first choice: ranks are independent
            ProviderLoss(provider, _chosen(inputs, rest) if provider == primary.provider else primary.id)
            for provider in sorted({pool.provider[row] for row in rows})
        ),
        ends=tuple(sorted(ends, key=lambda end: end.deprecated_at)),
    )


def _scaled(pricing: Pricing, parts: int) -> Pricing:
    """Prices lowered to ``parts`` thousandths."""

    def lower(holder: Pricing | PriceTier) -> dict[str, float]:
        prices = {name: getattr(holder, name) for name in holder.__struct_fields__ if name.endswith("_usd")}
        return {name: round(usd * parts / PARTS, 9) for name, usd in prices.items() if usd is not None}

    return replace(pricing, tiers=tuple(replace(tier, **lower(tier)) for tier in pricing.tiers), **lower(pricing))


def _board_with(board: Board, new_model: Model) -> Board:
    """The board with one model changed."""
    return board.with_models(new_model if model.id == new_model.id else model for model in board.forecast.pool.models)


def _board_in(board: Board, model: str, **seen: int) -> Board:
    """The board with one model's health changed."""
    changed = replace(board.forecast.health.models.get(model, ModelHealth()), **seen)
    return Boards(board.forecast.pool).of(health_snapshot({**board.forecast.health.models, model: changed}))
